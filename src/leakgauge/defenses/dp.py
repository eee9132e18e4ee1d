"""Noise, clipping of updates and of examples, and both: differential privacy of clients, DP-SGD and Fed-CDP."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from leakgauge.defenses.defense import Defense, steps_of
from leakgauge.defenses.steps import DefenseStage, DefenseStep, Noise, NoiseScale, PerExampleScale, Scale, shortened
from leakgauge.errors import Checked, limit, limited, require
from leakgauge.registry import DEFENSES
from leakgauge.tensors import Tensors, entries, map_tensors, squared_norm


def normal_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """N(0, 1) in the shape of `t`, drawn in one precision, so that whoever knows the draw repeats it in any other."""
    return torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)


def laplace_like(t: Tensor, generator: torch.Generator) -> Tensor:
    """Laplace draws of unit variance as `normal_like`, by the inverse distribution function."""
    u = torch.rand(t.shape, generator=generator, dtype=torch.float64) - 0.5
    return (-u.sign() * (1 - 2 * u.abs()).clamp_min(2.0**-53).log() / 2**0.5).to(t)


POSITIVE = limit(lambda value: 0 < value < math.inf, "give a positive number, or leave the noise out")


@dataclass(frozen=True)
class Absolute(Checked):
    """σ per coordinate, whatever the update."""

    sigma: float = field(metadata=POSITIVE)

    def of(self, raw: Tensors) -> Tensors:
        return map_tensors(lambda t: t.new_tensor(self.sigma), raw)

    def seen(self, sent: Tensors) -> Tensors:
        return self.of(sent)


@dataclass(frozen=True)
class RelativeToNorm(Checked):
    """E‖noise‖² = relative²·‖update‖²: one σ = relative·‖g‖/√entries for all tensors."""

    relative: float = field(metadata=POSITIVE)

    def of(self, raw: Tensors) -> Tensors:
        sigma = self.relative * (squared_norm(raw) / max(entries(raw), 1)).sqrt()
        return map_tensors(lambda t: sigma.to(t), raw)

    def seen(self, sent: Tensors) -> Tensors:
        return map_tensors(lambda s: s * (1 + self.relative**2) ** -0.5, self.of(sent))


@dataclass(frozen=True)
class RelativeToTensorStd(Checked):
    """σ of each tensor = `tensor_std` × that tensor's standard deviation (MKOR's "normalised std").

    A tensor of one element has no spread and gets no noise. Not comparable over architectures.
    """

    tensor_std: float = field(metadata=POSITIVE)

    def of(self, raw: Tensors) -> Tensors:
        return map_tensors(lambda t: self.tensor_std * t.std(correction=0) if t.numel() > 1 else t.new_zeros(()), raw)

    def seen(self, sent: Tensors) -> Tensors:
        return map_tensors(lambda s: s * (1 + self.tensor_std**2) ** -0.5, self.of(sent))


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Defense):
    """Adds N(0, σ²) to every entry of the update, with σ from `scale`.

    Guarantee: the noise is independent of the data given σ. No differential privacy by itself: the
    update's sensitivity is unbounded without clipping, and a relative σ depends on the data."""

    scale: NoiseScale
    gaussian: bool = field(default=True, init=False, repr=False)

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        draw = normal_like if self.gaussian else laplace_like
        return map_tensors(lambda t, s: t + s * draw(t, generator), tensors, self.scale.of(tensors))

    def steps(self) -> tuple[DefenseStep, ...]:
        fixed = self.scale.sigma if type(self.scale) is Absolute else None  # σ that does not follow the data
        return (Noise(sigma=fixed, scale=self.scale, drawn=self.on_update, gaussian=self.gaussian),)


