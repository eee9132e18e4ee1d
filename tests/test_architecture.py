"""The tree's own rules: imports point one way, modules and folders stay small, files are read at the edge."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from leakgauge import clients, defenses

SRC = Path(__file__).parents[1] / "src"
LINES = 400
MODULES = 25

FLOORS = (
    (
        "errors",
        "draws",
        "tensors",
        "files",
        "compute",
        "registry",
        "intervals",
        "workers",
        "executor",
    ),
    ("step", "batch", "task", "update"),
    ("clients", "defenses"),
    ("observation", "view", "data", "metrics", "models"),
    ("tracing", "attacks"),
    ("servers", "risk", "privacy", "training"),
    ("resolve",),
    ("inspection", "study", "report"),
    ("guard",),
    ("frontiers", "face", "capture"),
    ("cli", "flower", "__main__"),
)
"""From the ground up. A module imports from its own floor or from below. Rooms that no floor names are at the top."""


WRITES = {
    "cli.captured": "a plan's YAML",
    "cli.privacy": "the result's JSON",
    "risk.cohort": "a log of rounds",
    "study.document": "report.json",
    "study.grammar": "a plan's YAML",
    "study.judging.records": "trials of report.json",
    "study.store": "the store",
    "training": "a training's file",
}
"""Modules that read or write a file's text, and which: they alone may hold records that no type describes."""


HOOKS = {"step.training", "capture.recorder"}
"""Modules that register hooks. Networks are looked into by `view.graph`, else by `step.training`."""


ROUNDINGS = {"tensors", "view.entries"}
"""Modules that derive how far rounding moved what was sent: what a float type does to a number, and what that makes of
an update. Others ask the second."""
NUMERICS = {
    "risk.jacobian": "the rank of a Jacobian or a gradient, to the arithmetic that finds it",
    "attacks.recipes.information": "a gap that this arithmetic resolves",
    "servers.mkor": "a sum that is zero",
}
"""Modules that ask for the precision of their own arithmetic, and of what."""


LATE = {
    "leakgauge.attacks.matching.engine": {"leakgauge.attacks.adaptive.counter"},  # counters are made of its parts
}
"""Imports inside a function that close a circle, each with its reason."""


def modules() -> dict[str, Path]:
    return {".".join(p.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): p for p in SRC.rglob("*.py")}


MODULE = modules()


def imported(path: Path, *, everywhere: bool = False) -> set[str]:
    """Modules of the package that running this file imports; with `everywhere` also those of its functions. Never those
    for `TYPE_CHECKING`, and not those by a string: of registries, of the package's own names and of commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(n)
        for i in ast.walk(tree)
        if isinstance(i, ast.If) and "TYPE_CHECKING" in ast.unparse(i.test)
        for part in i.body
        for n in ast.walk(part)
    }
    found: set[str] = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULE else node.module for name in whole}
    return found & set(MODULE)


@pytest.mark.parametrize("everywhere", [False, True])
def test_imports_form_no_circle(everywhere: bool) -> None:
    graph = {
        name: imported(path, everywhere=everywhere) - LATE.get(name, set()) - {name} for name, path in MODULE.items()
    }
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                walk(other, (*path, name))
            done.add(name)

    for name in sorted(graph):
        walk(name, ())
    assert all(late <= imported(MODULE[name], everywhere=True) for name, late in LATE.items()), "take it off the list"


def floor(module: str) -> int:
    room = module.split(".")[1] if "." in module else "errors"
    return next((i for i, rooms in enumerate(FLOORS) if room in rooms), len(FLOORS))


def test_imports_point_down() -> None:
    upward = [
        f"{name} → {other}"
        for name, path in MODULE.items()
        for other in imported(path, everywhere=True)
        if floor(other) > floor(name) and other != "leakgauge"
    ]
    assert not upward, "\n".join(sorted(upward))


def test_modules_and_folders_stay_small() -> None:
    long = {n: count for n, p in MODULE.items() if (count := len(p.read_text(encoding="utf-8").splitlines())) > LINES}
    assert not long
    full = {str(d.relative_to(SRC)): n for d in SRC.rglob("*/") if (n := len(list(d.glob("*.py")))) > MODULES}
    assert not full


@pytest.mark.parametrize("room", ["attacks", "clients", "defenses"])
def test_contracts_are_declared_and_never_looked_up_by_name(room: str) -> None:
    for path in (SRC / "leakgauge" / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                named = isinstance(node.args[1], ast.Constant)
                assert not named, f"{path.relative_to(SRC)}:{node.lineno} asks for a member by name"


def test_the_floors_name_every_room_once() -> None:
    rooms = [room for rooms in FLOORS for room in rooms]
    assert len(rooms) == len(set(rooms))
    assert all(a != b for a, b in pairwise(FLOORS))
    there = {p.stem if p.is_file() else p.name for p in (SRC / "leakgauge").iterdir() if p.suffix in (".py", "")}
    assert set(rooms) <= there, set(rooms) - there


def test_hooks_are_registered_in_few_modules() -> None:
    found = {
        name.removeprefix("leakgauge.")
        for name, path in MODULE.items()
        if re.search(r"^(?!from|import).*register_(module_)?\w+_hook\(", path.read_text(encoding="utf-8"), re.M)
    }
    assert found <= HOOKS, found - HOOKS


def test_roundings_are_derived_in_one_module() -> None:
    found = {
        name.removeprefix("leakgauge.")
        for name, path in MODULE.items()
        if re.search(r"finfo\([^)]*\)\.(eps|resolution)|Wire\.of\(|\bWire\(", path.read_text(encoding="utf-8"))
    }
    assert found - ROUNDINGS == set(NUMERICS)


def test_evidence_names_tensors_as_the_user_does() -> None:
    """What reads updates never works on names by patterns."""
    readers = [path for name, path in MODULE.items() if re.match(r"leakgauge\.(attacks|view|risk|observation)", name)]
    assert len(readers) > 60
    assert not [path.name for path in readers if re.search(r"^(import|from) re\b", path.read_text(), re.M)]


def test_records_without_a_type_stay_where_files_are_read_and_written() -> None:
    loose = {
        n.removeprefix("leakgauge.") for n, p in MODULE.items() if "dict[str, Any]" in p.read_text(encoding="utf-8")
    }
    assert loose == set(WRITES), "give the others a dataclass, or take a name off the list"


def test_a_class_name_stands_for_one_thing() -> None:
    # Adam is one method: a client's optimiser beside SGD, an attacker's minimiser beside L-BFGS.
    texts = "\n".join(path.read_text() for path in modules().values())
    names = re.findall(r"^ *class (\w+)[(:]", texts, re.MULTILINE)
    assert len(names) > 500
    assert {name for name in names if names.count(name) > 1} == {"Adam"}


def test_protocols_and_defences_are_asked_what_they_do() -> None:
    """Outside their packages nothing asks for one by type: the same in other words would be treated otherwise."""
    kinds = {
        name
        for package, base in ((clients, clients.Protocol), (defenses, defenses.Defense))
        for name, member in vars(package).items()
        if isinstance(member, type) and issubclass(member, base)
    }
    asked = []
    for path in sorted((SRC / "leakgauge").rglob("*.py")):
        if path.relative_to(SRC / "leakgauge").parts[0] in ("clients", "defenses"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                named = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
                asked += [f"{path.name}:{node.lineno} {name}" for name in sorted(named & kinds)]
    assert {"SecureAggregation", "LocalTraining", "Clip", "DPSGD"} <= kinds
    assert not asked
