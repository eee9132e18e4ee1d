"""Two audits of the same examples, example by example."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import binomtest, t

from leakgauge.errors import InputError, require, said
from leakgauge.files import read_json
from leakgauge.study.store import FILE, Store

Setting = tuple[str, str, str, str]
"""Model, client, defence and attack, as the report calls them."""


@dataclass(frozen=True)
class ExampleOutcome:
    """Of one example over all seeds: whether it was identified in any, its mean PSNR in dB, if it has one, and whether
    no trial on it gave a result."""

    identified: bool
    psnr: float | None
    lost: bool = False


@dataclass(frozen=True)
class Pairing:
    """One setting of the first audit beside one of the second.

    Attributes:
        first, second: the settings; equal, or they differ in one part.
        examples: in both.
        lost: how many of them have no result, in each.
        only_first, only_second: identified in one of the two.
        p_value: of McNemar's exact test, two-sided: how often chance alone would be so uneven.
        difference: mean of second − first PSNR in dB, with its 95 % interval by Student; `None` without pairs of
            numbers, the interval also with a single pair.
    """

    first: Setting
    second: Setting
    examples: int
    identified: tuple[int, int]
    only_first: int
    only_second: int
    p_value: float
    difference: float | None
    interval: tuple[float, float] | None
    lost: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Comparison:
    """All pairs, the settings that only one of the audits has, and what the audits differ in beside settings."""

    pairs: tuple[Pairing, ...]
    alone_first: tuple[Setting, ...]
    alone_second: tuple[Setting, ...]
    other: tuple[str, ...] = ()


LISTED = frozenset({"name", "gate", "model", "models", "clients", "defenses", "attacks", "only"})
"""Keys of a plan that name it, judge it, or say which settings it has."""


def read_report(path: Path) -> dict[str, object]:
    """Of an audit's folder, where the store says it and no file that may be older, or changed; or a report.json.

    Raises:
        InputError: neither.
    """
    file = path / "report.json" if path.is_dir() else path
    if path.is_dir() and (path / FILE).exists():
        from leakgauge.study.document import document

        return document(Store.open(path))
    hint = "give the folder of an audit, or its report.json"
    try:
        report = read_json(file)
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"holds no report ({type(error).__name__})", hint) from error
    require(isinstance(report, dict) and "trials" in report, str(path), "is no report of an audit", hint)
    return dict(report)


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> Comparison:
    """Settings with equal names, and those that differ in one part; examples by name, in their order where it repeats.

    Raises:
        InputError: no setting, or no example, in common.
    """
    a, b = _by_setting(first), _by_setting(second)
    shared = [(s, s) for s in a if s in b]
    shared += _changed([s for s in a if s not in b], [s for s in b if s not in a])
    require(
        bool(shared),
        "audits",
        "have no setting in common",
        "compare audits that differ in one part: a model, client, defence or attack",
    )
    pairs = tuple(_pairing(x, y, a[x], b[y]) for x, y in shared)
    hint = "compare audits of the same data (`data:` in both plans)"
    require(any(pair.examples for pair in pairs), "audits", "have no example in common", hint)
    used = {x for x, _ in shared}, {y for _, y in shared}
    alone = [tuple(s for s in found if s not in some) for found, some in zip((a, b), used, strict=True)]
    return Comparison(pairs, alone[0], alone[1], _other(first, second))


def _other(first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys by which two plans differ in more than settings, and whether their data do: then what differs may be that
    and no protection."""
    plans = [report.get("config") or {} for report in (first, second)]
    keys = sorted({*plans[0], *plans[1]} - LISTED)
    data = [((report.get("decision") or {}).get("hashes") or {}).get("data") for report in (first, second)]
    contents = ("the contents of the data",) * (data[0] != data[1])
    return (*(key for key in keys if plans[0].get(key) != plans[1].get(key)), *contents)


def _changed(first: list[Setting], second: list[Setting]) -> list[tuple[Setting, Setting]]:
    """Settings that differ in one part, such as the defence, where no other two could be meant."""

    def alike(x: Setting, y: Setting) -> bool:
        return sum(p != q for p, q in zip(x, y, strict=True)) == 1

    near = [(x, y) for x in first for y in second if alike(x, y)]
    return [(x, y) for x, y in near if sum(x == v for v, _ in near) == sum(y == w for _, w in near) == 1]


def _by_setting(report: Mapping[str, Any]) -> dict[Setting, dict[str, ExampleOutcome]]:
    """Setting → example → outcome. Trials without a result count as not identified."""
    values: dict[Setting, dict[str, list[ExampleOutcome]]] = defaultdict(lambda: defaultdict(list))
    try:
        for trial in report["trials"]:
            if trial["control"] or trial["status"] == "not_applicable":
                continue
            s = trial["scenario"]
            own = values[(str(s["model"]), str(s["client"]), str(s["defense"]), str(trial["attack"]))]
            names, scores = list(s["data"]["names"]), trial["scores"]
            for slot, name in enumerate(names):
                key = f"{name} ({names[:slot].count(name)})"
                found = (None, None) if scores is None else (scores["identified"][slot], scores["psnr"][slot])
                psnr = None if found[1] is None else float(found[1])
                own[key].append(ExampleOutcome(bool(found[0]), psnr, scores is None))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise InputError("audits", f"hold a trial that cannot be read ({said(error)})", "take whole reports") from error
    return {s: {name: _over_seeds(outcomes) for name, outcomes in own.items()} for s, own in values.items()}


def _over_seeds(outcomes: list[ExampleOutcome]) -> ExampleOutcome:
    numbers = [o.psnr for o in outcomes if o.psnr is not None]
    mean = statistics.fmean(numbers) if numbers else None
    return ExampleOutcome(any(o.identified for o in outcomes), mean, all(o.lost for o in outcomes))


def _pairing(x: Setting, y: Setting, a: Mapping[str, ExampleOutcome], b: Mapping[str, ExampleOutcome]) -> Pairing:
    both = [(a[name], b[name]) for name in a if name in b]
    only_first = sum(p.identified and not q.identified for p, q in both)
    only_second = sum(q.identified and not p.identified for p, q in both)
    uneven = only_first + only_second
    chance = float(binomtest(only_first, uneven).pvalue) if uneven else 1.0
    gaps = [q.psnr - p.psnr for p, q in both if p.psnr is not None and q.psnr is not None]
    mean = statistics.fmean(gaps) if gaps else None
    interval = None
    if mean is not None and len(gaps) > 1:
        reach = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
        interval = mean - reach, mean + reach
    counts = sum(p.identified for p, _ in both), sum(q.identified for _, q in both)
    lost = sum(p.lost for p, _ in both), sum(q.lost for _, q in both)
    return Pairing(x, y, len(both), counts, only_first, only_second, chance, mean, interval, lost)
