"""What the pages tell a reader to type and to follow is there: links, anchors, commands, options, scripts, targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from docs.pages import ROOT, blocks
from docs.test_pages import FENCED, PAGES
from leakgauge.cli import main

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?!https?:|mailto:)([^)\s#]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#{1,3} (.+)$", re.M)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def test_anchors_lead_to_headings() -> None:
    from docs import generated

    made = {
        f"docs/reference/{name}.md": text for name, text in (("plan", generated.plan()), ("parts", generated.parts()))
    }
    seen = 0
    for page in PAGES:
        for path, anchor in LINK.findall(FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))):
            target = (ROOT / page).parent / path if path else ROOT / page
            name = target.resolve().relative_to(ROOT).as_posix()
            text = FENCED.sub("", target.read_text(encoding="utf-8")) + made.get(name, "")
            assert anchor in {slug(heading) for heading in HEADING.findall(text)}, f"{page}: {path}#{anchor}"
            seen += 1
    assert seen >= 15


def lines() -> Iterator[tuple[str, str]]:
    """Page and command, of every shell block; continued lines are one."""
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.text.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|(?<!\|)\|(?!\|)", re.sub(r"(^|\s)#.*$", "", line)):
                    if part.strip():
                        yield str(block), part.strip()


def leakgauge() -> list[tuple[str, str]]:
    """Only those of our own program, `srun … leakgauge …` too."""
    found = [(where, re.sub(r"^.*?(?=\bleakgauge )", "", line)) for where, line in lines()]
    return [(where, line) for where, line in found if line.startswith("leakgauge ")]


def problem(line: str) -> str:
    """What the program would not understand of a command; empty if nothing."""
    words = shlex.split(re.sub(r"\s>.*$", "", line))[1:]
    command: click.Command = main
    while isinstance(command, click.Group) and words:
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            break
        command, words = found, words[1:]
    if command is main:
        return "no such command"
    context = click.Context(command, info_name="leakgauge")
    try:
        command.make_parser(context).parse_args([word for word in words if word != "…"])
    except click.UsageError as error:
        return error.format_message()
    return ""


def test_commands_and_their_options_exist() -> None:
    typed = leakgauge()
    assert len(typed) > 40
    assert [(where, line, said) for where, line in typed if (said := problem(line))] == []


@pytest.mark.parametrize(
    "line", ["leakgauge gate results --jsn x", "leakgauge audt", "leakgauge privacy test --norm 1"]
)
def test_a_mistake_in_a_page_would_be_found(line: str) -> None:
    assert problem(line)


def test_scripts_modules_and_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    seen = 0
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"(?:^|`)make ([\w-]+)", text, re.M):
            assert target in targets, f"{page}: make {target}"
        for path in re.findall(r"`?((?:docs|benchmarks|examples|tests)/[\w/.-]+\.(?:py|yaml|jsonl|csv))\b", text):
            assert (ROOT / path).exists(), f"{page}: {path}"
            seen += 1
        for module in re.findall(r"python -m (reproduce[\w.]*)", text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), f"{page}: {module}"
            seen += 1
    assert seen > 20


def test_names_of_modules_in_the_pages_can_be_imported() -> None:
    from leakgauge.registry import own_module

    named = {
        name for page in PAGES for name in re.findall(r"`(leakgauge(?:\.\w+)+)`", (ROOT / page).read_text("utf-8"))
    }
    assert len(named) > 10
    for name in sorted(named):
        module, _, attribute = name.rpartition(".")
        try:
            own_module(name)
        except ModuleNotFoundError:
            assert hasattr(own_module(module), attribute), name
