"""What is likely before the update is seen, and the batch's BatchNorm statistics where they travelled with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.matching.parts import Prior
from leakgauge.clients import FedSGD
from leakgauge.errors import require
from leakgauge.observation import Observation
from leakgauge.registry import PRIORS
from leakgauge.step.training import inputs_of
from leakgauge.task import DataSpec, Mode, Task
from leakgauge.tensors import Tensors


@PRIORS.register("none")
@dataclass(frozen=True)
class NoPrior(Prior):
    """No penalty."""

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return z.new_zeros(())


@PRIORS.register("tv", needs="data with two spatial axes")
@dataclass(frozen=True)
class TotalVariation(Prior):
    """weight · (mean|∂x| + mean|∂y|): anisotropic, a mean over all elements, in normalised units.

    Source: Inverting Gradients as its authors' code defines it; the paper says only "TV".

    Attributes:
        weight: the papers' α.
        smoothing: ε in √(∂² + ε), which makes it twice differentiable for quasi-Newton methods; 0 is `|∂|`.
        coupled: one root over the colours, √(mean over channels of ∂² + ε): edges of all channels fall together, and
            colours cost nothing where there is an edge already (Blomgren and Chan, 1998). A grey edge costs the same.
    """

    weight: float
    smoothing: float = 0.0
    coupled: bool = False

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")
        require(self.smoothing >= 0, "smoothing", f"is {self.smoothing}", "give a number ≥ 0")

    def refuses(self, data: DataSpec) -> str:
        """Neighbours need two axes."""
        fits = len(data.shape) == 3
        return "" if fits else f"TotalVariation needs two spatial axes, the data have shape {data.shape}"

    def __call__(self, z: Float[Tensor, "n c h w"]) -> Float[Tensor, ""]:
        if not self.weight:
            return z.new_zeros(())
        dy = z[..., 1:, :] - z[..., :-1, :]
        dx = z[..., :, 1:] - z[..., :, :-1]
        return self.weight * (self._mean(dx) + self._mean(dy))

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
class SquaredNorm(Prior):
    """weight · ‖z‖²_F, summed over the whole batch, in normalised units.

    Source: Qian & Hansen, Eq. 2, for a batch of one. The paper prints the norm without the square, while its
    Eq. 3 squares: see `Norm` for the other reading.
    """

    weight: float

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.weight * z.square().sum()


@PRIORS.register("norm")
@dataclass(frozen=True)
class Norm(Prior):
    """weight · ‖z‖_F of the whole batch, in normalised units. It has a kink at zero, where its gradient is zero here.

    Source: Qian & Hansen, Eq. 2 as printed.
    """

    weight: float

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return self.weight * cast(Tensor, torch.linalg.vector_norm(z))


@PRIORS.register("orthogonality", needs="a batch of at least two")
@dataclass(frozen=True)
class Orthogonality(Prior):
    """weight · Σ_{k≠k'} (z_k · z_k')² over ordered pairs, so that each pair counts twice; in normalised units.

    Source: Qian & Hansen, Eq. 3. One example has no pair and costs nothing.

    It wants different examples, and real ones are not orthogonal: on raw pictures in [0, 1], which have no
    negative values, it is large at the truth (about 8 000 for four digits, against a data term near 0.01). With
    the paper's weight of 0.1 the truth is no minimum until the weight has decayed; see `StepDecay`.
    """

    weight: float

    def __post_init__(self) -> None:
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")

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
        """As either does."""
        return self.one.refuses(data) or self.several.refuses(data)

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]:
        return (self.one if len(z) == 1 else self.several)(z)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What the client's batch had as mean and standard deviation in every channel of every BatchNorm.

    A client in train mode moves its running statistics r to (1 − m)·r + m·s with the momentum m and the statistics s of
    its batch; who is sent them (`Knowledge.buffers`) solves for s. Kin of the prior of Yin et al., 2021, which compares
    with the running statistics instead, because it knows no others.

    Attributes:
        task: the client's.
        seen: mean and standard deviation by module.
    """

    task: Task
    seen: dict[str, tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]]

    @staticmethod
    def of(observation: Observation, task: Task) -> Statistics | None:
        """`None` where none travelled or one local step did not make them. `task` gives precision and device."""
        knowledge, client = observation.knowledge, observation.knowledge.local_training or FedSGD()
        after, before, count = knowledge.buffers, task.buffers, observation.examples
        if after is None or task.mode is not Mode.TRAIN or count is None:
            return None
        if client.steps(count) != 1:
            return None
        like = next(iter(task.parameters.values()))
        seen: dict[str, tuple[Tensor, Tensor]] = {}
        for name, module in task.module.named_modules():
            prefix = f"{name}." if name else ""
            names = (f"{prefix}running_mean", f"{prefix}running_var")
            if not isinstance(module, nn.modules.batchnorm._BatchNorm) or any(n not in after for n in names):
                continue
            momentum = module.momentum
            if momentum is None:
                momentum = 1 / (float(before[f"{prefix}num_batches_tracked"]) + 1)
            mean, variance = (
                (after[n].to(like).double() - (1 - momentum) * before[n].double()) / momentum for n in names
            )
            seen[name] = (mean.to(like), variance.clamp_min(0).sqrt().to(like))
        return Statistics(task, seen) if seen else None

    def distance(self, raw: Float[Tensor, "n *shape"], buffers: Tensors) -> Float[Tensor, ""]:
        """Mean over the layers of the squared distance to what was seen, in shares of its square; differentiable."""
        with inputs_of(self.task.module, self.seen) as inputs:
            self.task.logits(self.task.parameters, {**self.task.buffers, **buffers}, raw)
        terms = []
        for name, (mean, spread) in self.seen.items():
            x = inputs[name].transpose(0, 1).flatten(1)
            if x.shape[1] < 2:
                continue
            gap = (x.mean(1) - mean).square().sum() + ((x.var(1) + 1e-12).sqrt() - spread).square().sum()
            terms.append(gap / (mean.square().sum() + spread.square().sum()).clamp_min(1e-12))
        return torch.stack(terms).mean() if terms else raw.new_zeros(())
