"""What every attack must keep, over one table of cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cases import batch, task
from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.attacks.closed_form import LinearRead, PatchRead, RankOneRead
from leakgauge.attacks.closed_form.linear import ServerRead
from leakgauge.attacks.exact import Peeling
from leakgauge.attacks.matching import Adam, BoundedLBFGS, Cosine, JointSoftLabels, Matching, Pixels, SquaredL2, Uniform
from leakgauge.attacks.recipes import (
    AnyLossRead,
    Auto,
    OrderSearch,
    RowSpace,
    SpanFit,
    SpanRead,
    ci_net,
    dlg,
    idlg,
    inverting_gradients,
    qian_hansen,
    rog,
)
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import Defense, NoDefense, TopK
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, Mode
from leakgauge.update import Update


@dataclass(frozen=True)
class Case:
    """A registered attack, the network it runs on, and what it must reach there."""

    registered: str
    attack: Attack
    model: str = "smooth"
    n: int = 1
    protocol: Protocol = FedSGD()
    min_psnr: float | None = None
    defense: Defense | None = None

    @property
    def name(self) -> str:
        return f"{self.registered}-{self.model}-{self.n}-{type(self.protocol).__name__}"


SMOOTH = Matching(canvas=Pixels(first=Uniform()), minimiser=BoundedLBFGS(steps=250))
SHUFFLED = FedAvg(epochs=1, batch_size=1, lr=0.1, shuffle=True)
CASES = (
    Case("closed-form", LinearRead(), "flat", min_psnr=100),
    Case("closed-form", LinearRead(), "flat", protocol=FedAvg(epochs=3, lr=0.1), min_psnr=100),
    Case("peeling", Peeling(), "flat", n=2, min_psnr=100),
    Case("span-fit", SpanFit(), "flat", n=2, min_psnr=100),
    Case("span-read", SpanRead(), "dropped", n=2, min_psnr=60),
    Case("any-loss", AnyLossRead(), "flat", n=2, min_psnr=100),
    Case("rank-one", RankOneRead(), "unbiased", min_psnr=100),
    Case("patches", PatchRead(), "patched", min_psnr=100),
    Case("matching", SMOOTH, min_psnr=25),
    Case("matching", SMOOTH, n=2, min_psnr=15),
    Case("matching", SMOOTH, protocol=FedAvg(epochs=2, lr=0.1), min_psnr=25),
    Case("matching", Matching(minimiser=Adam(steps=150), labels=JointSoftLabels()), min_psnr=11),
    Case("inverting-gradients", inverting_gradients(steps=150, tv=1e-4), "relu", min_psnr=8),
    Case("dlg", dlg(restarts=3, steps=150)),
    Case("idlg", idlg(restarts=3, steps=150), min_psnr=15),
    Case("auto", Auto(smooth_steps=200), min_psnr=20),
    Case("auto", Auto(), "flat", min_psnr=100),
    Case("qian-hansen", qian_hansen(weight=1e-4, factor=1.0, minimiser=BoundedLBFGS(steps=100)), min_psnr=12),
    Case("row-space", RowSpace(minimiser=BoundedLBFGS(steps=60, scale=1e6), restarts=2), "dropped", min_psnr=40),
    Case("ci-net", ci_net(width=8, steps=80), min_psnr=10),
    Case("naive", Naive(attack=SMOOTH), min_psnr=25),
    Case("adapted", Adapted(attack=SMOOTH), defense=NoDefense(), min_psnr=25),
    Case("server-read", ServerRead()),
    Case("order-search", OrderSearch(attack=SMOOTH, heat=5), n=2, protocol=SHUFFLED, min_psnr=12),
    Case("rog", rog(steps=40, factor=2)),
)
ELSEWHERE = {
    "features": "features/test_features.py",
    "bins": "closed_form/test_row_differences.py",
    "tokens": "closed_form/test_tokens.py",
}
"""Registered attacks of texts, of trained or crafted networks, and the tests that hold their contracts."""


def observe(
    case: Case, b: Batch, *, labels: bool = True, defense: Defense | None = None, mode: Mode = Mode.EVAL
) -> Observation:
    t, defense = task(case.model, mode), defense or case.defense
    update = client_update(t, case.protocol, b, Draws(3), defense=defense)
    known = Knowledge(
        labels=b.labels if labels else None, example_count=len(b), local_training=case.protocol, defense=defense
    )
    return Observation(t, update, known)


def attack(case: Case, observation: Observation, seed: int = 5, **options: Any) -> Reconstruction:
    return case.attack.reconstruct(observation, torch.Generator().manual_seed(seed), **options)


@cache
def honest(case: Case) -> Reconstruction:
    """Found by who runs the attack once, as it is registered, on one client's update."""
    return attack(case, observe(case, batch(case.n)))


def psnr(found: Reconstruction, truth: Batch) -> float:
    assert found.inputs is not None
    return float(PSNR()(found.inputs.double(), truth.inputs).mean())


