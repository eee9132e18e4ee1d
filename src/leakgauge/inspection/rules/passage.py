"""How much of the picture reaches a late layer pixel by pixel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.inspection.drives import VALUES_AT_ONCE, Convolution, holds_weights, in_eval
from leakgauge.inspection.matrices import Omission
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES
from leakgauge.task import Task

PIXELS = 24
"""Input values that are moved one at a time."""
DIRECTIONS = 16
"""Random directions in which the whole input is moved, to size up each feature's gradient."""
FEATURES = 24
"""Features per layer whose gradient is computed exactly."""
LAYERS = 4
"""Linear layers that are looked at: the first three in order of execution, and the last."""
STEP = 1e-2
"""Step by which a pixel is moved, as a share of the data's range."""


@dataclass(frozen=True)
class View:
    """How a linear layer sees the picture.

    Attributes:
        name: of the layer.
        pixels: mean over pixels of the largest share that the pixel has of any feature's squared gradient.
        features: mean over features of the largest share that any pixel has of the feature's.
        copied: share of the pixels that reach the layer unchanged.
    """

    name: str
    pixels: float
    features: float
    copied: float

    @property
    def passage(self) -> float:
        """1 where pixels pass through one by one; a half and more where some stand unchanged beside other features."""
        return max(self.pixels, self.features, 0.5 + self.copied / 2 if self.copied else 0.0)


