"""First-order minimisers: Adam and its annealed form; and how the masks of ReLUs would change, a slope for the search
where the true one is zero almost everywhere."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from leakgauge.attacks.matching.parts import Minimiser
from leakgauge.attacks.matching.problem import Best, Minimum, Problem
from leakgauge.errors import Checked, limited, positive
from leakgauge.observation import Status
from leakgauge.registry import MINIMISERS
from leakgauge.tensors import Tensors, map_tensors


def descend(
    problem: Problem, asked: int, *, rate: Callable[[int, int], float], direction: Callable[[Tensors], Tensors]
) -> Minimum:
    """Adam on what `direction` makes of a gradient, at the `rate` of a step, from 0 on, of a run of so many, clamped to
    the box after each: the best point by total objective. Where no restart is finite the run ends."""
    steps = problem.steps(asked)
    point = {k: v.clone() for k, v in problem.clamp(problem.start).items()}
    optimiser = torch.optim.Adam(list(point.values()))
    best = Best(problem.restarts, next(iter(point.values())))
    for step in range(steps):
        if (over := problem.over()) is not None:
            return best.minimum(over)
        problem.reach(step, steps)
        at = problem.evaluate(point)
        best.offer(point, at)
        problem.meter.note(step, float(best.data.min()))
        if not bool(torch.isfinite(at.total).any()):
            return best.minimum(Status.CONVERGED)  # no restart comes back from not-a-number
        for name, towards in direction(at.gradient).items():
            point[name].grad = towards
        optimiser.param_groups[0]["lr"] = rate(step, steps)
        optimiser.step()
        for name, (low, high) in problem.bounds.items():
            point[name].clamp_(low, high)
    return best.minimum(problem.over() or Status.OUT_OF_STEPS)


@MINIMISERS.register("adam")
@dataclass(frozen=True, kw_only=True)
class Adam(Checked, Minimiser):
    """Adam with step decay; `signed` replaces the gradient of the total objective by its sign first.

    Source: Inverting Gradients' code: lr 0.1 ×0.1 after 3/8, 5/8 and 7/8 of the steps, default betas,
    clamped to the box after each step. Differs: returns the best point by total objective, not the last.

    Where the budget allows fewer than `steps`, the schedule shrinks with it, so that a short run decays too.
    """

    steps: int = positive(4800)
    lr: float = positive(0.1, "learning rate")
    signed: bool = True
    decay: tuple[float, ...] = (2.667, 1.6, 1.142)

    def milestones(self, steps: int) -> list[int]:
        """Steps after which the learning rate falls by ten: 1799, 2999, 4203 of 4800. Floor division as in the paper's
        code: 4800 // 1.6 is 2999 in floating point."""
        return [int(steps // divisor) for divisor in self.decay]

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step, counted from 0, of a run of `steps`."""
        return self.lr * math.prod(0.1 for milestone in self.milestones(steps) if step >= milestone)

    def minimise(self, problem: Problem) -> Minimum:
        signs = (lambda gradient: map_tensors(torch.sign, gradient)) if self.signed else (lambda gradient: gradient)
        return descend(problem, self.steps, rate=self.rate, direction=signs)


@MINIMISERS.register("annealed-adam")
@dataclass(frozen=True, kw_only=True)
class AnnealedAdam(Checked, Minimiser):
    """Unsigned Adam, default betas; the learning rate falls on a half cosine from `lr` to `floor`·`lr`.

    Source: ROG's code: 100 iterations, 0.05 to 0.005; its scheduler first steps after the second iteration, so the
    first two have the full rate. Differs: returns the best point by total objective, not the last; gradients are
    divided by the root mean square of the first one (of each restart), so that Adam's ε of 1e-8 means the same
    for the sum over 34 million entries and for a delta that the local learning rate has made small.

    Where the budget allows fewer than `steps`, the cosine shrinks with it.
    """

    steps: int = positive(100)
    lr: float = positive(0.05, "learning rate")
    floor: float = limited(0.1, lambda share: 0 <= share <= 1, "give a share of lr in [0, 1]")

    def rate(self, step: int, steps: int) -> float:
        """Learning rate of a step, counted from 0, of a run of `steps`."""
        turned = (1 + math.cos(math.pi * max(step - 1, 0) / steps)) / 2
        return self.lr * (self.floor + (1 - self.floor) * turned)

    def minimise(self, problem: Problem) -> Minimum:
        units: list[Tensor] = []

        def direction(gradient: Tensors) -> Tensors:
            if not units:
                flat = torch.cat([g.flatten(1) for g in gradient.values()], 1)
                largest = flat.abs().amax(1).clamp_min(torch.finfo(flat.dtype).tiny)  # small squares would vanish
                units.append(largest * (flat / largest[:, None]).square().mean(1).sqrt())
            return map_tensors(lambda g: g / units[0].view(-1, *([1] * (g.ndim - 1))), gradient)

        return descend(problem, self.steps, rate=self.rate, direction=direction)


class _Activation(Function):
    """ReLU, or leaky ReLU with `low`, whose derivative is the mask: its value is exact, its own derivative a hat."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, masks: "SmearedMasks") -> Tensor:
        del masks
        return F.leaky_relu(x, low) if low else x.relu()

    @staticmethod
    def setup_context(ctx: Any, inputs: "tuple[Tensor, float, SmearedMasks]", output: Tensor) -> None:
        del output
        x, ctx.low, ctx.masks = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, *towards: Tensor) -> tuple[Tensor, None, None]:
        (outer,), (x,), masks = towards, ctx.saved_tensors, ctx.masks
        half = masks.width * x.detach().var(correction=0).sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        place = (x / half).clamp(-1, 1)
        rising = masks.weight * (1 - ctx.low) * (place - place * place.abs() / 2)  # whose slope is the hat
        return torch.where(x > 0, outer, ctx.low * outer) + outer * (rising - rising.detach()), None, None


def _relu(x: Tensor, inplace: bool = False) -> tuple[Tensor, float, bool]:
    return x, 0.0, inplace


def _leaky(x: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> tuple[Tensor, float, bool]:
    return x, negative_slope, inplace


_KNOWN: dict[Callable[..., Any], Callable[..., tuple[Tensor, float, bool]]] = {
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    torch.relu_: partial(_relu, inplace=True),
    Tensor.relu_: partial(_relu, inplace=True),
    F.leaky_relu: _leaky,
    F.leaky_relu_: partial(_leaky, inplace=True),
}
"""Every way to call one → its input, the slope below zero, and whether it writes into its input."""


class _Smeared(TorchFunctionMode):
    def __init__(self, masks: "SmearedMasks") -> None:
        super().__init__()
        self._masks = masks

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if (known := _KNOWN.get(func)) is None:
            return func(*args, **given)
        x, low, inplace = known(*args, **given)
        if not x.is_floating_point():
            return func(*args, **given)
        made = _Activation.apply(x.clone() if inplace else x, low, self._masks)  # type: ignore[no-untyped-call]
        return x.copy_(made) if inplace else made


@dataclass(frozen=True, kw_only=True)
class SmearedMasks(Checked):
    """The derivative of a ReLU's mask, which is zero almost everywhere, stood for by a hat around zero.

    The gradient of a ReLU network depends on its input through the masks as well: which units are on. Here values and
    first derivatives are the network's own, so that a simulated update is the client's to the last digit; in *its*
    derivative each mask m(x) has m'(x) = weight · max(0, 1 − abs(x)/h)/h, with h = width · the standard deviation of
    all that enters the activation. So the slope is not that of the objective, and suits minimisers that do not compare
    the two (Adam, not a line search).

    Source: the surrogate gradients of spiking networks (Neftci, Mostafa and Zenke, 2019), one derivative higher.
    Reaches ReLU and leaky ReLU however they are called from the model's code; other kinks stay as they are.
    """

    width: float = positive(1.0)
    weight: float = positive(0.05)

    def active(self) -> AbstractContextManager[object]:
        """Activations that are called within are smeared, in every later derivative too."""
        return _Smeared(self)
