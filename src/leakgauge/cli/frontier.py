"""`leakgauge frontier`: plan, progress, page, summary."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from leakgauge.cli.options import PATH, SOURCE, into, to_json, with_workers
from leakgauge.study.grammar import example_text, read_yaml

QUICK: Mapping[str, Any] = {
    "data": {"images": 4},
    "budget": {"gradient_evaluations": 100},
    "utility": {"rounds": 15, "examples": 20_000, "test_examples": 4000, "evaluate_every": 5},
}
"""What --quick changes in a plan, beside the strengths: of each family the first and the last."""


@click.command()
@click.argument("plan", required=False, type=PATH)
@into("frontier-out")
@click.option("--quick", "is_quick", is_flag=True, help="A smaller run of at most ten minutes on two cores.")
@click.option("--train", type=SOURCE, help="Training data, as in a plan: parquet:PATH. Needed to measure accuracy.")
@click.option("--test", type=SOURCE, help="Test data; also what is attacked, unless the plan names other data.")
@to_json("the report")
@with_workers("At a time.")
@click.option("--ray", metavar="ADDRESS", help="Attack on this Ray cluster instead: host:6379, or auto.")
@click.option("--example", is_flag=True, help="Print the plan that runs when none is given, and stop.")
def frontier(
    plan: Path | None,
    output: Path,
    is_quick: bool,
    train: Any,
    test: Any,
    json_file: Path | None,
    workers: int,
    ray: str | None,
    example: bool,
) -> None:
    """What each defence leaves to an attacker, beside what it costs: accuracy, bytes, time and privacy budget.

    Writes report.html and report.json with a recommendation. Killed and run again, it goes on where it was; a
    finished run does no work.
    """
    if example:
        click.echo(example_text("frontiers"), nl=False)
        return

    from leakgauge.compute import Compute
    from leakgauge.frontiers.plan import resolve_frontier
    from leakgauge.frontiers.session import Frontier, run_frontier
    from leakgauge.study.run import ProgressShown
    from leakgauge.study.session import executor_of

    console, compute = Console(), Compute()
    compute.apply()
    raw = read_yaml(plan, "frontiers")
    raw = quick(raw) if is_quick else raw
    data = {key: given for key, given in (("train", train), ("test", test)) if given is not None}
    resolved = resolve_frontier(overlaid(raw, {"utility": data}) if data else raw)
    with closing(ProgressShown(console)) as progress:
        pool = executor_of(ray, workers, compute, output)
        report = run_frontier(
            resolved, output, workers=workers, compute=compute, progress=progress.stage, executor=pool
        )
    if json_file is not None:
        report.write(json_file)
    Frontier(report, output).show(console)
    console.print(f"report: {output / 'report.html'} and report.json", soft_wrap=True)


def overlaid(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, object]:
    merged = dict(raw)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = overlaid(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def quick(raw: Mapping[str, Any]) -> dict[str, object]:
    """A plan cut down to a run of at most ten minutes on two cores, for the example's size."""
    made = overlaid(raw, QUICK)
    strengths = made.get("defenses")
    if isinstance(strengths, dict):
        ends = {k: [v[0], v[-1]] if isinstance(v, list) and len(v) > 2 else v for k, v in strengths.items()}
        made["defenses"] = ends
    return made
