"""Unknown draws as variables: buffers, encoded batches, and their prior."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from cases import SPEC, batch
from leakgauge.attacks.matching import Adam, Given, Matching, NoPrior, Pixels, Simulator, SquaredL2
from leakgauge.attacks.matching.parts import buffers_in
from leakgauge.clients import FedSGD, client_update
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import Tensors


class Shifted(nn.Module):
    """A network with a buffer that is added to its input."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(192, 5)
        self.register_buffer("shift", torch.zeros(192))

    def forward(self, x: Tensor) -> Tensor:
        return self.line((x.flatten(1) + self.shift).sigmoid())


@dataclass(frozen=True)
class Shift:
    """A `Hidden` part: the buffer as a variable, and the batch turned around."""

    weight: float = 0.0

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        return {"buffer.shift": torch.zeros(192, dtype=torch.float64)}

    def encode(self, batch: Batch, variables: Tensors) -> Batch:
        return Batch(batch.inputs.flip(0), batch.labels)

    def penalty(self, variables: Tensors) -> Float[Tensor, ""]:
        return self.weight * variables["buffer.shift"].square().sum()


def seen(shift: float = 0.0, n: int = 2) -> tuple[Observation, Batch]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = Shifted().double()
    told, secret = Task.of(module, SPEC), Task.of(module, SPEC)
    secret = secret.with_state({"shift": torch.full((192,), shift).double()})
    b = batch(n)
    update = client_update(secret, FedSGD(), b, Draws(0))
    return Observation(told, update, Knowledge(labels=b.labels, example_count=n, local_training=FedSGD())), b


def gap(a: Tensors, b: Tensors) -> float:
    return max(float((a[k] - b[k]).abs().max()) for k in b)


def test_a_buffer_variable_stands_for_the_tasks_buffer() -> None:
    observation, b = seen(0.7)
    simulator = Simulator.of(observation, torch.empty((), dtype=torch.float64), torch.Generator().manual_seed(0))
    assert gap(simulator(b), observation.update.tensors) > 1e-4
    assert gap(simulator(b, {"shift": torch.full((192,), 0.7).double()}), observation.update.tensors) < 1e-12
    assert gap(simulator.raw(b, {"shift": torch.full((192,), 0.7).double()}), observation.update.tensors) < 1e-12
    assert float(simulator.task.buffers["shift"].abs().max()) == 0, "the task itself stays"


def test_only_prefixed_variables_are_buffers() -> None:
    one = torch.ones(1)
    assert buffers_in({"pixels": one, "buffer.a.b": one, "mixing": one}) == {"a.b": one}


@pytest.mark.parametrize("restarts", [1, 3])
def test_the_engine_optimises_the_hidden_part_with_the_pixels(restarts: int) -> None:
    """The buffer's part of the search: with it the misfit falls below what pixels alone reach from the same start."""
    observation, _ = seen(3.0, 1)

    @dataclass(frozen=True)
    class Frozen:
        def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
            return {}

        def encode(self, batch: Batch, variables: Tensors) -> Batch:
            return batch

        def penalty(self, variables: Tensors) -> Float[Tensor, ""]:
            return variables["pixels"].new_zeros(())

    attack = Matching(objective=SquaredL2(), prior=NoPrior(), minimiser=Adam(steps=80, lr=0.1), restarts=restarts)
    without, with_it = (
        replace(attack, hidden=(part,)).reconstruct(observation, torch.Generator().manual_seed(0))
        for part in (Frozen(), Shift())
    )
    assert without.objective is not None
    assert with_it.objective is not None
    assert with_it.objective < 0.5 * without.objective


def test_the_batch_is_encoded_before_it_is_trained_on() -> None:
    """The part turns the batch around, so what fits the update is the batch the other way round."""
    observation, b = seen()
    labels = observation.knowledge.labels
    assert labels is not None
    turned = replace(observation, knowledge=replace(observation.knowledge, labels=labels))
    attack = Matching(
        objective=SquaredL2(),
        canvas=Pixels(first=Given(b.inputs.flip(0))),
        minimiser=Adam(steps=1),
        hidden=(Shift(),),
    )
    found = attack.reconstruct(turned, torch.Generator().manual_seed(0))
    assert found.objective == pytest.approx(0, abs=1e-12)


def test_the_penalty_is_part_of_the_total_and_not_of_the_data_term() -> None:
    observation, _ = seen(1.0)
    free, held = (
        Matching(minimiser=Adam(steps=40), hidden=(Shift(weight),)).reconstruct(
            observation, torch.Generator().manual_seed(0)
        )
        for weight in (0.0, 100.0)
    )
    assert free.objective is not None
    assert held.objective is not None
    assert free.objective < held.objective < 2
