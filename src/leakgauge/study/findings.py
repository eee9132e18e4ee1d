"""What the trials of one scenario and attack say together."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from leakgauge.attacks.recipes.information import NONE_SEEN
from leakgauge.metrics.intervals import (
    Interval,
    bounded_lower,
    mean_interval,
    proportion_interval,
    proportion_lower,
    proportion_upper,
)
from leakgauge.study.controls import CONTROLS

MARGIN = 3.0
"""dB by which a recovered image must beat the closest public picture: a halved squared error."""

POWER, POWER_SURE = 0.1, 0.985
"""An attack has shown its power where it is sure, one-sided, to recover more than this share."""

NOT_SAFE = "that says what was tried, not that it is safe"


@dataclass(frozen=True)
class Group:
    """All trials of one scenario and attack, controls among them only in groups of their own."""

    scenario: dict[str, Any]
    attack: str
    control: bool
    records: tuple[dict[str, Any], ...]

    @property
    def setting(self) -> str:
        """Model, client and defence in words, and the server where it is dishonest."""
        s = self.scenario
        crafted = "" if s["server"] == "honest" else f", from server {s['server']}"
        return f"{s['model']}, {s['client']}, {s['defense']}{crafted}"

    @property
    def thing(self) -> str:
        """What an example of the data is called: image, or example where the data are none."""
        return str(self.scenario["data"].get("kind", "image"))

    @property
    def title(self) -> str:
        """Attack and setting in words."""
        return f"{self.attack} on {self.setting}"

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Trials without a result, other than those the attack does not apply to."""
        return [r for r in self.records if r["scores"] is None and r["status"] != "not_applicable"]

    @property
    def doubt(self) -> str:
        """Why results on a captured update mean nothing: the plan does not explain it. Empty where it does."""
        told = [r["explained"] for r in self.records if r.get("explained") is not None]
        return next((str(e["sentence"]) for e in told if not e["holds"]), "")

    @property
    def scores(self) -> list[dict[str, Any]]:
        """Trials that gave a result."""
        return [r for r in self.records if r["scores"] is not None]


def groups_of(records: list[dict[str, Any]]) -> list[Group]:
    """Trials by scenario and attack, in the order of their ids."""
    found: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for r in records:
        s = r["scenario"]
        found[(str(r["control"]), s["model"], s["client"], s["defense"], r["attack"])].append(r)
    groups = []
    for members in found.values():
        first = members[0]
        data = {k: v for k, v in first["scenario"]["data"].items() if k not in ("index", "names")}
        groups.append(Group(first["scenario"] | {"data": data}, first["attack"], first["control"], tuple(members)))
    return groups


def by_image(group: Group, score: str) -> dict[tuple[int, int], list[Any]]:
    """(batch, slot) → that image's score in every seed. Seeds are repetitions; images are the sample."""
    found: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for r in group.scores:
        for slot, value in enumerate(r["scores"][score] or []):
            if value is not None:
                found[(r["scenario"]["data"]["index"], slot)].append(value)
    return found


def identified_images(group: Group) -> tuple[int, int]:
    """Images identified in any seed, and images."""
    images = by_image(group, "identified")
    return sum(any(v) for v in images.values()), len(images)


def worst_by_image(group: Group) -> list[float]:
    """Each image's best reconstruction over the seeds, dB."""
    return [max(v) for v in by_image(group, "psnr").values()]


def recovered_images(group: Group) -> int:
    """Images that in some seed were identified and came out `MARGIN` dB nearer than the closest public picture."""
    found: dict[tuple[int, int], bool] = defaultdict(bool)
    for r in group.scores:
        bar = r["controls"]["nearest_public"]["psnr"]
        for slot, (psnr, identified) in enumerate(zip(r["scores"]["psnr"], r["scores"]["identified"], strict=True)):
            image = (r["scenario"]["data"]["index"], slot)
            found[image] |= psnr is not None and bool(identified) and psnr >= bar[slot] + MARGIN
    return sum(found.values())