def views(task: Task, generator: torch.Generator) -> list[View]:
    """Late linear layers' views of a white-noise picture. The first weighted layer of a model without
    convolutions is left out: it reads the input by design."""
    task = in_eval(task)
    like = next(iter(task.parameters.values()))
    noise = torch.rand((1, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    probe = task.data.low + task.data.range * (0.05 + 0.9 * noise)
    d = noise.numel()
    moved = torch.randperm(d, generator=generator)[:PIXELS]
    columns = torch.zeros((len(moved), d)).to(like)
    columns[torch.arange(len(moved)), moved] = 1
    signs = torch.randint(0, 2, (DIRECTIONS, d), generator=generator).to(like) * 2 - 1
    ways = torch.cat([columns, signs])
    base, names, seen = _read(task, probe), _chosen(task, probe), task.data.normalise(probe)
    step = STEP * task.data.range
    shifted: dict[str, list[Tensor]] = {name: [] for name in names}
    for some in ways.split(_at_once(task)):
        read = _read(task, probe + step * some.view(-1, *task.data.shape))
        for name in names:
            shifted[name].append((read[name] - base[name]) / step)
    found = []
    for name in names:
        slopes = torch.cat(shifted[name])
        size = slopes[len(moved) :].square().mean(0)
        best = (slopes[: len(moved)].square() / size.clamp_min(1e-30)).where(size > 0, 0.0).argmax(1)
        rows = _gradients(task, probe, name, best)
        per_pixel = _shares(rows)[torch.arange(len(moved)), moved]
        live = (size > 0).nonzero()[:, 0]
        drawn = live[torch.randperm(len(live), generator=generator)[:FEATURES]]
        shares = _shares(_gradients(task, probe, name, drawn)) if len(drawn) else rows.new_zeros((1, d))
        found.append(View(name, float(per_pixel.mean()), float(shares.amax(1).mean()), copied(seen, base[name])))
    return found


def copied(probe: Tensor, reached: Tensor) -> float:
    """Share of the probe's values of one example that stand unchanged among what reached a layer."""
    wanted, have = probe[0].flatten().double(), reached[0].flatten().double().sort().values
    place = torch.searchsorted(have, wanted).clamp(1, max(1, len(have) - 1))
    near = torch.minimum((have[place - 1] - wanted).abs(), (have[place.clamp_max(len(have) - 1)] - wanted).abs())
    # Random values lie about 1/len apart: a chance meeting within 1e-9 of the range has probability 1e-9·len.
    tolerance = 1e-9 if probe.dtype == torch.float64 else 1e-7
    hits = near <= tolerance * float(wanted.abs().max())
    chance = 2 * tolerance * len(have)
    share = float(hits.double().mean())
    return share if share > max(0.01, 10 * chance) else 0.0


def _shares(gradients: Float[Tensor, "k d"]) -> Float[Tensor, "k d"]:
    scale = gradients.abs().amax(1, keepdim=True)
    squares = (gradients.double() / scale.clamp_min(1e-30)).square()
    return squares / squares.sum(1, keepdim=True).clamp_min(1e-30)


def _at_once(task: Task) -> int:
    return max(1, VALUES_AT_ONCE // max(1, math.prod(task.data.shape)))


@contextmanager
def _inputs_of(module: nn.Module, types: tuple[type[nn.Module], ...]) -> Iterator[dict[str, Tensor]]:
    """What reaches each layer of those types at its first call, in order of execution."""
    seen: dict[str, Tensor] = {}
    handles = []
    for name, layer in module.named_modules():
        if isinstance(layer, types) and holds_weights(layer):

            def keep(_: nn.Module, given: tuple[Tensor, ...], name: str = name) -> None:
                # A copy of the reference only: an in-place layer later would change a flattened view's values.
                seen.setdefault(name, given[0] + 0)

            handles.append(layer.register_forward_pre_hook(keep))
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _read(task: Task, inputs: Float[Tensor, "n *shape"]) -> dict[str, Tensor]:
    with torch.no_grad(), _inputs_of(task.module, (nn.Linear,)) as seen:
        task.logits(task.parameters, task.buffers, inputs)
    return {k: v.flatten(1) for k, v in seen.items() if v.shape[0] == len(inputs)}


def _chosen(task: Task, probe: Float[Tensor, "1 *shape"]) -> list[str]:
    with torch.no_grad(), _inputs_of(task.module, (nn.Linear, Convolution)) as seen:
        task.logits(task.parameters, task.buffers, probe)
    order = list(seen)
    convolves = any(isinstance(task.module.get_submodule(name), Convolution) for name in order)
    late = order if convolves else order[1:]
    linear = [n for n in late if isinstance(task.module.get_submodule(n), nn.Linear) and seen[n].shape[0] == 1]
    return linear if len(linear) <= LAYERS else [*linear[: LAYERS - 1], linear[-1]]


def _gradients(task: Task, probe: Float[Tensor, "1 *shape"], name: str, features: Tensor) -> Float[Tensor, "k d"]:
    """∂(feature)/∂(input) for each feature of what reaches the layer."""
    rows = []
    for some in features.split(_at_once(task)):
        with torch.enable_grad(), _inputs_of(task.module, (nn.Linear,)) as seen:
            x = probe.repeat(len(some), *[1] * len(task.data.shape)).requires_grad_()
            task.logits(task.parameters, task.buffers, x)
            value = seen[name].flatten(1)[torch.arange(len(some)), some].sum()
            slope = torch.autograd.grad(value, x, allow_unused=True)[0] if value.requires_grad else None
            rows.append((torch.zeros_like(x) if slope is None else slope.detach()).flatten(1))
    return torch.cat(rows)


NOT_AN_IMAGE = Omission("data", "not a picture; models of tables pass inputs on to late layers by design")
NO_LATE = Omission("model", "no linear layer is called behind the first weighted layer")


@RULES.register("input-in-depth", needs="the task: architecture, values and data format")
@dataclass(frozen=True)
class InputInDepth:
    """Whether single pixels reach a late linear layer.

    Statistic in [0, 1]: the largest over late linear layers of two means, and of (1 + c)/2 where the share c > 0 of the
    pixels reaches the layer unchanged. Over pixels: the largest share that the pixel has in the squared gradient of any
    of the layer's input features. Over features: the largest share of any pixel. At one white-noise picture, from
    gradients; averages, products and honest filters spread over many pixels.
    """

    needs: tuple[Part, ...] = (Part.TASK,)
    meaning: str = (
        "What reaches a linear layer can be read off its gradient; pixels that reach it one by one are read as they "
        "are (identity convolutions, an input that skips to the classifier). Honest reasons: a very shallow network "
        "with pruned filters, or a residual network on the pixels themselves."
    )

    def measure(self, received: Received) -> Measurement:
        assert received.task is not None
        if not received.task.data.is_image:
            return Measurement(0.0, (), "Not judged.", (NOT_AN_IMAGE,))
        found = sorted(views(received.task, torch.Generator().manual_seed(0)), key=lambda v: -v.passage)
        if not found:
            return Measurement(0.0, (), "Not judged.", (NO_LATE,))
        top = found[0]
        evidence = (
            f"Of what moves a feature that reaches {top.name}, one pixel accounts for {top.features:.0%} on average; "
            f"of the feature that follows a given pixel best, that pixel accounts for {top.pixels:.0%}."
        )
        evidence += f" {top.copied:.0%} of the pixels reach it unchanged." if top.copied else ""
        return Measurement(top.passage, tuple(v.name for v in found), evidence)
