"""Evidence for `leakgauge inspect`: `python -m reproduce.inspection.items calibrate|evaluate|curve --cache DIR`.

`calibrate` judges honest models of the calibration split and writes the limits that ship with the package
(`reproduce.inspection.limits` says how). `evaluate` judges honest and crafted models of the evaluation split at those
limits and saves what it found. `curve` draws the last results. Each judged model is a line in the cache, so that all
go on where they were interrupted; lines of older rules are judged again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leakgauge.compute import Compute
from leakgauge.errors import InputError
from leakgauge.inspection.rule import Limits
from reproduce.inspection import roc
from reproduce.inspection.crafted import KINDS
from reproduce.inspection.judging import HONEST, LOOKALIKE, Judged, Scenario, judged
from reproduce.inspection.limits import calibrated, read_limits, write_limits
from reproduce.inspection.zoo import Zoo
from reproduce.inspection.zoo_stock import Split, Stock

ROOT = Path(__file__).parents[2]
LIMITS = ROOT / "src" / "leakgauge" / "inspection" / "limits.json"
PICTURE = ROOT / "docs" / "images" / "inspect-roc.png"
PUBLISHED = ("mkor-published", "imprint", "class-fishing", "identity-convolutions", "trap-weights")
"""Kinds whose share of detected models is wanted to be at least .99, which takes some hundreds of models to show."""
HIDDEN = ("label-flip", "sub-model-per-example")
"""Kinds that tensors alone do not give away. Of the others fewer are judged again with model and data, which takes
seconds a model: the rules that need tensors alone are the same there."""
SCENARIOS = {"tensors": (Scenario.TENSORS,), "whole": (Scenario.WHOLE,), "both": (Scenario.TENSORS, Scenario.WHOLE)}


def zoo(arguments: argparse.Namespace, split: Split) -> Zoo:
    """As the command line says."""
    pictures = {"pictures": arguments.pictures} if arguments.pictures else {}
    stock = Stock.load(arguments.data, arguments.cache, **pictures)
    extra = {"steps": (arguments.steps // 2, arguments.steps)} if arguments.steps else {}
    return Zoo(
        split=split, stock=stock, cache=arguments.cache, bases=arguments.bases, weights=arguments.weights, **extra
    )


def calibrate(arguments: argparse.Namespace) -> Limits:
    """Judges honest models and writes limits; rules that were not measured keep theirs."""
    own, lines = zoo(arguments, Split.CALIBRATION), list[Judged]()
    for scenario in SCENARIOS[arguments.scenario]:
        lines += _many(own, HONEST, _count(arguments, scenario), scenario, arguments)
    kept = read_limits(arguments.limits) if arguments.limits.exists() else Limits.packaged()
    command = f"python -m reproduce.inspection.items calibrate --honest {arguments.honest} --whole {arguments.whole}"
    found = calibrated(lines, kept, command)
    write_limits(arguments.limits, found)
    for name, value in sorted(found.limits.items()):
        seen = {line.index: line.statistics[name] for line in lines if line.kind == HONEST and name in line.statistics}
        top = ", ".join(f"{v:.3g}" for v in sorted(seen.values(), reverse=True)[:4]) or "not measured"
        print(f"{name:24s} limit {value:<9g} of {len(seen)} honest the largest {top}")
    return found


def _count(arguments: argparse.Namespace, scenario: Scenario) -> int:
    return int(arguments.whole if scenario is Scenario.WHOLE else arguments.honest)


def _crafted(arguments: argparse.Namespace, kind: str, scenario: Scenario) -> int:
    if scenario is Scenario.TENSORS:
        return max(arguments.crafted, arguments.published) if kind in PUBLISHED else int(arguments.crafted)
    return int(arguments.crafted) if kind in HIDDEN else min(arguments.crafted, arguments.again)


def evaluate(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Judges the evaluation split in one or both scenarios and saves a result for each."""
    own, limits, found = zoo(arguments, Split.EVALUATION), read_limits(arguments.limits), []
    for scenario in SCENARIOS[arguments.scenario]:
        honest = _many(own, HONEST, _count(arguments, scenario), scenario, arguments)
        alike = arguments.crafted if scenario is Scenario.TENSORS else min(arguments.crafted, arguments.again)
        honest += _many(own, LOOKALIKE, alike, scenario, arguments)
        wanted = [kind for kind in KINDS if not arguments.kinds or kind in arguments.kinds]
        crafted = {kind: _many(own, kind, _crafted(arguments, kind, scenario), scenario, arguments) for kind in wanted}
        result = roc.record(honest, {k: v for k, v in crafted.items() if v}, limits, scenario)
        print(roc.save(result, arguments.results))
        print(table(result))
        found.append(result)
    return found


