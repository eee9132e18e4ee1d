"""What a search costs, in counts that no machine changes: passes a step, evaluations to a quality, bytes at the peak.

A count that falls is good news: lower its limit. One that rises must buy something.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from leakgauge.attacks.effort import Effort
from leakgauge.attacks.matching import Adam, Matching, Pixels, TotalVariation, Uniform
from leakgauge.attacks.matching.engine import Simulator
from leakgauge.attacks.matching.problem import Meter, Problem
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute, Held
from leakgauge.data import Samples, spec
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.models import convnet, lenet, resnet18
from leakgauge.observation import Knowledge, Observation, Step
from leakgauge.task import Batch, Task


def observed(build: Callable[[], nn.Module], photo: int = 0) -> tuple[Observation, Batch]:
    source = Samples(size=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(build(), spec(source))
    batch = source.read([photo])
    update = client_update(task, FedSGD(), batch, Draws(0))
    return Observation(task, update, Knowledge(labels=batch.labels, example_count=1, local_training=FedSGD())), batch


def problem(seen: Observation) -> Problem:
    attack = Matching(prior=TotalVariation(1e-3), canvas=Pixels(first=Uniform()))
    generator, like = torch.Generator().manual_seed(0), Compute().like()
    simulator = Simulator.of(seen, like, generator)
    return attack._problem(simulator, seen.knowledge.labels, 1, Meter(Budget()), Effort(generator))


def flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


@dataclass(frozen=True)
class Cost:
    """Limits for a network: passes of a step (in forward passes of one photo), and peak bytes over the parameters'."""

    name: str
    build: Callable[[], nn.Module]
    passes: float
    peak: float


COSTS = (
    Cost("lenet", lenet, 7.15, 4.3),
    Cost("convnet-8", lambda: convnet(width=8), 7.98, 17.4),
    Cost("resnet18-8", lambda: resnet18(width=8), 8.04, 4.2),
)


@pytest.mark.parametrize("cost", [*COSTS[:2], pytest.param(COSTS[2], marks=pytest.mark.slow)], ids=lambda c: c.name)
def test_a_step_makes_no_more_passes_and_holds_no_more_than_it_did(cost: Cost) -> None:
    """Seven passes are the least: forward, two backward, three for what the objective says of the weights'
    gradient, one back to the photo. Torch adds an eighth that nothing rests on."""
    seen, batch = observed(cost.build)
    one = problem(seen)
    point = one.start
    forward = flops(lambda: seen.task(seen.task.parameters, seen.task.buffers, batch))
    assert flops(lambda: one.evaluate(point)) / forward <= cost.passes
    own = sum(p.nbytes for p in seen.task.parameters.values())
    with Held() as live:
        one.evaluate(point)
    assert live.peak / own <= cost.peak, (live.peak, own)


@pytest.mark.parametrize(("photo", "most"), [(1, 60), (2, 150)])
def test_evaluations_to_20_db_on_lenet(photo: int, most: int) -> None:
    """In float64, where rounding does not decide the way."""
    seen, truth = observed(lenet, photo)
    found = Auto(smooth_steps=600).reconstruct(
        seen, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=600), on_step=until(most)
    )
    assert found.inputs is not None
    assert float(PSNR()(found.inputs.float(), truth.inputs)) >= 20
    assert found.cost.gradient_evaluations <= most


def until(evaluations: int) -> Callable[[Step], bool]:
    return lambda step: step.gradient_evaluations >= evaluations


def test_a_short_search_by_signed_adam_comes_as_near_as_it_did() -> None:
    """Its distance after sixty evaluations on a ReLU network; in float64."""
    seen, _ = observed(lambda: convnet(width=8))
    attack = Matching(prior=TotalVariation(1e-4), canvas=Pixels(first=Uniform()), minimiser=Adam(steps=60))
    found = attack.reconstruct(seen, torch.Generator().manual_seed(0), compute=Compute(dtype=torch.float64))
    assert found.objective is not None
    assert found.objective <= 1.05e-3
