"""An architecture whose classifier also sees the input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.compute import Budget, Compute
from leakgauge.observation import Cost, Observation, OnStep, Reconstruction, Status
from leakgauge.registry import SERVERS
from leakgauge.servers.blocks import honest_module, linear, rebuilt
from leakgauge.servers.reads import (
    DECOY_BIAS,
    class_features,
    decoy_of,
    exactly_all,
    gradient_factor,
    inside,
    summary,
    undefended,
)
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Task

NOTHING = "no class but the decoy's was seen"


class Skip(nn.Module):
    """x ↦ classifier([model(x), x/√d]): scaled, the input's columns learn no faster than others."""

    def __init__(self, model: nn.Module, classifier: nn.Linear) -> None:
        super().__init__()
        self.model, self.classifier = model, classifier

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        flat = x.flatten(1)
        logits: Tensor = self.classifier(torch.cat([self.model(x), flat / math.sqrt(flat.shape[1])], 1))
        return logits


@dataclass(frozen=True)
class SkipRead:
    """The classifier's rows of the input's columns ÷ its bias: mean inputs per class.

    Attributes:
        outputs: of the honest model, the columns before the input's.
        decoy: the class that the classifier always answers.
    """

    outputs: int
    decoy: int

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """Costs no gradient evaluation. One image a class, paired with its label.

        `EXACT` where every example is the only one of its class, none is of the decoy's, and no defence is known.
        """
        del generator, budget, compute, on_step
        data, examples = observation.task.data, observation.examples
        columns = slice(self.outputs, None)
        found = class_features(observation, "classifier.weight", "classifier.bias", columns, self.decoy)
        if found is None:
            return Reconstruction.not_applicable(NOTHING)
        scale = math.sqrt(found.features.shape[1])
        raw = data.denormalise(scale * found.features.view(-1, *data.shape))
        exact = exactly_all(found, examples) and inside(raw, data) and undefended(observation)
        message = summary(found, examples)
        if gradient_factor(observation) is None:
            message += "; several or unknown local steps: exact only while the decoy leads"
        status = Status.EXACT if exact else Status.CONVERGED
        kept = raw.clamp(data.low, data.high)
        return Reconstruction(kept, found.classes, status, message, cost=Cost())


@SERVERS.register("input-skip")
@dataclass(frozen=True)
class InputSkip:
    """A new classifier on honest logits and input side by side: its rows hold mean inputs per class.

    Source: the read of a biased linear layer (Geiping et al., 2020, Proposition 3.1) at a skip connection from the
    input; the decoy class is the remedy that makes a soft-max's rows belong to one class each
    (`leakgauge.servers.reads`). Exact for each example that is alone in its class, a mean for others; examples
    of the decoy class are not read. Local steps do not move the input, so that reads stay exact over several as long
    as the decoy leads, but then have no certificate. The price is a conspicuous loss of about 50.
    """

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        d, outputs, decoy = math.prod(task.data.shape), task.outputs, decoy_of(task)
        classifier = linear(outputs + d, outputs, task, generator, scale=1e-3)
        with torch.no_grad():
            classifier.weight[:, :outputs] = torch.eye(outputs).to(classifier.weight)
            classifier.bias[decoy] = DECOY_BIAS
        module = Skip(honest_module(task), classifier)
        return Broadcast(rebuilt(task, module, "input-skip"), SkipRead(outputs, decoy), (Change.ARCHITECTURE,))
