"""What MKOR does about soft-max cross-entropy, which mixes all examples into every class's rows.

With δ_kn = (p_kn − [y_k = n])/K the rows of class n hold Σ_k p_kn·z_k besides their own examples, and the second
identity of MKOR's Eq. (7) is false. Where all logits are equal, p = 1/N, a batch with every class once gives
Σ_k δ_kn = 0: zero over zero. The release trains its client with the negative log-likelihood of raw logits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.observation import Observation
from leakgauge.registry import LOSSES
from leakgauge.servers.mkor.network import linear_stack
from leakgauge.task import Task, nll_raw
from leakgauge.update import UpdateKind

ROUNDING = 1e3
"""Totals below that many units of rounding of the largest count as zero."""
ALIKE = 1e-3
"""Relative distance up to which two classes' rows count as the same vector."""
NEAR = 0.05
"""Absent classes have a total within this share of the largest one; one example lowers it by a share N/K."""
WHOLE = 0.25
"""Class counts within that distance of whole numbers count as these."""

Separated = tuple[Float[Tensor, "classes f"], Float[Tensor, " classes"], Tensor, str]


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
class Decoy:
    """Plain cross-entropy, and a large bias on the logit of one decoy class, whose logit reads nothing else.

    p_kn ≤ e^(−bias) for all other classes, so δ_kn = −[y_k = n]/K up to 1e-13 at the default, and every class but the
    decoy is exact whatever the batch. The decoy's examples give no gradient and cannot be read. Not in the paper.
    Conspicuous: the client sees a loss of about `bias` on all other examples (an untrained model has log N). Under
    several local steps the decoy's gradient of size one moves the last layer and leaks into all classes: after 5 steps
    of lr .01 (40 examples, 50 classes, layers 36-200-150-50, one seed) the median error is 15 %, with
    `Constant(scale=0.01)` .2 %; nll-raw has .9 % and .01 %.

    Attributes:
        bias: added to the decoy's logit; must exceed the spread of the crafted logits by far.
        label: the decoy's output. By default the last, which is no class at all where the model has more outputs than
            the data has classes.
    """

    bias: float = 30.0
    label: int | None = None

    def __post_init__(self) -> None:
        require(0 < self.bias <= 1e6, "bias", f"is {self.bias}", "give a number in (0, 1e6], e.g. 30")

    def applied(self, task: Task) -> Task:
        """Raises `InputError` where the last layer has no bias, or no such output."""
        last, label = linear_stack(task)[-1], self._output(task)
        if last.bias is None:
            raise InputError("loss", "decoy needs a bias in the last layer", "use absent-class or nll-raw")
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


@LOSSES.register("absent-class", needs="equal logits (the constant or naive head) and a class that the batch lacks")
@dataclass(frozen=True)
class AbsentClass:
    """Plain cross-entropy with nothing conspicuous: rows of classes that the batch lacks are taken off.

    Where p_kn is the same for all n, absent classes hold Σ_k p_k·z_k and nothing else, so
    (ΔW[n] − ΔW[m])/(Δb[n] − Δb[m]) with m absent is the mean feature of class n, exactly. Not in the paper.
    Averaging several absent rows lowers noise. Absent are: classes outside known labels; outputs beyond the data's
    classes; classes with K_n = K/N − K·Σδ_n = 0 where all these counts are whole numbers, as they are for an unscaled
    gradient; else classes with the largest totals whose rows coincide (those of present classes differ, as their
    pictures do). Scaled totals alone do not tell: counts K_n of a batch of K and counts K_n − 1 of a batch of K − N
    give proportional ones.

    With unequal logits (inconspicuous head, dropout) absent rows differ among themselves: refused unless absent
    classes are known otherwise, and then the message says by how much they differ.
    """

    def applied(self, task: Task) -> Task:
        return task

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> Separated | str:
        absent = absent_classes(rows, totals, observation)
        if isinstance(absent, str):
            return f"cross-entropy shares only differences between classes: {absent}"
        reference, base = rows[absent].mean(0), totals[absent].mean()
        spread, uneven = (rows[absent] - reference).norm(dim=1).max(), (totals[absent] - base).abs().max()
        rows, totals = rows - reference, totals - base
        readable = negative(rows, totals) & ~absent
        if observation.knowledge.labels is None:
            readable &= -totals > torch.maximum(NEAR * base, 3 * uneven)
        remark = f"cross-entropy, relative to {int(absent.sum())} absent classes"
        if not bool(readable.any()):
            return rows, totals, readable, remark
        apart = float(spread / rows[readable].norm(dim=1).median())
        if apart > 1:
            return f"{remark}, whose rows differ by more than the examples' own signal: its logits are unequal"
        return rows, totals, readable, remark + (f", whose rows differ by {apart:.1e} of the signal" * (apart > ALIKE))


def absent_classes(
    rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
) -> Bool[Tensor, " classes"] | str:
    """Outputs without an example in the batch, or why they cannot be told."""
    outputs, labels = torch.arange(len(totals)), observation.knowledge.labels
    if labels is not None:
        absent = ~torch.isin(outputs, labels.cpu())
        return absent if bool(absent.any()) else "every class is present"
    beyond = outputs >= observation.task.data.classes
    if bool(beyond.any()):
        return beyond
    counts = _counts(totals, observation)
    if counts is not None:
        return counts == 0 if bool((counts == 0).any()) else "every class is present"
    top = totals.argmax()
    if not bool(negative(rows, -totals)[top]) or float(totals[top]) < 100 * torch.finfo(rows.dtype).eps * float(
        rows.abs().max()
    ):
        return "every class is present equally often, and all denominators vanish"
    near = totals > (1 - NEAR) * totals[top]
    alike = (rows[near] - rows[top]).norm(dim=1) < ALIKE * rows[top].norm()
    if bool(alike.all()) and len(alike) > 1:
        return near
    return (
        "no two classes' rows coincide, so none is known to be absent (every class is present, "
        "the update is noisy, or the head's logits are unequal); labels would tell"
    )


def _counts(totals: Float[Tensor, " classes"], observation: Observation) -> Float[Tensor, " classes"] | None:
    """Examples per class, K_n = K/N − K·Σδ_n, if that comes out as whole numbers: then p = 1/N, and the gradient
    came unscaled. `None` otherwise, and where K is not known."""
    examples = observation.examples
    if examples is None or observation.update.header.kind is not UpdateKind.GRADIENT:
        return None
    counts = examples / observation.task.outputs - examples * totals
    whole = counts.round()
    fits = bool(((counts - whole).abs() < WHOLE).all()) and float(whole.min()) >= 0 and float(whole.sum()) == examples
    return whole if fits else None
