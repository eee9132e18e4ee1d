"""Does the suite notice a fault? `python benchmarks/mutants.py --count 50 --seed 0 --out mutants.jsonl [--again N …]`.

Draws faults at random over the package: a comparison, an operator, a number or a truth value changed, a condition
turned round, a statement dropped. For each it runs the test files that mirror the module, then those that name it, then
the contracts, until one fails, on a copy of the package. A failure counts only if that test passes without the fault.
The file goes on where it stopped; its lines say what survived, to be killed by a sharper test or called equivalent.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[1]
SRC, TESTS = ROOT / "src" / "leakgauge", ROOT / "tests"
CONTRACTS = TESTS / "test_contracts.py"

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Fault:
    """One change of one file: bytes `start` to `end` become `text`."""

    path: str
    line: int
    start: int
    end: int
    old: str
    text: str


def faults(path: Path) -> Iterator[Fault]:
    """Every fault of a module, in the order of its text. Docstrings, annotations and imports have none."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def fault(node: ast.expr | ast.stmt, new: ast.AST | str) -> Fault:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        return Fault(str(path.relative_to(ROOT)), node.lineno, start, end, source[start:end].decode(), text)

    for node in _logic(ast.parse(source)):
        new = copy.deepcopy(node)
        if isinstance(new, ast.Compare) and type(new.ops[0]) in SWAPPED:
            new.ops[0] = SWAPPED[type(new.ops[0])]()  # type: ignore[call-overload]
            yield fault(node, new)
        elif isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in SWAPPED:
            new.op = SWAPPED[type(new.op)]()  # type: ignore[assignment]
            yield fault(node, new)
        elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not | ast.USub):
            yield fault(node, new.operand)
        elif isinstance(new, ast.Constant) and type(new.value) in (int, float, bool):
            yield fault(node, repr(not new.value if isinstance(new.value, bool) else new.value + 1))
        elif isinstance(new, ast.If | ast.IfExp):
            yield fault(node.test, ast.UnaryOp(ast.Not(), new.test))  # type: ignore[attr-defined]
        elif isinstance(new, ast.AugAssign) or (isinstance(new, ast.Expr) and isinstance(new.value, ast.Call)):
            yield fault(node, "pass")


def _logic(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Nodes below, without annotations, and without what only type checkers run."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            checked = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if not isinstance(child, ast.AST) or checked:
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _logic(child)


def mirrored(path: Path, most: int) -> list[Path]:
    """Test files of a module, the nearest first: of its name in its room, of its name, that import it, of its room."""
    inside = path.relative_to(SRC).with_suffix("")
    name, room = inside.name, TESTS / inside.parent
    module = ".".join(("leakgauge", *inside.parts)).removesuffix(".__init__")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    public = [n.name for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    if inside.parts[0] == "cli":  # whose tests call commands: those of what it calls
        public = [
            a.name for n in body if isinstance(n, ast.ImportFrom) and "leakgauge" in str(n.module) for a in n.names
        ]
    used = re.compile(rf"\b({'|'.join(map(re.escape, public)) or 'nothing at all'})\b")
    scores: list[tuple[float, Path]] = []
    for file in TESTS.rglob("test_*.py"):
        text = file.read_text(encoding="utf-8")
        hits = len(used.findall(text))
        score = (
            4.0 * (name in file.stem)
            + 3.0 * (f"{module} import" in text)
            + 2.0 * (file.parent == room)
            + (file.parent == room.parent != TESTS)
        )
        if score or hits:
            scores.append((score + min(hits, 20) / 10, file))
    return [file for _, file in sorted(scores, key=lambda s: (-s[0], s[1]))[:most]]


WARM = (
    "torch",
    "scipy.optimize",
    "scipy.stats",
    "skimage.metrics",
    "torch.func",
    "yaml",
    "matplotlib",
    "sqlalchemy.orm",
    "pydantic",
    "rich",
)
"""Imported once: each run is a fork of this process, which has not imported the package."""


def run(tests: list[str], package: Path, seconds: int) -> tuple[int, str]:
    """Exit status of pytest on them with the package at that place, and its last lines. CPU time is bounded."""
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as said:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                os.setsid()
                used = resource.getrusage(resource.RUSAGE_SELF)
                most = int(used.ru_utime + used.ru_stime) + seconds
                resource.setrlimit(resource.RLIMIT_CPU, (most, most))
                os.environ["PYTHONPATH"] = str(package)
                sys.path.insert(0, str(package))
                code = int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", "--tb=no", *tests]))
                sys.stdout.flush()
            except BaseException:  # noqa: BLE001 - of the child, which says what ended it
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read()[-3000:]


def judge(fault: Fault, folder: Path, seconds: int, most: int) -> dict[str, object]:
    """What became of a fault: killed by which test, or survived which files."""
    package = folder / "src"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(SRC.parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    file = package / Path(fault.path).relative_to("src")
    source = file.read_bytes()
    file.write_bytes(source[: fault.start] + fault.text.encode() + source[fault.end :])
    began, ran, outcomes = time.perf_counter(), [], []
    parts = Path(fault.path).parts[2:]
    contracts = [CONTRACTS] * (most > 3 and parts[0] in ("attacks", "clients", "defenses", "task.py"))
    for test in [*mirrored(ROOT / fault.path, most), *contracts]:
        name = str(test.relative_to(ROOT))
        ran.append(name)
        code, said = run([name], package, seconds)
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
        if failed and run([failed[1]], SRC.parent, 2 * seconds)[0] == 0:
            return {"state": "killed", "by": failed[1], "ran": len(ran)}
        outcomes.append(
            "passed" if code in (0, 5) else "out of time" if code < 0 or code > 128 else "broken without it"
        )
    return {
        "state": "survived",
        "ran": dict(zip(ran, outcomes, strict=True)),
        "seconds": round(time.perf_counter() - began),
    }


@click.command()
@click.option("--count", default=50, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--seconds", default=150, show_default=True, help="CPU seconds of a test file.")
@click.option(
    "--most", default=8, show_default=True, help="Test files of a fault; the contracts beside them from 4 on."
)
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--again", multiple=True, type=int, help="Run these numbers again, e.g. after a sharper test.")
def main(count: int, seed: int, seconds: int, most: int, out: Path, again: tuple[int, ...]) -> None:
    """See above."""
    every = [fault for path in sorted(SRC.rglob("*.py")) for fault in faults(path)]
    drawn = random.Random(seed).sample(every, count)
    kept = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    done = {record["number"] for record in kept} - set(again)
    os.chdir(ROOT)
    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    for name in WARM:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        for number, fault in enumerate(drawn):
            if number in done or (again and number not in again):
                continue
            record = {"number": number, **asdict(fault), **judge(fault, Path(folder), seconds, most)}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            click.echo(f"{number} {record['state']} {fault.path}:{fault.line} {fault.old[:60]!r} → {fault.text[:60]!r}")


if __name__ == "__main__":
    main()
