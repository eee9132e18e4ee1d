"""Whether a reconstruction means the same as the truth: tags that both share."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.data.source import CIFAR_MEAN, CIFAR_STD
from leakgauge.errors import InputError, require
from leakgauge.metrics.metric import MORE, prepare
from leakgauge.models.networks import resnet20
from leakgauge.models.weights import load_weights, packaged
from leakgauge.task import DataSpec

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@runtime_checkable
class Tagger(Protocol):
    """Raw images in [0, 1] → the tags of each."""

    def __call__(self, images: Float[Tensor, "n c h w"]) -> Sequence[frozenset[str]]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class TopLabels:
    """The labels that a classifier believes: at most `top`, each with a probability of at least `least`.

    Without `least` unrelated photos share much: the top three of ten labels have a Jaccard index of .40.

    Attributes:
        module: images → logits; runs in eval mode.
        data: what it was trained on: size, and the mean and spread that its inputs are normalised by. Grey
            images are repeated over the channels, and colour ones averaged where it takes grey ones.
        labels: of its outputs.
    """

    module: nn.Module
    data: DataSpec
    labels: tuple[str, ...]
    top: int = 3
    least: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.top <= len(self.labels), "top", f"is {self.top}", f"give 1 to {len(self.labels)}")
        require(0 <= self.least < 1, "least", f"is {self.least}", "give a probability below 1")
        self.module.eval()

    @torch.no_grad()
    def __call__(self, images: Float[Tensor, "n c h w"]) -> Sequence[frozenset[str]]:
        """Raises `InputError` where the module answers with another number of outputs than there are labels."""
        if images.shape[-2:] != self.data.shape[1:]:
            images = F.interpolate(images, self.data.shape[1:], mode="bilinear", antialias=True)
        if images.shape[1] != self.data.shape[0]:
            images = images.mean(1, keepdim=True).expand(-1, self.data.shape[0], -1, -1)
        try:
            logits = self.module(self.data.normalise(images.float()))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            said = (str(error).splitlines() or [""])[0]
            shown = f"does not take images of shape {tuple(images.shape)} ({said})"
            raise InputError("tagger", shown, "give `data` the shape that it was trained on") from error
        fits = isinstance(logits, Tensor) and logits.ndim == 2 and logits.shape[1] == len(self.labels)
        answer = f"shape {tuple(logits.shape[1:])}" if isinstance(logits, Tensor) else type(logits).__name__
        require(fits, "tagger", f"answers with {answer}", f"give {len(self.labels)} outputs")
        believed = logits.softmax(1).topk(self.top)
        pairs = zip(believed.values.tolist(), believed.indices.tolist(), strict=True)
        return [frozenset(self.labels[i] for p, i in zip(*row, strict=True) if p >= self.least) for row in pairs]


def cifar10_labels(top: int = 3) -> TopLabels:
    """The packaged ResNet-20 of width 16, trained on CIFAR-10."""
    module = resnet20(width=16)
    load_weights(module, packaged("resnet20-cifar10"), "tagger")
    data = DataSpec((3, 32, 32), len(CIFAR10), mean=CIFAR_MEAN, std=CIFAR_STD)
    return TopLabels(module=module, data=data, labels=CIFAR10, top=top)


@dataclass(frozen=True, kw_only=True)
class Jaccard:
    """Tags in common: ``|A ∩ B| / |A ∪ B|``, A of the reconstruction and B of the truth; 1 where both have none.

    Source: ROG's semantic score (Table 2), with a large multi-label tagger. The default here is what a small classifier
    of ten kinds of things believes, so two unrelated images share something by chance: compare with the score of
    a mismatched image, never with 0.

    Known failures: a picture that is recognised by a person but not by the tagger scores low, a blur of the right
    colours (blue above, grey below: a ship) scores high, and what the labels do not name is not scored at all.

    Attributes:
        tagger: yours, or `None` for the default. Images are brought to [0, 1] first.
    """

    tagger: Tagger | None = None
    data_range: float = 1.0
    low: float = 0.0

    name: ClassVar[str] = "jaccard"
    higher_means: ClassVar[str] = MORE
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        require(self.data_range > 0, "data_range", f"is {self.data_range}", "give the width of the data's range")

    @cached_property
    def _tags(self) -> Tagger:
        return self.tagger if self.tagger is not None else cifar10_labels()

    def defined_for(self, spec: DataSpec) -> bool:
        """For images."""
        return spec.is_image

    def __call__(self, x_hat: Float[Tensor, "n c h w"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, " n"]:
        """Raises `InputError` where the tagger does not give one set of tags an image."""
        a, b = prepare(x_hat, x, data_range=self.data_range, low=self.low)
        if not len(a):
            return a.new_zeros(0)
        ours, theirs = (self._of((t - self.low) / self.data_range) for t in (a, b))
        scores = [len(p & q) / len(p | q) if p | q else 1.0 for p, q in zip(ours, theirs, strict=True)]
        return torch.tensor(scores, dtype=torch.float64)

    def _of(self, images: Tensor) -> Sequence[frozenset[str]]:
        tags = self._tags(images.float())
        sets = not isinstance(tags, Tensor) and all(isinstance(one, Set) for one in tags)
        require(sets, "tagger", "does not answer with sets of tags", "wrap a classifier in TopLabels")
        if len(tags) != len(images):
            raise InputError("tagger", f"gave {len(tags)} sets of tags for {len(images)} images", "give one an image")
        return tags
