"""From a hidden tensor that is known towards the input, one linear system a tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor
from torch.fx import Node

from leakgauge.attacks.features.network import Layer, Network
from leakgauge.attacks.features.reach import Reach
from leakgauge.attacks.features.read import HiddenRead, Noisy, whole_output
from leakgauge.attacks.features.signals import Signals

LARGEST = 4500
"""Unknowns of one channel that a dense system is solved for."""

DETERMINED = 1e-6
"""Eigenvalue of the system's normal matrix, as a share of the largest, down to which a direction is determined by the
gradients alone."""


@dataclass(frozen=True)
class Solved:
    """One tensor that the descent came to.

    Attributes:
        weights: of the layers that read it.
        residual: share of its equations that is left.
        mended: entries whose zero was decided by the gradient of a shift.
    """

    weights: tuple[str, ...]
    residual: float
    mended: int


@dataclass(eq=False)
class Descent:
    """What is known of a network's hidden tensors and error signals, and how to know more.

    Attributes:
        network: of the batch, in float64.
        layers: its products.
        gradients: of the weights.
        shifts: the update's gradients of shifts.
        reach: of the layers.
        error: estimated relative error of what is known.
        state: values and signals.
        solved: in the order in which they came.
    """

    network: Network
    layers: Sequence[Layer]
    gradients: Mapping[str, Noisy]
    shifts: Mapping[str, Tensor]
    reach: Mapping[str, Reach]
    error: float
    state: Signals
    solved: list[Solved] = field(default_factory=list)
    _failed: dict[Node, int] = field(default_factory=dict)

    @staticmethod
    def of(
        network: Network,
        layers: Sequence[Layer],
        gradients: Mapping[str, Noisy],
        shifts: Mapping[str, Tensor],
        reach: Mapping[str, Reach],
        start: HiddenRead,
    ) -> Descent:
        """From one hidden tensor that was read to scale."""
        made = Descent(network, layers, gradients, shifts, reach, start.error, Signals(network))
        layer = start.layers[0]
        for one in start.layers:
            made.state.known[one.output] = whole_output(one, start.signals[one.weight], reach[one.weight], network)
            made.state.lifted(one.output)
        made._keep(layer, start.raw, start.maps if start.sparse else None)
        return made

    def run(self) -> None:
        """Solves for one tensor after the other, as long as the equations determine one."""
        while self._step():
            pass

    def known(self, layer: Layer) -> bool:
        """Whether what a layer reads is known."""
        return layer.hidden in self.state.values

    def equations(self) -> list[tuple[Layer, Tensor]]:
        """Layers whose signals are known and whose inputs are not, with these signals [n, places, filters]."""
        signals = {layer: self.state.at(layer.output) for layer in self.layers if not self.known(layer)}
        return [(k, k.signals(signal, self.network.examples)) for k, signal in signals.items() if signal is not None]

    def _step(self) -> bool:
        found = self.equations()
        for hidden in dict.fromkeys(layer.hidden for layer, _ in reversed(found)):
            pairs = [one for one in found if one[0].hidden is hidden]
            if self._failed.get(hidden, 0) < len(pairs) and self._solve(pairs):
                return True
            self._failed[hidden] = len(pairs)
        return False

    def _solve(self, pairs: Sequence[tuple[Layer, Tensor]]) -> bool:
        first = pairs[0][0]
        pixels, channels, count = first.unfolding.pixels, first.unfolding.channels, self.network.examples
        if pixels * count > LARGEST:
            return False
        blocks, sides = [], []
        for layer, signal in pairs:
            gradient = self.gradients[layer.weight].matrix.reshape(
                len(self.gradients[layer.weight].matrix), -1, channels
            )
            size = gradient.norm().clamp_min(1e-300)
            blocks.append(_design(layer, signal) / size)
            sides.append(gradient.flatten(0, 1) / size)
        design, side = torch.cat(blocks), torch.cat(sides)
        values, vectors = torch.linalg.eigh(design.T @ design)
        system = _System(self, first, design, side, values, vectors)
        alone = float(values[0]) > DETERMINED * float(values[-1])
        forward = [] if alone else self._forward(first)
        rows = design.shape[0] * channels + sum(int(on.sum()) for _, on, _ in forward)
        if not alone and rows < pixels * count * channels:
            return False
        maps, residual = system.dense() if alone else system.iterated(forward)
        if residual > max(1e-5, 20 * self.error):
            return False
        mended = self._keep(first, maps.view(channels, count, pixels).transpose(0, 1))
        self.solved.append(Solved(tuple(layer.weight for layer, _ in pairs), residual, mended))
        return True

    def _forward(self, layer: Layer) -> list[tuple[Node, Bool[Tensor, " m"], Tensor]]:
        """Known tensors behind a kink that are affine in what the layer reads: argument, active entries, values."""
        found, hidden = [], layer.hidden
        for node, value in self.state.values.items():
            bent = self.state.kink(node)
            if bent is None:
                continue
            (argument,) = self.network.operands(node)
            others = [n for n in self.state.values if n is not node]
            if self.network.between([*others, hidden], argument) or not self.network.between(others, argument):
                continue
            on = (value > 0).flatten() if bent.below == 0 else torch.ones(value.numel(), dtype=torch.bool)
            found.append((argument, on, bent.argument(value).flatten()[on]))
        return found

    def _keep(self, layer: Layer, raw: Float[Tensor, "n c pixels"], clean: Tensor | None = None) -> int:
        """Takes maps as what a layer reads, a ReLU's zeros as zeros; how many of these were decided by a shift."""
        hidden, mended = layer.hidden, 0
        shape, bent = self.network.shapes[hidden], self.state.kink(hidden)
        full = layer.hidden_of(raw, shape)
        if bent is not None and bent.below == 0:
            floor = 1.5 * float((-full).max().clamp_min(1e-12 * float(full.abs().max())))
            on = layer.hidden_of(clean, shape) > 0 if clean is not None else full > floor
            signal = self.state.at(hidden)
            (argument,) = self.network.operands(hidden)
            shift = None if signal is None else self.state.shift(argument)
            if signal is not None and shift is not None and shift.name in self.shifts and shift.axis == 1:
                on, mended = mend(full, on, signal, self.shifts[shift.name], floor, self.error)
            full = full.clamp_min(0) * on
        self.state.values[hidden] = full
        return mended