@DEFENSES.register("noise")
def noise(
    *, sigma: float | None = None, relative: float | None = None, tensor_std: float | None = None
) -> GaussianNoise:
    """Gaussian noise on the update: one of sigma, relative (to its norm), tensor_std (to each tensor's spread)."""
    ways: dict[str, tuple[Callable[[float], NoiseScale], float | None]] = {
        "sigma": (Absolute, sigma),
        "relative": (RelativeToNorm, relative),
        "tensor_std": (RelativeToTensorStd, tensor_std),
    }
    given = {name: (scale, level) for name, (scale, level) in ways.items() if level is not None}
    problem = "stand together" if given else "is missing, and so are relative and tensor_std"
    hint = "give exactly one of sigma, relative, tensor_std"
    require(len(given) == 1, " and ".join(given) or "sigma", problem, hint)
    ((scale, level),) = given.values()
    return GaussianNoise(scale=scale(level))


@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(GaussianNoise):
    """Adds Laplace noise of standard deviation σ to every entry: density exp(−|x|/b)/2b with b = σ/√2.

    σ comes from `scale`, as for `GaussianNoise`: per coordinate, so that both disturb an update alike.

    Guarantee: the noise is independent of the data given σ. No differential privacy by itself: ε = (L1 sensitivity)/b,
    and without clipping the sensitivity is unbounded; a relative σ depends on the data. Clipped in the Euclidean norm
    C, an update of N entries has an L1 norm of up to C·√N."""

    gaussian: bool = field(default=False, init=False, repr=False)


@DEFENSES.register("laplace")
def laplace(
    *, sigma: float | None = None, relative: float | None = None, tensor_std: float | None = None
) -> LaplaceNoise:
    """Laplace noise: one of sigma, relative (to the update's norm), tensor_std (to each tensor's spread), all stds."""
    return LaplaceNoise(scale=noise(sigma=sigma, relative=relative, tensor_std=tensor_std).scale)


def only_scales(defense: Defense | None, *others: type[DefenseStep], own: bool = False) -> bool:
    """Whether entries are multiplied by factors of at most one, and nothing but such `others` is done to them. `own`:
    what is done to a batch does not count, as its examples are known to stay the client's own."""
    kinds = Scale, PerExampleScale, *others
    return all(isinstance(s, kinds) or (own and s.stage is DefenseStage.BATCH) for s in steps_of(defense))


def shortens(defense: Defense | None) -> bool:
    """Whether the update, or examples' gradients, may lose length."""
    return any(isinstance(step, Scale | PerExampleScale) for step in steps_of(defense))


LENGTH = limit(lambda norm: norm > 0, "give a positive norm")
BOUND = limit(lambda norm: 0 < norm < math.inf, "give a finite norm: noise without a bound is not private")


@DEFENSES.register("clip")
@dataclass(frozen=True, kw_only=True)
class Clip(Defense):
    """Scales the update down to a Euclidean norm of at most `norm`, over all tensors together.

    Guarantee: norm of the result ≤ `norm` (one rounding error); an update below it is untouched; a zero
    update stays zero, and one that is not finite becomes zero: noise would not hide it. No privacy guarantee: the
    direction is unchanged, and an attack on the direction (cosine) does not notice."""

    norm: float = field(metadata=LENGTH)

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return Scale(bound=self.norm).sent(tensors)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Scale(bound=self.norm),)


@DEFENSES.register("clip-examples", needs="a model whose examples do not mix (no BatchNorm in train mode)")
@dataclass(frozen=True, kw_only=True)
class ClipExamples(Defense):
    """Scales every example's gradient down to `norm`, before they are averaged.

    Guarantee: each example moves the mean gradient by at most norm/n. One whose gradient is not finite counts as
    zero, or it would make the whole update not a number, which no noise hides. This is the clipping of DP-SGD;
    without noise it is not differentially private."""

    norm: float = field(metadata=LENGTH)

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        rows = [g.reshape(len(g), math.prod(g.shape[1:])).square().sum(1) for g in per_example.values()]
        return shortened(per_example, torch.stack(rows).sum(0), self.norm)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (PerExampleScale(bound=self.norm),)


