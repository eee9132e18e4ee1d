"""Identity convolutions: the picture passes through to the first linear layer, which gives it away."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.matching import Given
from leakgauge.attacks.recipes import Auto
from leakgauge.compute import Budget, Compute
from leakgauge.errors import InputError, require
from leakgauge.observation import Observation, OnStep, Reconstruction, Status
from leakgauge.servers.imprint import ClassFishing
from leakgauge.servers.server import Broadcast, Change
from leakgauge.task import DataSpec, Mode, Task
from leakgauge.update import Update
from reproduce.inverting_gradients.module_chain import FIT, Layer, layer_chain
from reproduce.inverting_gradients.pixel_path import NORMS, RECTIFIERS, SATURATING, SKIPPED, PixelPath, Tap

POOLS = (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
TRUE = 1e-3
"""Error of a probe's brightness up to which a feature counts as the pixel that it should be."""


@dataclass(frozen=True, eq=False)
class PixelRead:
    """Features of the first linear layer by `LinearRead` on the linear part alone, then each feature to its pixel.

    Pixels that no feature shows are interpolated, and for one example the search goes on from there on the whole
    update. Where rows give nothing (several examples that all drive every row), it starts from noise.

    Attributes:
        path: what the convolutions do, inverted.
        tail: name of the first linear layer.
        names: in the tail's own module, name there → name in the model.
        exact: features that are the pixel itself, tested on random pictures; the others are windows.
        then: the search.
    """

    path: PixelPath
    tail: nn.Sequential
    names: dict[str, str]
    exact: Bool[Tensor, " f"]
    then: Auto

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),
        compute: Compute = Compute(),
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """`EXACT` where the features are certified and every pixel is one of them; no gradient evaluation then."""
        read = LinearRead().reconstruct(self.below(observation), generator)
        if read.inputs is None:
            return self.then.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
        images, known = self.images(read.inputs)
        message = f"{int(known.sum())} of {known.numel()} pixels reach the first linear layer; {read.message}"
        if bool(known.all()) or observation.examples != 1:
            status = read.status if bool(known.all()) else Status.CONVERGED
            return replace(read, inputs=images, status=status, message=message)
        attack = self.then.choice(observation.task, generator, Given(images))
        found = attack.reconstruct(observation, generator, budget=budget, compute=compute, on_step=on_step)
        return replace(found, message=f"{message}; the rest by matching")

    def below(self, observation: Observation) -> Observation:
        """The same observation as the linear layers alone make it: features are the data."""
        task, update = observation.task, observation.update
        low, high = sorted(self.path.interval())
        spec = DataSpec((len(self.exact),), task.data.classes, low=low, high=high)
        small = Task.of(self.tail, spec, mode=task.mode, loss=task.loss)
        state = {here: (task.parameters | task.buffers)[there] for here, there in self.names.items()}
        tensors = {here: update.tensors[self.names[here]] for here in small.parameters}
        small = small.to(next(iter(task.parameters.values()))).with_state(state)
        knowledge = replace(observation.knowledge, local_training=None, buffers=None, public_data=None, draws=None)
        return Observation(small, Update(tensors, update.header), knowledge)

    def images(self, features: Float[Tensor, "n f"]) -> tuple[Float[Tensor, "n c h w"], Bool[Tensor, "c h w"]]:
        """Raw pictures from features, and which pixels are true."""
        data = self.path.data
        pixel, inside, mirrored = self.path.positions()
        bright = self.path.brightness(features.double().cpu(), mirrored).clamp(0, 1)
        used = self.exact if bool(self.exact.any()) else inside
        total = bright.new_zeros((len(bright), torch.Size(data.shape).numel()))
        count = total.new_zeros(total.shape[1]).index_add(0, pixel[used], total.new_ones(int(used.sum())))
        total = total.index_add(1, pixel[used], bright[:, used])
        seen = (count > 0).view(data.shape)
        filled = _filled((total / count.clamp_min(1)).view(-1, *data.shape), seen)
        return data.low + data.range * filled, seen if bool(self.exact.any()) else torch.zeros_like(seen)


