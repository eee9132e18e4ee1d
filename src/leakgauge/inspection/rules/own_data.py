"""What the model would do with the client's own batch: how large the loss is, whether the answer varies, rows
that differ by one example."""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.inspection.drives import Drives, drives
from leakgauge.inspection.matrices import Omission
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES
from leakgauge.task import Batch, Task

OWN: tuple[Part, ...] = (Part.TASK, Part.BATCH)
NEEDS = "the task (model, data format, loss) and a batch of the client's own examples with labels"
_MEASURED: WeakKeyDictionary[Batch, tuple[ReferenceType[Task], Drives]] = WeakKeyDictionary()
"""The last measurement per batch, since several rules ask for it; tasks and batches are never changed."""


def own_drives(received: Received) -> Drives:
    """The model's drives on the client's batch; for rules that asked for both."""
    task, batch = received.task, received.batch
    assert task is not None
    assert batch is not None
    before = _MEASURED.get(batch)
    if before is None or before[0]() is not task:
        before = (ref(task), drives(task, batch))
        _MEASURED[batch] = before
    return before[1]


@RULES.register("loss-level", needs=NEEDS)
@dataclass(frozen=True)
class LossLevel:
    """How far the loss exceeds that of a guess, on the client's data and beyond what varying answers explain.

    Statistic: median loss ÷ (ln(classes)·(1 + s)), with s the root mean square over examples and classes of the
    logits' deviation from their mean over the examples. Untrained deep networks may answer with logits in the
    hundreds, but these vary with the example; a bias that drowns the answer does not. Losses below 0 count as 0.
    """

    needs: tuple[Part, ...] = OWN
    meaning: str = (
        "A decoy class that takes all the probability leaves every example's label with a full-size residual, unmixed "
        "with other classes (MKOR, label flips). Honest reasons: a model that was trained on other classes."
    )

    def measure(self, received: Received) -> Measurement:
        found = own_drives(received)
        if not bool(found.finite.any()):
            return Measurement(0.0, (), "Not judged.", (Omission("model", "answers with values that are not finite"),))
        losses, logits = found.losses[found.finite].double(), found.logits[found.finite].double()
        guess = math.log(max(2, logits.shape[1]))
        spread = float((logits - logits.mean(0)).square().mean().sqrt())
        typical = max(0.0, float(losses.median()))
        evidence = (
            f"The median loss of {len(losses)} examples is {typical:.3g}; guessing gives {guess:.3g}, and the logits "
            f"vary over the examples by {spread:.3g} (rms)."
        )
        unjudged = () if bool(found.finite.all()) else (Omission("batch", "some answers are not finite"),)
        return Measurement(typical / (guess * (1 + spread)), ("loss",), evidence, unjudged)


@RULES.register("fixed-answer", needs=f"{NEEDS}: four or more")
@dataclass(frozen=True)
class FixedAnswer:
    """Whether the model prefers one class for every example.

    Statistic, in nats: range over classes of the mean logit ÷ (1 + range over classes of how the logits vary over
    the examples: the largest standard deviation). All logits equal (a zero-initialised head) scores 0.
    """

    needs: tuple[Part, ...] = OWN
    meaning: str = (
        "An answer that no example changes makes everyone's residual the same known vector, which unmixes the "
        "gradient. Honest reasons: a saturated or collapsed network."
    )

    def measure(self, received: Received) -> Measurement:
        found = own_drives(received)
        logits = found.logits[found.finite].double()
        if len(logits) < 4:
            few = Omission("batch", "four examples with finite answers are needed")
            return Measurement(0.0, (), "Not judged.", (few,))
        mean = logits.mean(0)
        preference, spread = float(mean.max() - mean.min()), float(logits.std(0).max())
        evidence = (
            f"Over {len(logits)} examples the mean logits differ by {preference:.3g} nats between classes, and no "
            f"class's logit varies by more than {spread:.3g}."
        )
        return Measurement(preference / (1 + spread), (f"class {int(mean.argmax())}",), evidence)


@RULES.register("row-differences", needs=f"{NEEDS}: four or more; a linear layer below the answering one")
@dataclass(frozen=True)
class RowDifferences:
    """Examples left by the difference of two rows of a gradient, of the first linear layer.

    Statistic in [0, 1]: share of examples e for which two rows of the layer get the same drive from all others, at
    least two of which do drive them (to 10⁻⁵ of each example's largest drive), but a different one from e. Weights
    above an honest layer differ from row to row, so that no two rows agree.
    """

    needs: tuple[Part, ...] = OWN
    meaning: str = (
        "Bins: units with the same weights and rising thresholds, whose neighbouring rows differ by one example "
        "(Robbing the Fed). Honest reasons: duplicated units, which do not alarm unless a threshold tells them apart."
    )

    def measure(self, received: Received) -> Measurement:
        found = own_drives(received)
        layer = next((layer for layer in found.hidden if layer.linear), None)
        if layer is None or layer.signed is None:
            reason = Omission(
                "model", "has no linear layer below the answering one whose units answer once per example"
            )
            return Measurement(0.0, (), "Not judged.", (reason, *found.remarks))
        if int(found.erring.sum()) < 4:
            few = Omission("batch", f"has {int(found.erring.sum())} examples that err; 4 are needed")
            return Measurement(0.0, (), "Not judged.", (few, *found.remarks))
        isolated = isolated_examples(layer.signed[found.erring].double())
        names = isolated.nonzero()[:, 0].tolist()
        evidence = f"{len(names)} of {len(isolated)} examples are the whole difference of two rows of {layer.name}."
        return Measurement(float(isolated.double().mean()), (layer.name,) if names else (), evidence, found.remarks)


def isolated_examples(drive: Float[Tensor, "n rows"], tolerance: float = 1e-5) -> Bool[Tensor, " n"]:
    """Examples that two rows differ by, with the same drive from the others, two of them at least."""
    # Each example's entries are brought to unit size: a strong example must not hide differences in weak ones.
    scaled = drive / drive.abs().amax(1, keepdim=True).clamp_min(1e-300)
    steps = (scaled / tolerance).round()
    alone = torch.zeros(len(drive), dtype=torch.bool)
    for e in range(len(drive)):
        others = torch.cat([steps[:e], steps[e + 1 :]])
        # One other example alone agrees by chance where there are many rows.
        kept = (others != 0).sum(0) >= 2
        if int(kept.sum()) < 2:
            continue
        _, group = others[:, kept].unique(dim=1, return_inverse=True)
        low = torch.full((int(group.max()) + 1,), torch.inf, dtype=drive.dtype)
        own = scaled[e, kept]
        high = (-low).scatter_reduce(0, group, own, "amax")
        low = low.scatter_reduce(0, group, own, "amin")
        alone[e] = bool((high - low > 1e-3).any())
    return alone
