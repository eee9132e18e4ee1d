"""The semantic attack: the generator's picture next to a reconstruction."""

from __future__ import annotations

import dataclasses

import torch
from reproduce.rog.rogs import ROGS
from torch import Tensor, nn

from cases import SPEC, batch, task
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, OnStep, Reconstruction, Status


class Shades(nn.Module):
    """One flat colour a picture, from three numbers; class 0 is never blue."""

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.size = size

    def forward(self, codes: Tensor, labels: Tensor) -> Tensor:
        colour = codes.tanh()
        colour = torch.where((labels == 0)[:, None] & (torch.arange(3) == 2), -torch.ones_like(colour), colour)
        return colour[:, :, None, None].expand(-1, -1, self.size, self.size)


@dataclasses.dataclass(frozen=True, eq=False)
class Says:
    """An attack that found this."""

    inputs: Tensor | None
    labels: Tensor | None

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        return Reconstruction(
            self.inputs, self.labels, Status.OUT_OF_STEPS if self.inputs is not None else Status.FAILED
        )


def seen() -> Observation:
    truth = batch(2, torch.float32)
    update = client_update(task(dtype=torch.float32), FedSGD(), truth, Draws(0))
    return Observation(task(dtype=torch.float32), update, Knowledge(labels=truth.labels, local_training=FedSGD()))


def closest(found: Says, **options: object) -> Reconstruction:
    attack = ROGS(generator=Shades(), code=(3,), attack=found, steps=300, **options)  # type: ignore[arg-type]
    return attack.reconstruct(seen(), torch.Generator().manual_seed(0))


def test_the_code_is_found_where_the_generator_can_make_the_picture() -> None:
    colours = torch.tensor([[0.2, 0.7, 0.4], [0.9, 0.3, 0.6]])
    pictures = colours[:, :, None, None].expand(-1, -1, 8, 8).clone()
    made = closest(Says(pictures, torch.tensor([1, 2])))
    assert made.inputs is not None
    assert float((made.inputs - pictures).abs().max()) < 0.02


def test_it_makes_only_what_the_generator_can_and_of_the_class_that_is_asked() -> None:
    x = torch.rand((2, 3, 8, 8), generator=torch.Generator().manual_seed(1))
    made = closest(Says(x, torch.tensor([0, 1]))).inputs
    assert made is not None
    assert torch.allclose(made, made[:, :, :1, :1].expand_as(made))
    assert float(made[0, 2].max()) == 0
    # The flat colour at the least Euclidean distance is the mean.
    assert torch.allclose(made[1, :, 0, 0], x[1].mean((1, 2)), atol=0.02)


def test_the_answer_is_in_the_data_range() -> None:
    made = closest(Says(torch.full((2, 3, 8, 8), 3.0), torch.tensor([1, 2]))).inputs
    assert made is not None
    assert SPEC.low <= float(made.min()) <= float(made.max()) <= SPEC.high
