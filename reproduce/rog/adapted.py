"""ROG against an attacker who knows the defence: the kept run, defence by defence, and its part of the docs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from leakgauge.intervals import Interval, mean_interval
from reproduce.rog.ablations import SMALL
from reproduce.rog.runs import SEEDS, Named
from reproduce.rog.settings import COMPRESSED, NOISY, PRECODE, SIGNS, SOTERIA
from reproduce.runs import latest_run

DEFENDED = (*COMPRESSED, SIGNS, SOTERIA, PRECODE, *NOISY)


def decibels(defense: Named) -> dict[str, np.ndarray]:
    """PSNR by attack, pictures × weight seeds; of PRECODE by the newer item of its own where that has all seeds."""
    setting = replace(SMALL, defense=defense).name
    own = [r for r in latest_run("rog", "precode") if len(r["seeds"]) == len(SEEDS)]
    return {
        r["attack"]: np.asarray(r["per_image"])
        for r in (*latest_run("rog", "adapted"), *own)
        if (r["setting"], r["metric"]) == (setting, "PSNR")
    }


def gain(defense: Named) -> Interval:
    """Adapted − naive, in the mean over pictures and seeds."""
    psnr = decibels(defense)
    return _mean(psnr["ROG, adapted"] - psnr["ROG"])


def section() -> Iterator[str]:
    """Markdown, one line a defence; means with their intervals."""
    yield "| defence | naive | adapted | adapted − naive |"
    yield "|---" * 4 + "|"
    for defense in DEFENDED:
        psnr = decibels(defense)
        cells = [_words(psnr[name]) for name in ("ROG", "ROG, adapted")]
        yield f"| {defense.name} | {' | '.join(cells)} | {_words(psnr['ROG, adapted'] - psnr['ROG'])} |"


def references() -> dict[str, float]:
    """Means on the same clients: the same attack without a defence, and grey pictures."""
    bare = decibels(Named())
    return {"undefended": float(bare["ROG"].mean()), "grey": float(bare["grey picture"].mean())}


def _mean(values: np.ndarray) -> Interval:
    return mean_interval(values.ravel().tolist())


def _words(values: np.ndarray) -> str:
    interval = _mean(values)
    return f"{values.mean():.1f} [{interval.low:.1f}, {interval.high:.1f}]"
