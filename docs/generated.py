"""Pages of the reference that are made from the code: commands, keys of a plan, and what a plan may name.

`conf.py` calls `make` before a build. A key without a meaning, or a meaning without a key, ends the build.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from leakgauge.cli import main
from leakgauge.cli.listing import PARTS_OF_AUTO, promise, registry_of
from leakgauge.frontiers.plan import AttackedConfig, FrontierConfig, RowConfig, Tolerance, Utility
from leakgauge.registry import Entry
from leakgauge.study.grammar import BudgetConfig, DataConfig, GateConfig, OnlyRule, PlanConfig

MEANINGS: dict[type[BaseModel], dict[str, str]] = {
    PlanConfig: {
        "name": "a title for the report",
        "identity": "what you call a plan that holds objects of your own, so that its folder can go on",
        "model": "a name, `{name: {parameter: value}}`, `package.module:function`, or a list of these",
        "data": "where examples come from and how they are dealt out, [below](#data)",
        "mode": "`eval` or `train`, for BatchNorm and dropout",
        "loss": "what clients minimise: a name with `label_smoothing` or `weights`, or `package.module:function` of "
        "logits and labels; other steps: [a loss of your own](../how-to/steps.md)",
        "clients": "protocols, a list",
        "defenses": "a list; an entry that is a list itself composes",
        "server": "`honest`, or a [dishonest one](../how-to/servers.md)",
        "knows": "what the attacker knows, [a list](../how-to/questions.md#what-each-piece-of-knowledge-is)",
        "attacks": "a list",
        "only": "rules that keep a part of the product, [below](#only)",
        "budget": "what one trial may spend, [below](#budget)",
        "seeds": "one repetition each: weights without a file, draws, starts",
        "gallery": "strangers in the line-up of identification",
        "lpips": "a safetensors file of LPIPS weights, or `torchmetrics`",
        "update": "a captured update, its round's folder, or [a list of such folders](../how-to/captured.md)",
        "gate": "limits, [below](#gate); without one `leakgauge gate` has nothing to test",
    },
    DataConfig: {
        "source": "`samples`, `folder:PATH`, another of [these](parts.md#data), or `package.module:function`",
        "size": "side of the square that pictures are made; by default the source's own",
        "batch": "examples of one client; of the whole cohort under secure aggregation",
        "batches": "clients: consecutive, disjoint batches",
        "start": "the first example used",
    },
    BudgetConfig: {
        "gradient_evaluations": "of one trial, over all restarts; without it each attack's own number of steps",
        "seconds": "of one trial; a run that it ends depends on the machine",
        "trial_seconds": "after which a trial is stopped as if it had died",
    },
    OnlyRule: {
        "model": "the plan's word, the full label of the report, or a list of these",
        "client": "likewise",
        "defense": "likewise",
        "attack": "likewise",
        "batches": "the first so many",
    },
    GateConfig: {
        "identified": "`{max: m}`: at most this share of the images is identified",
        "psnr": "`{worst: w, share: s}`: no image above `w` dB, and at most a share `s` could be",
        "label_f1": "`{max: m}`: at most this mean F1 of labels",
        "baseline": "settings without a defence are there to compare with, and are not what is signed off",
        "vetted": "whether the code of every attack and defence must be [vetted](../explanation/verdict.md#vetted): "
        "of protection that says nothing",
    },
    FrontierConfig: {
        "defenses": "family → its strengths from weak to strong, each a defence or a [strength](#a-strength)",
        "data": "what is attacked, [below](#attacked-examples)",
        "client": "what every client runs, in training and when it is attacked",
        "attack": "one attack, naive and adapted",
        "utility": "the training in simulation, [below](#utility)",
        "delta": "δ of the rows that are differentially private",
        "accountant": "`rdp`, or `prv`, which is tighter",
        "tolerance": "what the recommendation calls good enough, [below](#tolerance)",
    },
    AttackedConfig: {
        "source": "as in an audit; by default the test data of `utility`, else `samples`",
        "size": "side of the pictures",
        "batch": "examples of the attacked client; a row may change it",
        "images": "how many examples are attacked in each row",
        "start": "the first of them",
    },
    RowConfig: {
        "defense": "the mechanism on each client",
        "client": "the clients' protocol",
        "batch": "examples of the attacked client",
        "cohort": "clients whose updates are summed before the server sees anything",
        "train": "`false` for a defence that is too slow to train with",
    },
    Utility: {
        "train": "a source; without it, accuracy is not measured",
        "test": "a source",
        "clients": "to whom the training data are dealt",
        "alpha": "of the Dirichlet partition: smaller is more uneven",
        "per_round": "clients asked in a round",
        "rounds": "of the training",
        "server_lr": "step of the server",
        "evaluate_every": "rounds between two tests",
        "examples": "only so many training examples",
        "test_examples": "only so many test examples",
        "seed": "of partition, weights and draws",
    },
    Tolerance: {
        "accuracy": "loss against the undefended training, as a share",
        "identified": "share of the pictures that the stronger attacker may identify",
    },
}
"""What each key of a plan means; its type and default are the model's own."""

