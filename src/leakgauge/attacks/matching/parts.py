"""Every contract of the matching engine: what its parts are given, what they give back, what they may leave out.

A part of your own inherits from its contract, which fills in what it leaves out. All of them are values: frozen, and
functions of their arguments alone. The distances between the simulated and the observed update stand below them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.defenses import AttackerView
from leakgauge.registry import LABELS, OBJECTIVES
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors, inner, squared_norm

if TYPE_CHECKING:
    from leakgauge.attacks.matching.problem import Minimum, Problem


Bounds = tuple[Tensor, Tensor]  # lower and upper bound of a variable, broadcastable to its shape

Schedule = Callable[[int, int, float], float]
"""``(step, steps, data) → factor``: what a weight is multiplied by at a step (from 0) of a run of `steps`. `data` is
the data term of the last point, of the best restart; infinite before the first."""


@runtime_checkable
class Objective(Protocol):
    """The data term: ``(simulated, observed, view) → scalar``, differentiable in the first, usable under vmap.

    One that is not `scale_free`, which ignores the update's length, needs to know how the client trained.
    """

    @property
    def scale_free(self) -> bool: ...

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]: ...

    def wants_raw(self, view: AttackerView) -> bool:
        """Whether `simulated` is to be the update before the client's last stage, not as it would look on the wire."""
        return False


@runtime_checkable
class Prior(Protocol):
    """Weighted penalty on a batch in model-input (normalised) units → scalar, usable under vmap."""

    def __call__(self, z: Float[Tensor, "n *shape"]) -> Float[Tensor, ""]: ...

    def refuses(self, data: DataSpec) -> str:
        """Why it has no meaning for such data; empty where it has."""
        return ""


@runtime_checkable
class Start(Protocol):
    """First guess of pixels, in model-input units."""

    def __call__(self, examples: int, data: DataSpec, generator: torch.Generator) -> Float[Tensor, "n *shape"]: ...


@runtime_checkable
class Canvas(Protocol):
    """Variables that stand for a batch of examples."""

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        """Initial variables of one restart, float64 on the CPU."""

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        """Variables → examples in model-input (normalised) units, differentiable."""

    def bounds(self, data: DataSpec) -> dict[str, Bounds]:
        """Bounds of the variables that have some, float64 on the CPU."""
        return {}

    def refuses(self, data: DataSpec) -> str:
        """Why it cannot make such data; empty where it can."""
        return "a search moves numbers, and a text's tokens have none between them" if data.is_text else ""


@runtime_checkable
class Hidden(Protocol):
    """Unknown draws of an encoding (mixing weights, a bottleneck's ε) that are optimised with the examples.

    Its variables' names must not clash with the canvas's. Those that begin with `BUFFER` (see
    `leakgauge.attacks.matching.parts`) replace that buffer in the simulated client; the others `encode` uses.
    """

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        """First values in one restart, float64 on the CPU."""

    def encode(self, batch: Batch, variables: Tensors) -> Batch:
        """The candidate batch as the client would train on it, differentiable. Soft labels may have fewer columns
        than the model has outputs."""
        return batch

    def penalty(self, variables: Tensors) -> Float[Tensor, ""]:
        """−log prior of the draws, scaled like the objective; it counts as part of the prior."""
        return next(iter(variables.values())).new_zeros(())


@runtime_checkable
class Minimiser(Protocol):
    """Finds low points of a `Problem` within its meter."""

    #: whether several restarts run side by side; else the engine hands them over one by one.
    batched: ClassVar[bool] = True
    dtype: ClassVar[torch.dtype | None] = None  #: the precision it needs; `None` takes that of `Compute`.

    def minimise(self, problem: "Problem") -> "Minimum":
        """The best variables of every restart."""


@runtime_checkable
class Polish(Protocol):
    """Raw examples and their labels → raw examples, after the search."""

    def __call__(
        self, x: Float[Tensor, "n *shape"], labels: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n *shape"]: ...

    def refuses(self, data: DataSpec) -> str:
        """Why it cannot take such data; empty where it can."""
        return ""


BUFFER = "buffer."  # variables of this prefix, from a canvas or a hidden part, stand for the buffer that they name


def buffers_in(variables: Tensors) -> Tensors:
    """Buffers that variables stand for, by their names in the model."""
    return {name.removeprefix(BUFFER): value for name, value in variables.items() if name.startswith(BUFFER)}


@LABELS.register("joint")
@dataclass(frozen=True)
class JointSoftLabels:
    """Labels are optimised together with the examples, as logits through a soft-max (DLG).

    The label returned is the arg-max of the *optimised* logits, never of the start. These are `uniform`, U(0, 1), or
    N(0, 1).
    """

    uniform: bool = False

    def start(self, examples: int, classes: int, generator: torch.Generator) -> Float[Tensor, "n classes"]:
        draw = torch.rand if self.uniform else torch.randn
        return draw((examples, classes), generator=generator, dtype=torch.float64)


@OBJECTIVES.register("l2")
@dataclass(frozen=True)
class SquaredL2(Objective):
    """‖g − g*‖², summed over all tensors.

    Source: Zhu et al., Deep Leakage from Gradients, NeurIPS 2019, Eq. 4.
    """

    scale_free: ClassVar[bool] = False

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        return squared_norm({k: simulated[k] - observed[k] for k in observed})


@OBJECTIVES.register("cosine")
@dataclass(frozen=True)
class Cosine(Objective):
    """1 − ⟨g, g*⟩ / (‖g‖·‖g*‖), one global cosine over the concatenation of all tensors, in [0, 2].

    Source: Geiping et al., Inverting Gradients, NeurIPS 2020, Eq. 4. A zero update has cosine 0 here
    rather than a division by zero.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
        norms = squared_norm(simulated).clamp_min(tiny).sqrt() * squared_norm(observed).clamp_min(tiny).sqrt()
        return 1 - inner(simulated, observed) / norms


@OBJECTIVES.register("cosine-per-tensor")
@dataclass(frozen=True)
class CosinePerTensor(Objective):
    """Mean over the tensors of 1 − cos(g_k, g*_k), in [0, 2].

    Unlike `Cosine` it does not let one large tensor outvote the others, and it ignores the length of each. Of use
    where a layer drowns those that hold the image: PRECODE's bottleneck has 20 to 50 times the norm of a
    convolution of LeNet. A tensor that is zero on either side has cosine 0; a scalar one tells its sign alone.
    """

    scale_free: ClassVar[bool] = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        cosines = [(_unit(simulated[k]) * _unit(sent)).sum() for k, sent in observed.items() if sent.numel()]
        return 1 - torch.stack(cosines).mean()


def _unit(t: Tensor) -> Tensor:
    norm: Tensor = t.square().sum().clamp_min(torch.finfo(t.dtype).tiny).sqrt()
    return t / norm
