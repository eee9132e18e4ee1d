"""`leakgauge captured`: the audit of captured rounds, without a plan; `leakgauge between`: a round of two files."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console

from leakgauge.cli.options import PATH, SOURCE, SPEC, with_workers
from leakgauge.errors import InputError, refusing, require
from leakgauge.files import write_whole
from leakgauge.registry import MODELS


@click.command()
@click.argument("before", type=PATH)
@click.argument("after", type=PATH)
@click.option("--examples", type=click.IntRange(min=1), help="How many the client trained on.")
@click.option(
    "--holds",
    type=click.Choice(("parameters", "delta", "gradient")),
    default="parameters",
    show_default=True,
    help="What AFTER is: parameters after training, how far they moved, or a gradient.",
)
@click.option(
    "--model", type=SPEC, help="The architecture, where arrays have no names: they are in the order of its state dict."
)
@click.option("-o", "--output", type=PATH, required=True, help="Where the round's folder goes.")
def between(before: Path, after: Path, examples: int | None, holds: str, model: Any, output: Path) -> None:
    """Makes a captured round of the parameters BEFORE local training and what the client replied, AFTER.

    Files are state dicts as .safetensors, checkpoints of torch.save (tensors only), or NumPy archives, named or as
    Flower saves lists of arrays. Prints the round's folder, for `leakgauge captured`.
    """
    from leakgauge.capture import Recorder
    from leakgauge.models.weights import read_model
    from leakgauge.resolve import resolve
    from leakgauge.update import UpdateKind

    names = None
    if model is not None:
        with refusing("--model", "gives no module", "name a function that returns one", AttributeError, TypeError):
            names = list(resolve(MODELS, model, "--model").value.state_dict())
    sent, reply = read_model(before, "BEFORE", names), read_model(after, "AFTER", names)
    nameless = next((k for k in sent if k.isdigit() or k.startswith("arr_")), None)
    require(nameless is None, "BEFORE", "holds arrays without names", "give --model, whose state dict names them")
    sends = None if holds == "parameters" else UpdateKind(holds)
    click.echo(Recorder(folder=output, sends=sends).keep(sent, reply, round_="0", node="file", count=examples))


@click.command()
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--model", required=True, type=SPEC, help="The architecture: package.module:function, or a name.")
@click.option(
    "--client", type=SPEC, default="fedavg", show_default=True, help="How the client trained, as under clients."
)
@click.option("--defense", type=SPEC, help="What changed the update on its way, as under defenses; or a list.")
@click.option("--gate", type=SPEC, help="What must hold, as under gate in a plan: '{identified: {max: 0.1}}'.")
@click.option("--mode", type=click.Choice(("train", "eval")), default="train", show_default=True)
@click.option(
    "--data",
    type=SOURCE,
    help="A source with the rounds' examples first, where the capture kept none: folder:PATH, or as under data in a "
    "plan, {source: folder:PATH, size: 64}.",
)
@click.option("--no-normalise", is_flag=True, help="With --data: the network saw its raw values.")
@click.option(
    "--evaluations",
    type=click.IntRange(min=1),
    default=2400,
    show_default=True,
    help="Gradient evaluations of a trial, at most. Three small rounds at 64 px: half an hour of two cores.",
)
@with_workers("Trials at a time.")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--counts-only", is_flag=True, help="Write no image, and hashes for file names.")
@click.option("--check", is_flag=True, help="Say whether the plan explains the updates, and stop.")
@click.option("--anyway", is_flag=True, help="Attack although the plan does not explain an update.")
@click.option(
    "-o", "--output", type=PATH, help="Folder of results.  [default: FOLDER-audit beside it, rounds-audit for several]"
)
def captured(
    folders: tuple[Path, ...],
    model: Any,
    client: Any,
    defense: Any,
    gate: Any,
    mode: str,
    data: Any,
    no_normalise: bool,
    evaluations: int,
    check: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Audits captured rounds: how much of each update this plan explains, and what attacks read from it.

    Several FOLDERS are one audit with one verdict: rounds of one client are one client, and an example that took part
    in several counts once. Writes plan.yaml into FOLDER, or rounds.yaml beside several, to be changed and run again by
    `leakgauge audit`; where another lies there, the new one is written beside it.

    Exit code 0: the plan explains the updates, and what --gate allows holds; 1: it does not, and nothing was attacked
    (unless --anyway), or the gate failed; 2: the input cannot be used.
    """
    from leakgauge.study.plan import resolve_plan
    from leakgauge.study.session import Unexplained, print_explained, run_audit

    folder, several = folders[0], len(folders) > 1
    plan = plan_of(folders, model=model, client=client, mode=mode, data=data)
    if no_normalise:
        hint = "leave it out: examples that a capture kept are as the network saw them"
        require(data is not None, "--no-normalise", "is given without --data", hint)
        plan["data"]["normalise"] = False
    plan["budget"] = {"gradient_evaluations": evaluations}
    plan |= {} if defense is None else {"defenses": [defense]}
    plan |= {} if gate is None else {"gate": gate}
    if check:
        found = list(map(resolve_plan(plan).explained, range(len(folders))))
        for one in found:
            print_explained(Console(), one)
        sys.exit(0 if all(one.holds for one in found) else 1)
    path = written_beside(folder.parent / "rounds.yaml" if several else folder / "plan.yaml", plan)
    click.echo(f"plan: {path}")
    target = output or folder.with_name("rounds-audit" if several else f"{folder.name}-audit")
    try:
        passed = run_audit(path, target, **options)
    except Unexplained:
        click.echo("nothing was attacked: an attack on a misread update fails for other reasons (--anyway attacks)")
        sys.exit(1)
    sys.exit(1 if passed is False else 0)