def mend(
    value: Float[Tensor, "n c ..."], on: Tensor, signal: Tensor, shift: Float[Tensor, " c"], floor: float, error: float
) -> tuple[Tensor, int]:
    """Which entries a ReLU lets through, where some are too near to zero to tell.

    The signals that it lets through sum to the shift's gradient, channel by channel: of the entries near the floor
    those few are turned whose signals are what is missing.
    """
    values, masks, signals = (t.movedim(1, 0).flatten(1) for t in (value, on, signal))
    masks, turned = masks.clone(), 0
    for c in range(len(values)):
        missing = float(shift[c] - (signals[c] * masks[c]).sum())
        size = float(signals[c].abs().sum()) * max(3e-7, error)
        if abs(missing) < 2 * size:
            continue
        near = (values[c].abs() < 30 * floor).nonzero()[:, 0]
        near = near[(values[c][near].abs() / floor).clamp_min(1e-9).log().abs().argsort()]
        change = {j: float(signals[c][j]) * (-1.0 if masks[c][j] else 1.0) for j in near.tolist()}
        best, chosen = abs(missing), tuple[int, ...]()
        for many, few in ((1, 300), (2, 40), (3, 10)):
            for some in combinations(list(change)[:few], many):
                left = abs(missing - sum(change[j] for j in some))
                if left < 0.3 * best:
                    best, chosen = left, some
            if best < 2 * size:
                break
        if best < 30 * size:
            for j in chosen:
                masks[c, j] = ~masks[c, j]
                turned += 1
    return masks.view(on.movedim(1, 0).shape).movedim(0, 1), turned


def _design(layer: Layer, signal: Float[Tensor, "n places filters"]) -> Float[Tensor, "equations unknowns"]:
    """What the gradient of a layer is of one channel of its input: [filters × offsets, examples × pixels]."""
    index, pixels = layer.unfolding.index, layer.unfolding.pixels
    filters, offsets = signal.shape[2], index.shape[1]
    made = signal.new_zeros(filters, offsets, len(signal), pixels + 1)
    for k in range(offsets):
        made[:, k].index_add_(2, index[:, k], signal.permute(2, 0, 1))
    return made[..., :pixels].reshape(filters * offsets, -1)


