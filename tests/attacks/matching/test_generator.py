"""The canvas that is a network, and CI-Net."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from reproduce.ci_net.rivals import AsItIs, DCGANGenerator
from torch import nn

from cases import SPEC, batch, task
from leakgauge.attacks.matching import (
    Adam,
    Cosine,
    Generator,
    Matching,
    Simulator,
    SquaredL2,
)
from leakgauge.attacks.matching.problem import Meter, Problem
from leakgauge.attacks.recipes import ci_net
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import TopK
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.models.networks import CINetGenerator
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Mode, Task

SMALL = Generator(network=CINetGenerator(width=8))


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observe(truth: Batch, *, keep: float | None = None, known: bool = True, mode: Mode = Mode.EVAL) -> Observation:
    t = task("smooth", mode)
    defense = None if keep is None else TopK(keep=keep)
    update = client_update(t, FedSGD(), truth, Draws(3), defense=defense)
    knowledge = Knowledge(labels=truth.labels, local_training=FedSGD(), defense=defense if known else None)
    return Observation(t, update, knowledge)


def matched(canvas, truth: Batch):
    """The cosine distance of a canvas's variables, as the engine puts it together."""
    simulator = Simulator.of(observe(truth), torch.empty((), dtype=torch.float64), draws())

    def loss(variables):
        inputs = SPEC.denormalise(canvas.decode(variables, SPEC))
        term = Cosine()(simulator(Batch(inputs, truth.labels)), simulator.observed, simulator.view)
        return term, term

    return loss


def test_the_gradient_of_a_generator_canvas_is_that_of_finite_differences() -> None:
    truth = batch(2)
    loss = matched(SMALL, truth)
    start = {k: v[None] for k, v in SMALL.start(2, SPEC, draws()).items()}
    slope = Problem(loss, start, {}, Meter(Budget())).evaluate(start).gradient
    direction = {k: torch.randn(v.shape, generator=draws(2), dtype=torch.float64) for k, v in start.items()}
    direction["code"].zero_()

    def along(step: float) -> float:
        return float(loss({k: (v + step * direction[k])[0] for k, v in start.items()})[0])

    measured = (along(1e-6) - along(-1e-6)) / 2e-6
    assert sum(float((slope[k] * direction[k]).sum()) for k in slope) == pytest.approx(measured, rel=1e-5)
    assert float(slope["code"].abs().max()) == 0


def assert_restarts_stand_alone(canvas) -> None:
    """Two restarts side by side have the values and gradients of each by itself."""
    loss = matched(canvas, batch(2))
    starts = [canvas.start(2, SPEC, draws(s)) for s in (0, 1)]
    both = {k: torch.stack([s[k] for s in starts]) for k in starts[0]}
    whole = Problem(loss, both, {}, Meter(Budget())).evaluate(both)
    for i in (0, 1):
        alone = {k: v[i : i + 1] for k, v in both.items()}
        one = Problem(loss, alone, {}, Meter(Budget())).evaluate(alone)
        torch.testing.assert_close(whole.total[i : i + 1], one.total)
        for name, slope in one.gradient.items():
            torch.testing.assert_close(whole.gradient[name][i : i + 1], slope, rtol=1e-6, atol=1e-9)


def test_two_restarts_side_by_side_are_two_restarts_alone() -> None:
    assert_restarts_stand_alone(SMALL)


def test_outputs_are_as_they_are_or_in_the_range() -> None:
    data = dataclasses.replace(SPEC, low=-1.0, high=3.0)
    for canvas, low, high in ((AsItIs(network=SMALL.network), -1, 1), (SMALL, -1, 3)):
        raw = data.denormalise(canvas.decode(canvas.start(4, data, draws()), data))
        assert raw.shape == (4, 3, 8, 8)
        assert low <= float(raw.min()) < low + 0.5 * (high - low) < float(raw.max()) <= high


def test_odd_sides_are_cut_from_the_middle() -> None:
    odd, even = DataSpec((1, 7, 6), 3), DataSpec((1, 8, 8), 3)
    one, two = (SMALL.decode(SMALL.start(2, d, draws()), d) for d in (odd, even))
    assert torch.equal(one, two[:, :, :7, 1:7])


def test_data_that_no_generator_makes_is_a_status() -> None:
    for shape in ((12, 100), (3, 257, 257)):
        assert "pictures" in SMALL.refuses(DataSpec(shape, 3))
    flat = DataSpec((192,), 5)
    net = nn.Sequential(nn.Linear(192, 5)).double()
    t = Task.of(net, flat)
    truth = Batch(torch.rand(2, 192, dtype=torch.float64), torch.tensor([0, 1]))
    seen = Observation(t, client_update(t, FedSGD(), truth, Draws(0)), Knowledge(labels=truth.labels))
    found = ci_net(steps=2).reconstruct(seen, draws())
    assert found.status is Status.NOT_APPLICABLE
    assert "pictures" in found.message


def test_ci_net_beats_the_same_attack_on_another_update() -> None:
    truth, other = batch(2, seed=1), batch(2, seed=9)
    secret = [Batch(nn.functional.avg_pool2d(b.inputs, 3, 1, 1), torch.tensor([0, 1])) for b in (truth, other)]
    scores = []
    for source in secret:
        found = ci_net(width=8, steps=100).reconstruct(observe(source), draws(1))
        assert found.status is Status.OUT_OF_STEPS
        assert found.cost.gradient_evaluations == 102
        scores.append(float(PSNR()(found.inputs.double(), secret[0].inputs).mean()))
    assert scores[0] > 18
    assert scores[0] > scores[1] + 3


def test_other_parts_run_on_the_canvas() -> None:
    canvas = AsItIs(network=DCGANGenerator(width=4))
    found = Matching(canvas=canvas, objective=SquaredL2(), minimiser=Adam(steps=3)).reconstruct(
        observe(batch(2)), draws()
    )
    assert found.inputs is not None
    assert found.inputs.shape == (2, *SPEC.shape)
