"""Examples among the combinations of a layer's rows, told apart by what a layer further in says of its inputs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import least_squares
from torch import Tensor

from leakgauge.attacks.features.inside import Inside, Layer
from leakgauge.attacks.features.read import TURNED, Noisy, Passes, layer_gradients
from leakgauge.attacks.matching.problem import Meter, Over
from leakgauge.batch import Batch
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.task import DataSpec, Task
from leakgauge.tracing import input_layers
from leakgauge.view.entries import SentTensor

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
    def behind(observation: Observation, weight: str) -> "tuple[HiddenSpan, ...]":
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


ROWS, AROUND = 16, 4
"""Rows of the layer, points around them, and as many within the data's range, that an example is looked for near, for
each example."""

WIDE = 2.0  # of the rows' spread, that of the points around them
STARTS = 8  # searches for each example
FITS = 1e-3  # an example lies nearer than this share of what such points lie outside, or within the layer's errors
ALONE = 1e-4  # least share of the largest slope, in any direction, with which an example stands alone
EDGE = 1e-2  # how far outside the data's range an example may come out, in shares of its width
SAME = 1e-3  # what an example has beside those that were found, at least
FORWARD = 3  # forward passes that a gradient evaluation takes as long as
SMALL = 1e-7  # share of its coordinates by which a point is moved for its slopes

ENDS = {"xtol": 1e-12, "ftol": 1e-12, "gtol": 1e-15, "max_nfev": 40}


@dataclass(frozen=True, eq=False)
class RowSpan:
    """All x that a linear layer's gradient Σ_k δ_k x_kᵀ leaves open: base + coordinates · directions. Where the layer
    has a bias, whose gradient is Σ_k δ_k, coordinates are those whose weights sum to one."""

    base: Float[Tensor, " d"]
    directions: Float[Tensor, "r d"]
    rows: Float[Tensor, "k r"]  # coordinates of the rows of the gradient over the bias's; of nothing without a bias

    @staticmethod
    def of(observation: Observation, count: int, generator: torch.Generator) -> "RowSpan | None":
        """`None` where no linear layer reads the examples, or noise or several steps fill its rows."""
        view = observation.view
        layers = input_layers(view.task, generator, view.update.tensors)
        if not layers:
            return None
        weight, shift = layers[0].weight, layers[0].bias
        sent = [SentTensor.of(view, name)[...] for name in (weight, shift) if name is not None]
        rows = torch.cat([entries.value.view(len(entries.value), -1) for entries in sent], 1)
        unsure = torch.cat([entries.unsure.view(len(entries.unsure), -1) for entries in sent], 1)
        _, sizes, sides = torch.linalg.svd(rows, full_matrices=False)
        rank = int((sizes > max(Noisy(rows, unsure).faintest, rounded(view.task) * float(sizes[0]))).sum())
        if not 0 < rank <= count or (shift is not None and rank == 1):
            return None
        sides = sides[:rank]
        if shift is None:
            return RowSpan(rows.new_zeros(rows.shape[1]), sides, rows.new_zeros(0, rank))
        last, bias = sides[:, -1], rows[:, -1]
        point = last / last.square().sum()
        around = torch.linalg.svd(last[None], full_matrices=True)[2][1:]
        heard = bias.abs() > unsure[:, -1] / TURNED
        ratios = (rows[heard] / bias[heard, None]) @ sides.T - point
        return RowSpan((point @ sides)[:-1], (around @ sides)[:, :-1], ratios @ around.T)

    def examples(self, coordinates: Float[Tensor, "n r"], data: DataSpec) -> Float[Tensor, "n *shape"]:
        """Raw."""
        return data.denormalise((self.base + coordinates.to(self.base) @ self.directions).view(-1, *data.shape))

    def fitted(
        self, layers: Sequence[HiddenSpan], data: DataSpec, count: int, meter: Meter, generator: torch.Generator
    ) -> Float[Tensor, "k *shape"]:
        """At most `count` raw examples that a layer further in holds to rounding (`HiddenSpan`), each alone: from the
        best candidate on, Levenberg–Marquardt brings what it puts into that layer into the span, in shares of what it
        has beside those that were found, so that none is found twice (Farrell, Birkisson and Funke, 2015)."""
        starts, found = self._starts(data, generator), list[Tensor]()
        room = meter.affordable(1)
        starts = starts if room is None else starts[: FORWARD * count * room // 2]
        behind = next((layer for layer in layers if layer.tells(self.examples(starts, data))), None)
        if behind is None:
            return self.examples(starts[:0], data)
        first = behind.fit(self.examples(starts, data))
        known, untried = first.inside[:0], torch.ones(len(starts), dtype=torch.bool)
        near = max(FITS * float(first.apart.median()), behind.blur)
        passes, before, edge = [len(starts)], meter.spent, EDGE * data.range
        meter.spent += len(starts) // (FORWARD * count)
        meter.note(0, float(first.apart.min()))

        def outside(points: np.ndarray) -> np.ndarray:
            meter.tick()
            passes.append(len(points))
            meter.spent = before + sum(passes) // (FORWARD * count)
            fit = behind.fit(self.examples(torch.from_numpy(points), data))
            return (fit.outside / fit.beside(known).clamp_min(SMALL)[:, None]).numpy()

        def slopes(at: np.ndarray) -> np.ndarray:
            steps = SMALL * (1 + np.abs(at).max()) * np.eye(len(at))
            ends = outside(np.concatenate([at[None], at + steps]))
            found: np.ndarray = (ends[1:] - ends[0]).T / steps.max()
            return found

        with suppress(Over):
            for _ in range(min(STARTS * count, len(starts))):
                if len(found) == count or meter.over(1) is not None:
                    break
                score = first.apart / first.beside(known)
                k = int(torch.where(untried, score, torch.inf).argmin())
                untried[k] = False
                ended = least_squares(lambda at: outside(at[None])[0], starts[k].numpy(), slopes, **ENDS)
                turns = np.linalg.svd(ended.jac, compute_uv=False)
                example = self.examples(torch.from_numpy(ended.x)[None], data)
                there = behind.fit(example)
                alone = turns[-1] > ALONE * turns[0] and float(there.beside(known)) > SAME
                inside = torch.equal(example, example.clamp(data.low - edge, data.high + edge))
                if alone and inside and float(there.apart) <= near:
                    found.append(example[0])
                    meter.note(len(found), float(there.apart))
                    known = torch.cat([known, there.inside])
        return torch.stack(found) if found else self.examples(starts[:0], data)

    def _starts(self, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "s r"]:
        """Rows, points around them, and points as far from their mean as the data's range goes that way."""
        open_, dtype = len(self.directions), torch.float64
        rows = self.rows[torch.randperm(len(self.rows), generator=generator)[: ROWS * (1 + open_)]]
        center = rows.mean(0) if len(rows) else rows.new_zeros(open_)
        drawn = torch.randn(AROUND * (1 + open_), open_, generator=generator, dtype=dtype)
        moved = self.examples(drawn, data) - self.examples(torch.zeros_like(drawn), data)
        reach = data.range * torch.rand(len(drawn), 1, generator=generator, dtype=dtype)
        within = center + drawn * reach / moved.flatten(1).abs().amax(1, keepdim=True)
        if not len(rows):
            return within
        spread = torch.linalg.svd(rows - center, full_matrices=False)
        near = torch.randn(AROUND * (1 + open_), len(spread.S), generator=generator, dtype=dtype)
        wide = WIDE * near * spread.S / len(rows) ** 0.5 @ spread.Vh
        return torch.cat([rows, center + wide, within])