@dataclass(frozen=True, eq=False)
class _System:
    """design · maps = side, and the forward equations where they are needed."""

    descent: Descent
    layer: Layer
    design: Tensor
    side: Tensor
    values: Tensor
    vectors: Tensor

    def dense(self) -> tuple[Tensor, float]:
        """By the normal equations, refined twice."""
        found = torch.zeros(self.design.shape[1], self.side.shape[1], dtype=torch.float64)
        for _ in range(3):
            left = self.vectors.T @ (self.design.T @ (self.side - self.design @ found))
            found = found + self.vectors @ (left / self.values[:, None])
        residual = float((self.design @ found - self.side).norm() / self.side.norm())
        return found.T, residual

    def iterated(self, forward: Sequence[tuple[Node, Tensor, Tensor]], most: int = 300) -> tuple[Tensor, float]:
        """With the forward equations, by LSMR (Fong and Saunders, 2011), preconditioned by the gradients' own part."""
        channels, unknowns = self.side.shape[1], self.design.shape[1]
        ask = self._asked(forward)
        zero = torch.zeros(channels, unknowns, dtype=torch.float64)
        base = ask(zero)
        target = torch.cat([values for _, _, values in forward]) if forward else zero.new_zeros(0)
        scale = 1 / float((target - base).norm().clamp_min(1e-300)) if forward else 1.0
        probe = torch.randn(zero.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        typical = scale**2 * float((ask(probe) - base).square().sum()) / probe.numel() if forward else 0.0
        turn = self.vectors / (self.values.clamp_min(0) + max(typical, 1e-9 * float(self.values[-1]))).sqrt()

        def apply(y: np.ndarray) -> np.ndarray:
            maps = torch.from_numpy(y).view(channels, unknowns) @ turn.T
            return torch.cat([(self.design @ maps.T).flatten(), scale * (ask(maps) - base)]).numpy()

        def adjoint(r: np.ndarray) -> np.ndarray:
            whole = torch.from_numpy(r)
            head = whole[: self.side.numel()].view(self.side.shape)
            total = (self.design.T @ head).T
            if forward:
                point = zero.clone().requires_grad_()
                with torch.enable_grad():
                    made = ask(point)
                    total = total + torch.autograd.grad(made, point, scale * whole[self.side.numel() :])[0]
            return (total @ turn).flatten().numpy()

        right = torch.cat([self.side.flatten(), scale * (target - base)]).numpy()
        shape = (len(right), channels * unknowns)
        operator = LinearOperator(shape, matvec=apply, rmatvec=adjoint, dtype=np.float64)
        found, *_ = lsmr(operator, right, atol=1e-11, btol=1e-11, conlim=0, maxiter=most)
        left = float(np.linalg.norm(operator.matvec(found) - right) / np.linalg.norm(right))
        return torch.from_numpy(found).view(channels, unknowns) @ turn.T, left

    def _asked(self, forward: Sequence[tuple[Node, Tensor, Tensor]]) -> "_Ask":
        return _Ask(self.descent, self.layer, forward)


@dataclass(frozen=True, eq=False)
class _Ask:
    """Maps [channels, examples × pixels] → arguments of known kinks, at their active entries."""

    descent: Descent
    layer: Layer
    forward: Sequence[tuple[Node, Tensor, Tensor]]

    def __call__(self, maps: Tensor) -> Tensor:
        network, values = self.descent.network, self.descent.state.values
        shape = network.shapes[self.layer.hidden]
        given = self.layer.hidden_of(maps.view(len(maps), network.examples, -1).transpose(0, 1), shape)
        out = [maps.new_zeros(0)]
        for argument, on, _ in self.forward:
            known = {n: t for n, t in values.items() if argument not in network.operands(n)}
            (made,) = network.run({**known, self.layer.hidden: given}, [argument])
            out.append(made.flatten()[on])
        return torch.cat(out)