def power_of(group: Group, groups: list[Group]) -> dict[str, Any]:
    """What a group's attack does without a defence, on as many examples of the same kind of client: the controls that
    were added, or the plan's own undefended clients.

    An attack is `shown` to have power where `POWER_SURE` confidence says that it recovers more than `POWER` of a
    client's examples, on five clients or more; three of five that come back whole say so. An attack that recovers
    a tenth passes in at most 1.5 % of audits.
    """

    def leaky(g: Group) -> bool:
        s, t = g.scenario, group.scenario
        same = (s["model"], s["client"], s["data"]["batch"], g.attack)
        return same == (t["model"], t["client"], t["data"]["batch"], group.attack) and s["defense"] == "none"

    # An added control first: where an update file was audited, its own trial is no control.
    controls = sorted((g for g in groups if leaky(g)), key=lambda g: not g.control)
    if not controls or not (shares := recovered_shares(controls[0])):
        return {"psnr": None, "shown": None, "trial": None}
    control = controls[0]
    best = max(worst_by_image(control), default=None)
    return {
        "psnr": None if best is None else round(best, 3),
        "shown": len(shares) >= CONTROLS and bounded_lower(shares, POWER_SURE) > POWER,
        "trial": control.records[0]["id"],
        "clients": len(shares),
        "recovered": round(statistics.fmean(shares), 4),
    }


def recovered_shares(group: Group) -> list[float]:
    """Share of each client's examples that were recovered in some seed; none where no trial ended with a result."""
    found: dict[tuple[int, int], bool] = defaultdict(bool)
    for r in group.records:
        bars = r["controls"]["nearest_public"]["psnr"]
        scores = r["scores"] or {"psnr": [None] * len(bars), "identified": [False] * len(bars)}
        for slot, (psnr, seen, bar) in enumerate(zip(scores["psnr"], scores["identified"], bars, strict=True)):
            found[(r["scenario"]["data"]["index"], slot)] |= psnr is not None and bool(seen) and psnr >= bar + MARGIN
    clients: dict[int, list[bool]] = defaultdict(list)
    for (client, _), recovered in found.items():
        clients[client].append(recovered)
    return [statistics.fmean(c) for c in clients.values()]


def level_of(group: Group, power: dict[str, Any]) -> str:
    """`exposed`: some image recovered. `partial`: identified beyond chance. `not_recovered`: neither, by an
    attack that has shown its power on five images or more, on an update that its plan explains. Else `inconclusive`."""
    if all(r["status"] == "not_applicable" for r in group.records):
        return "not_applicable"
    if not group.scores:
        return "inconclusive"
    if recovered_images(group):
        return "exposed"
    count, n = identified_images(group)
    if n and proportion_lower(count, n, 0.975) > _chance(group):
        return "partial"
    enough = n > 0 and proportion_upper(count, n) < 0.5
    return "not_recovered" if enough and power["shown"] and not group.failed and not group.doubt else "inconclusive"


def _chance(group: Group) -> float:
    """Upper bound of the rate at which guesses are identified: in any of the seeds, and with a mate that the
    assignment may choose among the whole batch."""
    smallest: int = min(r["scores"]["gallery"] for r in group.scores)
    tries = len({r["seed"] for r in group.scores}) * max(len(r["scores"]["identified"]) for r in group.scores)
    chance: float = 1 - (1 - 1 / (1 + smallest)) ** tries
    return chance


def finding(group: Group, groups: list[Group]) -> dict[str, Any]:
    """One entry of ``verdict.findings``."""
    power = power_of(group, groups)
    level = level_of(group, power)
    base = {
        "scenario": group.scenario,
        "attack": group.attack,
        "control": group.control,
        "level": level,
        "trials": len(group.records),
        "failed": len(group.records) - len(group.scores),
        "images": len(by_image(group, "psnr")),
        "psnr": None,
        "null_psnr": None,
        "ssim_mean": None,
        "lpips_mean": None,
        "identified": None,
        "recovered": None,
        "label_f1": _label_finding(group),
        "power": power,
        "cost": {
            "gradient_evaluations": sum(r["cost"]["gradient_evaluations"] for r in group.records),
            "seconds": round(sum(r["cost"]["seconds"] for r in group.records), 3),
        },
    }
    if group.scores:
        base |= _image_finding(group)
    return base | {"sentence": _sentence(group, base, level)}


