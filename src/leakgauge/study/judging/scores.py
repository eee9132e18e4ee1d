"""What a trial's result scores against the truth: pictures, labels, texts, cells of tables, parts of a batch."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

Values = tuple[float | None, ...]  # one number for each true example; `None` without a reconstruction

UNLESS_EMPTY = Field(exclude_if=lambda value: value in (None, "", ()))
"""Left out of the JSON where there is nothing to say."""


@dataclass(frozen=True)
class PartScores:
    """One part of a training step's batch, what was read of it beside the truth."""

    name: str
    kind: str  # picture, volume, series, text, numbers, categories, or what is taught: labels, values, mask, …
    measure: str  # `equal`, the share of its entries that are; or `error`, the mean absolute one in shares of the range
    values: Values
    guess: tuple[float, ...]  # `values` of the best guess that is the same for all, from other clients' examples

    @property
    def missed(self) -> tuple[float, float]:
        """What the read and the guess leave open, over the examples that were read."""
        both = [(v, g) for v, g in zip(self.values, self.guess, strict=True) if v is not None]
        left = [(1 - v, 1 - g) if self.measure == "equal" else (v, g) for v, g in both]
        return sum(v for v, _ in left), sum(g for _, g in left)


@dataclass(frozen=True)
class TokenScores:
    """The tokens of a client's texts as a multiset against the true one, padding left out."""

    precision: float
    recall: float
    f1: float
    constant_f1: float  # of the most frequent tokens of other texts, as often as they occur there
    exact_set: bool
    exact_counts: bool
    counted: bool  # whether the attack read how often tokens occur; else each counts once
    in_place: float | None  # of texts that were read in order, the share of their tokens in their places


@dataclass(frozen=True)
class Words:
    """Examples and reads in words: cells of tables, or texts, whose `form` is in order, or their tokens. Columns, true
    and read are `None` where a report shows the share that matches alone."""

    match: list[float]
    columns: Annotated[tuple[str, ...] | None, UNLESS_EMPTY] = None
    true: Annotated[list[list[str]] | None, UNLESS_EMPTY] = None
    read: Annotated[list[list[str] | None] | None, UNLESS_EMPTY] = None
    form: Annotated[str | None, Field(exclude_if=lambda value: value is None)] = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of a trial with a result, one entry for each true example."""

    psnr: Values  # psnr to lpips: against the original, by the assignment with the least squared error
    ssim: Values | None = None
    mse: Values
    lpips: Values | None = None
    # up to shift, mirror, turn and light (see `leakgauge.metrics.likeness`), to the original or to what was trained on
    likeness: Values | None = None
    rank: tuple[int, ...]  # in the line-up; 1 is nearest
    identified: tuple[bool, ...]  # nearest of the line-up, by structure
    # identified, and with half of the squared structure that the mean picture leaves explained; or equal to the
    # original, or to what the client trained on, to the eye
    recovered: tuple[bool, ...]
    exact: tuple[bool, ...]  # at the cap of PSNR
    trained_psnr: Values | None = None  # against what the client trained on; `None` where that is the original
    certified: int  # reads that the attack proved by its own check
    gallery: int  # pictures in the line-up
    whole: int  # how many of them are whole other examples rather than crops
    layer: Annotated[str, UNLESS_EMPTY] = ""  # whose input, read and proved, identified what the reads did not


@dataclass(frozen=True)
class OtherClients:
    """The same reconstruction held against examples of other clients, by the same assignment and line-up: the PSNR of
    all, and how many of each client's were identified and recovered; all clients have as many."""

    psnr: tuple[float, ...]
    identified: tuple[int, ...]
    recovered: tuple[int, ...]


@dataclass(frozen=True)
class MeanImage:
    """The mean public picture: its PSNR to each truth, and how many examples it identifies."""

    psnr: tuple[float, ...]
    identified: int


@dataclass(frozen=True)
class NearestPublic:
    """PSNR of the public picture nearest to each truth."""

    psnr: tuple[float, ...]


@dataclass(frozen=True)
class Nulls:
    """What an attacker without this update could show; `other_client` is `None` without a result."""

    mean_image: MeanImage
    nearest_public: NearestPublic
    other_client: OtherClients | None

    @staticmethod
    def of(mean: tuple[float, ...], picked: int, nearest: tuple[float, ...], others: OtherClients | None) -> "Nulls":
        """From the PSNR of the mean and of the nearest picture, and how many examples the mean one identifies."""
        return Nulls(MeanImage(mean, picked), NearestPublic(nearest), others)


@dataclass(frozen=True)
class LabelScores:
    """Recovered labels as a multiset against the true one, or known to the attacker; beside the best guess that is the
    same for every client of the source, labels drawn from the class shares, and the reader's own confidence, 0 to 1."""

    true_counts_f1: float
    constant_f1: float
    baseline_f1: float
    confidence: float | None
    known: bool


@dataclass(frozen=True)
class LayerRead:
    """A layer whose input was read and proved, for how many examples, and the estimated relative error of that."""

    layer: str
    examples: int
    error: float
