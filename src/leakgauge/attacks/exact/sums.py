"""What a linear layer's gradient is a sum of, how exact its numbers are, and what stands behind the layer."""

import math
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.labels.targets import slopes_at
from leakgauge.batch import Batch
from leakgauge.clients.protocol import example_gradients
from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.steps import DefenseStage, EntryGrid, Noise, Nonlinear, PerExampleScale, Scale
from leakgauge.observation import Observation
from leakgauge.step.training import watched
from leakgauge.task import Task, cross_entropy
from leakgauge.tensors import Wire, entries
from leakgauge.tracing import LinearLayer
from leakgauge.view.entries import Entries, SentTensor, noise_of, sent_decay, wire_of

SURE = 6.0  # standard deviations of noise that hardly any entry exceeds

MOST_ENTRIES = 2**24  # of the gradients that are held at once
CLIPPED = 0.9
"""Share of its bound that what a clip shortened has at least: loops divide by the length and a small constant."""


@dataclass(frozen=True, eq=False)
class Sums:
    """A layer's gradient as sums over the batch: weight row i is Σ_k s·δ_ki·x_k and bias entry i is Σ_k s·δ_ki."""

    tail: "Tail"  # the layer and what stands behind it
    weight: Float[Tensor, "units d"]
    bias: Float[Tensor, " units"]
    entries: Entries  # the weight's, with what may have been left out
    scale: float  # s: 1 / B for a mean gradient, −lr / B for the delta of one local step
    wire: Wire
    # standard error of each row: of its bias entry, and of its weights in units of the largest input
    written: Float[Tensor, " units"]
    noisy: bool  # whether that holds noise or a quantiser
    low: Float[Tensor, " d"]  # low, high: the range of what enters the layer
    high: Float[Tensor, " d"]
    reach: float  # the largest number that does, at least one
    labels: Int[Tensor, " classes"]  # those that an example may have
    examples: int
    clip: Defense | None = None  # what a known defence does to each example's gradient, without its noise
    told: bool = True  # s is what the client is known to do, no clip may have shortened it, and rows do not name it

    def shortened(self, x: Float[Tensor, "k d"], labels: Int[Tensor, " k"]) -> Float[Tensor, " k"]:
        """What clipping of examples multiplies the layer's gradient of each by, 1 without it; `x` enters the layer."""
        task, bias, found = self.tail.task, self.tail.layer.bias, []
        if self.clip is None or not len(x):
            return x.new_ones(len(x))
        inputs = task.data.denormalise(x.view(-1, *task.data.shape))
        for at in torch.arange(len(x), device=x.device).split(max(1, MOST_ENTRIES // entries(task.parameters))):
            each = example_gradients(task, task.parameters, task.buffers, Batch(inputs[at], labels[at]), None)
            kept = self.clip.on_example_gradients(each, torch.Generator())
            before, after = (t[bias or ""].flatten(1).norm(dim=1) for t in (each, kept))
            found.append(torch.where(before > 0, after / before, 1.0))
        return torch.cat(found)


def sums_of(observation: Observation, tail: "Tail", examples: int, scale: float) -> Sums:
    """The sums of a layer that reads the input in float64, where the layer is. Known noise counts as rounding, and so
    do a quantiser's steps."""
    data, device = observation.task.data, tail.weight.device
    names = tail.layer.weight, tail.layer.bias or ""
    known, view = observation.knowledge, noise_of(observation)
    decay, own = sent_decay(observation), known.labels
    weight, bias = (SentTensor.of(observation, name, operations=0, view=view, decay=decay)[...] for name in names)
    edge = torch.zeros((1, *data.shape), dtype=torch.float64, device=device)
    low, high = (data.normalise(edge + value).flatten() for value in (data.low, data.high))
    labels = torch.arange(data.classes) if own is None or own.ndim > 1 else own.unique()
    reach = max(1.0, float(torch.maximum(low.abs(), high.abs()).max()))
    return Sums(
        tail,
        weight.value.to(device),
        bias.value.to(device),
        weight,
        scale,
        wire_of(observation, *names),
        torch.maximum(bias.error, weight.error.amax(1) / reach).to(device),
        view.noise_scale is not None or view.rounding is not None,
        low,
        high,
        reach,
        labels.to(device),
        examples,
        known.defense.without_noise() if known.defense and known.defense.acts_on_examples else None,
        not may_be_shortened(observation.origin),
    )


def may_be_shortened(observation: Observation) -> bool:
    """Whether a clip may have shortened the update: there is one, and what was sent is not surely below its bound; or
    a defence does what its steps do not say."""
    told, client = observation.linear, observation.knowledge.local_training
    steps = [s for s in steps_of(observation.knowledge.defense) if s.stage is DefenseStage.UPDATE]
    bounds = [step.bound for step in steps if isinstance(step, Scale)]
    if told is not None and told.bound is not None:
        own = (p.detach().double().norm() for p in observation.task.parameters.values())
        bounds.append(told.bound - abs(told.decay) * math.hypot(*(float(norm) for norm in own)))
    if any(isinstance(step, Nonlinear) for step in steps):
        return True
    if not bounds or (all(isinstance(step, Scale) for step in steps) and _longest(observation) < CLIPPED * min(bounds)):
        return False
    if not all(isinstance(step, Scale | Noise | EntryGrid) for step in steps) or (client and client.aggregates):
        return True
    view, norms = noise_of(observation), []
    for name in observation.update.tensors:
        entry = SentTensor.of(observation, name, view=view, decay=0.0)[...]
        norms.append(float((entry.value.abs() + entry.hard + SURE * entry.sigma).norm()))
    return math.hypot(*norms) >= CLIPPED * min(bounds)


def _longest(observation: Observation) -> float:
    """Greatest length of any client's update, by clipped gradients of examples; infinite where that is not known."""
    client, examples = observation.knowledge.local_training, observation.examples
    steps = [s for s in steps_of(observation.knowledge.defense) if s.stage is DefenseStage.EXAMPLES]
    bounds = [step.bound for step in steps if isinstance(step, PerExampleScale) and not step.by_layer]
    noises = [step.on_mean for step in steps if isinstance(step, Noise)]
    if client is None or examples is None or not bounds or len(bounds) + len(noises) < len(steps):
        return math.inf
    longest, entry = 0.0, entries(observation.task.parameters) ** 0.5
    own = math.hypot(*(float(p.detach().double().norm()) for p in observation.task.parameters.values()))
    for one, size in client.clients(examples):
        told, sigmas = one.linear(size), [None if of is None else of(part) for of in noises for part in one.parts(size)]
        if told is None:
            return math.inf
        beside = math.inf if None in sigmas else SURE * entry * math.hypot(*(s for s in sigmas if s is not None))
        longest = max(longest, sum(map(abs, told.weights)) * (min(bounds) + beside) + abs(told.decay) * own)
    return longest


def scale_of(observation: Observation, examples: int) -> float | str:
    """s in the sums of an update, or the reason why the update is no sum over examples at one point."""
    told = observation.linear
    if told is None and observation.knowledge.local_training is None:
        return "the update is a delta, and the local training is not known (knows: local_training)"
    if told is None:
        return "the client's steps are no sums of gradients at known points"
    if len(told.weights) > 1:
        return "the client takes several local steps, so its update is no sum of gradients at one point"
    if sent_decay(observation) is None:
        return "weight decay moves every row by a share that is not known"
    return told.weights[0] / examples  # a clip shortens it, and the rows tell by how much


@dataclass(frozen=True, eq=False)
class Tail:
    """A biased linear layer and all that follows it, on a private copy of the model. Only for models whose output
    depends on the example through this layer alone (`gates` measures it) and that treat every example by itself."""

    task: Task
    layer: LinearLayer

    @property
    def weight(self) -> Float[Tensor, "units d"]:
        return self.task.parameters[self.layer.weight]

    @property
    def bias(self) -> Float[Tensor, " units"]:
        assert self.layer.bias is not None
        return self.task.parameters[self.layer.bias]

    def answers(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n units"]:
        """What leaves the layer for what enters it."""
        return torch.addmm(self.bias, x, self.weight.T)

    def logits(self, z: Float[Tensor, "n units"]) -> Float[Tensor, "n outputs"]:
        """Model outputs where `z` leaves the layer. The layers before it run on one grey example and are ignored."""
        data = self.task.data
        grey = torch.full((1, *data.shape), (data.low + data.high) / 2).to(self.weight)
        with watched(self.task.module, [self.layer.name], lambda *_: z.clone()):
            return self.task.logits(self.task.parameters, self.task.buffers, grey)[0]

    def errors(self, z: Float[Tensor, "n units"], labels: Int[Tensor, " n"]) -> Float[Tensor, "n units"]:
        """∂loss/∂z of each example by itself (not of the mean)."""
        z = z.detach().requires_grad_()
        return torch.autograd.grad(self.task.loss_of(self.logits(z), labels) * len(z), z)[0]

    def errors_of_row(
        self, z: Float[Tensor, "n units"], rows: Int[Tensor, " n"], classes: int
    ) -> Float[Tensor, "n classes"]:
        """∂loss/∂z of each example in one unit of its own, for every label. The logits' derivatives along that unit
        come from two backward passes: ∂/∂v of (∂(v·logits)/∂z) in the unit."""
        z = z.detach().requires_grad_()
        logits = self.logits(z)
        towards = torch.zeros_like(logits, requires_grad=True)
        (back,) = torch.autograd.grad(logits, z, towards, create_graph=True)
        own = back[torch.arange(len(z), device=z.device), rows].sum()
        (slope,) = torch.autograd.grad(own, towards)
        logits = logits.detach()
        if self.task.loss is cross_entropy:
            return (logits.softmax(1) * slope).sum(1, keepdim=True) - slope[:, :classes]
        of_labels = torch.arange(classes, device=z.device)[:, None].expand(-1, len(z))
        return len(z) * torch.stack([(slopes_at(self.task, logits, y) * slope).sum(1) for y in of_labels], 1)

    def gates(self, inputs: Float[Tensor, "n *shape"]) -> bool:
        """Whether the outputs for raw examples are those of what leaves the layer for them, and of nothing else."""
        kept: list[Tensor] = []
        keep = watched(self.task.module, [self.layer.name], lambda _name, _given, out: kept.append(out.detach()))
        with torch.no_grad(), keep:
            whole = self.task.logits(self.task.parameters, self.task.buffers, inputs)[0]
        if len(kept) != 1 or kept[0].shape != (len(inputs), len(self.bias)):
            return False
        with torch.no_grad(), suppress(RuntimeError):  # a model that counts its examples before the layer
            behind = self.logits(kept[0])
            return behind.shape == whole.shape and bool(torch.allclose(behind, whole, rtol=1e-9, atol=1e-12))
        return False