def tensors_in(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_in(value)
    elif isinstance(thing, tuple | list):
        for value in thing:
            yield from tensors_in(value)
    elif isinstance(thing, torch.nn.Module):
        yield from thing.state_dict().values()
    elif dataclasses.is_dataclass(thing):
        for f in dataclasses.fields(thing):
            yield from tensors_in(getattr(thing, f.name))


def test_5_every_registered_attack_is_in_the_table_and_says_what_it_needs() -> None:
    names = {case.registered for case in CASES}
    assert names | set(ELSEWHERE) == {entry.name for entry in ATTACKS}
    assert not names & set(ELSEWHERE)
    assert all((Path(__file__).parent / file).is_file() for file in ELSEWHERE.values())
    assert all(entry.needs and entry.summary for entry in ATTACKS)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_2_3_the_output_depends_on_the_observation_and_the_seed_alone(case: Case, tmp_path: Path) -> None:
    """Known defect (LeakPro): choosing the final image by its similarity to the secret."""
    truth = batch(case.n)
    observation, state = observe(case, truth), torch.random.get_rng_state()
    first = honest(case)
    assert torch.equal(torch.random.get_rng_state(), state), "an attack drew from the global generator"
    observation.update.save(tmp_path / "update.safetensors")
    labels = truth.labels.clone()
    truth.inputs.fill_(0.5)  # the hidden truth changes, what the attacker sees does not
    truth.labels.fill_(0)
    knowledge = dataclasses.replace(observation.knowledge, labels=labels)
    again = Observation(observation.task, Update.load(tmp_path / "update.safetensors"), knowledge)
    second = attack(case, again)
    assert (first.inputs is None) == (second.inputs is None)
    assert first.inputs is None or torch.equal(first.inputs, second.inputs)
    assert first.status is second.status
    assert first.cost.gradient_evaluations == second.cost.gradient_evaluations


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_2_no_tensor_within_reach_is_the_truth(case: Case) -> None:
    truth = batch(case.n)
    for tensor in tensors_in(observe(case, truth, labels=False)):
        assert tensor.numel() != truth.inputs.numel() or not torch.equal(tensor.flatten(), truth.inputs.flatten())
        assert tensor.data_ptr() not in (truth.inputs.data_ptr(), truth.labels.data_ptr())


@pytest.mark.parametrize("case", [c for c in CASES if c.min_psnr], ids=lambda c: c.name)
def test_reaches_what_it_should_and_beats_another_clients_update(case: Case) -> None:
    truth, other = batch(case.n), batch(case.n, seed=9)
    found = honest(case)
    mismatched = attack(case, observe(case, Batch(other.inputs, truth.labels)))
    assert found.status.has_result
    assert psnr(found, truth) >= case.min_psnr
    fewer = mismatched.inputs is None or len(mismatched.inputs) < case.n
    assert fewer or psnr(found, truth) > psnr(mismatched, truth) + 1


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_budget_is_kept_and_counted(case: Case) -> None:
    found = attack(case, observe(case, batch(case.n)), budget=Budget(gradient_evaluations=30))
    assert found.cost.gradient_evaluations <= 30
    if found.trace:
        evaluations = [e for e, _ in found.trace]
        assert evaluations == sorted(evaluations)
        assert found.cost.gradient_evaluations >= evaluations[-1] > 0


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_everything_unknown_is_a_status_and_never_an_exception(case: Case) -> None:
    truth = batch(case.n)
    t = task(case.model)
    update = client_update(t, case.protocol, truth, Draws(3), send_example_count=False)
    found = attack(case, Observation(t, update, Knowledge()), budget=Budget(gradient_evaluations=10))
    if not found.status.has_result:
        assert found.message
        assert found.inputs is None


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@pytest.mark.parametrize("value", [0.0, 1e30])
def test_a_degenerate_update_is_a_status_and_never_an_exception(case: Case, value: float) -> None:
    observation = observe(case, batch(case.n))
    broken = {k: torch.full_like(v, value) for k, v in observation.update.tensors.items()}
    found = attack(
        case,
        dataclasses.replace(observation, update=Update(broken, observation.update.header)),
        budget=Budget(gradient_evaluations=10),
    )
    assert isinstance(found.status, Status)
    assert found.inputs is None or bool(torch.isfinite(found.inputs).all())


@pytest.mark.parametrize("model", ["normed", "tabular"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_train_mode_batchnorm_and_sparse_updates_run(case: Case, model: str) -> None:
    """No probe sends one example through BatchNorm in train mode, nor writes into the buffers that were broadcast."""
    whole = dataclasses.replace(SHUFFLED, batch_size=2) if case.protocol is SHUFFLED else case.protocol
    normed = dataclasses.replace(case, model=model, n=2, protocol=whole)
    observation = observe(normed, batch(2), defense=TopK(keep=0.5), mode=Mode.TRAIN)
    before = {name: value.clone() for name, value in observation.task.buffers.items()}
    found = attack(normed, observation, budget=Budget(gradient_evaluations=20))
    assert found.status.has_result or found.message
    assert all(torch.equal(value, observation.task.buffers[name]) for name, value in before.items())


@pytest.mark.parametrize("restarts", [1, 3])
def test_7_a_matching_attack_gives_the_same_whole_and_in_chunks(restarts: int) -> None:
    observation = observe(Case("matching", SMOOTH), batch(1))
    for minimiser in (Adam(steps=50), BoundedLBFGS(steps=30)):
        parts = Matching(objective=Cosine(), minimiser=minimiser, restarts=restarts)
        found = [
            parts.reconstruct(
                observation, torch.Generator().manual_seed(1), compute=Compute(dtype=torch.float64, chunk=chunk)
            )
            for chunk in (None, 1, 2)
        ]
        for other in found[1:]:
            assert torch.allclose(found[0].inputs, other.inputs, rtol=1e-5, atol=1e-7)


def test_objectives_that_claim_to_vanish_at_the_truth_do() -> None:
    """Self-check against the whole family of protocol defects: with full knowledge, objective(truth) ≈ 0."""
    from leakgauge.attacks.matching import Simulator

    for protocol in (FedSGD(), FedAvg(epochs=3, batch_size=1, lr=0.1, momentum=0.5)):
        truth = batch(3)
        observation = observe(Case("matching", SMOOTH, protocol=protocol), truth)
        simulator = Simulator.of(observation, torch.empty((), dtype=torch.float64), torch.Generator())
        for objective in (SquaredL2(), Cosine()):
            assert abs(float(objective(simulator(truth), simulator.observed, simulator.view))) < 1e-10


def test_hidden_local_training_turns_the_sign_of_a_delta() -> None:
    """Known defect (breaching): local settings hidden → the cosine objective at the true image is 2, its worst."""
    from leakgauge.attacks.matching import Simulator

    truth = batch(3)
    observation = observe(Case("matching", SMOOTH, protocol=FedAvg(epochs=2, lr=0.05)), truth)
    hidden = dataclasses.replace(observation, knowledge=Knowledge(labels=truth.labels, example_count=3))
    simulator = Simulator.of(hidden, torch.empty((), dtype=torch.float64), torch.Generator())
    assert float(Cosine()(simulator(truth), simulator.observed, simulator.view)) < 0.05
    assert not simulator.scale_known
    refused = dlg(restarts=1, steps=3).reconstruct(hidden, torch.Generator())
    assert refused.status is Status.NOT_APPLICABLE
    assert "local_training" in refused.message


def test_joint_labels_return_the_optimised_label_and_not_the_start() -> None:
    """Known defect (breaching): the arg-max of the initial noise is returned instead of the optimised label."""
    right = 0
    joint = Matching(objective=SquaredL2(), minimiser=BoundedLBFGS(steps=300), labels=JointSoftLabels())
    for seed in range(6):
        truth = batch(1, seed=seed)
        found = joint.reconstruct(
            observe(Case("matching", joint), truth, labels=False), torch.Generator().manual_seed(seed)
        )
        right += bool((found.labels == truth.labels).all())
    assert right >= 5


def test_stopping_keeps_the_best_so_far() -> None:
    found = SMOOTH.reconstruct(
        observe(Case("matching", SMOOTH), batch(1)), torch.Generator(), on_step=lambda step: step.index == 4
    )
    assert found.status is Status.STOPPED
    assert found.inputs is not None
    assert found.cost.gradient_evaluations == 5


def test_time_and_queries_are_counted_apart() -> None:
    """Known defect (breaching): wall time logged as a query count."""
    found = Matching(minimiser=Adam(steps=7), restarts=3).reconstruct(
        observe(Case("matching", SMOOTH), batch(1)), torch.Generator()
    )
    assert found.cost.gradient_evaluations == 21
    assert isinstance(found.cost.gradient_evaluations, int)
    assert 0 < found.cost.seconds < 60
    stepped = observe(Case("matching", SMOOTH, protocol=FedAvg(epochs=4, lr=0.1)), batch(1))
    assert Matching(minimiser=Adam(steps=7)).reconstruct(stepped, torch.Generator()).cost.gradient_evaluations == 28


def test_a_stated_protocol_of_another_kind_is_refused() -> None:
    observation = observe(Case("matching", SMOOTH, protocol=FedAvg(lr=0.1)), batch(1))
    wrong = dataclasses.replace(observation, knowledge=Knowledge(labels=batch(1).labels, local_training=FedSGD()))
    with pytest.raises(ValueError, match="local_training"):
        SMOOTH.reconstruct(wrong, torch.Generator())


def test_a_result_says_of_each_of_its_inputs_whether_it_is_proved() -> None:
    with pytest.raises(ValueError, match="3 for 2 inputs"):
        Reconstruction(torch.zeros(2, 1, 4, 4), None, Status.CONVERGED, certified=torch.zeros(3, dtype=torch.bool))
