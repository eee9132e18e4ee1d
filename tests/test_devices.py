"""Every attack on another device: on a GPU where there is one, and under its rules where there is none."""

from __future__ import annotations

import pytest
import torch

from attacks.test_contracts import CASES, Case, observe
from cases import batch
from elsewhere import Away, elsewhere
from leakgauge.compute import Budget, Compute
from leakgauge.observation import Reconstruction


def found(case: Case, compute: Compute, budget: Budget = Budget(gradient_evaluations=10)) -> Reconstruction:
    generator = torch.Generator().manual_seed(0)
    return case.attack.reconstruct(observe(case, batch(case.n)), generator, budget=budget, compute=compute)


def test_tensors_of_two_devices_do_not_meet() -> None:
    """The rules that the tests below rest on."""
    with elsewhere() as device:
        there, here = torch.ones(3).to(device), torch.ones(3)
        assert isinstance(there, Away)
        assert float((2 * there + torch.tensor(1.0)).sum().cpu()) == 9.0
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, device=device, generator=torch.Generator())
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_an_attack_elsewhere_finds_what_it_finds_here(case: Case) -> None:
    here = found(case, Compute())
    with elsewhere() as device:
        there = found(case, Compute(device=device))
    assert there.status is here.status, there.message
    assert (there.inputs is None) == (here.inputs is None)
    if here.inputs is not None and there.inputs is not None:
        assert there.inputs.device.type == "cpu"
        torch.testing.assert_close(there.inputs, here.inputs, rtol=1e-5, atol=1e-5)  # sums in another order


@pytest.fixture
def gpu() -> str:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    return "cuda"


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_an_attack_on_a_gpu_reaches_the_same_objective(case: Case, gpu: str) -> None:
    """In float64, over a few evaluations: float32 runs part ways."""
    here, there = (found(case, Compute(device=device, dtype=torch.float64)) for device in ("cpu", gpu))
    assert there.status is here.status, there.message
    if here.objective is not None:
        assert there.objective == pytest.approx(here.objective, rel=1e-5, abs=1e-8)
