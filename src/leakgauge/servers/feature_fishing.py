"""Feature fishing: of one class, only the examples below a cut-off have a gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.recipes import Auto
from leakgauge.errors import require
from leakgauge.reconstruction import Attack
from leakgauge.registry import SERVERS
from leakgauge.servers.fishing import Fished, single_row
from leakgauge.servers.head import classifier_of
from leakgauge.servers.server import Broadcast
from leakgauge.task import Task


@SERVERS.register("feature-fishing", needs="a last linear layer with bias; soft-max cross-entropy; one class")
@dataclass(frozen=True, kw_only=True)
class FeatureFishing:
    """The target's probability jumps from 0 to 1 at a cut-off of one feature: only its examples below have a gradient.

    Source: Wen et al., ICML 2022, feature fishing (their binary search over rounds is left to the caller). With
    z_target = sharpness·(v·h − cutoff) + log(N−1) and all other logits 0, ∂L/∂z_target of the class's
    examples is −1 below the cut-off and 0 above. At the lower 1/n quantile of n examples one is singled out, with
    probability near 1/e if the cut-off is right.

    Not exact: examples near the cut-off count in part, and examples of *other* classes count with +1 above it. No
    linear last layer avoids that: with rows equal for all other classes, their ∂L/∂z_target is the probability
    itself. So it suits batches of one class, or a feature on which the class lies above all others.

    Attributes:
        target: the class.
        feature: which feature decides; `None` for the target's own honest row as the direction v.
        cutoff: of that feature, from `cut_off`.
        sharpness: of the jump, per unit of the feature.
        then: the attack on the purified gradient.
    """

    target: int = 0
    feature: int | None = None
    cutoff: float = 0.0
    sharpness: float = 1e4
    then: Attack = field(default_factory=Auto)

    def __post_init__(self) -> None:
        require(0 < self.sharpness <= 1e9, "sharpness", f"is {self.sharpness}", "give a number in (0, 1e9]")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` as `ClassFishing`, and where there is no such feature."""
        del generator
        weight, bias = single_row(task, self.target)
        direction = _direction(task.parameters[weight], self.target, self.feature)
        rows, biases = torch.zeros_like(task.parameters[weight]), torch.zeros_like(task.parameters[bias])
        rows[self.target] = self.sharpness * direction
        biases[self.target] = math.log(max(len(rows) - 1, 1)) - self.sharpness * self.cutoff
        reader = Fished(target=self.target, weight=weight, bias=bias, then=self.then)
        return Broadcast(task.with_state({weight: rows, bias: biases}), reader)


def cut_off(
    task: Task, public: Float[Tensor, "m *shape"], *, share: float, target: int = 0, feature: int | None = None
) -> float:
    """The value of the feature below which a `share` of public examples lies.

    Args:
        public: raw, of the target class; what the attacker has.
        share: from 0 to 1; one over the number of the client's examples singles one out most often.
    """
    require(0 < share < 1, "share", f"is {share}", "give a number between 0 and 1")
    head = classifier_of(task)
    with torch.no_grad():
        features, _ = head.features(task, public.to(task.parameters[head.weight]))
    values: Tensor = features @ _direction(task.parameters[head.weight], target, feature)
    return float(values.double().quantile(share))


def _direction(weight: Float[Tensor, "outputs d"], target: int, feature: int | None) -> Float[Tensor, " d"]:
    if feature is None:
        require(bool(weight[target].any()), "feature", f"class {target} has a row of zeros", "name a feature")
        honest: Tensor = weight[target] / weight[target].norm()
        return honest
    count = weight.shape[1]
    require(0 <= feature < count, "feature", f"is {feature}", f"give a number from 0 to {count - 1}")
    return torch.eye(count, dtype=weight.dtype, device=weight.device)[feature]