def layers_of(names: Iterable[str]) -> dict[str, list[str]]:
    """Tensors by layer: the weight and the bias of one module are clipped together."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return layers


@dataclass(frozen=True, kw_only=True)
class ClipLayers(ClipExamples):
    """Scales every layer of every example's gradient down to norm at most `norm`."""

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        clipped: Tensors = {}
        for names in layers_of(per_example).values():
            clipped |= super().on_example_gradients({name: per_example[name] for name in names}, generator)
        return {name: clipped[name] for name in per_example}

    def steps(self) -> tuple[DefenseStep, ...]:
        return (PerExampleScale(bound=self.norm, by_layer=True, blind=False, together=layers_of),)


@dataclass(frozen=True, kw_only=True)
class NoisyClip(Defense):
    """Clips to a finite norm and adds noise, without either of which nothing is private."""

    noise_multiplier: float  # z, the noise on what is summed, in units of `norm`; positive
    norm: float = field(metadata=BOUND)  # C, the bound of what one party adds to the sum
    without: ClassVar[str] = "clip"  # name of the same without noise

    def __post_init__(self) -> None:
        super().__post_init__()
        z, hint = self.noise_multiplier, f"give a positive number, or use {self.without}"
        require(0 < z < math.inf, "noise_multiplier", f"is {z}", hint)


@DEFENSES.register("client-dp")
@dataclass(frozen=True, kw_only=True)
class ClientDP(NoisyClip):
    """u·min(1, C/‖u‖) + N(0, (zC)²I) for the update u, a gradient or a delta; ‖·‖ over all tensors together.

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*, ICLR 2018, with the noise
    added by the client (local model): the server that sees one update faces z. A server that sees only the mean of
    m such updates faces noise zC/√m where a client moves the mean by at most C/m: z·√m. Where the server itself
    adds the noise, it has seen the updates without, and this defence is not what protects from it."""

    @property
    def _parts(self) -> tuple[Clip, GaussianNoise]:
        return Clip(norm=self.norm), GaussianNoise(scale=Absolute(self.noise_multiplier * self.norm))

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        clip, noise = self._parts
        return noise.on_update(clip.on_update(tensors, generator), generator)

    def steps(self) -> tuple[DefenseStep, ...]:
        return tuple(step for part in self._parts for step in part.steps())


@DEFENSES.register("dp-sgd", needs="a model whose examples do not mix (no BatchNorm in train mode)")
@dataclass(frozen=True, kw_only=True)
class DPSGD(NoisyClip):
    """Clipped examples and noise: (Σᵢ gᵢ·min(1, C/‖gᵢ‖) + N(0, (zC)²I)) / n for each gradient, ‖·‖ over all tensors.

    Source: Abadi et al., *Deep Learning with Differential Privacy*, CCS 2016, Algorithm 1. The noise is drawn once
    a step, so once a local step under FedAvg. What it guarantees depends on rounds and sampling:
    `leakgauge.privacy.guarantee`.

    n is the number of examples in the step. Opacus divides by the expected batch size instead, which differs
    where batches are sampled one example at a time.
    """

    without: ClassVar[str] = "clip-examples"

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        """One draw N(0, (zC/n)²) is added to all clipped rows, so that it is in their mean once."""
        clipped = self.without_noise().on_example_gradients(per_example, generator)
        sigma = self.noise_on_mean(len(next(iter(clipped.values())))) or 0.0
        return map_tensors(lambda g: g + sigma * normal_like(g[:1], generator), clipped)

    def steps(self) -> tuple[DefenseStep, ...]:
        noise = Noise(
            stage=DefenseStage.EXAMPLES,
            on_mean=self.noise_on_mean,
            multiplier=lambda _examples, _layers: self.noise_multiplier,
        )
        return PerExampleScale(bound=self.norm), noise

    def noise_on_mean(self, examples: int | None) -> float | None:
        """Standard deviation on the mean gradient of one step; `None` where the number of examples is not known."""
        return None if examples is None else self.noise_multiplier * self.norm / max(examples, 1)

    def without_noise(self) -> Defense:
        return ClipExamples(norm=self.norm)