def _filled(
    images: Float[Tensor, "n c h w"], seen: Bool[Tensor, "c h w"], rounds: int = 200
) -> Float[Tensor, "n c h w"]:
    """Unseen pixels from their neighbours: outwards ring by ring, then smoothed until harmonic."""
    if bool(seen.all()):
        return images
    channels = images.shape[1]
    box = images.new_ones((channels, 1, 3, 3))
    known, weight = images * seen, seen.to(images)[None]
    while not bool((weight > 0).all()):
        total = F.conv2d(known, box, padding=1, groups=channels)
        count = F.conv2d(weight, box, padding=1, groups=channels)
        if not bool(count.any()):
            return images + 0.5  # a colour of which nothing is seen
        fresh = (weight == 0) & (count > 0)
        known = torch.where(fresh, total / count.clamp_min(1), known)
        weight = torch.where(fresh, torch.ones_like(weight), weight)
    cross = images.new_tensor([[0, 0.25, 0], [0.25, 0, 0.25], [0, 0.25, 0]]).expand(channels, 1, 3, 3)
    for _ in range(rounds):
        smooth = F.conv2d(F.pad(known, (1, 1, 1, 1), mode="replicate"), cross, groups=channels)
        known = torch.where(seen, images, smooth)
    return known


@dataclass(frozen=True, kw_only=True)
class IdentityConvolutions:
    """Every kernel has one entry that is not zero, so that features of the first linear layer are pixels.

    Source: Geiping et al., *Inverting Gradients*, NeurIPS 2020, who note that a dishonest server can make
    convolutions identities and read their Proposition 3.1 behind them.
    A convolution of stride s needs c_in·s² channels to keep all pixels: each takes another of the s² phases. With
    fewer, phases as far apart as possible are kept. Biases bring pixels to [0, 1] in front of ReLUs (instead of zero,
    which would lose negative inputs) and to the steep part of sigmoids, which the reader inverts.
    BatchNorm is neutralised in its buffers. Max-pools keep a window's brightest pixel and, of mirrored channels, its
    darkest: a blurred thumbnail, never exact.

    What is read is exact for one example. In a batch all examples share the rows of the linear layer; `fish` catches
    one class of them with the last layer, and its examples' mean is read.

    Attributes:
        fish: class fishing on top, or `None`.
        then: the search for what rows do not give.
    """

    fish: ClassFishing | None = None
    then: Auto = field(default_factory=Auto)

    def __post_init__(self) -> None:
        fits = self.fish is None or isinstance(self.fish, ClassFishing)
        require(fits, "fish", f"is {type(self.fish).__name__}", "give class-fishing")
        require(isinstance(self.then, Auto), "then", f"is {type(self.then).__name__}", "give auto")

    def broadcast(self, task: Task, generator: torch.Generator) -> Broadcast:
        """Raises `InputError` where the network is no such chain; names the layer and why."""
        crafted, read = self._crafted(task, generator)
        if self.fish is None:
            return Broadcast(crafted, read, (Change.PARAMETERS,))
        return replace(self.fish, then=read).broadcast(crafted, generator)

    def _crafted(self, task: Task, generator: torch.Generator) -> tuple[Task, PixelRead]:
        data = task.data
        require(len(data.shape) == 3, "data", f"has examples of shape {data.shape}", "give images")
        like = next(iter(task.parameters.values()))
        probe = torch.rand((2, *data.shape), generator=generator, dtype=torch.float64).to(like)
        probe = data.low + data.range * probe
        layers = layer_chain(task, probe)
        first = next((i for i, layer in enumerate(layers) if isinstance(layer.module, nn.Linear)), len(layers))
        require(first < len(layers), "model", "has no linear layer", FIT)
        body = [layer for layer in layers[:first] if not isinstance(layer.module, (*SKIPPED, nn.Flatten))]
        require(
            any(isinstance(layer.module, nn.Conv2d) for layer in body),
            "model",
            "has no convolution: its first linear layer reads the input as it is",
            "audit closed-form on the honest model",
        )
        path = _walk(task, body)
        missing = [name for name in path.state if name not in task.parameters and name not in task.buffers]
        require(not missing, "model", f"computes {', '.join(missing)} from other parameters", FIT)
        crafted = task.with_state(path.state)
        tail, names = _tail(task, layers[first:])
        linear = layers[first]
        require(f"{linear.name}.bias" in task.parameters, "model", f"layer '{linear.name}' has no bias", "give it one")
        flat = path.size[0] * path.size[1] * len(path.taps)
        require(linear.before[-1] == flat, "model", f"layer '{linear.name}' does not read all features flattened", FIT)
        exact = _exact(crafted, path, linear, probe)
        return crafted, PixelRead(path, tail, names, exact, self.then)


