"""Results as data: what was claimed, what was measured, how sure, at what cost, with what doubt. Append-only."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from leakgauge import __version__
from leakgauge.intervals import mean_interval

if TYPE_CHECKING:
    from reproduce.item import Inputs

RESULTS = Path(__file__).parent / "results"


def kept(value: float) -> float:
    """Three decimals, or three digits where that leaves fewer."""
    return round(value, 3) if abs(value) >= 1 else float(f"{value:.3g}")


def summary(per_image: Sequence[Sequence[float]]) -> dict[str, object]:
    """Mean over images of the mean over seeds, spread and 95 % interval over images.

    Where there is one image, spread and interval are those over seeds: `over` says which.
    """
    means = [statistics.fmean(values) for values in per_image]
    everything = [v for values in per_image for v in values]
    by_seed = [statistics.fmean(column) for column in zip(*per_image, strict=True)]
    over = "seeds" if len(means) == 1 < len(by_seed) else "images"
    units = by_seed if over == "seeds" else means
    interval = mean_interval(units)
    return {
        "mean": kept(statistics.fmean(means)),
        "low": None if interval.low is None else kept(interval.low),
        "high": None if interval.high is None else kept(interval.high),
        "median": kept(statistics.median(everything)),
        "std": kept(statistics.stdev(units)) if len(units) > 1 else None,
        "over": over,
        "by_seed": [kept(v) for v in by_seed],
    }


def summarised(record: dict[str, Any]) -> dict[str, Any]:
    """A kept record with the summary that its values have today: older ones had other intervals, or none."""
    return record | {"measured": summary(record["per_image"])}


@cache
def commit() -> str:
    """Of the clone that this runs in, with a + where files differ from it; empty where git cannot say."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=+"],
            cwd=here, capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


@cache
def processor() -> str:
    """The model of the CPU, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table. `per_image` has one value an image and seed, images together."""

    paper: str
    row: str
    setting: str
    attack: str
    metric: str
    claimed: str | None
    per_image: Sequence[Sequence[float]]
    seeds: Sequence[int]
    gradient_evaluations: int
    seconds: float
    doubt: str = ""

    def record(self, circumstances: Mapping[str, object] | None = None) -> dict[str, object]:
        """The row with its `summary`, the commit and the machine that made it, and further circumstances of its run."""
        import torch  # two seconds, which the screen of claims does not need

        measured = summary(self.per_image)
        rounded = [[kept(v) for v in values] for values in self.per_image]
        environment = {
            "commit": commit(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "leakgauge": __version__,
            "cpu": processor(),
            **(circumstances or {}),
        }
        return asdict(self) | {"per_image": rounded, "measured": measured, "environment": environment}

    @classmethod
    def of(cls, record: dict[str, Any]) -> Row:
        """The row of a record."""
        return cls(**{f.name: record[f.name] for f in fields(cls)})

    def save(self) -> Path:
        """Writes a new file; none is ever overwritten."""
        RESULTS.mkdir(exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        path = RESULTS / f"{self.paper}-{self.row}-{stamp}.json"
        with path.open("x", encoding="utf-8") as file:
            json.dump(self.record() | {"created_at": stamp}, file, indent=1)
            file.write("\n")
        return path


@dataclass(frozen=True)
class ItemRows:
    """Makes the rows of one item.

    Attributes:
        inputs: what it may use, and what an interrupted run has kept: that is not run again.
    """

    item: str
    inputs: Inputs

    paper: ClassVar[str]

    def row(
        self,
        setting: str,
        attack: str,
        metric: str,
        by_seed: Sequence[Sequence[float]],
        seeds: Sequence[int] = (0,),
        *,
        evaluations: int = 0,
        seconds: float = 0.0,
        doubt: str = "",
    ) -> Row:
        """From values as they come, seed by seed; evaluations and seconds are of one client."""
        return Row(
            paper=self.paper,
            row=self.item,
            setting=setting,
            attack=attack,
            metric=metric,
            claimed=None,
            per_image=[list(values) for values in zip(*by_seed, strict=True)],
            seeds=list(seeds),
            gradient_evaluations=evaluations,
            seconds=round(seconds, 3),
            doubt=doubt,
        )


def latest(paper: str, row: str) -> dict[str, object] | None:
    """The newest result of a row."""
    found = sorted(RESULTS.glob(f"{paper}-{row}-2*.json"))
    return json.loads(found[-1].read_text(encoding="utf-8")) if found else None
