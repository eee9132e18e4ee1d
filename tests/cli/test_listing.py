"""`leakgauge list`: every registered name, a line each in 80 columns, and one of them in full."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from leakgauge import cli
from leakgauge.cli import GROUPS, main
from leakgauge.cli.listing import KINDS, PARTS_OF_AUTO, WIDTH, clause, details, lines, registry_of


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_name_has_a_line_that_fits_and_says_what_it_is(kind: str) -> None:
    entries, shown = list(registry_of(kind)), lines(kind)
    assert entries
    for entry, line in zip(entries, shown, strict=True):
        assert line.startswith(entry.name + " ")
        assert len(line) <= WIDTH
        assert entry.summary, f"{entry.name} has no docstring"
        assert "…" not in line, f"the first clause of {entry.name} is too long for a line"


def test_a_line_ends_with_a_clause_and_leaves_no_bracket_open() -> None:
    said = "The mean (of one, or two) of all tensors, in dB; never less."
    assert clause(said, 60) == "The mean (of one, or two) of all tensors, in dB; never less"
    assert clause(said, 59) == "The mean (of one, or two) of all tensors, in dB"
    assert clause(said, 45) == "The mean (of one, or two) of all tensors"
    assert clause("One long clause that nothing ends anywhere", 30) == "One long clause that nothing …"


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_one_in_full_names_every_parameter_and_what_it_needs(kind: str) -> None:
    for entry in registry_of(kind):
        shown = details(kind, entry.name)
        assert all(len(line) <= WIDTH for line in shown), entry.name
        for parameter in entry.parameters:
            assert any(line.startswith(f"  {parameter}") for line in shown), (entry.name, parameter)
        assert not entry.needs or entry.needs.split()[0] in " ".join(shown)


def test_a_defence_names_its_counter_or_that_none_is_known() -> None:
    assert "countered by" in " ".join(details("defenses", "precode"))
    assert "no counter is known" in " ".join(details("defenses", "instahide"))


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("attacks", "dgl"), "did you mean 'dlg'?"),
        (("atacks",), "did you mean 'attacks'?"),
        ((), "rules, servers, taps, training-losses"),
        (("rules", "trap-weigths"), "did you mean 'trap-weights'?"),
        (("rules", "batchnorm-statistics"), "`leakgauge lint PLAN` explains what it finds itself"),
    ],
)
def test_a_name_that_is_none_is_told_the_nearest(words: tuple[str, ...], hint: str) -> None:
    result = CliRunner().invoke(main, ["list", *words])
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(hint)
    assert len(result.stderr) < 230


def test_the_list_of_rules_says_where_those_of_the_lint_are() -> None:
    said = " ".join(CliRunner().invoke(main, ["list", "rules"]).output.split())
    assert "`leakgauge lint PLAN` explains what it finds itself" in said


def test_what_auto_is_made_of_is_shown_when_asked_for() -> None:
    short, whole = (CliRunner().invoke(main, ["list", "attacks", *more]).output for more in ((), ("--all",)))
    names = {line.split()[0] for line in whole.splitlines() if line}
    assert names >= PARTS_OF_AUTO
    assert not PARTS_OF_AUTO & {line.split()[0] for line in short.splitlines() if line}
    assert "leakgauge list attacks --all" in short
    assert len(short.splitlines()) < len(whole.splitlines())


def test_a_defence_says_whom_its_epsilon_is_for() -> None:
    assert [line.split()[0] for line in lines("defenses") if line.split()[1] == "ε"] == [
        "client-dp",
        "dp-sgd",
        "fed-cdp",
    ]
    said = CliRunner().invoke(main, ["list", "defenses"]).output
    assert "(client-dp for one client; dp-sgd, fed-cdp for one example)" in " ".join(said.split())
    assert all(len(line) <= WIDTH for line in said.splitlines())


def _commands(module: str) -> list[click.Command]:
    """Those of a module of the command line that are no part of another."""
    values = list(vars(importlib.import_module(f"leakgauge.cli.{module}")).values())
    commands = [value for value in values if isinstance(value, click.Command)]
    inside = [one for group in commands if isinstance(group, click.Group) for one in group.commands.values()]
    return [command for command in commands if command not in inside]


def test_every_command_is_in_one_group_and_no_line_is_too_wide() -> None:
    assert isinstance(main, click.Group)
    context = click.Context(main)
    found = [main.get_command(context, name) for names in GROUPS.values() for name in names]
    made = [value for path in Path(cli.__file__).parent.glob("[!_]*.py") for value in _commands(path.stem)]
    assert {id(command) for command in found} == {id(command) for command in made}
    said = CliRunner().invoke(main, ["--help"]).output
    assert all(len(line) <= WIDTH for line in said.splitlines())
    assert all(words in said for commands in GROUPS.values() for words in commands.values()), "each on one line"
    assert [title for title in GROUPS if f"{title}:" in said] == list(GROUPS)
