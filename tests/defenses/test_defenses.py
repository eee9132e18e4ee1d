"""Each defence against its own definition."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cases import batch, task
from hunt.scenarios import built
from leakgauge.clients import FedSGD, client_update, example_gradients
from leakgauge.defenses import (
    DPSGD,
    Clip,
    ClipExamples,
    Compose,
    Defense,
    NoDefense,
    Soteria,
    TopK,
    noise,
    steps_of,
    view_of,
)
from leakgauge.defenses.steps import DefenseStep, Nonlinear
from leakgauge.draws import Draws
from leakgauge.registry import DEFENSES
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import Tensors, entries, map_tensors, squared_norm
from leakgauge.update import Update, UpdateHeader, UpdateKind

HEADER = UpdateHeader(UpdateKind.GRADIENT, 1)


def some(n: int = 500, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(n, 20, generator=g, dtype=torch.float64),
        "b": 3 * torch.randn(n, generator=g, dtype=torch.float64) + 1,
    }


def fresh(seed: int = 99) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_clip_bounds_the_norm_and_leaves_what_is_below(norm: float, scale: float) -> None:
    raw = map_tensors(lambda t: t * scale, some(5))
    before, after = (float(squared_norm(t).sqrt()) for t in (raw, Clip(norm=norm).on_update(raw, None)))
    assert after == pytest.approx(min(before, norm), rel=1e-9)


def test_clipping_examples_is_a_loop_over_examples() -> None:
    """Known defect (breaching): per-example clipping that clips the batch gradient."""
    t, b, norm = task("relu"), batch(6), 0.5
    stacked = example_gradients(t, t.parameters, t.buffers, b, None)
    total = map_tensors(torch.zeros_like, t.parameters)
    clipped = 0
    for i in range(6):
        one = {k: v[i] for k, v in stacked.items()}
        length = float(squared_norm(one).sqrt())
        clipped += length > norm
        factor = min(1.0, norm / length)
        total = {k: total[k] + factor * one[k] / 6 for k in total}
    assert clipped > 0
    sent = client_update(t, FedSGD(), b, Draws(0), defense=ClipExamples(norm=norm)).tensors
    assert all(torch.allclose(sent[k], total[k], rtol=1e-9) for k in sent)
    batch_clipped = client_update(t, FedSGD(), b, Draws(0), defense=Clip(norm=norm)).tensors
    assert not all(torch.allclose(sent[k], batch_clipped[k], rtol=1e-3) for k in sent)


@pytest.mark.parametrize(
    ("setting", "unit"),
    [({"sigma": 0.3}, "sigma"), ({"relative": 0.3}, "relative"), ({"tensor_std": 0.3}, "tensor_std")],
)
def test_noise_has_the_stated_scale(setting: dict[str, float], unit: str) -> None:
    raw = some()
    sent = noise(**setting).on_update(raw, fresh())
    added = map_tensors(torch.sub, sent, raw)
    if unit == "sigma":
        assert all(float(v.std()) == pytest.approx(0.3, rel=0.1) for v in added.values())
    if unit == "relative":
        assert float((squared_norm(added) / squared_norm(raw)).sqrt()) == pytest.approx(0.3, rel=0.02)
        assert float(added["w"].std()) == pytest.approx(float(added["b"].std()), rel=0.1)
    if unit == "tensor_std":
        assert all(float(added[k].std() / raw[k].std()) == pytest.approx(0.3, rel=0.1) for k in raw)
    assert abs(float(added["w"].mean())) < 4 * float(added["w"].std()) / math.sqrt(added["w"].numel())


@pytest.mark.parametrize("setting", [{"sigma": 0.3}, {"relative": 0.5}, {"tensor_std": 0.5}])
def test_the_attacker_estimates_the_noise_from_the_wire(setting: dict[str, float]) -> None:
    defense, raw = noise(**setting), some()
    sent = defense.on_update(raw, fresh())
    seen = view_of(defense, Update(sent, HEADER), None).noise_scale
    assert seen is not None
    assert all(float(seen[k]) == pytest.approx(float(defense.scale.of(raw)[k]), rel=0.1) for k in raw)


def test_the_likelihood_is_highest_at_the_mean() -> None:
    defense, raw = noise(sigma=0.3), some(20)
    view = view_of(defense, Update(defense.on_update(raw, fresh()), HEADER), None)
    assert view.log_likelihood is not None
    right = float(view.log_likelihood(raw))
    wrong = float(view.log_likelihood(map_tensors(lambda t: t + 0.3, raw)))
    assert right > wrong
    assert right == pytest.approx(-0.5 * entries(raw), rel=0.2)


def test_noises_add_in_variance_and_are_unknown_behind_a_clip() -> None:
    raw = some(20)
    update = Update(raw, HEADER)
    both = view_of(Compose((noise(sigma=0.3), noise(sigma=0.4))), update, None).noise_scale
    assert both is not None
    assert float(both["w"]) == pytest.approx(0.5)
    assert view_of(Compose((noise(sigma=0.3), Clip(norm=1.0))), update, None).noise_scale is None


def test_topk_breaks_ties_by_position() -> None:
    sent = TopK(keep=0.5).on_update({"t": torch.ones(4)}, None)["t"]
    assert sent.tolist() == [1, 1, 0, 0]


def test_topk_support_is_what_the_wire_shows() -> None:
    raw = some(10)
    update = Update(TopK(keep=0.1).on_update(raw, None), HEADER)
    view = view_of(TopK(keep=0.1), update, None)
    assert view.support is not None
    assert all(bool((view.support[k] == (update.tensors[k] != 0)).all()) for k in raw)


def test_stages_run_in_the_stated_order() -> None:
    raw = {"t": torch.tensor([3.0, 4.0])}
    one = Compose((Clip(norm=1.0), TopK(keep=0.5))).on_update(raw, fresh())["t"]
    two = Compose((TopK(keep=0.5), Clip(norm=1.0))).on_update(raw, fresh())["t"]
    assert torch.allclose(one, torch.tensor([0.0, 0.8]))
    assert torch.allclose(two, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize("idle", [NoDefense(), TopK(keep=1.0), Clip(norm=1e9)], ids=repr)
@pytest.mark.parametrize("name", sorted(entry.name for entry in DEFENSES))
def test_beside_parts_that_do_nothing_in_its_stage_a_defence_draws_as_it_does_alone(name: str, idle: Defense) -> None:
    """A client that mixes examples mixed other ones where a clip stood beside it."""
    defense: Defense = built(DEFENSES, name, Random(0))
    idle = NoDefense() if defense.acts_on_update and isinstance(idle, Clip) else idle
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    of, own = Task.of(net, DataSpec((3, 2, 2), 3)), torch.rand((4, 3, 2, 2), generator=fresh())

    def sent(by: Defense) -> Tensors:
        return client_update(by.on_task(of), FedSGD(), Batch(own, torch.arange(4) % 3), Draws(1), defense=by).tensors

    alone = sent(defense)
    for both in (Compose((defense, idle)), Compose((idle, defense)), Compose((idle, Compose((defense,))))):
        assert all(torch.equal(alone[k], t) for k, t in sent(both).items())


def test_no_defense_sends_the_update_as_it_is() -> None:
    raw = some(3)
    assert NoDefense().on_update(raw, fresh()) is raw


class Turned(Clip):
    """Clips, and turns every other sign: the view of its base knows nothing of it."""

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t: t * (1 - 2 * (torch.arange(t.numel()) % 2).view_as(t)), tensors)


class Told(Turned):
    def steps(self) -> tuple[DefenseStep, ...]:
        return (Nonlinear(how=lambda raw: self.on_update(raw, None)),)


class Silenced(DPSGD):
    """Simulated as clipping, which it does not do."""

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        return map_tensors(lambda g: g.flip(0), per_example)


class Renamed(Clip):
    """What its base does."""


class Fitted(Defense):
    """Acts as what it makes of the client's data."""

    def for_batch(self, task: Task, batch: Batch) -> Defense:
        return Turned(norm=float(batch.inputs.mean()))


class Own(Defense):
    """Simulated as it is."""

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        return per_example


@pytest.mark.parametrize(
    ("defense", "silent"),
    [
        (Turned(norm=1.0), True),
        (Told(norm=1.0), False),
        (Silenced(norm=1.0, noise_multiplier=1.0), True),
        (Renamed(norm=1.0), False),
        (Fitted(), True),
        (Soteria(), False),
        (Own(), False),
        (Compose((Clip(norm=1.0), Turned(norm=1.0))), True),
        (DPSGD(norm=1.0, noise_multiplier=1.0), False),
        (noise(sigma=1.0), False),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_view_that_was_written_for_another_stage_tells_nothing(defense: Defense, silent: bool) -> None:
    """A row under such a defence was not flagged: its attacker simulated what the client did not do."""
    assert any(step.silent for step in steps_of(defense)) is silent
