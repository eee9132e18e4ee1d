"""The claims of a paper as a frozen list: what is asked of which rows, written down before any of them exists."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

LISTS = Path(__file__).parent
SHORT = 16
"""Hexadecimal digits of a digest that a row carries."""


class Strict(BaseModel):
    """Unknown keys are errors, and nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Rows(Strict):
    """The rows of one attack, as a list names them: ``item | setting | attack``, and ``| metric`` for one of its own.

    Attributes:
        metric: "" for the claim's.
    """

    item: str
    setting: str
    attack: str
    metric: str = ""

    @property
    def text(self) -> str:
        """As the list has it."""
        return " | ".join(filter(None, (self.item, self.setting, self.attack, self.metric)))


def _rows(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(" | ")]
    if len(parts) not in (3, 4):
        raise ValueError(f"'{value}' is not item | setting | attack [| metric]")
    return dict(zip(("item", "setting", "attack", "metric"), parts, strict=False))


Named = Annotated[Rows, BeforeValidator(_rows)]


class Reaches(Strict):
    """As good as a number, less a margin; better is as well."""

    reaches: Named
    value: float
    margin: float = Field(ge=0)

    @property
    def rows(self) -> tuple[Rows, ...]:
        return (self.reaches,)


class Near(Strict):
    """Within a margin of a number, on both sides."""

    near: Named
    value: float
    margin: float = Field(gt=0)

    @property
    def rows(self) -> tuple[Rows, ...]:
        return (self.near,)


class Ahead(Strict):
    """The first is better than the second by more than `by`, which is negative where some loss is allowed."""

    ahead: tuple[Named, Named]
    by: float = 0.0

    @property
    def rows(self) -> tuple[Rows, ...]:
        return self.ahead


class Level(Strict):
    """The two lie within a margin of each other."""

    level: tuple[Named, Named]
    within: float = Field(gt=0)

    @property
    def rows(self) -> tuple[Rows, ...]:
        return self.level


Simple = Reaches | Near | Ahead | Level


class Each(Strict):
    """Several comparisons: it holds where all do, is contrary where all are, and is open where they differ. Every
    interval is at 1 − .05/k for k comparisons (Bonferroni)."""

    each: tuple[Simple, ...] = Field(min_length=2)

    @property
    def rows(self) -> tuple[Rows, ...]:
        return tuple(row for rule in self.each for row in rule.rows)


class Claim(Strict):
    """One claim of a paper.

    Attributes:
        place: table, figure, proposition or section.
        says: what the paper says there: quoted in quotation marks, else paraphrased.
        line: the same for the first screen, in the paper's words.
        headline: whether the first screen has it.
        metric: a key of the list's metrics.
        rule: what is asked of which rows; none where nothing is run.
        margin: why the margin is what it is.
        unit: what an interval is over: an image, a search (a batch reconstructed together), or a seed.
        group: images of a search.
        units: how many of them there are; a row with fewer or more judges nothing.
        sample: which images and seeds.
        stands_in: what stands for what of the paper; a claim that holds is then smaller.
        steps: of the attack, here and in the paper. With less than half of the paper's the opposite is open.
        opposite: what the opposite comes to; open where what stands in could be its cause.
        published: the paper's number, or two whose difference it is.
        floor: what holds nothing of the update, by the same metric.
        above: whether the attack must be ahead of the floor; else the floor is shown beside it and decides nothing.
        untestable: why nothing here could bear the claim out.
        not_run: why there is no run, and what it would take.
    """

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    place: str
    says: str
    line: str = Field(max_length=66)
    headline: bool = False
    metric: str
    rule: Simple | Each | None = None
    margin: str = ""
    unit: Literal["image", "search", "seed"] = "image"
    group: int = Field(default=1, gt=0)
    units: int = Field(default=0, ge=0)
    sample: str = ""
    stands_in: tuple[str, ...] = ()
    steps: tuple[int, int] | None = None
    opposite: Literal["contrary", "open"] = "contrary"
    published: tuple[float, ...] = Field(default=(), max_length=2)
    floor: Named | None = None
    above: bool = True
    untestable: str = ""
    not_run: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Claim:
        told = [bool(self.rule), bool(self.untestable), bool(self.not_run)]
        if sum(told) != 1:
            raise ValueError(f"{self.id}: exactly one of rule, untestable and not_run")
        if self.rule is not None and not (self.margin and self.sample and self.units):
            raise ValueError(f"{self.id}: a rule needs margin, sample and units")
        return self

    @property
    def rows(self) -> tuple[Rows, ...]:
        """All that the claim reads, the floor last."""
        rule = () if self.rule is None else self.rule.rows
        return (*rule, *(() if self.floor is None else (self.floor,)))


class Metric(Strict):
    """How a claim's numbers are read."""

    name: str
    unit: str = ""
    better: Literal["higher", "lower"]


class Cost(Strict):
    """What the rows of one item take that claims read."""

    hours: float = Field(gt=0)
    how: str


class ClaimList(Strict):
    """The list of one paper.

    Attributes:
        words: the paper, as the first screen names it.
        metrics: by the key that rows carry.
        cost: core hours of one start, by item.
    """

    paper: str
    words: str
    metrics: dict[str, Metric]
    cost: dict[str, Cost]
    claims: tuple[Claim, ...]

    @model_validator(mode="after")
    def _known(self) -> ClaimList:
        ids = [claim.id for claim in self.claims]
        if len(set(ids)) < len(ids):
            raise ValueError("two claims have the same id")
        unknown = {claim.metric for claim in self.claims} - set(self.metrics)
        items = {row.item for claim in self.claims for row in claim.rows}
        if unknown or items != set(self.cost):
            raise ValueError(
                f"metrics without words {unknown}, items without a cost or not asked {items ^ set(self.cost)}"
            )
        return self


def file_of(paper: str) -> Path:
    """The paper's list."""
    return LISTS / f"{paper}.yaml"


@cache
def claims_of(paper: str) -> ClaimList:
    """Raises pydantic's error where a list is not one."""
    return ClaimList.model_validate(yaml.load(file_of(paper).read_bytes(), Loader=yaml.CSafeLoader))


@cache
def digest(paper: str) -> str:
    """Of the list's bytes (SHA-256): a row carries it, and another list's rows judge nothing."""
    return hashlib.sha256(file_of(paper).read_bytes()).hexdigest()[:SHORT]


def asked(paper: str) -> dict[str, frozenset[tuple[str, str]]]:
    """By item, the settings and attacks that claims read."""
    found: dict[str, set[tuple[str, str]]] = {}
    for claim in claims_of(paper).claims:
        for row in claim.rows:
            found.setdefault(row.item, set()).add((row.setting, row.attack))
    return {item: frozenset(keys) for item, keys in found.items()}
