"""What is likely before the update is seen, and how its weight changes during a search."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import grad

from leakgauge.attacks.matching.parts import Prior
from leakgauge.errors import Checked, limit, limited, not_negative, positive, require
from leakgauge.registry import PRIORS
from leakgauge.task import DataSpec
from leakgauge.tensors import Tensors


@dataclass(frozen=True)
class Weighted(Checked, Prior):
    """A penalty times a weight."""

    weight: float = field(metadata=limit(lambda weight: weight >= 0, "give a number ≥ 0"))


@PRIORS.register("none")
@dataclass(frozen=True)
class NoPrior(Prior):
    """No penalty."""

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return z.new_zeros(())


@PRIORS.register("tv", needs="data with two spatial axes")
@dataclass(frozen=True)
class TotalVariation(Weighted):
    """weight · (mean|∂x| + mean|∂y|): anisotropic, a mean over all elements, in normalised units.

    Source: Inverting Gradients as its authors' code defines it; the paper says only "TV".

    Attributes:
        weight: the papers' α.
        smoothing: ε in √(∂² + ε), which makes it twice differentiable for quasi-Newton methods; 0 is `|∂|`.
        coupled: one root over the colours, √(mean over channels of ∂² + ε): edges of all channels fall together, and
            colours cost nothing where there is an edge already (Blomgren and Chan, 1998). A grey edge costs the same.
    """

    smoothing: float = not_negative(0.0)
    coupled: bool = False

    def refuses(self, data: DataSpec) -> str:
        fits = len(data.shape) == 3
        return "" if fits else f"TotalVariation needs two spatial axes, the data have shape {data.shape}"

    def __call__(self, z: Float[Tensor, "n c h w"]) -> Float[Tensor, ""]:
        if not self.weight:
            return z.new_zeros(())
        return self.weight * (self._mean(z.diff(dim=-1)) + self._mean(z.diff(dim=-2)))

    def _mean(self, d: Tensor) -> Float[Tensor, ""]:
        if not d.numel():  # a side of one, as a recording of shape (1, 1, length) has
            return d.sum()
        if not (self.smoothing or self.coupled):
            return d.abs().mean()
        square = d.square().mean(-3) if self.coupled else d.square()
        # A root without smoothing has no slope at zero.
        return (square + (self.smoothing or 1e-12)).sqrt().mean()


@PRIORS.register("squared-norm")
@dataclass(frozen=True)
class SquaredNorm(Weighted):
    """weight · ‖z‖²_F, summed over the whole batch, in normalised units.

    Source: Qian & Hansen, Eq. 2, for a batch of one. The paper prints the norm without the square, while its
    Eq. 3 squares.
    """

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.weight * z.square().sum()


@PRIORS.register("orthogonality", needs="a batch of at least two")
@dataclass(frozen=True)
class Orthogonality(Weighted):
    """weight · Σ_{k≠k'} (z_k · z_k')² over ordered pairs, so that each pair counts twice; in normalised units.

    Source: Qian & Hansen, Eq. 3. One example has no pair and costs nothing. Real examples are not orthogonal: on raw
    pictures in [0, 1] it is about 8 000 for four digits, against a data term near 0.01. With the paper's weight of 0.1
    the truth is no minimum until the weight has decayed; see `Decaying`.
    """

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        flat = z.flatten(1)
        products = (flat @ flat.T).square()
        return self.weight * (products.sum() - products.diagonal().sum())


@dataclass(frozen=True, kw_only=True)
class ByBatch(Prior):
    """`one` for a batch of one example, `several` for more, as Qian & Hansen choose."""

    one: Prior
    several: Prior

    def refuses(self, data: DataSpec) -> str:
        return self.one.refuses(data) or self.several.refuses(data)

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return (self.one if len(z) == 1 else self.several)(z)


@dataclass(frozen=True)
class Reweighted(Prior):
    """`prior`, whose weight changes during the run; as a function of z alone it is `prior`."""

    prior: Prior

    def refuses(self, data: DataSpec) -> str:
        return self.prior.refuses(data)

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.prior(z)


@PRIORS.register("balanced")
@dataclass(frozen=True, kw_only=True)
class Balanced(Checked, Reweighted):
    """`prior`, with a share of the data term's pull.

    Pull is the norm of the slope, of each variable of the canvas on its own: the prior has a say of the same size at
    every step. What a `Scheduled` prior asks for is the least. The objective that is reported, and by which the best
    point is chosen, is the data term alone; so this suits minimisers that do not compare values with slopes (Adam, not
    a line search).
    """

    share: float = positive(0.2)


@dataclass(frozen=True, eq=False)
class Pull:
    """A prior that pulls beside the objective: its slope is added with the factor in force, or with as much as makes
    its norm `share` of the objective's, whichever is more."""

    prior: Callable[[Tensors], Tensor]
    share: float

    def added(self, variables: Tensors, slopes: Tensors, factor: Tensor) -> Tensors:
        """The slopes of one restart with those of the prior."""
        own = grad(self.prior)(variables)
        return {name: slope + self._weight(slope, own[name], factor) * own[name] for name, slope in slopes.items()}

    def _weight(self, slope: Tensor, own: Tensor, factor: Tensor) -> Tensor:
        tiny = torch.finfo(own.dtype).tiny
        size = slope.abs().amax().clamp_min(tiny)  # squares of small slopes would vanish
        balance = self.share * size * (slope / size).norm() / own.norm().clamp_min(tiny**0.5)
        return torch.maximum(balance, factor)


