"""What is measured of one trial, typed, and how it is written as JSON and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

Json = Mapping[str, Any]
Values = tuple[float | None, ...]
"""One number for each true example; `None` without a reconstruction."""


@dataclass(frozen=True)
class Scores:
    """Of a trial with a result, one entry for each true example.

    Attributes:
        psnr, ssim, mse, lpips: against the original, by the assignment with the least squared error.
        likeness: up to shift, mirror, turn and light (see `leakgauge.metrics.assignment`), to the original or to
            what the client trained on.
        rank: in the line-up; 1 is nearest.
        identified: nearest of the line-up, by structure.
        recovered: identified, and with half of the squared structure that the mean picture leaves explained; or equal
            to the original, or to what the client trained on, to the eye.
        exact: at the cap of PSNR.
        trained_psnr: against what the client trained on; `None` where that is the original.
        certified: reads that the attack proved by its own check.
        gallery, whole: pictures in the line-up, and how many of them are whole other examples rather than crops.
    """

    psnr: Values
    ssim: Values | None
    mse: Values
    lpips: Values | None
    likeness: Values | None
    rank: tuple[int, ...]
    identified: tuple[bool, ...]
    recovered: tuple[bool, ...]
    exact: tuple[bool, ...]
    trained_psnr: Values | None
    certified: int
    gallery: int
    whole: int

    @staticmethod
    def from_json(found: Json) -> Scores:
        def values(key: str) -> Values | None:
            return None if found[key] is None else tuple(found[key])

        return Scores(
            psnr=tuple(found["psnr"]),
            ssim=values("ssim"),
            mse=tuple(found["mse"]),
            lpips=values("lpips"),
            likeness=values("likeness"),
            rank=tuple(found["rank"]),
            identified=tuple(found["identified"]),
            recovered=tuple(found["recovered"]),
            exact=tuple(found["exact"]),
            trained_psnr=values("trained_psnr"),
            certified=found["certified"],
            gallery=found["gallery"],
            whole=found["whole"],
        )


@dataclass(frozen=True)
class OtherClients:
    """The same reconstruction held against examples of other clients, by the same assignment and line-up.

    Attributes:
        psnr: of all their examples.
        identified, recovered: how many of each client's examples; all clients have as many.
    """

    psnr: tuple[float, ...]
    identified: tuple[int, ...]
    recovered: tuple[int, ...]


@dataclass(frozen=True)
class Nulls:
    """What an attacker without this update could show.

    Attributes:
        mean_image, nearest_public: PSNR of the mean public picture, and of the public picture nearest to each truth.
        mean_identified: how many examples the mean public picture identifies.
        other_client: `None` without a result.
    """

    mean_image: tuple[float, ...]
    mean_identified: int
    nearest_public: tuple[float, ...]
    other_client: OtherClients | None

    def to_json(self) -> dict[str, object]:
        return {
            "mean_image": {"psnr": list(self.mean_image), "identified": self.mean_identified},
            "nearest_public": {"psnr": list(self.nearest_public)},
            "other_client": plain(self.other_client),
        }

    @staticmethod
    def from_json(found: Json) -> Nulls:
        other = found["other_client"]
        return Nulls(
            mean_image=tuple(found["mean_image"]["psnr"]),
            mean_identified=found["mean_image"]["identified"],
            nearest_public=tuple(found["nearest_public"]["psnr"]),
            other_client=None if other is None else OtherClients(*(tuple(other[f.name]) for f in fields(OtherClients))),
        )


@dataclass(frozen=True)
class LabelScores:
    """Recovered labels as a multiset against the true one.

    Attributes:
        true_counts_f1: of the attack.
        constant_f1: of the best guess that is the same for every client of the source.
        baseline_f1: expected of labels drawn from the class shares.
        confidence: the reader's own, 0 to 1; `None` where it gives none.
        known: whether the attacker was given the labels.
    """

    true_counts_f1: float
    constant_f1: float
    baseline_f1: float
    confidence: float | None
    known: bool


@dataclass(frozen=True)
class TokenScores:
    """The tokens of a client's texts as a multiset against the true one, padding left out.

    Attributes:
        precision, recall, f1: of the multisets.
        constant_f1: of the most frequent tokens of other texts, as often as they occur there.
        exact_set, exact_counts: whether the same tokens, and as often.
        counted: whether the attack read how often tokens occur; else each counts once.
        in_place: of texts that were read in order, the share of their tokens in their places.
    """

    precision: float
    recall: float
    f1: float
    constant_f1: float
    exact_set: bool
    exact_counts: bool
    counted: bool
    in_place: float | None


def plain(value: Any) -> Any:
    """A record as JSON has it: dataclasses by field, or as they say themselves, tuples as lists, enums by value."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    return value
