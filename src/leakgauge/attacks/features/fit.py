"""How well candidate examples fit what a layer further in says of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.features.hidden import layer_gradients
from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.read import Passes
from leakgauge.batch import Batch
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.task import Task

TOLD = 10.0
"""A layer tells candidates apart where some lie so many times as far outside as its errors put them: an affine map of
the layer that they were read from holds all of them."""

NEW = 5.0  # what a candidate has beside better ones is so many times its distance, else it is one of them, blurred
ROUNDING = 1e-10  # of candidates in float64
ROUNDED = 100  # units of the model's arithmetic, of the largest singular value, that sums of both signs are off by
MOST = 8192  # candidates that are run through the network


def rounded(task: Task) -> float:
    """Share of a gradient's largest singular value that is rounding of its sums."""
    return ROUNDED * torch.finfo(next(iter(task.parameters.values())).dtype).eps


@dataclass(frozen=True, eq=False)
class HiddenFit:
    """What candidates put into a layer, each scaled to length 1, beside the span of its gradient's rows."""

    outside: Float[Tensor, "k m"]  # of the span
    inside: Float[Tensor, "k r"]  # the rest, in coordinates of the span
    blur: float = 0.0  # share that errors of the gradient put outside; candidates that are nearer fit alike

    @property
    def apart(self) -> Float[Tensor, " k"]:
        """Share of the length outside, at least what errors put there."""
        found: Tensor = torch.linalg.vector_norm(self.outside, dim=1).clamp_min(self.blur)
        return found

    def picked(self, most: int) -> list[int]:
        """Candidates that fit best, the first of equal ones, each with something that those before it have not."""
        chosen: list[int] = []
        for k in self.apart.argsort(stable=True).tolist():
            if len(chosen) < most and float(self.beside(self.inside[chosen])[k]) > NEW * float(self.apart[k]):
                chosen.append(k)
        return chosen

    def beside(self, others: Float[Tensor, "m r"]) -> Float[Tensor, " k"]:
        """Length of what each has that others, in the same coordinates, have not."""
        basis = torch.linalg.qr(others.T)[0]
        found: Tensor = torch.linalg.vector_norm(self.inside - self.inside @ basis @ basis.T, dim=1)
        return found


@dataclass(frozen=True, eq=False)
class HiddenSpan:
    """A layer that holds each example's input in the span of its gradient's rows.

    A row of the gradient is a sum of what the examples put into the layer. With fewer of them than the layer has
    columns, and at least as many independent rows, each lies in the rows' span; what a mixture of examples becomes
    behind a nonlinearity does not. Neither labels nor a loss are asked for. It is no proof: a mixture that drives the
    same units as its parts lies there too. After several local steps an example is near.
    """

    inside: Inside
    layer: Layer
    sides: Float[Tensor, "r columns"]  # the span's orthonormal directions
    blur: float  # how far errors of the gradient turn them

    @staticmethod
    def behind(observation: Observation, weight: str) -> tuple[HiddenSpan, ...]:
        """Those of all layers but the one of that weight, which holds every combination of its own rows."""
        count = observation.examples
        if count is None:
            return ()
        try:
            inside, maps = Inside.of(observation.task, count), Passes.of(observation, count).maps or count
            gradients = layer_gradients(observation, inside, but=weight)
        except FOREIGN:  # a network that cannot be followed
            return ()
        found = list[HiddenSpan]()
        for layer in inside.layers:
            size, gradient = maps * int(layer.used.sum()), gradients.get(layer.weight)
            if gradient is None or not size < gradient.matrix.shape[1] or size > len(gradient.matrix):
                continue
            _, values, sides = torch.linalg.svd(gradient.matrix, full_matrices=False)
            if float(values[size - 1]) > max(gradient.faintest, rounded(observation.task) * float(values[0])):
                found.append(HiddenSpan(inside, layer, sides[:size], gradient.faintest / float(values[size - 1])))
        return tuple(found)

    def tells(self, candidates: Float[Tensor, "k *shape"]) -> bool:
        """Whether some of raw candidates fit less than others, each by itself and whatever is drawn at random."""
        if not 1 < len(candidates) <= MOST:
            return False
        found, alone = self.fit(candidates), self.fit(candidates[:1])
        apart = float(found.apart.max()) > TOLD * max(self.blur, ROUNDING)
        return apart and torch.allclose(found.inside[0], alone.inside[0], atol=1e-9)

    def fit(self, candidates: Float[Tensor, "k *shape"]) -> HiddenFit:
        count, unfolding = len(candidates), self.layer.unfolding
        batch = Batch(candidates.double(), torch.zeros(count, dtype=torch.long))
        (hidden,) = replace(self.inside, examples=count).run([self.layer.hidden], {}, batch)
        rows = unfolding.rows(unfolding.of_hidden(hidden))[:, self.layer.used]
        rows = rows / rows.flatten(1).norm(dim=1).clamp_min(1e-300)[:, None, None]
        coordinates = rows @ self.sides.T
        return HiddenFit((rows - coordinates @ self.sides).flatten(1), coordinates.flatten(1), self.blur)
