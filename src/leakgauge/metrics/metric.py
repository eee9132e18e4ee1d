"""The contract of a score, the preparation that all of them share, and the scores of pictures: MSE, PSNR, SSIM and the
learned perceptual distance LPIPS; and of labels and tokens, as multisets, beside a guess without the update.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file
from scipy.stats import binom
from skimage.metrics import structural_similarity
from torch import Tensor

from leakgauge.errors import Checked, InputError, extra, limited, refusing, require
from leakgauge.registry import METRICS
from leakgauge.task import DataSpec

MORE, LESS = "more leakage", "less leakage"


@runtime_checkable
class Metric(Protocol):
    """A score per example.

    Guarantees: one finite number an example, which depends on that example and its truth alone, never on
    the rest of the batch; both are clamped to [low, low + data_range] first; the order of examples
    is the caller's (see `assign`). Registered constructors take `data_range` and `low`.
    """

    name: ClassVar[str]
    higher_means: ClassVar[str]
    range: ClassVar[tuple[float, float]]

    def defined_for(self, spec: DataSpec) -> bool:
        """Whether the score has a meaning for such data; where not, reports leave it empty."""

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]: ...


def prepare(
    x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."], *, data_range: float, low: float
) -> tuple[Float[Tensor, "n ..."], Float[Tensor, "n ..."]]:
    """Both in float64 on the CPU, clamped to the data's range. Entries that are not a number become the
    middle of the range, as they say nothing. Raises `InputError` where the shapes differ."""
    shapes = f"{tuple(x_hat.shape)} for truth of shape {tuple(x.shape)}"
    require(x_hat.shape == x.shape, "x_hat", f"has shape {shapes}", "assign reconstructions to the truth first")
    return clamped(x_hat, data_range=data_range, low=low), clamped(x, data_range=data_range, low=low)


def clamped(x: Float[Tensor, "n ..."], *, data_range: float, low: float) -> Float[Tensor, "n ..."]:
    values = x.detach().to("cpu", torch.float64)
    return torch.where(values.isnan(), low + data_range / 2, values).clamp_(low, low + data_range)


PSNR_CAP = 300.0
"""dB of an exact recovery: reports hold no infinity. It stands for a root mean squared error of 1e-15 of the range."""


def is_exact(psnr: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Which PSNR scores stand at the cap."""
    return psnr >= PSNR_CAP


def decibels(mse: Float[Tensor, " n"], peak: Float[Tensor, " n"] | float) -> Float[Tensor, " n"]:
    power = torch.as_tensor(peak, dtype=mse.dtype).square().expand_as(mse)
    # Both floors keep 0/0 and log 0 away: an exact image is at the cap, a black peak at its negative.
    ratio = torch.where(mse > 0, power / mse.clamp_min(1e-300), torch.inf)
    return (10 * ratio.log10()).clamp(-PSNR_CAP, PSNR_CAP)


@dataclass(frozen=True, kw_only=True)
class InRange(Checked):
    """What a score is told of the data: width and lower end of their range."""

    data_range: float = limited(1.0, lambda width: width > 0, "give the width of the data's range")
    low: float = 0.0

    def defined_for(self, spec: DataSpec) -> bool:
        return True


@METRICS.register("mse")
@dataclass(frozen=True, kw_only=True)
class MSE(InRange):
    """Mean squared error per example, in squared units of the data. Range [0, data_range²]."""

    name: ClassVar[str] = "mse"
    higher_means: ClassVar[str] = LESS
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        return (a - b).square().reshape(len(a), -1).mean(1) if len(a) else a.new_zeros(0)


@METRICS.register("psnr")
@dataclass(frozen=True, kw_only=True)
class PSNR(InRange):
    """10·log₁₀(data_range² / MSE) in dB, per example, after clamping to the data's range.

    Never pooled over a batch before the logarithm and never summed. Range [0, 300]: an error of zero
    scores `PSNR_CAP`, see `is_exact`."""

    name: ClassVar[str] = "psnr"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (0.0, PSNR_CAP)

    def __call__(self, x_hat: Float[Tensor, "n ..."], x: Float[Tensor, "n ..."]) -> Float[Tensor, " n"]:
        return decibels(MSE(data_range=self.data_range, low=self.low)(x_hat, x), self.data_range)


WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03
"""Side of the Gaussian window in pixels, its standard deviation, and the two stabilisers (Wang et al., 2004)."""

WANG = {"gaussian_weights": True, "sigma": SIGMA, "use_sample_covariance": False, "K1": K1, "K2": K2}


@METRICS.register("ssim")
@dataclass(frozen=True, kw_only=True)
class SSIM(InRange):
    """Mean SSIM over the whole map, per image or volume and over its channels.

    Source: Wang et al., 2004: Gaussian window of 11 a side, σ 1.5, K₁ .01, K₂ .03, population covariances; computed by
    scikit-image with mirrored edges. Not cropped: at 32 px the crop would discard half of the image. Range [−1, 1]."""

    name: ClassVar[str] = "ssim"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    smallest: ClassVar[int] = WINDOW

    def defined_for(self, spec: DataSpec) -> bool:
        """For volumes, and pictures of one or three channels, that the window fits into."""
        return (spec.is_image or spec.is_volume) and min(spec.shape[1:]) >= self.smallest

    def pairs(self, x_hat: Tensor, x: Tensor) -> tuple[Float[Tensor, "n c *sides"], Float[Tensor, "n c *sides"]]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if a.ndim < 4 or not self.defined_for(DataSpec(shape=tuple(a.shape[1:]), classes=2)):
            problem = f"is not defined for examples of shape {tuple(a.shape[1:])}"
            hint = f"give volumes, or pictures of one or three channels, {self.smallest} pixels a side or more"
            raise InputError("ssim", problem, hint)
        return a, b

    def maps(self, x_hat: Tensor, x: Tensor) -> list[Float[np.ndarray, "c *sides"]]:
        """SSIM around each pixel, a map an image."""
        similar: Callable[..., Any] = structural_similarity
        settings = {"data_range": self.data_range, "channel_axis": 0, "full": True} | WANG
        return [similar(p.numpy(), q.numpy(), **settings)[1] for p, q in zip(*self.pairs(x_hat, x), strict=True)]

    def __call__(self, x_hat: Float[Tensor, "n c *sides"], x: Float[Tensor, "n c *sides"]) -> Float[Tensor, " n"]:
        return torch.tensor([found.mean() for found in self.maps(x_hat, x)], dtype=torch.float64)


SMALLEST = 64  # shorter side in pixels below which images are enlarged: AlexNet has no features left under 35
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # ImageNet statistics for inputs in [−1, 1]
CHUNK = 16  # images in one pass through the network

ALEX = ((0,), (3,), (6,), (8,), (10,))
VGG = ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28))
"""Places of torchvision's convolutions, by the stages that LPIPS compares. ReLU follows each; a max pooling stands in
front of a stage that begins three places on."""