def _walk(task: Task, body: list[Layer]) -> PixelPath:
    colours, height, width = task.data.shape
    path = PixelPath(task.data, [Tap(c, 0, 0) for c in range(colours)], (height, width))
    final = 1
    for layer in body:
        if isinstance(layer.module, (nn.Conv2d, *POOLS)) and layer.after[-1]:
            stride = getattr(layer.module, "stride", layer.before[-1] // layer.after[-1])
            final *= stride if isinstance(stride, int) else stride[0]
    mirror = any(isinstance(layer.module, nn.MaxPool2d) for layer in body)
    for i, layer in enumerate(body):
        module = layer.module
        rest = body[i + 1 :]
        if isinstance(module, nn.Conv2d):
            norm = rest[0] if rest and isinstance(rest[0].module, NORMS) else None
            path.convolve(layer, norm, _curve(rest), final, mirror)
        elif isinstance(module, NORMS):
            ready = task.mode is Mode.EVAL and module.track_running_stats
            require(ready, "model", f"layer '{layer.name}' normalises by the batch", "use mode: eval, or no BatchNorm")
            after_conv = i > 0 and isinstance(body[i - 1].module, nn.Conv2d)
            require(after_conv, "model", f"layer '{layer.name}' does not follow a convolution", FIT)
        elif isinstance(module, POOLS):
            path.pool(layer)
        elif not isinstance(module, RECTIFIERS) and type(module) not in SATURATING:
            kind = type(module).__name__
            raise InputError("model", f"layer '{layer.name}' ({kind}) cannot pass pixels on", FIT)
    return path


def _curve(rest: list[Layer]) -> type[nn.Module] | None:
    """The saturating activation that follows before the next convolution."""
    for layer in rest:
        if isinstance(layer.module, nn.Conv2d):
            return None
        if type(layer.module) in SATURATING:
            return type(layer.module)
    return None


def _tail(task: Task, layers: list[Layer]) -> tuple[nn.Sequential, dict[str, str]]:
    """The linear layers and what is between them as a module of its own, with its names' names in the model."""
    tail = nn.Sequential(OrderedDict((str(i), copy.deepcopy(layer.module)) for i, layer in enumerate(layers)))
    here = {**dict(tail.named_parameters()), **dict(tail.named_buffers())}
    names = {name: f"{layers[int(name.split('.')[0])].name}.{name.split('.', 1)[1]}" for name in here}
    for name, parameter in tail.named_parameters():
        parameter.requires_grad_(names[name] in task.parameters)
    return tail, names


def _exact(task: Task, path: PixelPath, linear: Layer, probe: Float[Tensor, "n c h w"]) -> Bool[Tensor, " f"]:
    seen: list[Tensor] = []
    handle = task.module.get_submodule(linear.name).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        with torch.no_grad():
            task.logits(task.parameters, task.buffers, probe)
    finally:
        handle.remove()
    pixel, inside, mirrored = path.positions()
    found = path.brightness(seen[0].detach().cpu().double(), mirrored)
    true: Int[Tensor, "n f"] = ((probe.cpu().double() - task.data.low) / task.data.range).flatten(1)[:, pixel]
    hit = inside & ((found - true).abs() < TRUE).all(0)
    return torch.zeros_like(hit) if path.pooled else hit