SECTIONS = {
    "Keys of an audit": PlanConfig,
    "data": DataConfig,
    "budget": BudgetConfig,
    "only": OnlyRule,
    "gate": GateConfig,
    "Keys of a frontier": FrontierConfig,
    "Attacked examples": AttackedConfig,
    "A strength": RowConfig,
    "utility": Utility,
    "tolerance": Tolerance,
}

SHOWN = {
    "attacks": "Attacks",
    "defenses": "Defences",
    "clients": "Clients",
    "optimisers": "Optimisers",
    "servers": "Servers",
    "models": "Models",
    "data": "Data",
    "metrics": "Metrics",
    "objectives": "Objectives",
    "priors": "Priors",
    "canvases": "Canvases",
    "minimisers": "Minimisers",
    "labels": "Labels",
    "training-losses": "Training losses",
    "rules": "Rules of inspect",
}
"""Kind of `leakgauge list` → heading."""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PLAIN = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any"}


def _type(annotation: Any) -> str:
    """A type in the words of a plan."""
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    if annotation in PLAIN:
        return PLAIN[annotation]
    if get_origin(annotation) is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if get_origin(annotation) is list:
        return "list" if inner == [Any] else f"list of {_type(inner[0])}s"
    if get_origin(annotation) is Annotated:
        return _type(inner[0])
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(map(_type, inner))
    return "mapping"


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "as below"
    if value is None:
        return "none"
    text = str(value).replace("'", "").replace("True", "true").replace("False", "false")
    return f"`{text}`"


def keys(model: type[BaseModel]) -> Iterator[str]:
    """A row for each key.

    Raises:
        ValueError: a key of an audit's plan has no meaning here, or a meaning no key.
    """
    meanings, fields = MEANINGS[model], model.model_fields
    shared = set(MEANINGS[PlanConfig]) if model is FrontierConfig else set()
    missing, gone = set(fields) - set(meanings) - shared, set(meanings) - set(fields)
    if missing or gone:
        raise ValueError(f"{model.__name__}: without a meaning {sorted(missing)}, without a key {sorted(gone)}")
    yield "| key | meaning | type | if left out |"
    yield "|---|---|---|---|"
    for name, field in fields.items():
        said = meanings.get(name, "as in an audit")
        default = _default(field.get_default(call_default_factory=True))
        yield f"| `{name}` | {_cell(said)} | {_cell(_type(field.annotation))} | {_cell(default)} |"


def plan() -> str:
    """Keys of both kinds of plan."""
    said = []
    for title, model in SECTIONS.items():
        level = "##" if title.startswith("Keys") else "###"
        heading = f"{level} `{title}`" if title.islower() else f"{level} {title}"
        said.append("\n".join([heading, "", *keys(model)]))
    return "\n\n".join(said) + "\n"


def _parameters(entry: Entry) -> str:
    plain = []
    for parameter in entry.parameters.values():
        value = parameter.default
        if value is parameter.empty:
            plain.append(f"`{parameter.name}`")
        elif value is None or isinstance(value, bool | int | float | str | tuple):
            shown = str(value).lower() if isinstance(value, bool) else value
            plain.append(f"`{parameter.name}={shown}`" if len(str(value)) < 30 else f"`{parameter.name}=…`")
        else:
            plain.append(f"`{parameter.name}=…`")
    return ", ".join(plain)


def parts(kinds: dict[str, str] = SHOWN) -> str:
    """What a plan may name, a table a kind, from the registries."""
    said = []
    for kind, title in kinds.items():
        rows = ["| name | what it is | parameters | needs |", "|---|---|---|---|"]
        for entry in registry_of(kind):
            mark = " ε" if kind == "defenses" and promise(entry) else ""
            about = "part of `auto`. " if kind == "attacks" and entry.name in PARTS_OF_AUTO else ""
            summary = _cell(about + entry.summary).replace("``", "`")
            rows.append(f"| `{entry.name}`{mark} | {summary} | {_cell(_parameters(entry))} | {_cell(entry.needs)} |")
        said.append("\n".join([f"## {title}", "", f"In full: `leakgauge list {kind} NAME`.", "", *rows]))
    return "\n\n".join(said) + "\n"


def _command(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"## `{name}`"
    yield "```text\n" + command.get_usage(context).removeprefix("Usage: ") + "\n```"
    for paragraph in inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n"):
        yield " ".join(paragraph.split()).replace("<", "\\<")
    records = [record for p in command.params if (record := p.get_help_record(context)) and record[0][0] == "-"]
    if records:
        yield "\n".join(
            ["| option | meaning |", "|---|---|", *(f"| `{_cell(o)}` | {_cell(said)} |" for o, said in records)]
        )
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None:
                yield from _command(found, f"{name} {below}")


def commands() -> str:
    """Every command with its options."""
    context = click.Context(main, info_name="leakgauge")
    blocks: list[str] = []
    for name in main.list_commands(context):
        found = main.get_command(context, name)
        assert found is not None
        blocks += _command(found, f"leakgauge {name}")
    return "\n\n".join(blocks) + "\n"


def make(to: Path) -> None:
    """Writes the pages' bodies; the pages include them."""
    to.mkdir(parents=True, exist_ok=True)
    for name, text in (("commands", commands()), ("plan", plan()), ("parts", parts())):
        (to / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    import sys

    make(Path(sys.argv[1]))