def _many(own: Zoo, kind: str, count: int, scenario: Scenario, arguments: argparse.Namespace) -> list[Judged]:
    lines: list[Judged] = []
    for index, line in judged(own, kind, range(count), scenario, arguments.cache / "judged.jsonl"):
        if isinstance(line, InputError):
            print(f"{kind} {index}: {line}")
            continue
        lines.append(line)
        if arguments.verbose:
            print(f"{scenario.name.lower()} {kind} {index} {line.seconds} s", flush=True)
    return lines


def table(result: dict[str, Any]) -> str:
    """The result as rows of Markdown."""

    def cell(share: dict[str, Any]) -> str:
        return f"{share['hits']}/{share['of']} = {share['share']} [{share['low']}, {share['high']}]"

    rows = [
        f"{result['row']}: {result['seconds_per_model']} s a model",
        "| kind | at the limits | at 1 % false alarms | area | read, dB (grey) |",
        "|---|---|---|---|---|",
        f"| honest | {cell(result['honest'])} | | | |",
        f"| honest lookalikes | {cell(result['lookalike'])} | | | |",
    ]
    for kind, found in result["kinds"].items():
        quality = found.get("quality")
        read = f"{quality['psnr']} ({quality['grey']})" if quality else ""
        rows.append(
            f"| {kind} | {cell(found['true_positives'])} | {cell(found['at_allowed'])} | {found['area']} | {read} |"
        )
    return "\n".join(rows)


def curve(arguments: argparse.Namespace) -> Path:
    """The last result of each scenario as one picture: false-positive rate (logarithmic) against true-positive rate."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [(s, found) for s in Scenario if (found := roc.newest(s, arguments.results)) is not None]
    figure, axes = pyplot.subplots(1, max(1, len(shown)), figsize=(5.4 * max(1, len(shown)), 4.4), squeeze=False)
    titles = {Scenario.TENSORS: "tensors only", Scenario.WHOLE: "with model, task and own examples"}
    for plot, (scenario, found) in zip(axes[0], shown, strict=True):
        floor = 0.5 / max(1, found["honest"]["of"])
        seen = [k for k, v in found["kinds"].items() if max(t for f, t in v["curve"] if f <= roc.ALLOWED) >= roc.WANTED]
        for kind, values in found["kinds"].items():
            x, y = [max(floor, point[0]) for point in values["curve"]], [point[1] for point in values["curve"]]
            if kind in seen:
                label = (
                    f"{len(seen)} kinds, each at least {roc.WANTED:g} at {roc.ALLOWED:g}" if kind == seen[0] else None
                )
                plot.step(x, y, where="post", label=label, linewidth=1.0, color="0.45")
            else:
                plot.step(x, y, where="post", label=kind, linewidth=1.8)
        plot.axvline(roc.ALLOWED, color="0.7", linewidth=0.8)
        plot.set(xscale="log", xlim=(floor, 1), ylim=(0, 1.02), xlabel="honest models that alarm")
        plot.set(ylabel="crafted models that alarm", title=f"{titles[scenario]} ({found['honest']['of']} honest)")
        plot.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 0.93))
    figure.tight_layout()
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.picture, dpi=130)
    pyplot.close(figure)
    return Path(arguments.picture)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m reproduce.inspection.items", description=__doc__)
    parser.add_argument("action", choices=("calibrate", "evaluate", "curve"))
    parser.add_argument("--cache", type=Path, required=True, help="folder for trained bases and judged models")
    parser.add_argument("--data", type=Path, help="folder with cifar10-train.parquet and mnist-test.parquet")
    parser.add_argument("--weights", type=Path, help="folder with the perceptual metric's pretrained convolutions")
    parser.add_argument("--honest", type=int, default=600, help="honest models, tensors only")
    parser.add_argument("--whole", type=int, default=320, help="honest models, with model and data")
    parser.add_argument("--crafted", type=int, default=60, help="models of each crafted kind")
    parser.add_argument("--published", type=int, default=0, help="the same of published kinds, tensors only, if more")
    parser.add_argument(
        "--again", type=int, default=60, help="the most with model and data of a kind that tensors show"
    )
    parser.add_argument("--kinds", nargs="*", default=[], help="crafted kinds; all by default")
    parser.add_argument("--scenario", choices=SCENARIOS, default="both")
    parser.add_argument("--bases", type=int, default=24, help="trained networks")
    parser.add_argument("--steps", type=int, default=0, help="most training steps of a base; 0: the zoo's default")
    parser.add_argument("--pictures", type=int, default=0, help="pictures of each kind; 0: the zoo's default")
    parser.add_argument("--limits", type=Path, default=LIMITS)
    parser.add_argument("--results", type=Path, default=roc.FOLDER)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--verbose", action="store_true", help="a line a model")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Runs one action."""
    arguments = parsed(words)
    Compute().apply()
    {"calibrate": calibrate, "evaluate": evaluate, "curve": curve}[arguments.action](arguments)


if __name__ == "__main__":
    main()
