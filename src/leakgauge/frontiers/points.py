"""A row as the recommendation sees it: the stronger of two attackers, accuracy, ε and bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leakgauge.frontiers.costs import TRAINING
from leakgauge.frontiers.rows import UNDEFENDED

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """One row as the recommendation sees it; `naive` and `adapted` are identified pictures of `tried` by each, `flags`
    why the adapted attacker's result is unreliable, or that one of the two has none for some pictures."""

    family: str
    label: str
    accuracy: float | None
    naive: int
    adapted: int
    tried: tuple[int, int]
    uppers: tuple[float, float]
    chance: float
    low: tuple[float, float]
    psnr: tuple[float, float]
    ends: tuple[tuple[float, float], tuple[float, float]]
    null: float
    epsilon: float | None
    at_most: float
    unit: str
    scope: str
    cost: str
    labels: tuple[float, float] | None
    flags: tuple[str, ...] = ()

    @property
    def stronger(self) -> tuple[float, int, int]:
        """(share, identified, pictures) of the stronger attacker; of equal ones, of who has fewer pictures."""
        both = zip((self.naive, self.adapted), self.tried, strict=True)
        return max(((count / n, count, n) for count, n in both), key=lambda found: (found[0], -found[2]))

    @property
    def count(self) -> int:
        """Identified by the stronger attacker."""
        return self.stronger[1]

    @property
    def images(self) -> int:
        """Pictures that the stronger attacker has a result for."""
        return self.stronger[2]

    @property
    def rate(self) -> float:
        return self.stronger[0]

    @property
    def leak(self) -> tuple[float, float]:
        """Order of leakage: identification, then the better mean PSNR, where below the null all are equal."""
        return self.rate, max(*self.psnr, self.null)

    @property
    def upper(self) -> float:
        """The most that the stronger attacker's share may be, with 95 % confidence."""
        which = max((0, 1), key=lambda i: ((self.naive, self.adapted)[i] / self.tried[i], -self.tried[i]))
        return self.uppers[which]

    @property
    def words(self) -> str:
        if self.family == UNDEFENDED:
            return "no defence"
        plain = ["".join(c for c in text.lower() if c.isalnum()) for text in (self.family, self.label)]
        return self.label if plain[0] in plain[1] else f"{self.label} ({self.family})"

    @property
    def seen(self) -> str:
        """``2 of 8 pictures identified``, and what that allows."""
        most = f"with 95 % confidence at most {100 * self.upper:.0f} %"
        told = ""
        if self.labels is not None:
            told = "; labels are read: F1 {:.2f}, by the best constant guess {:.2f}".format(*self.labels)
        return f"{self.count} of {self.images} pictures identified ({most}{told})"


def point_of(row: Record) -> Point | None:
    """`None` where either attacker has no result."""
    found = [row["leakage"][who] for who in ("naive", "adapted")]
    if any(f is None or not f.get("identified") or not f.get("psnr") for f in found):
        return None
    naive, adapted = found

    def ends(f: Record) -> tuple[float, float]:
        mean = f["psnr"]["mean"]
        low, high = f["psnr"]["low"], f["psnr"]["high"]
        return (mean if low is None else low, mean if high is None else high)

    privacy = row.get("privacy") or {}
    return Point(
        family=row["family"],
        label=row["label"],
        accuracy=row["accuracy"]["value"],
        naive=naive["identified"]["count"],
        adapted=adapted["identified"]["count"],
        tried=(naive["identified"]["n"], adapted["identified"]["n"]),
        uppers=(naive["identified"]["upper"], adapted["identified"]["upper"]),
        chance=max(naive["identified"]["chance"], adapted["identified"]["chance"]),
        low=(naive["identified"]["low"] or 0.0, adapted["identified"]["low"] or 0.0),
        psnr=(naive["psnr"]["mean"], adapted["psnr"]["mean"]),
        ends=(ends(naive), ends(adapted)),
        null=max((f["null_psnr"]["mean"] for f in found if f.get("null_psnr")), default=float("-inf")),
        epsilon=privacy.get("epsilon"),
        at_most=float(privacy.get("at_most") or 0.0),
        unit=str(privacy.get("unit") or ""),
        scope=str(privacy.get("scope") or TRAINING),
        cost=_cost(row.get("cost")),
        labels=_labels(found),
        flags=(*_lost(found), *(flag["sentence"] for flag in adapted.get("flags") or ())),
    )


def _labels(found: Sequence[Record]) -> tuple[float, float] | None:
    """(mean F1 of the better reader, what the best constant guess has), where labels leak beyond their interval."""
    scores = [f["label_f1"] for f in found if f.get("label_f1")]
    above = [s for s in scores if s["leaks"]]
    return max(((s["mean"], s["baseline"]) for s in above), default=None)


def _lost(found: Sequence[Record]) -> list[str]:
    """An attack that broke on pictures has not cleared them."""
    worst = max(found, key=lambda f: f.get("failed") or 0)
    lost = worst.get("failed") or 0
    return [f"{lost} of {worst['trials']} trials gave no result"] if lost else []


def _cost(cost: Record | None) -> str:
    if not cost:
        return ""
    share = cost["bytes"] / max(cost["bytes_undefended"], 1)
    # Time differs from run to run; sentences are compared byte by byte.
    return f", {share:.0%} of the bytes" if round(share, 2) != 1 else ""