class Scheduled(Reweighted):
    """`prior`, multiplied at each step by what `at` says. Minimisers tell the problem how far the run is
    (`Problem.reach`), and the best point is the one that is best under the weight in force when the run ends."""

    def at(self, step: int, steps: int, data: float) -> float:
        raise NotImplementedError


@PRIORS.register("decaying")
@dataclass(frozen=True, kw_only=True)
class Decaying(Checked, Scheduled):
    """`prior`, weight times factor^⌊step / every⌋, whatever the length of the run.

    Source: Qian and Hansen, Algorithm 2: λ is multiplied by 0.9 every m = 2000 iterations.
    """

    factor: float = not_negative(0.9)
    every: int = positive(2000)

    def at(self, step: int, steps: int, data: float) -> float:
        return float(self.factor ** (step // self.every))


@PRIORS.register("falling")
@dataclass(frozen=True, kw_only=True)
class Falling(Checked, Scheduled):
    """`prior` with a falling weight: to the fraction `to` in `levels` equal ratios of equal length, never below
    misfit · √(2·data).

    Levels rather than a slope, because a quasi-Newton method learns the curvature of one function. Of a cosine
    data term, √(2·data) is the distance of the two unit vectors: what noise, rounding or a wrong guess of the
    client's training leaves of it, no image explains, and a weak prior would let the image try.
    """

    to: float = field(metadata=limit(lambda to: to > 0, "give a positive number"))
    levels: int = limited(10, lambda levels: levels > 1, "give at least 2")
    misfit: float = not_negative(0.0)

    def at(self, step: int, steps: int, data: float) -> float:
        level = min(self.levels * step // steps, self.levels - 1)
        least = self.misfit * (2 * data) ** 0.5 if self.misfit and data >= 0 else 0.0
        # Rounded up to a level, for the same reason.
        return next((f for f in (self.to ** (i / (self.levels - 1)) for i in range(level, -1, -1)) if f >= least), 1.0)


@PRIORS.register("proportional")
@dataclass(frozen=True, kw_only=True)
class Proportional(Checked, Scheduled):
    """`prior`, weighted by share · data^power, held between `least` and `most`; 1 stands for the data term before the
    first is known. For minimisers of first order.

    With power 1 a step goes down log(data) + share · prior, whatever cosine gap the network makes of images. With power
    2 the prior is weak where the data term says much. What noise leaves unexplained keeps the prior in force.
    """

    share: float = not_negative(0.3)
    power: float = positive(1.0)
    least: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.least <= self.most, "least", f"is {self.least}", "give a number from 0 to `most`")

    def at(self, step: int, steps: int, data: float) -> float:
        gap = max(data, 0.0) if math.isfinite(data) else 1.0
        return float(max(self.least, min(self.share * gap**self.power, self.most)))
