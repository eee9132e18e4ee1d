"""Architectures that give the input away: a classifier that sees it, and activations that determine it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.errors import require
from leakgauge.observation import Observation, ReadingAttack, Reconstruction, Status
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
class SkipRead(ReadingAttack):
    """The classifier's rows of the input's columns ÷ its bias: mean inputs per class.

    Attributes:
        outputs: of the honest model, the columns before the input's.
        decoy: the class that the classifier always answers.
    """

    outputs: int
    decoy: int

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Costs no gradient evaluation. One image a class, paired with its label.

        `EXACT` where every example is the only one of its class, none is of the decoy's, and no defence is known.
        """
        del generator
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
        return Reconstruction(kept, found.classes, status, message)


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


class CouplingBlock(nn.Module):
    """(a, b) ↦ (a + f(b), b + g(a + f(b))), with f and g two linear layers each."""

    def __init__(self, halves: tuple[int, int], width: int, task: Task, generator: torch.Generator) -> None:
        super().__init__()
        self.halves = halves
        a, b = halves

        def network(before: int, after: int) -> nn.Sequential:
            return nn.Sequential(
                linear(before, width, task, generator), nn.Tanh(), linear(width, after, task, generator)
            )

        self.f, self.g = network(b, a), network(a, b)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        a, b = x.split(self.halves, 1)
        a = a + self.f(b)
        return torch.cat([a, b + self.g(a)], 1)

    def inverse(self, y: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        a, b = y.split(self.halves, 1)
        b = b - self.g(a)
        return torch.cat([a - self.f(b), b], 1)


class Reversible(nn.Module):
    """x ↦ model(x) + head(couplings(x)/√d)."""

    def __init__(self, model: nn.Module, couplings: nn.Sequential, head: nn.Linear) -> None:
        super().__init__()
        self.model, self.couplings, self.head = model, couplings, head

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        flat = x.flatten(1)
        last = self.couplings(flat) / math.sqrt(flat.shape[1])
        return self.model(x) + self.head(last)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ReversibleRead(ReadingAttack):
    """Activations per class off the head, and the couplings backwards from there.

    Attributes:
        couplings: a copy with the values that were broadcast.
        decoy: the class that the head always answers.
    """

    couplings: nn.Sequential
    decoy: int

    def inputs(self, activations: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
        """Model inputs from activations, in float64."""
        backwards = copy.deepcopy(self.couplings).to(torch.empty((), dtype=torch.float64, device=activations.device))
        x = activations.double()
        with torch.no_grad():
            for coupling in reversed(list(backwards)):
                assert isinstance(coupling, CouplingBlock)
                x = coupling.inverse(x)
        return x.to(activations)

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Costs no gradient evaluation. One image a class, paired with its label.

        `EXACT` where every example is the only one of its class, none is of the decoy's, and no defence is known.
        """
        del generator
        data, examples = observation.task.data, observation.examples
        found = class_features(observation, "head.weight", "head.bias", slice(None), self.decoy)
        if found is None:
            return Reconstruction.not_applicable(NOTHING)
        scale = math.sqrt(found.features.shape[1])
        raw = data.denormalise(self.inputs(scale * found.features).view(-1, *data.shape))
        exact = exactly_all(found, examples) and inside(raw, data) and undefended(observation)
        message = summary(found, examples)
        if gradient_factor(observation) is None:
            message += "; several or unknown local steps moved the couplings: reads are approximate"
        status = Status.EXACT if exact else Status.CONVERGED
        kept = raw.nan_to_num().clamp(data.low, data.high)
        return Reconstruction(kept, found.classes, status, message)


@SERVERS.register("reversible")
@dataclass(frozen=True, kw_only=True)
class ReversibleNetwork:
    """Additive couplings from the input to a linear head, beside the honest model: the head gives the input away.

    Source: couplings of NICE (Dinh et al., 2015) and RevNet (Gomez et al., 2017), whose inverse needs no search. The
    head's rows ÷ its bias are the last activations (per class, `leakgauge.servers.reads`), and the inverse is
    their input. Exact for each example that is alone in its class; where a class has several, the inverse of
    their mean activation, which is not their mean. Examples of the decoy class are not read.
    Several local steps move the couplings: reads are approximate. The price is a conspicuous loss of about 50.

    Attributes:
        depth: couplings.
        width: of the networks in a coupling.
    """

    depth: int = 3
    width: int = 32

    def __post_init__(self) -> None:
        for name, value in (("depth", self.depth), ("width", self.width)):
            require(value > 0, name, f"is {value}", "give a positive number")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where an example is a single number, which cannot be split."""
        d, decoy = math.prod(task.data.shape), decoy_of(task)
        require(d > 1, "data.shape", "is one number, which cannot be split in two", "give larger examples")
        halves = (d - d // 2, d // 2)
        couplings = nn.Sequential(*(CouplingBlock(halves, self.width, task, generator) for _ in range(self.depth)))
        head = linear(d, task.outputs, task, generator, scale=1e-3)
        with torch.no_grad():
            head.bias[decoy] = DECOY_BIAS
        module = Reversible(honest_module(task), couplings, head)
        read = ReversibleRead(copy.deepcopy(couplings).requires_grad_(False), decoy)
        return Broadcast(rebuilt(task, module, "reversible"), read, (Change.ARCHITECTURE,))
