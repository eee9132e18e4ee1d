"""How much of the picture reaches a late layer pixel by pixel."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.inspection.drives import at_once, in_eval, layers, name_of
from leakgauge.inspection.matrices import Omission
from leakgauge.inspection.rule import Measurement, Part, Received, register
from leakgauge.task import Batch, Task
from leakgauge.view.graph import Graph, OuterSum

PIXELS = 24  # input values that are moved one at a time
DIRECTIONS = 16  # random directions in which the whole input is moved, to size up each feature's gradient
FEATURES = 24  # features per layer whose gradient is computed exactly
LAYERS = 4  # linear layers that are looked at: the first three in order of execution, and the last
STEP = 1e-2  # step by which a pixel is moved, as a share of the data's range


@dataclass(frozen=True)
class View:
    """How a linear layer sees the picture."""

    name: str
    pixels: float  # mean over pixels of the largest share that the pixel has of any feature's squared gradient
    features: float  # mean over features of the largest share that any pixel has of the feature's
    copied: float  # share of the pixels that reach the layer unchanged

    @property
    def passage(self) -> float:
        """1 where pixels pass through one by one; a half and more where some stand unchanged beside other features."""
        return max(self.pixels, self.features, 0.5 + self.copied / 2 if self.copied else 0.0)


def views(task: Task, generator: torch.Generator) -> list[View]:
    """Late linear layers' views of a white-noise picture. The first layer of a model without convolutions is left out:
    it reads the input by design."""
    task = in_eval(task)
    like = next(iter(task.parameters.values()))
    noise = torch.rand((1, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    probe = task.data.low + task.data.range * (0.05 + 0.9 * noise)
    d = noise.numel()
    moved = torch.randperm(d, generator=generator)[:PIXELS]
    columns = F.one_hot(moved, d).to(like)
    signs = torch.randint(0, 2, (DIRECTIONS, d), generator=generator).to(like) * 2 - 1
    ways = torch.cat([columns, signs])
    (chosen, graph), step = _chosen(task), STEP * task.data.range
    if not chosen or graph is None:
        return []
    parts = ways.view(-1, *task.data.shape).split(at_once(task))
    with torch.no_grad():
        base = _reached(graph, task, chosen, probe)
        moves = (_reached(graph, task, chosen, probe + step * some) for some in parts)
        slopes = [[(new - old) / step for new, old in zip(there, base, strict=True)] for there in moves]
    found = []
    for layer, here, parts in zip(chosen, base, zip(*slopes, strict=True), strict=True):
        slope = torch.cat(parts)
        size = slope[len(moved) :].square().mean(0)
        best = (slope[: len(moved)].square() / size.clamp_min(1e-30)).where(size > 0, 0.0).argmax(1)
        rows = _gradients(graph, task, probe, layer, best)
        per_pixel = _shares(rows)[torch.arange(len(moved)), moved]
        live = (size > 0).nonzero()[:, 0]
        drawn = live[torch.randperm(len(live), generator=generator)[:FEATURES]]
        shares = _shares(_gradients(graph, task, probe, layer, drawn)) if len(drawn) else rows.new_zeros((1, d))
        pixels, features = float(per_pixel.mean()), float(shares.amax(1).mean())
        found.append(View(name_of(layer), pixels, features, copied(task.data.normalise(probe), here)))
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


def _chosen(task: Task) -> tuple[list[OuterSum], Graph | None]:
    """Linear layers behind the first layer, and that one too where others slide over the picture."""
    found, graph, _ = layers(task)
    late = found if any(layer.slides for layer in found) else found[1:]
    linear = [layer for layer in late if not layer.slides]
    linear = [layer for k, layer in enumerate(linear) if layer.reads not in [other.reads for other in linear[:k]]]
    return linear if len(linear) <= LAYERS else [*linear[: LAYERS - 1], linear[-1]], graph


def _reached(
    graph: Graph, task: Task, chosen: list[OuterSum], inputs: Float[Tensor, "n *shape"]
) -> list[Float[Tensor, "n d"]]:
    batch = Batch(inputs, torch.zeros(len(inputs), dtype=torch.long, device=inputs.device))
    values = graph.trace.evaluate([layer.reads[0] for layer in chosen], task, batch)
    return [value.reshape(len(inputs), -1) for value in values]


def _gradients(
    graph: Graph, task: Task, probe: Float[Tensor, "1 *shape"], layer: OuterSum, features: Tensor
) -> Float[Tensor, "k d"]:
    rows = []
    for some in features.split(at_once(task)):
        with torch.enable_grad():
            x = probe.repeat(len(some), *[1] * len(task.data.shape)).requires_grad_()
            value = _reached(graph, task, [layer], x)[0][torch.arange(len(some)), some].sum()
            slope = torch.autograd.grad(value, x, allow_unused=True)[0] if value.requires_grad else None
            rows.append((torch.zeros_like(x) if slope is None else slope.detach()).flatten(1))
    return torch.cat(rows)


NOT_AN_IMAGE = Omission("data", "not a picture; models of tables pass inputs on to late layers by design")
NO_LATE = Omission("model", "no linear layer is called behind the first weighted layer")


@register(
    "input-in-depth",
    "What reaches a linear layer can be read off its gradient; pixels that reach it one by one are read as they "
    "are (identity convolutions, an input that skips to the classifier). Honest reasons: a very shallow network "
    "with pruned filters, or a residual network on the pixels themselves.",
    needs=(Part.TASK,),
)
def input_in_depth(received: Received) -> Measurement:
    """Whether single pixels reach a late linear layer.

    Statistic in [0, 1]: the largest over late linear layers of two means, and of (1 + c)/2 where the share c > 0 of the
    pixels reaches the layer unchanged. Over pixels: the largest share that the pixel has in the squared gradient of any
    of the layer's input features. Over features: the largest share of any pixel. At one white-noise picture, from
    gradients; averages, products and honest filters spread over many pixels."""
    assert received.task is not None
    if not received.task.data.is_image:
        return Measurement(0.0, (), "Not judged.", (NOT_AN_IMAGE,))
    found = sorted(views(received.task, torch.Generator().manual_seed(0)), key=lambda v: -v.passage)
    if not found:
        *_, remarks = layers(in_eval(received.task))
        return Measurement(0.0, (), "Not judged.", remarks or (NO_LATE,))
    top = found[0]
    evidence = (
        f"One pixel accounts for {top.features:.0%} on average of what moves a feature that reaches {top.name}; a "
        f"given pixel accounts for {top.pixels:.0%} of the feature that follows it best."
    )
    evidence += f" {top.copied:.0%} of the pixels reach it unchanged." if top.copied else ""
    return Measurement(top.passage, tuple(v.name for v in found), evidence)
