"""How well the inspection tells dishonest models from honest ones: shares with intervals, and the curve."""

from __future__ import annotations

import bisect
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from leakgauge import __version__
from leakgauge.inspection.rule import Limits
from leakgauge.intervals import proportion_interval
from reproduce.inspection.judging import HONEST, LOOKALIKE, Judged, Scenario
from reproduce.rows import RESULTS

FOLDER = RESULTS / "inspection"
ALLOWED = 0.01
"""False-positive rate at which true-positive rates are compared."""
WANTED = 0.99
"""Share of crafted models that should alarm there."""
SHOWN = 8


def _ratios(line: Judged, limits: Limits) -> dict[str, float]:
    return {rule: line.statistics[rule] / limit for rule, limit in limits.limits.items() if rule in line.statistics}


def score(line: Judged, limits: Limits) -> float:
    """The largest statistic over its limit; the inspection alarms from 1 on."""
    return max(
        (line.statistics[rule] / limit for rule, limit in limits.limits.items() if rule in line.statistics), default=0.0
    )


def fired(line: Judged, limits: Limits) -> list[str]:
    """Rules at or above their limits, the farthest above first."""
    ratios = _ratios(line, limits)
    return sorted((rule for rule, ratio in ratios.items() if ratio >= 1), key=lambda rule: -ratios[rule])


def area(crafted: Sequence[float], honest: Sequence[float]) -> float:
    """Probability that a crafted model scores above an honest one, ties half (the area under the curve)."""
    ordered, total = sorted(honest), 0.0
    for value in crafted:
        total += (bisect.bisect_left(ordered, value) + bisect.bisect_right(ordered, value)) / 2
    return total / (len(crafted) * len(honest))


def threshold(honest: Sequence[float], allowed: float = ALLOWED) -> float:
    """The score above which at most a share `allowed` of honest models lie."""
    return sorted(honest, reverse=True)[min(int(allowed * len(honest)), len(honest) - 1)]


def curve(crafted: Sequence[float], honest: Sequence[float]) -> list[tuple[float, float]]:
    """(false-positive rate, true-positive rate) at every score, from (0, 0) to (1, 1)."""
    points = [(0.0, 0.0)]
    for value in sorted({*crafted, *honest}, reverse=True):
        point = (sum(v >= value for v in honest) / len(honest), sum(v >= value for v in crafted) / len(crafted))
        points.append(point)
    return points


def _share(hits: int, n: int) -> dict[str, object]:
    interval = proportion_interval(hits, n)
    return {
        "hits": hits,
        "of": n,
        "share": round(hits / n, 4) if n else None,
        "low": round(interval.low or 0.0, 4),
        "high": round(1.0 if interval.high is None else interval.high, 4),
    }


def _by(lines: Sequence[Judged], limits: Limits, key: str) -> dict[str, object]:
    groups = Counter(getattr(line, key) for line in lines)
    hits = Counter(getattr(line, key) for line in lines if fired(line, limits))
    return {name: _share(hits[name], n) for name, n in sorted(groups.items())}


def _listed(lines: Sequence[Judged], limits: Limits) -> list[dict[str, object]]:
    return [
        {
            "index": line.index,
            "score": round(score(line, limits), 3),
            "rules": fired(line, limits) or [_nearest(line, limits)],
            "model": line.description,
        }
        for line in lines[:SHOWN]
    ]


def _nearest(line: Judged, limits: Limits) -> str:
    ratios = _ratios(line, limits)
    return max(ratios, key=lambda rule: ratios[rule], default="")


def record(
    honest: Sequence[Judged], crafted: Mapping[str, Sequence[Judged]], limits: Limits, scenario: Scenario
) -> dict[str, Any]:
    """Everything measured in one scenario. Intervals are exact ones (Clopper–Pearson, 95 %) of independent models."""
    true = [line for line in honest if line.kind == HONEST]
    alike = [line for line in honest if line.kind == LOOKALIKE]
    scores = [score(line, limits) for line in true]
    cut = threshold(scores)
    alarms = sorted((line for line in true if fired(line, limits)), key=lambda line: -score(line, limits))
    kinds: dict[str, Any] = {}
    for kind, lines in crafted.items():
        own = [score(line, limits) for line in lines]
        missed = sorted((line for line in lines if not fired(line, limits)), key=lambda line: score(line, limits))
        kinds[kind] = {
            "true_positives": _share(len(lines) - len(missed), len(lines)),
            "at_allowed": _share(sum(v > cut for v in own), len(lines)),
            "area": round(area(own, scores), 4),
            "by_family": _by(lines, limits, "family"),
            "caught_by": dict(Counter(rule for line in lines for rule in fired(line, limits)).most_common()),
            "misses": _listed(missed, limits),
            "curve": [[round(x, 5), round(y, 5)] for x, y in curve(own, scores)],
        }
        seen = [line.quality for line in lines if line.quality]
        if seen:
            kinds[kind]["quality"] = {name: round(sum(q[name] for q in seen) / len(seen), 3) for name in seen[0]}
            kinds[kind]["quality"]["above_grey"] = _share(sum(q["psnr"] > q["grey"] + 1 for q in seen), len(seen))
    everyone = [*honest, *(line for lines in crafted.values() for line in lines)]
    return {
        "row": f"inspection-{scenario.name.lower()}",
        "honest": _share(len(alarms), len(true)) | {"families": len({line.family for line in true})},
        "lookalike": _share(sum(bool(fired(line, limits)) for line in alike), len(alike)),
        "honest_by_family": _by(true, limits, "family"),
        "honest_by_state": _by(true, limits, "state"),
        "false_alarms": _listed(alarms, limits),
        "kinds": kinds,
        "failed_rules": dict(Counter(rule for line in everyone for rule in line.failed)),
        "seconds_per_model": round(sum(line.seconds for line in everyone) / max(1, len(everyone)), 3),
        "limits": dict(limits.limits),
        "rules": everyone[0].version if everyone else "",
        "environment": {"torch": torch.__version__, "threads": torch.get_num_threads(), "leakgauge": __version__},
    }


def save(found: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """Writes a new file; none is ever overwritten."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    path = folder / f"{found['row']}-{stamp}.json"
    with path.open("x", encoding="utf-8") as file:
        json.dump({**found, "created_at": stamp}, file, indent=1, ensure_ascii=False)
        file.write("\n")
    return path


def newest(scenario: Scenario, folder: Path = FOLDER) -> dict[str, Any] | None:
    """The last result of a scenario."""
    found = sorted(folder.glob(f"inspection-{scenario.name.lower()}-2*.json"))
    return json.loads(found[-1].read_text(encoding="utf-8")) if found else None
