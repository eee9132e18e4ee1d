"""What each layer type gives away by its place: rules registered by type, and a miss that explains itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakgauge.inspection.drives import Convolution, in_eval
from leakgauge.inspection.matrices import Omission
from leakgauge.inspection.rule import Measurement, Part, Received
from leakgauge.registry import RULES
from leakgauge.task import Mode, Task
from leakgauge.tracing import input_layers


@dataclass(frozen=True, eq=False)
class Site:
    """A layer in its place.

    Attributes:
        name, module: as in `named_modules`.
        order: its place among the layers that ran; `None`: it is not called as a module.
        reached: what reached it from the probe.
        probe: the probe as the model sees it, random numbers that are all different.
        raw: the flattened model input itself reaches this layer (`attacks.closed_form.layers.input_layers`).
        convolves: the model has convolutions.
        task: all the rest.
    """

    name: str
    module: nn.Module
    order: int | None
    reached: Tensor | None
    probe: Tensor
    raw: bool
    convolves: bool
    task: Task


@dataclass(frozen=True)
class Exposure:
    """What a layer gives away, and how odd that is: 0 is the layer's nature, 1 has no honest reason that we know."""

    text: str
    oddity: float = 0.0


LayerRule = Callable[[Site], Exposure | None]
LAYER_RULES: dict[type[nn.Module], LayerRule] = {}


def layer_rule(*types: type[nn.Module]) -> Callable[[LayerRule], LayerRule]:
    """Registers a rule for layer types and their subclasses; the nearest type wins."""

    def add(rule: LayerRule) -> LayerRule:
        LAYER_RULES.update(dict.fromkeys(types, rule))
        return rule

    return add


def rule_of(module: nn.Module) -> LayerRule | None:
    """The rule for a module's type, or for the nearest type that it derives from."""
    return next((LAYER_RULES[t] for t in type(module).__mro__ if t in LAYER_RULES), None)


@layer_rule(nn.Linear)
def linear(site: Site) -> Exposure | None:
    """A linear layer gives its inputs away; odd is one that sees the picture in a model made of convolutions."""
    if site.reached is None:
        return None
    bias = getattr(site.module, "bias", None) is not None
    if site.raw:
        how = "its rows divided by its bias" if bias else "its rows, up to a factor (no bias),"
        text = f"reads the input itself: {how} show each example that drives a row alone, and any batch of one"
        return Exposure(text, float(site.convolves and site.task.data.is_image))
    if site.reached.ndim != 2 or not site.task.data.is_image:
        return None
    share = copied(site.probe, site.reached)
    if share == 0:
        return None
    return Exposure(
        f"reads {share:.0%} of the input's values unchanged, beside others", share if site.convolves else 0.0
    )


@layer_rule(Convolution)
def convolution(site: Site) -> Exposure | None:
    """A convolution's gradient sums over places; patches of a transformer can be solved for with its positions."""
    module = site.module
    assert isinstance(module, Convolution)
    patches = module.kernel_size == module.stride and max(module.kernel_size) > 1
    if site.reached is None or not patches or site.reached.shape != site.probe.shape:
        return None
    if not torch.allclose(site.reached, site.probe):
        return None
    return Exposure("embeds patches of the input; with learned positions added, one example can be solved for")


@layer_rule(nn.Embedding, nn.EmbeddingBag)
def embedding(_: Site) -> Exposure:
    """Rows of an embedding that move name the tokens of the batch."""
    return Exposure("has a non-zero gradient row for each token that the batch holds, and for no other")


@layer_rule(nn.modules.batchnorm._BatchNorm)
def batch_norm(site: Site) -> Exposure | None:
    """In train mode the running statistics move towards the batch's, and travel with the reply."""
    if site.task.mode is not Mode.TRAIN or not getattr(site.module, "track_running_stats", False):
        return None
    return Exposure("is in train mode: mean and variance of the batch's features leave with the reply")


@layer_rule(nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm, nn.PReLU, nn.RMSNorm)
def scales(_: Site) -> None:
    """Scales and shifts hold sums over places, too few numbers to solve for an input."""


@dataclass(frozen=True, eq=False)
class _Reached:
    order: int
    value: Tensor


def sites(task: Task) -> list[Site]:
    """All modules that hold parameters themselves, in order of execution, those not called last."""
    quiet = in_eval(task)
    like = next(iter(task.parameters.values()))
    generator = torch.Generator().manual_seed(0)
    raw = {layer.name for layer in input_layers(quiet, generator)}
    drawn = torch.rand((2, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    inputs = task.data.low + task.data.range * drawn
    reached: dict[str, _Reached] = {}
    holders = [
        (n, m) for n, m in quiet.module.named_modules() if any(p.requires_grad for p in m.parameters(recurse=False))
    ]
    handles = []
    for name, module in holders:

        def keep(_: nn.Module, given: tuple[object, ...], name: str = name) -> None:
            if given and isinstance(given[0], Tensor):
                reached.setdefault(name, _Reached(len(reached), given[0].detach()))

        handles.append(module.register_forward_pre_hook(keep))
    try:
        with torch.no_grad():
            quiet.logits(task.parameters, task.buffers, inputs)
    finally:
        for handle in handles:
            handle.remove()
    convolves = any(isinstance(module, Convolution) for _, module in holders)
    probe = task.data.normalise(inputs)
    found = []
    for name, module in holders:
        seen = reached.get(name)
        order, value = (None, None) if seen is None else (seen.order, seen.value)
        found.append(Site(name, module, order, value, probe, name in raw, convolves, task))
    return sorted(found, key=lambda site: len(found) if site.order is None else site.order)


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


@RULES.register("layers", needs="the task: architecture, data format and mode")
@dataclass(frozen=True)
class LayerPlaces:
    """What each layer gives away by its type and place, and whether that place has an honest reason.

    Statistic in [0, 1]: the largest oddity. 1: a linear layer reads the whole picture in a model that also has
    convolutions. A share: that part of the picture's values reaches a linear layer unchanged beside other features.
    0: nothing, or only what lies in the layer's nature (a perceptron's first layer, patch and token embeddings,
    BatchNorm's statistics), which the evidence names.
    """

    needs: tuple[Part, ...] = (Part.TASK,)
    meaning: str = (
        "A linear layer's gradient shows its inputs. In front of, or beside, convolutions it serves nothing else "
        "(imprint blocks, a classifier that sees the input). Honest reasons: a deliberate skip of small inputs."
    )

    def measure(self, received: Received) -> Measurement:
        assert received.task is not None
        exposures: list[tuple[str, Exposure]] = []
        unjudged: list[Omission] = []
        for site in sites(received.task):
            rule = rule_of(site.module)
            if rule is None:
                kind = type(site.module).__name__
                why = f"no rule for {kind}, which holds parameters itself; its gradient may show its inputs"
                unjudged.append(Omission(site.name or "model", why))
                continue
            if site.order is None:
                unjudged.append(Omission(site.name, "is not called as a module, so that what reaches it is not seen"))
            exposure = rule(site)
            if exposure is not None:
                exposures.append((site.name, exposure))
        exposures.sort(key=lambda e: -e[1].oddity)
        worst = exposures[0][1].oddity if exposures else 0.0
        where = tuple(name for name, e in exposures if e.oddity > 0)
        shown = [f"{name} {e.text}" for name, e in exposures[:4]]
        more = f"; and {len(exposures) - 4} more layers" if len(exposures) > 4 else ""
        evidence = "; ".join(shown) + more + "." if shown else "No layer gives its inputs away by its place."
        return Measurement(worst, where, evidence, tuple(unjudged))