def _image_finding(group: Group) -> dict[str, Any]:
    means = np.asarray([statistics.fmean(v) for v in by_image(group, "psnr").values()])
    interval = interval_of(means)
    worst = worst_by_image(group)
    count, n = identified_images(group)
    rate = proportion_interval(count, n)
    bars = [b for r in group.scores for b in r["controls"]["nearest_public"]["psnr"]]

    def mean_of(score: str) -> float | None:
        values = [statistics.fmean(v) for v in by_image(group, score).values()]
        return round(statistics.fmean(values), 4) if values else None

    return {
        "psnr": {
            "mean": round(float(means.mean()), 3),
            "low": _rounded(interval.low),
            "high": _rounded(interval.high),
            "best_for_attacker": round(max(worst), 3),
            "median": round(statistics.median(means.tolist()), 3),
            "weakest": round(float(means.min()), 3),
        },
        "null_psnr": {"mean": round(statistics.fmean(bars), 3), "high": round(max(bars), 3), "kind": "nearest_public"},
        "ssim_mean": mean_of("ssim"),
        "lpips_mean": mean_of("lpips"),
        "identified": {
            "count": count,
            "n": n,
            "rate": round(count / n, 4),
            "low": _rounded(rate.low),
            "high": _rounded(rate.high),
            "chance": round(_chance(group), 4),
        },
        "recovered": recovered_images(group),
    }


def interval_of(values: np.ndarray) -> Interval:
    """95 % interval of a mean over clients."""
    return mean_interval([float(v) for v in values])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def label_scores(group: Group) -> np.ndarray:
    """Label F1 of each client whose labels were not given: its mean over the seeds."""
    by_client: dict[int, list[float]] = defaultdict(list)
    for r in group.records:
        if r["labels"] is not None and not r["labels"]["known"]:
            by_client[r["scenario"]["data"]["index"]].append(r["labels"]["true_counts_f1"])
    return np.asarray([statistics.fmean(v) for v in by_client.values()], dtype=float)


def _label_finding(group: Group) -> dict[str, Any] | None:
    rows = [r["labels"] for r in group.records if r["labels"] is not None and not r["labels"]["known"]]
    if not rows:
        return None
    f1 = label_scores(group)
    interval = interval_of(f1)
    return {
        "mean": round(float(f1.mean()), 4),
        "low": _rounded(interval.low),
        "high": _rounded(interval.high),
        "baseline": round(statistics.fmean(row["baseline_f1"] for row in rows), 4),
        "n": len(f1),
    }


def _sentence(group: Group, base: dict[str, Any], level: str) -> str:
    if level == "not_applicable":
        return f"{group.title}: not applicable ({group.records[0]['message']})."
    if not group.scores:
        first = group.records[0]
        return f"{group.title}: no result in {base['trials']} trials ({first['message'] or first['status']})."
    rate, psnr, thing = base["identified"], base["psnr"], group.thing
    read = f"{rate['count']} of {rate['n']} {thing}s identified, best {psnr['best_for_attacker']:.1f} dB"
    blind = next((r["message"] for r in group.records if NONE_SEEN in r["message"]), "")
    said = {
        "exposed": f"{group.title}: {base['recovered']} of {rate['n']} {thing}s recovered ({read}).",
        "partial": f"{group.title}: no {thing} recovered, but more identified than by chance ({read}).",
        "not_recovered": f"{group.title}: not recovered by this attack ({read}); {NOT_SAFE}.",
        "inconclusive": f"{group.title}: inconclusive ({read}); {_why(group, base, thing)}.",
    }[level]
    return f"{said} {blind[:1].upper()}{blind[1:]}." if blind else said


def _why(group: Group, base: dict[str, Any], thing: str) -> str:
    if group.doubt:
        return "the plan does not explain the captured update, see above"
    if base["failed"]:
        return f"{base['failed']} of {base['trials']} trials gave no result"
    if base["power"]["shown"] is None:
        return "no control shows whether the attack has power on this model"
    if not base["power"]["shown"]:
        return "the attack does not recover the undefended control either, so its failure says nothing"
    return f"too few {thing}s to exclude that half of them can be identified"
