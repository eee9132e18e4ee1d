"""What several commands take, and how a result is written."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml
from rich.console import Console
from rich.text import Text

from leakgauge.errors import InputError, require
from leakgauge.files import json_text, write_whole

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)


class AsInPlan(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """A name, or what is written as in a plan: ``{name: {parameter: value}}``."""

    name = "spec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return yaml.safe_load(value) if str(value).lstrip().startswith(("{", "[")) else value
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            hint = "write a name, or '{name: {parameter: value}}'"
            raise InputError(_field(param), f"cannot read '{value}'", hint) from error


class SourceInPlan(AsInPlan):
    """A source as under ``data`` in a plan: its name, or a mapping with one. Gives a mapping."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        data = super().convert(value, param, ctx)
        fits = isinstance(data, str) or (isinstance(data, dict) and "source" in data)
        hint = "give a source, or a mapping with one: '{source: folder:PATH, size: 64}'"
        require(fits, _field(param), f"is {data!r}", hint)
        return {"source": data} if isinstance(data, str) else data


class NewFile(click.Path):
    """A file that can be written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(value)
        require(path.absolute().parent.is_dir(), _field(param), f"no folder '{path.parent}'", "make it first")
        require(not path.is_dir(), _field(param), f"'{path}' is a folder", "name a file")
        return path


def _field(param: click.Parameter | None) -> str:
    if param is None:
        return "option"
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


SPEC, SOURCE, NEW_FILE = AsInPlan(), SourceInPlan(), NewFile(path_type=Path)


def to_json(words: str) -> Callable[[F], F]:
    return click.option("--json", "json_file", type=NEW_FILE, help=f"Also write {words} to FILE.")


def with_workers(words: str) -> Callable[[F], F]:
    kind, default = click.IntRange(min=1), os.cpu_count() or 1
    return click.option("--workers", type=kind, default=default, show_default="all cores", help=words)


def into(folder: str) -> Callable[[F], F]:
    """The option ``-o`` of a run that can be killed and run again."""
    words = "Folder of results; run again to go on."
    return click.option("-o", "--output", type=PATH, default=Path(folder), show_default=True, help=words)


def show(headline: str, *lines: str) -> None:
    Console().print(Text(headline, style="bold"), *map(Text, lines), sep="\n")


def write_json(file: Path | None, record: object) -> None:
    if file is not None:
        write_whole(file, json_text(record))
