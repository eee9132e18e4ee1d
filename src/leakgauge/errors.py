"""The one error that user input may raise: it names the field and the hint."""

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from importlib.metadata import distributions
from typing import Any

LONGEST = 4000  # characters of an error that are kept


def printable(text: str) -> str:
    """`text` on one line, safe to print: control characters, line breaks, marks that turn the direction of writing and
    halves of characters appear as escapes. For names that somebody else chose."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class InputError(ValueError):
    """Input that cannot be used: at fault is a `field`, a plan key, file or argument, e.g. ``defenses[1].noise.sigma``;
    `hint` says what to write instead."""

    def __init__(self, field: str, problem: str, hint: str) -> None:
        self.field, self.problem, self.hint = field, problem, hint
        text = printable(f"{field}: {problem}; {hint}")
        super().__init__(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")

    def __reduce__(self) -> "tuple[type[InputError], tuple[str, str, str]]":
        return InputError, (self.field, self.problem, self.hint)


FOREIGN = (Exception, SystemExit)  # what code of a user's own may raise: it becomes a line or a row with the reason


def few(names: Sequence[str], most: int) -> str:
    """The first of some names, and how many there are more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def count_of(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def said(error: BaseException) -> str:
    """An error of somebody's code in one line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def refusing(field: str, problem: str, hint: str, *kinds: type[BaseException]) -> Iterator[None]:
    """What the block raises of these kinds (by default `FOREIGN`) becomes an `InputError` that says why behind the
    problem. An `InputError` stays as it is."""
    foreign = kinds or FOREIGN
    try:
        yield
    except InputError:
        raise
    except foreign as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else said(error)
        raise InputError(field, f"{problem} ({why})", hint) from error


@contextmanager
def blamed_on(field: str) -> Iterator[None]:
    """An `InputError` that the block raises names this field."""
    try:
        yield
    except InputError as error:
        raise InputError(field, error.problem, error.hint) from error


@contextmanager
def within(prefix: str, *known: str) -> Iterator[None]:
    """An `InputError` that the block raises is seen from one level further out, e.g. ``clip.norm`` in ``defenses[0]``;
    but for fields that begin with one of the `known`."""
    try:
        yield
    except InputError as error:
        if known and error.field.startswith(known):
            raise
        raise InputError(f"{prefix}.{error.field}", error.problem, error.hint) from error


def extra(name: str) -> str:
    """How this extra of leakgauge is installed: in a clone as README says, where it was installed from one."""
    cloned = any("dir_info" in (one.read_text("direct_url.json") or "") for one in distributions(name="leakgauge"))
    way = f'-c constraints.txt -e ".[{name}]" in the clone' if cloned else f"'leakgauge[{name}]'"
    return f"pip install {way}"


def installed(name: str, field: str, problem: str, of: str) -> Any:
    """A module that comes with an extra of leakgauge. Raises `InputError` where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(field, problem, extra(of)) from error


def require(condition: bool, field: str, problem: str, hint: str) -> None:
    """Raises `InputError` unless `condition` holds."""
    if not condition:
        raise InputError(field, problem, hint)


def limit(holds: Callable[[Any], bool], hint: str) -> dict[str, tuple[Callable[[Any], bool], str]]:
    """Metadata of a field of a `Checked` dataclass: what it may hold, beside `None` where its type says so."""
    return {"limit": (holds, hint)}


def limited(default: Any, holds: Callable[[Any], bool], hint: str) -> Any:
    """A field with a default and a `limit`."""
    return field(default=default, metadata=limit(holds, hint))


def positive(default: Any, what: str = "number") -> Any:
    return limited(default, lambda value: value > 0, f"give a positive {what}")


def not_negative(default: Any) -> Any:
    return limited(default, lambda value: value >= 0, "give a number ≥ 0")


class Checked:
    """A dataclass that raises `InputError` where a field holds what it may not, see `limit`."""

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            optional = value is None and "None" in str(one.type)
            if "limit" in one.metadata and not optional:
                holds, hint = one.metadata["limit"]
                require(holds(value), one.name, f"is {value!s:.500}", hint)  # a long value would cut the hint off


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, or all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
