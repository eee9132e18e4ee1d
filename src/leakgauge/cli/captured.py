"""`leakgauge captured`: the audit of one captured round, without a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from leakgauge.errors import InputError, require


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", required=True, help="The architecture: package.module:function, a name, or {name: {…}}.")
@click.option(
    "--client", default="fedavg", show_default=True, help="How the client trained, as under clients in a plan."
)
@click.option("--mode", type=click.Choice(("train", "eval")), default="train", show_default=True)
@click.option("--data", help="A source with the rounds' examples first, where the capture kept none: folder:PATH.")
@click.option("--no-normalise", is_flag=True, help="With --data: the network saw its raw values.")
@click.option("--evaluations", type=click.IntRange(min=1), help="Gradient evaluations of a trial, at most.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of results.  [default: FOLDER-audit beside it, rounds-audit for several]",
)
def captured(
    folders: tuple[Path, ...],
    model: str,
    client: str,
    mode: str,
    data: str | None,
    no_normalise: bool,
    evaluations: int | None,
    output: Path | None,
) -> None:
    """Audits captured rounds: how much of each update this plan explains, and what attacks read from it.

    Several FOLDERS are one audit with one verdict: rounds of one client are one client, and an example that took part
    in several counts once. Writes plan.yaml into FOLDER, or rounds.yaml beside several, to be changed and run again by
    `leakgauge audit`: add the defence and a gate.
    """
    from leakgauge.files import write_whole
    from leakgauge.resolve import read_option
    from leakgauge.study.session import run_audit

    folder, several = folders[0], len(folders) > 1
    given = {"model": read_option(model, "--model"), "client": read_option(client, "--client")}
    plan = plan_of(folders, **given, mode=mode, data=data)
    if no_normalise:
        hint = "leave it out: examples that a capture kept are as the network saw them"
        require(data is not None, "--no-normalise", "is given without --data", hint)
        plan["data"]["normalise"] = False
    if evaluations is not None:
        plan["budget"] = {"gradient_evaluations": evaluations}
    place = folder.parent / "rounds.yaml" if several else folder / "plan.yaml"
    path = write_whole(place, yaml.safe_dump(plan, sort_keys=False, allow_unicode=True))
    click.echo(f"plan: {path}")
    target = output or folder.with_name("rounds-audit" if several else f"{folder.name}-audit")
    run_audit(path, target, workers=1, device="cpu", counts_only=False)


def plan_of(folders: Sequence[Path], *, model: Any, client: Any, mode: str, data: str | None) -> dict[str, Any]:
    """The plan of captured rounds, as YAML has it.

    Raises:
        InputError: a folder holds no capture, no count, or no examples; rounds are of different numbers of examples.
    """
    plans = [_plan_of(folder, model=model, client=client, mode=mode, data=data) for folder in folders]
    if len(plans) == 1:
        return plans[0]
    counts = {plan["data"]["batch"] for plan in plans}
    problem = f"have rounds of {' and '.join(map(str, sorted(counts)))} examples"
    require(len(counts) == 1, "folders", problem, "audit rounds of one size together, the others apart")
    places = [plan["data"]["source"].removeprefix("capture:") for plan in plans]
    source = {"source": data} if data is not None else {"source": f"capture:{places[0]}", "rounds": places[1:]}
    name, arguments = next(iter(plans[0]["model"].items()))
    bare = {name: {key: value for key, value in arguments.items() if key != "weights"}}
    dealt = {**source, "batch": counts.pop(), "batches": len(plans)}
    together = {"name": "captured rounds", "update": [str(folder) for folder in folders], "model": bare, "data": dealt}
    return plans[0] | together


def _plan_of(folder: Path, *, model: Any, client: Any, mode: str, data: str | None) -> dict[str, Any]:
    from leakgauge.data.captured import HINT
    from leakgauge.data.npz import read_archive
    from leakgauge.resolve import split
    from leakgauge.study.explaining.rounds import CapturedRound
    from leakgauge.update import EXAMPLES, UPDATE, WEIGHTS, Update

    require((folder / UPDATE).is_file(), "folder", f"{folder} holds no {UPDATE}", "name one round's folder")
    update = Update.load(folder / UPDATE)
    kept = CapturedRound(folder / UPDATE).examples
    require(
        data is not None or kept is not None,
        "--data",
        "is missing, and the capture kept no examples to score with",
        "give a source with the round's examples first, or capture with CaptureMod(…, examples=True)",
    )
    require((folder / WEIGHTS).is_file(), "folder", f"{folder} holds no {WEIGHTS}", "capture what the client received")
    count = update.header.example_count
    if count is None:
        raise InputError("folder", "the update does not say how many examples made it", "write a plan with data.batch")
    if data is None and kept is not None:
        own = len(read_archive(kept / EXAMPLES, (("x",), ("y",)), HINT)[0])
        problem = f"is missing: the update is of {count} examples, and {own} of them were kept"
        hint = "give a source with all of them first, in their order: some did not train (drop_last) or were not heard"
        require(own >= count, "--data", problem, hint)
    name, arguments = split(model, "--model")
    return {
        "name": folder.name,
        "update": str(folder / UPDATE),
        "model": {name: {**arguments, "weights": str(folder / WEIGHTS)}},
        "mode": mode,
        "data": {"source": data or f"capture:{kept}", "batch": count, "batches": 1},
        "clients": [client],
        "attacks": ["auto"],
    }
