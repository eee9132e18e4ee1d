"""DP-SGD against a loop over examples, and against Opacus."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from cases import SPEC, batch, task
from leakgauge.attacks.matching import Simulator
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, client_update, example_gradients
from leakgauge.defenses import DPSGD, Clip, ClipExamples, Compose, TopK, view_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors, map_tensors, squared_norm

FAINT = 1e-12


def looped(t: Task, b: Batch, norm: float) -> Tensors:
    """Mean of clipped gradients, each by its own backward pass."""
    total = map_tensors(torch.zeros_like, t.parameters)
    for x, y in zip(b.inputs, b.labels, strict=True):
        module = copy.deepcopy(t.module)
        cross_entropy(module(SPEC.normalise(x[None])), y[None]).backward()
        gradient = {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
        length = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
        total = {k: total[k] + gradient[k] * min(1.0, norm / length) / len(b) for k in total}
    return total


def lengths(t: Task, b: Batch) -> torch.Tensor:
    rows = example_gradients(t, t.parameters, t.buffers, b, None)
    return torch.stack([g.flatten(1).square().sum(1) for g in rows.values()]).sum(0).sqrt()


def test_with_faint_noise_it_is_a_loop_over_examples() -> None:
    t, b = task("relu"), batch(6)
    norm = float(lengths(t, b).median())
    sent = client_update(t, FedSGD(), b, Draws(0), defense=DPSGD(noise_multiplier=FAINT, norm=norm)).tensors
    expected = looped(t, b, norm)
    assert all(torch.allclose(sent[k], expected[k], atol=1e-10) for k in sent)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_it_is_what_opacus_does() -> None:
    opacus = pytest.importorskip("opacus")
    from opacus.optimizers import DPOptimizer

    t, b = task("relu"), batch(6)
    norm = float(lengths(t, b).median())
    module = opacus.GradSampleModule(copy.deepcopy(t.module).train(), loss_reduction="mean")
    optimiser = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=norm,
        expected_batch_size=len(b),
    )
    cross_entropy(module(SPEC.normalise(b.inputs)), b.labels).backward()
    optimiser.pre_step()
    theirs = {k.removeprefix("_module."): p.grad for k, p in module.named_parameters()}
    sent = client_update(t, FedSGD(), b, Draws(0), defense=DPSGD(noise_multiplier=FAINT, norm=norm)).tensors
    # Opacus divides by ‖g‖ + 1e-6.
    assert all(torch.allclose(sent[k], theirs[k], rtol=1e-4, atol=1e-7) for k in sent)


def drawn(protocol: FedSGD | LocalTraining, n: int, z: float, norm: float, seeds: int = 20) -> torch.Tensor:
    """Noise on the update, over draws, flat."""
    t, b = task("relu"), batch(n)
    plain = client_update(t, protocol, b, Draws(0), defense=ClipExamples(norm=norm)).tensors
    defense = DPSGD(noise_multiplier=z, norm=norm)
    rows = []
    for seed in range(seeds):
        sent = client_update(t, protocol, b, Draws(seed), defense=defense).tensors
        rows.append(torch.cat([(sent[k] - plain[k]).flatten() for k in plain]))
    return torch.stack(rows)


@pytest.mark.parametrize("n", [1, 4])
def test_the_noise_on_the_mean_is_zc_over_n(n: int) -> None:
    added = drawn(FedSGD(), n, z=0.7, norm=0.5)
    assert float(added.std()) == pytest.approx(0.7 * 0.5 / n, rel=0.06)
    assert abs(float(added.mean())) < 4 * float(added.std()) / math.sqrt(added.numel())
    per_entry = added.std(0) / added.std()
    assert float(per_entry.min()) > 0.3  # every entry of every tensor has it


def test_under_fedavg_noise_is_drawn_at_every_local_step() -> None:
    # lr so small that the gradient is the same at each step: noises of the 4 steps add in variance.
    lr, z, norm = 1e-6, 0.7, 0.5
    added = drawn(FedAvg(epochs=2, batch_size=2, lr=lr), 4, z, norm)
    assert float(added.std()) == pytest.approx(lr * z * norm / 2 * math.sqrt(4), rel=0.06)


def test_one_who_does_not_know_the_draw_simulates_the_clipping_and_no_noise() -> None:
    t, b, norm = task("relu"), batch(4), 0.5
    defense = Compose((DPSGD(noise_multiplier=1.0, norm=norm),))
    update = client_update(t, FedSGD(), b, Draws(7), defense=defense)
    like, seen = torch.empty((), dtype=torch.float64), {}
    for draws in (None, Draws(7)):
        known = Knowledge(labels=b.labels, local_training=FedSGD(), defense=defense, draws=draws)
        simulator = Simulator.of(Observation(t, update, known), like, torch.Generator().manual_seed(1))
        seen[draws] = simulator(b)
    clipped = client_update(t, FedSGD(), b, Draws(7), defense=ClipExamples(norm=norm)).tensors
    assert all(torch.equal(seen[None][k], clipped[k]) for k in clipped)
    assert all(torch.allclose(seen[Draws(7)][k], update.tensors[k]) for k in clipped)


def test_the_view_states_the_noise_of_a_gradient_and_of_no_delta() -> None:
    t, b, defense = task("relu"), batch(4), DPSGD(noise_multiplier=0.7, norm=0.5)
    view = view_of(defense, client_update(t, FedSGD(), b, Draws(7), defense=defense), None)
    assert view.noise_scale is not None
    assert all(float(s) == pytest.approx(0.7 * 0.5 / 4) for s in view.noise_scale.values())
    assert view.log_likelihood is not None
    unsaid = client_update(t, FedSGD(), b, Draws(7), defense=defense, send_example_count=False)
    delta = client_update(t, FedAvg(), b, Draws(7), defense=defense)
    assert view_of(defense, unsaid, None).noise_scale is None
    assert view_of(defense, delta, None).noise_scale is None


def test_clipping_the_update_after_the_noise_hides_its_scale_in_either_order() -> None:
    t, b, dp = task("relu"), batch(4), DPSGD(noise_multiplier=0.7, norm=0.5)
    for defense in (Compose((dp, Clip(norm=0.1))), Compose((Clip(norm=0.1), dp))):
        update = client_update(t, FedSGD(), b, Draws(7), defense=defense)
        assert float(squared_norm(update.tensors)) <= 0.1**2 + 1e-9
        assert view_of(defense, update, None).noise_scale is None
    sparse = Compose((dp, TopK(keep=0.2)))
    view = view_of(sparse, client_update(t, FedSGD(), b, Draws(7), defense=sparse), None)
    assert view.noise_scale is not None
    assert view.support is not None


def test_batch_norm_in_train_mode_is_refused_with_its_hint() -> None:
    defense = DPSGD(noise_multiplier=1.0, norm=1.0)
    with pytest.raises(InputError, match="GroupNorm"):
        client_update(task("normed", Mode.TRAIN), FedSGD(), batch(4), Draws(0), defense=defense)
    client_update(task("normed", Mode.EVAL), FedSGD(), batch(4), Draws(0), defense=defense)


def test_a_plan_that_forgets_the_norm_is_told() -> None:
    from leakgauge.resolve import resolve_defense

    with pytest.raises(InputError, match="needs norm"):
        resolve_defense({"dp-sgd": {"noise_multiplier": 1.0}}, "defenses[0]")


@pytest.mark.parametrize("norm", [0.01, 100.0])
def test_a_model_with_a_scalar_parameter_and_an_example_without_a_finite_gradient(norm: float) -> None:
    """Such an example counts as zero: the rest is as if its gradient had been zero, and the update stays finite."""
    generator = torch.Generator().manual_seed(0)
    rows = {"w": torch.randn(3, 2, 2, generator=generator), "scale": torch.randn(3, generator=generator)}
    broken = {k: v.clone() for k, v in rows.items()}
    broken["w"][1, 0, 0] = float("inf")
    broken["scale"][1] = float("nan")
    clean = {k: v.clone() for k, v in rows.items()}
    for v in clean.values():
        v[1] = 0
    defense = DPSGD(noise_multiplier=1.0, norm=norm)
    ours, theirs = (defense.on_example_gradients(t, torch.Generator().manual_seed(1)) for t in (broken, clean))
    assert all(torch.equal(ours[k], theirs[k]) for k in rows)
    clipped = defense.without_noise().on_example_gradients(rows, generator)
    lengths = (clipped["w"].flatten(1).square().sum(1) + clipped["scale"].square()).sqrt()
    assert float(lengths.max()) <= norm * 1.0001
