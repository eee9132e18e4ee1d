"""A server that rewrites the last layer: class fishing."""

from dataclasses import dataclass, field, replace

import torch

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD
from leakgauge.clients.protocol import mean_gradient
from leakgauge.draws import Draws
from leakgauge.errors import Checked, InputError, limited, require
from leakgauge.observation import Attack, Observation, Reconstruction
from leakgauge.registry import SERVERS
from leakgauge.servers.network import NetworkLayer, linear_stack
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import Batch, Task, cross_entropy
from leakgauge.tensors import Tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind


def classifier_of(task: Task) -> NetworkLayer:
    """The linear layer that makes the logits. Raises `InputError` where there is none."""
    found = linear_stack(task)[-1]
    plain = not (found.relu or found.smooth)
    require(plain, "model", "ends in no linear layer that makes its logits", "give a model that ends in an nn.Linear")
    return found


PRESENT = 1e-6  # least bias gradient of the target class, relative to the largest one, that counts as an example of it


@dataclass(frozen=True, eq=False)
class Fished(SearchingAttack):
    """Reads the update as the gradient of the caught examples alone, and hands that to another attack.

    A caught example has ∂L/∂logit = −1 at the target class and 1/(N−1) elsewhere, any other 0 at the target class.
    So the update divided by −∂L/∂b_target is the caught examples' mean gradient, whatever the learning rate, the
    batch or a clipping made of its length; the other rows of the last layer, which other examples drive too, are
    replaced by −1/(N−1) of the target's row, which is what the caught examples make there.
    """

    target: int
    weight: str  # weight, bias: names of the last layer's parameters
    bias: str
    then: Attack  # the attack that receives the purified gradient, the labels and the number of examples

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """As many images as examples were caught; not applicable where there is none."""
        caught, how = self.caught(observation)
        if caught == 0:
            return Reconstruction.not_applicable(f"no example was caught: {how}")
        found = effort.of(self.then, self.purified(observation, caught))
        message = f"{caught} examples of class {self.target} caught ({how})"
        message = f"{message}; {found.message}" if found.message else message
        if found.inputs is None:
            return replace(found, message=message)
        labels = torch.full((len(found.inputs),), self.target)
        return replace(found, labels=labels, label_confidence=1.0, paired=True, message=message)

    def caught(self, observation: Observation) -> tuple[int, str]:
        """How many examples drive the target's row, and how that is known.

        The target's bias moves in proportion to it. The proportion is that of a stand-in batch with one example
        of the class, sent through the client's own local training; a defence that rescales updates makes the
        count wrong. Where the example count or the training of a delta is unknown, one is assumed.
        """
        bias, header = observation.values(self.bias), observation.update.header
        towards = bias[self.target] if header.kind is UpdateKind.DELTA else -bias[self.target]
        if float(towards) <= PRESENT * float(bias.abs().max()):
            return 0, f"the batch holds none that class {self.target}'s row responds to"
        protocol = observation.knowledge.local_training
        if protocol is None and header.kind is UpdateKind.GRADIENT:
            protocol = FedSGD()
        examples = observation.examples
        if protocol is None or examples is None:
            return 1, "assumed: the example count or the local training is unknown"
        # Whatever the stand-ins' features are, their target has no probability.
        silent = observation.task.parameters[self.bias].clone()
        silent[self.target] -= 2 * silent.abs().max() + 1000.0
        task = observation.task.with_state({self.bias: silent})
        middle = torch.full((examples, *task.data.shape), (task.data.low + task.data.high) / 2)
        middle = middle.to(task.parameters[self.bias])
        labels = torch.full((examples,), (self.target + 1) % task.data.classes, device=bias.device)
        labels[0] = self.target
        made, _ = protocol.local_training(task, Batch(middle, labels), Draws(0), mean_gradient)
        counted = round(float(bias[self.target] / made[self.bias][self.target]))
        return min(max(counted, 1), examples), "counted from the last layer's bias"

    def purified(self, observation: Observation, caught: int) -> Observation:
        """The caught examples' mean gradient, as if a client had held nothing else."""
        update, known = observation.update, observation.knowledge
        strength = -observation.values(self.bias)[self.target]
        wide = torch.promote_types(next(iter(observation.task.parameters.values())).dtype, torch.float32)
        own: Tensors = {name: (observation.values(name) / strength).to(wide) for name in update.tensors}
        for name in (self.weight, self.bias):
            row = own[name][self.target]
            rows = (-row / (len(own[name]) - 1)).expand_as(own[name]).clone()
            rows[self.target] = row
            own[name] = rows
        labels = torch.full((caught,), self.target)
        knowledge = replace(known, labels=labels, example_count=caught, local_training=None, draws=None, crafting=None)
        header = UpdateHeader(UpdateKind.GRADIENT, caught)
        return Observation(observation.task, Update(own, header, update.buffers), knowledge)


@SERVERS.register("class-fishing", needs="a last linear layer with bias; soft-max cross-entropy")
@dataclass(frozen=True, kw_only=True)
class ClassFishing(Checked):
    """Only the target's row of the last layer is not zero, and the other biases are large: other examples fall silent.

    Source: Wen et al., *Fishing for user data in large-batch federated learning via gradient magnification*, ICML
    2022, class fishing. The target's probability is e^(z−saturation)/(N−1) ≈ 0 for every example, so ∂L/∂z_target
    is −1 for examples of the class and 0 for all others, and nothing else leads to the layers below.
    Exact there, up to that probability (0 in float32 at the default); in the last layer the other classes' rows are
    driven by all examples, and the reader replaces them. A FedAvg delta is exact for one local step; over several
    the zero rows grow and let other examples through, and the reader takes the delta for a gradient.
    Differs: the examples of the class are counted from the update instead of taken to be one.

    Limits: BatchNorm in train mode lets the others in through its statistics. Several examples of the
    class are caught together.

    Attributes:
        saturation: bias of the other classes; far above any logit of the target.
        then: the attack on the purified gradient.
    """

    target: int = 0
    saturation: float = limited(1000.0, lambda bias: 0 < bias <= 1e6, "give a number in (0, 1e6]")
    then: Attack = field(default_factory=Auto)

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where the last layer has no bias, the loss is another, or the target is no label."""
        most, plain = task.data.classes - 1, task.loss is cross_entropy
        require(task.outputs > 1, "model", "has one output", "give a classifier of at least two classes")
        require(0 <= self.target <= most, "target", f"is {self.target}", f"give a label from 0 to {most}")
        require(plain, "loss", "is not soft-max cross-entropy", "fishing needs probabilities that saturate")
        layer = classifier_of(task)
        weight, bias = layer.weight, layer.bias
        if bias is None:
            problem = f"its last layer '{layer.name}' has no bias, which the server must set"
            raise InputError("model", problem, "give it one")
        rows = torch.zeros_like(task.parameters[weight])
        biases = torch.full_like(task.parameters[bias], self.saturation)
        row = task.parameters[weight][self.target]
        drawn = torch.randn(row.shape, generator=generator).to(row) / len(row) ** 0.5
        rows[self.target] = row if bool(row.any()) else drawn  # a zero row would carry nothing down
        biases[self.target] = 0.0
        return Broadcast(
            task.with_state({weight: rows, bias: biases}),
            Fished(target=self.target, weight=weight, bias=bias, then=self.then),
            (Change.PARAMETERS,),
        )