@METRICS.register("lpips", needs="a weights file, or leakgauge[lpips]")
@dataclass(frozen=True, kw_only=True)
class LPIPS(InRange):
    """LPIPS v0.1 per image, with an AlexNet or a VGG-16 backbone, as the weights say. Range [0, ∞), usually below 1.

    Source: Zhang et al., CVPR 2018: features of five stages, normalised over channels, squared differences weighted
    by the linear heads, averaged over space, summed over stages. Weights are a safetensors file with torchvision's
    names (``features.N.weight``) and the heads (``linK.model.1.weight``); half precision is converted. ``torchmetrics``
    in their place takes torchmetrics' LPIPS, whose ε stands under the root, with torchvision's AlexNet, which may be
    downloaded.

    Differs: images whose shorter side is under 64 px are enlarged to 64 (bilinear), so 32 px scores compare among
    themselves only; one channel is repeated to three; inputs are clamped."""

    weights: str

    name: ClassVar[str] = "lpips"
    higher_means: ClassVar[str] = LESS
    range: ClassVar[tuple[float, float]] = (0.0, float("inf"))

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self._distance  # what is missing shows here, not in the middle of an audit

    def defined_for(self, spec: DataSpec) -> bool:
        return spec.is_image

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if a.ndim != 4 or a.shape[1] not in (1, 3):
            raise InputError("lpips", f"is not defined for examples of shape {tuple(a.shape[1:])}", "give pictures")
        pairs = zip(self._ready(a).split(CHUNK), self._ready(b).split(CHUNK), strict=True)
        with torch.no_grad():
            return torch.cat([self._distance(p, q).double().reshape(-1) for p, q in pairs])

    def _ready(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n 3 height width"]:
        x = (2 * (x - self.low) / self.data_range - 1).float().expand(-1, 3, -1, -1)
        height, width = x.shape[-2:]
        if min(height, width) >= SMALLEST or not len(x):
            return x
        grow = SMALLEST / min(height, width)
        return F.interpolate(x, (round(height * grow), round(width * grow)), mode="bilinear", align_corners=False)

    @cached_property
    def _distance(self) -> Callable[[Tensor, Tensor], Tensor]:
        """LPIPS of colour images in [−1, 1], at least `SMALLEST` pixels a side."""
        if self.weights == "torchmetrics":
            hint = f"{extra('lpips')}; or give lpips.weights"
            with refusing("lpips", "torchmetrics and torchvision do not work here", hint):
                importlib.import_module("torchvision")
                from torchmetrics.functional.image.lpips import _LPIPS

                network: Any = _LPIPS(pretrained=True, net="alex")
            return lambda a, b: torch.as_tensor(network(a, b))
        state = _read(self.weights)
        heads = [state[f"lin{k}.model.1.weight"] for k in range(5)]

        def distance(a: Float[Tensor, "n 3 h w"], b: Float[Tensor, "n 3 h w"]) -> Float[Tensor, " n"]:
            stages = zip(heads, _features(a, state), _features(b, state), strict=True)
            parts = [F.conv2d((_unit(p) - _unit(q)).square(), head).mean((1, 2, 3)) for head, p, q in stages]
            return torch.stack(parts).sum(0)

        return distance


def _read(file: str) -> dict[str, Tensor]:
    """Raises `InputError` where the file is not LPIPS v0.1 of either backbone."""
    require(Path(file).is_file(), "lpips.weights", f"no file '{file}'", "give the path of LPIPS weights")
    with refusing("lpips.weights", f"cannot read '{file}'", "give a safetensors file"):
        state = {name: tensor.float() for name, tensor in load_file(file).items()}
    places = [place for stage in _stages(state) for place in stage]
    needed = {f"features.{place}.{part}" for place in places for part in ("weight", "bias")}
    missing = sorted((needed | {f"lin{k}.model.1.weight" for k in range(5)}) - set(state))
    require(not missing, "lpips.weights", f"'{file}' lacks {missing[:3]}", "give LPIPS v0.1 of AlexNet or VGG-16")
    return state


def _stages(state: Mapping[str, Tensor]) -> tuple[tuple[int, ...], ...]:
    first = state.get("features.0.weight")
    return VGG if first is not None and first.shape[-1] == 3 else ALEX


def _features(x: Float[Tensor, "n 3 h w"], state: Mapping[str, Tensor]) -> list[Tensor]:
    """The maps that each stage ends with."""
    x = (x - x.new_tensor(SHIFT).view(3, 1, 1)) / x.new_tensor(SCALE).view(3, 1, 1)
    stages, maps, last = _stages(state), [], 0
    for stage in stages:
        if stage[0] == last + 3:
            x = F.max_pool2d(x, 3 if stages is ALEX else 2, 2)
        for last in stage:
            weight, bias = (state[f"features.{last}.{part}"] for part in ("weight", "bias"))
            side = weight.shape[-1]
            x = (F.conv2d(x, weight, bias, 4, 2) if side == 11 else F.conv2d(x, weight, bias, padding=side // 2)).relu()
        maps.append(x)
    return maps


def _unit(features: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def classes_of(labels: Tensor) -> list[int]:
    """Class indices of hard labels, the largest class of soft ones."""
    return [int(label) for label in (labels if labels.ndim == 1 else labels.argmax(1)).tolist()]


def _counts(labels: Tensor, classes: int) -> Int[Tensor, " classes"]:
    hard = torch.tensor(classes_of(labels), dtype=torch.int64)
    inside = not len(hard) or (int(hard.min()) >= 0 and int(hard.max()) < classes)
    require(inside, "labels", f"are not all in [0, {classes})", "give the number of classes of the task")
    return torch.bincount(hard, minlength=classes)


def label_f1(labels_hat: Int[Tensor, " m"] | None, labels: Tensor, classes: int) -> float:
    """F1 of two multisets, 2·Σ min(ĉ, c) / (m + n) over the counts ĉ, c of each class, in [0, 1]; higher is more
    leakage. Order does not matter. No recovered labels score 0."""
    return 0.0 if labels_hat is None else token_agreement(_counts(labels_hat, classes), _counts(labels, classes))[2]


def label_f1_by_prior(labels: Tensor, prior: Float[Tensor, " classes"], guesses: int | None = None) -> float:
    """Exact expectation of `label_f1` for `guesses` labels drawn independently from the class prior.

    Linear in E min(B, c) = Σ_{j≤c} P(B ≥ j) with B ~ Binomial(guesses, prior of the class), so nothing is simulated.
    `guesses` is the number of true labels unless given. Raises `InputError`: the prior is no distribution."""
    true, p, m = _against(labels, prior, guesses)
    overlap = sum(float(binom.sf(j, m, q)) for c, q in zip(true, p, strict=True) for j in range(c))
    total = m + sum(true)
    return 2 * overlap / total if total else 0.0


def best_constant(prior: Float[Tensor, " classes"], guesses: int) -> Int[Tensor, " guesses"]:
    """The labels that an attacker would guess of every client alike: those with the largest expected `label_f1` over
    clients whose labels are drawn from the prior.

    A j-th copy of class k adds P(Binomial(guesses, pₖ) ≥ j), which falls with j, so the `guesses` largest of all are
    the best. For two equal classes and four examples it is two of each. Raises `InputError`: the prior is no
    distribution."""
    _, p, m = _against(torch.zeros(0, dtype=torch.int64), prior, guesses)
    gains = sorted((-float(binom.sf(j, m, q)), j, k) for k, q in enumerate(p) for j in range(m))
    return torch.tensor(sorted(k for _, _, k in gains[:m]), dtype=torch.int64)


def _against(labels: Tensor, prior: Tensor, guesses: int | None) -> tuple[list[int], list[float], int]:
    p = [float(q) for q in prior.double().tolist()]
    is_distribution = bool(p) and min(p) >= 0 and abs(sum(p) - 1) < 1e-6
    require(is_distribution, "prior", "is not a distribution", "give non-negative shares that sum to one")
    return _counts(labels, len(p)).tolist(), p, len(labels) if guesses is None else guesses


def counts_of(
    texts: Float[Tensor, "n length"] | Int[Tensor, "n length"], vocabulary: int, padding: int | None
) -> Int[Tensor, "n vocabulary"]:
    """How often each token occurs in each text; padding is left out, as it says nothing."""
    ids = texts.round().long()
    counts = torch.zeros(len(ids), vocabulary, dtype=torch.long)
    counts.scatter_add_(1, ids, torch.ones_like(ids))
    if padding is not None:
        counts[:, padding] = 0
    return counts


def token_agreement(read: Int[Tensor, " vocabulary"], true: Int[Tensor, " vocabulary"]) -> tuple[float, float, float]:
    """Precision, recall and F1 of two multisets, each in [0, 1]; higher is more leakage.

    Σ min(read, true) over what was read, over what is true, and over the mean of both. Nothing read scores 0.
    """
    both, m, n = (int(c.sum()) for c in (torch.minimum(read, true), read, true))
    return (both / m if m else 0.0), (both / n if n else 0.0), (2 * both / (m + n) if m + n else 0.0)


def frequent_tokens(public: Int[Tensor, "k vocabulary"], texts: int) -> Int[Tensor, " vocabulary"]:
    """The constant guess for a client of so many texts: each token as often as it occurs in as many public ones, the
    parts of a whole given to those that lack least."""
    expected = public.double().mean(0) * texts
    guess = expected.floor()
    left = int(expected.sum().round() - guess.sum())
    guess[(expected - guess).argsort(descending=True, stable=True)[:left]] += 1
    return guess.long()


def uncovered(read: Int[Tensor, "m vocabulary"], texts: Int[Tensor, "n vocabulary"]) -> Float[Tensor, "m n"]:
    """Share of each text's tokens that do not occur in each read at all, from 0 to 1; 1 for an empty text."""
    missing = texts.double() @ (read == 0).double().T
    total = texts.sum(1, keepdim=True).double()
    return torch.where(total > 0, missing / total.clamp_min(1), 1.0).T
