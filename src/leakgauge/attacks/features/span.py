"""Examples among the combinations of a layer's rows, told apart by what is known of the network behind it."""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import least_squares
from torch import Tensor

from leakgauge.attacks.features.inversion import Inverted, Residuals
from leakgauge.attacks.matching.problem import Meter, Over
from leakgauge.observation import Observation, Status
from leakgauge.task import DataSpec
from leakgauge.tracing import input_layers

FAINT = 1e-5
"""Singular values below this share of the largest are rounding."""

ROWS = 12
"""Of the layer, that an example is looked for near."""

STARTS = 4
"""Best candidates that an example is searched from."""

FORWARD = 3
"""Forward passes that a gradient evaluation takes as long as."""

EXACTLY = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15}


@dataclass(frozen=True, eq=False)
class RowSpan:
    """All x that a linear layer's gradient Σ_k δ_k x_kᵀ leaves open: base + coordinates · directions.

    Where the layer has a bias, whose gradient is Σ_k δ_k, coordinates are those whose weights sum to one.

    Attributes:
        rows: coordinates of the rows of the gradient over the bias's; of nothing without a bias.
    """

    base: Float[Tensor, " d"]
    directions: Float[Tensor, "r d"]
    rows: Float[Tensor, "k r"]

    @staticmethod
    def of(observation: Observation, count: int, generator: torch.Generator) -> RowSpan | None:
        """`None` where no linear layer reads the examples, or noise or several steps fill its rows."""
        view = observation.view
        layers = input_layers(view.task, generator)
        if not layers:
            return None
        weight, biased = view.values(layers[0].weight), layers[0].bias is not None
        bias = view.values(layers[0].bias) if layers[0].bias is not None else weight.new_zeros(len(weight))
        rows = torch.cat([weight, bias[:, None]], 1)
        _, sizes, sides = torch.linalg.svd(rows, full_matrices=False)
        rank = int((sizes > FAINT * sizes[0]).sum())
        if not 0 < rank <= count or (biased and rank == 1):
            return None
        sides = sides[:rank]
        if not biased:
            return RowSpan(weight.new_zeros(weight.shape[1]), sides[:, :-1], weight.new_zeros(0, rank))
        last = sides[:, -1]
        point = last / last.square().sum()
        around = torch.linalg.svd(last[None], full_matrices=True)[2][1:]
        heard = bias.abs() > FAINT * bias.abs().max()
        ratios = (rows[heard] / bias[heard, None]) @ sides.T - point
        return RowSpan((point @ sides)[:-1], (around @ sides)[:, :-1], ratios @ around.T)

    def examples(self, coordinates: Float[Tensor, "n r"], data: DataSpec) -> Float[Tensor, "n *shape"]:
        """Raw."""
        flat = self.base + coordinates.to(self.base) @ self.directions
        return data.denormalise(flat.view(-1, *data.shape))

    def inverted(
        self, residuals: Residuals, data: DataSpec, meter: Meter, generator: torch.Generator
    ) -> Inverted | None:
        """What known values make of each example by itself; `None` where they are fewer than the open coordinates, or
        hang on the other examples."""
        count, open_ = residuals.shape[0], len(self.directions)
        if not residuals.terms or not residuals.apart(data, generator, open_):
            return None
        starts, found, calls = self._starts(generator), Inverted.nothing(residuals), itertools.count(1)
        inputs, left = found.inputs.clone(), found.left.clone()

        def differences(at: np.ndarray, own: Residuals) -> np.ndarray:
            meter.tick()
            meter.spent += next(calls) % (FORWARD * count) == 0
            with torch.no_grad():
                return own(self.examples(torch.from_numpy(at)[None], data)).numpy()

        with suppress(Over):
            for k in range(count):
                own = residuals.only(torch.tensor([k]))
                first = [float(np.square(differences(start, own)).sum()) for start in starts.numpy()]
                for index in np.argsort(first)[:STARTS]:
                    if meter.over(1) is not None or float(left[k]) < residuals.explained:
                        break
                    ended = least_squares(differences, starts[int(index)].numpy(), **EXACTLY, args=(own,))
                    if 2 * ended.cost < float(left[k]):
                        left[k] = 2 * ended.cost
                        inputs[k] = self.examples(torch.from_numpy(ended.x)[None], data)[0]
        done = float(left.max()) < residuals.explained
        return Inverted(inputs, left, Status.CONVERGED if done else Status.OUT_OF_STEPS, apart=True)

    def _starts(self, generator: torch.Generator) -> Float[Tensor, "s r"]:
        """Rows and points between them; of nothing without a bias."""
        if not len(self.rows):
            return torch.randn(ROWS, len(self.directions), generator=generator, dtype=torch.float64)
        rows = self.rows[torch.randperm(len(self.rows), generator=generator)[:ROWS]]
        shares = torch.rand(4 * len(self.directions), len(rows), generator=generator, dtype=torch.float64)
        return torch.cat([rows, shares / shares.sum(1, keepdim=True) @ rows])