def written_beside(place: Path, plan: dict[str, Any]) -> Path:
    """Writes a plan where none, or the same, lies; else under the next free name beside it."""
    text = yaml.safe_dump(plan, sort_keys=False, allow_unicode=True)
    names = itertools.chain([place.stem], (f"{place.stem}-{number}" for number in itertools.count(2)))
    path = next(p for p in (place.with_stem(n) for n in names) if not p.exists() or p.read_text("utf-8") == text)
    if path != place:
        click.echo(f"{place} is another plan and stays as it is")
    return write_whole(path, text)


def plan_of(
    folders: Sequence[Path], *, model: Any, client: Any, mode: str, data: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The plan of captured rounds, as YAML has it. `data`: the source of their examples, with its keywords; `None` for
    those that the capture kept."""
    from leakgauge.resolve import split
    from leakgauge.update import UPDATE, WEIGHTS

    counts, kept = zip(*(_round(folder, data is None) for folder in folders), strict=True)
    problem = f"have rounds of {' and '.join(map(str, sorted(set(counts))))} examples"
    require(len(set(counts)) == 1, "folders", problem, "audit rounds of one size together, the others apart")
    name, arguments = split(model, "--model")
    source: dict[str, Any] = {"source": f"capture:{kept[0]}"} if data is None else dict(data)
    update: Any = str(folders[0] / UPDATE)
    called = folders[0].name
    if len(folders) > 1:  # each round's folder holds its own weights
        update, called = [str(folder) for folder in folders], "captured rounds"
        source |= {"rounds": list(map(str, kept[1:]))} if data is None else {}
        arguments.pop("weights", None)
    else:
        arguments["weights"] = str(folders[0] / WEIGHTS)
    return {
        "name": called,
        "update": update,
        "model": {name: arguments},
        "mode": mode,
        "data": {**source, "batch": counts[0], "batches": len(folders)},
        "clients": [client],
        "attacks": ["auto"],
    }


def _round(folder: Path, own: bool) -> tuple[int, Path | None]:
    """How many examples a captured update is of, and where they were kept, all of them where these are scored with."""
    from leakgauge.data.arrays import CAPTURE, read_archive
    from leakgauge.study.explaining.rounds import CapturedRound
    from leakgauge.update import EXAMPLES, UPDATE, WEIGHTS, Update

    require((folder / UPDATE).is_file(), "folder", f"{folder} holds no {UPDATE}", "name one round's folder")
    count, kept = Update.load(folder / UPDATE).header.example_count, CapturedRound(folder / UPDATE).examples
    missing = "is missing, and the capture kept no examples to score with"
    hint = "give a source with the round's examples first, or capture with CaptureMod(…, examples=True)"
    require(kept is not None or not own, "--data", missing, hint)
    require((folder / WEIGHTS).is_file(), "folder", f"{folder} holds no {WEIGHTS}", "capture what the client received")
    if count is None:
        raise InputError("folder", "the update does not say how many examples made it", "write a plan with data.batch")
    if own and kept is not None:
        there = len(read_archive(kept / EXAMPLES, (("x",), ("y",)), CAPTURE)[0])
        problem = f"is missing: the update is of {count} examples, and {there} of them were kept"
        hint = "give a source with all of them first, in their order: some did not train (drop_last) or were not heard"
        require(there >= count, "--data", problem, hint)
    return count, kept
