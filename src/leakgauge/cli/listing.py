"""What is looked up: `leakgauge list`, what a plan may name, a line each; `leakgauge list KIND NAME`, one of them in
full; and in a clone alone `leakgauge leaderboard`, the table of defences, and `leakgauge reproduce`."""

import inspect
import json
import re
import sys
import textwrap
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from leakgauge import registry
from leakgauge.cli.options import PATH, SOURCE, to_json, with_workers
from leakgauge.errors import InputError, did_you_mean, refusing, require
from leakgauge.registry import Entry, Registry, hints, own_module
from leakgauge.study.grammar import PlanConfig

KINDS = (
    *("attacks", "defenses", "metrics", "models", "data", "clients", "optimisers", "servers", "objectives", "priors"),
    *("canvases", "minimisers", "labels", "taps", "heads", "losses", "training-losses", "rules"),
)
"""What a plan may name."""

INSPECTS = "these are the rules of `leakgauge inspect`; `leakgauge lint PLAN` explains what it finds itself"

PARTS_OF_AUTO = frozenset({"adapted", "order-search", "patches", "rank-one", "row-space", "span-fit", "span-read"})
"""Attacks that `auto` is made of, shown with --all."""

FILLED = {"norm": 1.0, "noise_multiplier": 1.0, "sigma": 1.0, "keep": 0.5, "rate": 0.5, "levels": 7}
"""Numbers for parameters that a defence must be given, to ask what kind of guarantee it has."""

LEVELLED = ("attacks", "defenses")

LEAST = 18  # characters that a clause must have to stand for its sentence
WIDTH = 80  # columns of a terminal that every line fits into