@DEFENSES.register("fed-cdp", needs="a model whose examples do not mix (no BatchNorm in train mode)")
@dataclass(frozen=True, kw_only=True)
class FedCDP(Defense):
    """ḡᵢₗ = gᵢₗ·min(1, C/‖gᵢₗ‖) for example i and layer l (weight and bias together), plus noise N(0, σ²C²).

    Source: Wei et al., *Gradient-Leakage Resilient Federated Learning*, ICDCS 2021, as ROG evaluates it (2024,
    Eqs. 17–18). Neither says whether noise comes before or after averaging; here each example gets its own before, so
    that the mean of n has σC/√n. Only the mean leaves the client, so one draw of that size is added to all of them, as
    in `DPSGD`: the same distribution, without n draws. An example moves the sum by up to C·√layers, not C: see
    `leakgauge.privacy.guarantee`.

    Attributes:
        noise_multiplier: σ; this or `snr`.
        snr: σ such that 10·log₁₀(‖g‖² / (D·σ²C²)) is so many dB on each clipped gradient g, over all its D entries. ROG
            (2024, Section 5.2) names the ratio without saying whether it is meant by layer, by example or over all. It
            depends on the data, so it guarantees nothing; it is for measuring at the level that a paper states.
        norm: C, of each layer.
    """

    noise_multiplier: float | None = limited(
        None, lambda z: 0 < z < math.inf, "give a positive number: without noise it only clips"
    )
    snr: float | None = limited(None, lambda snr: abs(snr) <= 200, "give decibels between -200 and 200")
    norm: float = field(default=4.0, metadata=BOUND)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = "none" if self.snr is None else "both"
        one = (self.noise_multiplier is None) != (self.snr is None)
        require(one, "level", f"{given} of noise_multiplier and snr are given", "give exactly one of them")

    def on_example_gradients(self, per_example: Tensors, generator: torch.Generator) -> Tensors:
        clipped = self.without_noise().on_example_gradients(per_example, generator)
        scale = self._in_ratio or Absolute((self.noise_multiplier or 0.0) * self.norm)
        sigma = scale.of(map_tensors(Tensor.detach, clipped))
        share = max(len(next(iter(clipped.values()))), 1) ** -0.5  # of the mean of independent noises
        return map_tensors(lambda g, s: g + share * s * normal_like(g[:1], generator), clipped, sigma)

    def steps(self) -> tuple[DefenseStep, ...]:
        stage, on_mean, scale = DefenseStage.EXAMPLES, self.noise_on_mean, self._in_ratio
        noise = Noise(stage=stage, on_mean=on_mean, scale=scale, multiplier=self._multiplier)
        return *ClipLayers(norm=self.norm).steps(), noise

    def _multiplier(self, examples: int | None, layers: int | None) -> float | str:
        """An example moves the sum by C·√layers; noise on the sum is σC·√n."""
        if self.noise_multiplier is None:
            return "fed-cdp at a signal-to-noise ratio scales its noise with the data"
        if examples is None or layers is None:
            counts = "the number of layers and of examples in a step"
            return f"fed-cdp clips layer by layer: its ε depends on {counts}, not given"
        return self.noise_multiplier * math.sqrt(examples / layers)

    def noise_on_mean(self, examples: int | None) -> float | None:
        """As of `DPSGD`; `None` too where it depends on the data."""
        if self.noise_multiplier is None or examples is None:
            return None
        return self.noise_multiplier * self.norm / math.sqrt(max(examples, 1))

    @property
    def _in_ratio(self) -> RelativeToNorm | None:
        """The noise on one clipped gradient where it follows the data. Of a mean it is told as if the gradients stood
        at right angles, ‖mean‖² = Σ‖gᵢ‖²/n²: where they agree that is too large, by up to √n."""
        return None if self.snr is None else RelativeToNorm(10 ** (-self.snr / 20))

    def without_noise(self) -> Defense:
        return ClipLayers(norm=self.norm)
