"""The parts of MKOR and their contracts: taps below, a head above, what is done about the loss, how a class is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.errors import Checked, InputError, limited, require
from leakgauge.observation import Observation
from leakgauge.registry import Registry
from leakgauge.servers.mkor.network import linear_stack
from leakgauge.task import Task, nll_raw
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind

TAPS = Registry("taps", ("leakgauge.servers.mkor",), "taps")
HEADS = Registry("head", ("leakgauge.servers.mkor",), "head")
LOSSES = Registry("loss", ("leakgauge.servers.mkor",), "loss")


Separated = tuple[Float[Tensor, "classes f"], Float[Tensor, " classes"], Tensor, str]


@runtime_checkable
class FeatureMap(Protocol):
    """What crafted layers below the first linear layer compute, and its inverse. Data-free."""

    @property
    def positions(self) -> Int[Tensor, " f"]:
        """Where the features that are read stand in the first linear layer's flat input."""

    @property
    def remark(self) -> str:
        """What the construction loses on this architecture, for the report; empty if nothing."""

    def images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        """Raw images in the data's range from such features, or from averages of them; NaN is a feature not seen."""


@runtime_checkable
class Taps(Protocol):
    """Crafts the layers below the first linear layer."""

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, FeatureMap]:
        """Values that replace parameters and buffers of the task, by name, and what they compute. Raises `InputError`
        where the architecture does not fit, and says which layer and why."""


@runtime_checkable
class Head(Protocol):
    """Crafts the linear layers so that each class drives rows of its own."""

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, Routes]:
        """Values that replace parameters, by name, and which rows hold which class. Raises `InputError` where the
        layers are too narrow for the classes, or are no chain of linear ones."""


@runtime_checkable
class LossTreatment(Protocol):
    """What the server does so that the class's rows are not mixed by the loss."""

    def applied(self, task: Task) -> Task:
        """The task with what this treatment changes: a bias of the last layer, or the loss itself."""

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        """Σ_k δ_kn·z_k and Σ_k δ_kn per class, with the loss's mixing taken out.

        Returns:
            rows, totals, the bool mask of classes that can be read, and a remark; or why nothing can be read.
        """


ROUNDING = 1e3  # totals below that many units of rounding of the largest count as zero


def negative(rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"]) -> Bool[Tensor, " classes"]:
    """Classes with examples: the gradient of a label's logit is negative, beyond rounding."""
    return -totals > ROUNDING * torch.finfo(rows.dtype).eps * totals.abs().max()


@LOSSES.register("nll-raw", needs="a client that lets the server choose its loss")
@dataclass(frozen=True)
class NLLRaw:
    """The server sets the client's loss: −logit[label], with no log-soft-max.

    Source: MKOR's code. δ_kn = −[y_k = n]/K, so classes do not mix at all and the mean features are exact.
    """

    def applied(self, task: Task) -> Task:
        return replace(task, loss=nll_raw)

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        return rows, totals, negative(rows, totals), "loss: raw negative log-likelihood, set by the server"


@LOSSES.register("decoy", needs="a bias in the last layer")
@dataclass(frozen=True, kw_only=True)
class Decoy(Checked):
    """Plain cross-entropy, and a large bias on the logit of one decoy class, whose logit reads nothing else.

    p_kn ≤ e^(−bias) for all other classes, so δ_kn = −[y_k = n]/K up to 1e-13 at the default, and every class but the
    decoy is exact whatever the batch. The decoy's examples give no gradient and cannot be read. Not in the paper.
    Conspicuous: the client sees a loss of about `bias` on all other examples (an untrained model has log N). Under
    several local steps the decoy's gradient of size one moves the last layer and leaks into all classes, less so with
    `Constant(scale=0.01)`.

    Attributes:
        bias: added to the decoy's logit; must exceed the spread of the crafted logits by far.
        label: the decoy's output. By default the last, which is no class at all where the model has more outputs than
            the data has classes.
    """

    bias: float = limited(30.0, lambda bias: 0 < bias <= 1e6, "give a number in (0, 1e6], e.g. 30")
    label: int | None = None

    def applied(self, task: Task) -> Task:
        """Raises `InputError` where the last layer has no bias, or no such output."""
        last, label = linear_stack(task)[-1], self._output(task)
        if last.bias is None:
            raise InputError("loss", "decoy needs a bias in the last layer", "use nll-raw")
        require(0 <= label < last.outputs, "label", f"is {label}", f"give an output in 0…{last.outputs - 1}")
        bias, weight = task.parameters[last.bias].clone(), task.parameters[last.weight].clone()
        bias[label] += self.bias
        weight[label] = 0
        return replace(task, parameters={**task.parameters, last.bias: bias, last.weight: weight})

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        label, classes = self._output(observation.task), observation.task.data.classes
        # The decoy's own total is about +1, which is no reason to lose a class of one example in thousands.
        others = torch.where(torch.arange(len(totals)) == label, 0.0, totals)
        lost = f"class {label} is the decoy and cannot be read" if label < classes else "no class is lost to the decoy"
        remark = f"cross-entropy with a decoy: {lost}, and the client's loss is near {self.bias:g}, which shows"
        return rows, totals, negative(rows, others), remark

    def _output(self, task: Task) -> int:
        return task.outputs - 1 if self.label is None else self.label


IDLE = 8  # fewer rows without a gradient than this do not tell how large the noise is


@dataclass(frozen=True, eq=False)
class Routes:
    """Class n drives row n of the first linear layer and no other class does.

    With δ_kn = ∂L/∂(logit n of example k), ΔW[n] = Σ_k δ_kn·z_k and Δb[n] = Σ_k δ_kn. Their ratio, once the loss
    treatment has taken other classes' examples out, is the mean feature of the class.

    Source: MKOR, Eq. (7). Differs: entries that a sparsifier did not send leave numerator and denominator.
    """

    weight: str  # weight, bias: the first linear layer's parameters
    bias: str
    outputs: int  # logits with a row of their own, the data's classes first; the rows behind them have no gradient

    def sums(
        self, observation: Observation, positions: Int[Tensor, " f"]
    ) -> tuple[Float[Tensor, "outputs f"], Float[Tensor, " outputs"]]:
        """Σ δ·z and Σ δ per logit, as of a gradient; NaN of what was not sent and may be large."""
        weight, view = observation.update.tensors[self.weight], observation.defended
        sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
        own, columns = slice(self.outputs), positions.to(weight.device)
        rows = sign * weight[own][:, columns].to(torch.promote_types(weight.dtype, torch.float32))
        totals = sign * observation.values(self.bias)[own]
        if view.support is not None:
            seen = (view.support[self.weight][own][:, columns] != 0) & (totals != 0)[:, None]
            # What was not sent is near zero after top-k, and unknown otherwise.
            rows = torch.where(seen, rows, 0.0 if view.unsent_small else float("nan"))
        return rows.cpu(), totals.cpu()

    def floor(self, observation: Observation, totals: Float[Tensor, " outputs"]) -> float:
        """Standard deviation of what is no signal in the totals: by the known defence, or the rows behind them."""
        del totals
        scale = observation.defended.noise_scale
        known = 0.0 if scale is None else float(scale[self.bias])
        idle = observation.values(self.bias)[self.outputs :]
        return max(known, float(idle.square().mean().sqrt())) if len(idle) >= IDLE else known