def _kind(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    """One of `KINDS`; another word is answered with the nearest of them, as a plan's keys are."""
    problem = "says no kind" if value is None else f"knows no '{value}'"
    require(value in KINDS, "list", problem, did_you_mean(value or "", KINDS))
    return value or ""


@click.command(
    "list",
    help=f"""Names that a plan may use, a line each; with NAME that one in full, its parameters and needs.

    KIND is one of {", ".join(KINDS)}.""",
)
@click.argument("kind", required=False, callback=_kind, metavar="KIND", shell_complete=lambda *_: list(KINDS))
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Also the attacks that `auto` is made of.")
def list_(kind: str, name: str | None, everything: bool) -> None:
    from leakgauge.study.levels import LEVELS

    for line in lines(kind, everything=everything) if name is None else details(kind, name):
        click.echo(line)
    if name is not None:
        return
    if kind == "attacks" and not everything:
        click.echo("\nWhat `auto` is made of: leakgauge list attacks --all")
    if kind == "defenses":
        private: dict[str, list[str]] = {}
        for entry in registry_of(kind):
            private.setdefault(promise(entry), []).append(entry.name)
        units = "; ".join(f"{', '.join(names)} for one {unit}" for unit, names in private.items() if unit)
        said = f"ε: differentially private by itself ({units}); the others promise nothing alone."
        click.echo("\n" + "\n".join(textwrap.wrap(said, WIDTH, break_on_hyphens=False)))
    if kind == "rules":
        click.echo("\n" + "\n".join(textwrap.wrap(f"{INSPECTS[0].upper()}{INSPECTS[1:]}.", WIDTH)))
    if kind in LEVELLED:
        levels = ", ".join(f"{i} {level}" for i, level in enumerate(LEVELS, 1))
        click.echo(f"\nLevels: {levels}; vetted from 2:\nof code that does what it says, not of protection.")
    click.echo(f"\nIn full: leakgauge list {kind} NAME")


def registry_of(kind: str) -> Registry:
    return getattr(registry, kind.upper().replace("-", "_"))  # type: ignore[no-any-return]


def lines(kind: str, *, everything: bool = True) -> list[str]:
    """A name and what it is, a line each, at most `WIDTH` wide; of a defence also what it guarantees."""
    from leakgauge.study.levels import LEVELS, standing

    entries = [e for e in registry_of(kind) if everything or kind != "attacks" or e.name not in PARTS_OF_AUTO]
    names = [f"{e.name} ε" if kind == "defenses" and promise(e) else e.name for e in entries]
    if kind in LEVELLED:
        widest, ranks = max(map(len, names)), ("none", *LEVELS)
        levels = [ranks.index(standing(kind, e.name).level) for e in entries]
        names = [f"{name:<{widest}} {level}" for name, level in zip(names, levels, strict=True)]
    width = max(map(len, names)) + (1 if kind in LEVELLED else 2)
    return [f"{name:<{width}}{clause(e.summary, WIDTH - width)}" for name, e in zip(names, entries, strict=True)]


def promise(entry: Entry) -> str:
    """Whom a defence's differential privacy is for, by itself: a client or an example; empty where it has none."""
    from leakgauge.privacy.guarantee import NoGuarantee, mechanism

    open_ = [p.name for p in entry.parameters.values() if p.default in (p.empty, None)]
    try:
        found = mechanism(entry.build(**{n: FILLED[n] for n in open_ if n in FILLED}), examples=32, layers=4)
    except (InputError, TypeError):  # it wants one of several, and none of them comes with an ε
        return ""
    return "" if isinstance(found, NoGuarantee) else found.unit.value


def clause(summary: str, width: int) -> str:
    """The sentence, or the most of it that ends with a clause and fits."""
    if len(summary) <= width:
        return summary.removesuffix(".")
    ends = [found.start() for found in re.finditer(r"[:;,.]\s|\s\(|\swith\s|\swhere\s|\swhose\s", summary)]
    fitting = [end for end in ends if LEAST <= end <= width and _whole(summary[:end])]
    return summary[: max(fitting)] if fitting else textwrap.shorten(summary, width, placeholder=" …")


def _whole(text: str) -> bool:
    return all(text.count(a) == text.count(b) for a, b in ("()", "[]", "‖‖"))


def details(kind: str, name: str) -> list[str]:
    """One entry in full: description, parameters with their defaults, what it needs, what counters a defence."""
    from leakgauge.study.levels import standing

    known = registry_of(kind)
    if kind == "rules" and not any(entry.name == name for entry in known) and ":" not in name:
        near = get_close_matches(name, [entry.name for entry in known], n=1, cutoff=0.8)
        hint = f"did you mean '{near[0]}'?" if near else INSPECTS
        raise InputError("rule", f"unknown name '{name}'", hint)
    entry = known[name]
    said = [name, "", *(inspect.getdoc(entry.build) or "").splitlines(), ""]
    for p in entry.parameters.values():
        shown = repr(p.default) if isinstance(p.default, str | int | float | tuple | None) else "…"  # only code has it
        said.append(f"  {p.name}" + (" (required)" if p.default is p.empty else f" = {shown}"))
    if not entry.parameters:
        said.append("  takes no parameters")
    if entry.needs:
        said.append(f"needs: {entry.needs}")
    if kind in LEVELLED:
        own = standing(kind, name)
        said += [f"version {own.version}, level: {own.level}", *(f"  {k}: {where}" for k, where in own.shown.items())]
    if kind == "defenses":
        said += _countered(entry)
    set_in = (" " * (len(x) - len(x.lstrip()) + 4 * x.startswith("  ")) for x in said)
    wrapped = (textwrap.wrap(x, WIDTH, subsequent_indent=by) or [""] for x, by in zip(said, set_in, strict=True))
    return [line for lines in wrapped for line in lines]


def _countered(entry: Entry) -> list[str]:
    """What an attacker who knows this defence does; nothing where it is none."""
    from leakgauge.attacks.adaptive import Counter, counter_to
    from leakgauge.defenses import NoDefense

    made: Any = entry.build if inspect.isclass(entry.build) else hints(entry.build)["return"]
    if made is NoDefense:
        return []
    found = counter_to(made)
    if isinstance(found, Counter):
        return [f"countered by {found.name}: {found.because}"]
    return [f"no counter is known: {found.reason}"]


NAMED = {"model": "models", "clients": "clients", "defenses": "defenses", "server": "servers", "attacks": "attacks"}


@click.command()
def schema() -> None:
    """The JSON Schema that an editor completes and checks a plan by."""
    keys = (found := PlanConfig.model_json_schema())["properties"]
    keys["data"] = {"anyOf": [{"type": "string"}, keys["data"]]}  # or its source alone
    for key, of in NAMED.items():
        names = [entry.name for entry in registry_of(of)]
        one = {"anyOf": [{"enum": names}, {"type": "string", "pattern": ":"}, {"type": "object", "minProperties": 1}]}
        several = {"type": "array", "minItems": 1, "items": {"anyOf": [one, {"type": "array", "items": one}]}}
        keys[key] |= one if key == "server" else {"anyOf": [one, several]} if key == "model" else several
    click.echo(json.dumps(found, indent=1, ensure_ascii=False))


DATA = Path("../shared/data")


@click.command()
@click.argument("action", type=click.Choice(["add", "run", "score", "page"]))
@click.argument("what", required=False)
@click.option("--board", type=PATH, default=Path("leaderboard"), show_default=True, help="The folder of that name.")
@click.option("--scene", "scenes", multiple=True, help="Only this scene; several times for several.")
@click.option("--plan", "only_plan", is_flag=True, help="With run: print what is left, in core hours, and stop.")
@click.option("--accuracy", type=SOURCE, nargs=2, help="With add: training and test data to measure its cost with.")
@with_workers("Trials at a time, one thread each.")
def leaderboard(action: str, board: Path, **how: object) -> None:
    """The table of defences: what each leaves to an attacker in fixed scenes. All goes on where it was stopped.

    `add WHAT` measures a defence, your_package.module:Class or as in a plan, and says where it stands; `run` rows that
    are not there yet. `score WHAT` scores somebody else's entry, a folder. `page` writes index.html.
    """
    sys.path.append(str(board.resolve().parent))
    with refusing("--board", "is not here", "give the folder leaderboard of a clone", ModuleNotFoundError):
        command = own_module("leaderboard.command")
    getattr(command, action)(board.resolve(), say=click.echo, **how)


@click.command()
@click.argument("item", required=False)
@click.option("--quick", is_flag=True, help="A smaller run of at most ten minutes on two cores.")
@click.option("--kept", is_flag=True, help="Show the kept result and run nothing.")
@to_json("the comparison")
@click.option("--device", default="cpu", show_default=True, help="A torch device to run on.")
@click.option("--data", type=PATH, default=DATA, show_default=True, help="Folder with the data sets as Parquet files.")
def reproduce(item: str | None, **how: object) -> None:
    """Runs ITEM, a table or figure of a paper such as mkor/table2, and prints published numbers beside ours.

    Without ITEM it prints the papers' claims and whether the kept results bear them out; with a paper (mkor) why, and
    its items. Works in a clone of the repository, where results are kept.
    """
    with refusing("reproduce", "is not in this folder", "run it in a clone of the repository", ModuleNotFoundError):
        command = own_module("reproduce.command")
    command.answer(item, **how)
