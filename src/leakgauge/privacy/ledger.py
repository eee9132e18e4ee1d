"""What a training has spent so far, on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from leakgauge.errors import InputError, refusing, require
from leakgauge.files import Lock, read_json, write_whole
from leakgauge.privacy.accounting import Release, check_accountant, epsilon_of
from leakgauge.privacy.guarantee import Unit

FORMAT = "leakgauge privacy ledger 1"
PATIENCE = 60.0
"""Seconds to wait for another writer of the same ledger."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Releases about one unit's data, in their order. ε is that of all of them together.

    A ledger is never changed: `spend` gives the next one. It counts what is entered, so it belongs beside the data: one
    for every data set (or client), not one for every model trained on it.

    Attributes:
        accountant: rdp or prv.
        unit: example or client; the two do not add up.
        releases: equal ones in a row are one entry.
    """

    accountant: str = "rdp"
    unit: Unit = Unit.EXAMPLE
    releases: tuple[Release, ...] = ()

    def __post_init__(self) -> None:
        check_accountant(self.accountant)

    def spend(self, *, noise_multiplier: float, sample_rate: float, steps: int = 1) -> Ledger:
        """With `steps` more releases. Raises `InputError` for numbers out of range."""
        new = Release(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=steps)
        before = self.releases
        if before and replace(before[-1], steps=1) == replace(new, steps=1):
            return replace(self, releases=(*before[:-1], replace(new, steps=before[-1].steps + steps)))
        return replace(self, releases=(*before, new))

    @property
    def steps(self) -> int:
        """Releases so far."""
        return sum(release.steps for release in self.releases)

    def epsilon(self, delta: float) -> float:
        """ε at δ of everything spent so far; 0 before the first release."""
        return epsilon_of(self.releases, delta, self.accountant)

    @staticmethod
    def enter(path: Path, release: Release, *, accountant: str = "rdp", unit: Unit = Unit.EXAMPLE) -> Ledger:
        """Adds a release to the ledger at `path`, begun there if there is none. Several processes may enter at a time.

        Args:
            accountant, unit: of a new ledger; one that is there keeps its own.

        Raises:
            InputError: the file cannot be read or written.
        """
        with entering(path) as write:
            book = Ledger.load(path) if path.exists() else Ledger(accountant=accountant, unit=unit)
            book = book.spend(**asdict(release))
            write(book)
            return book

    @staticmethod
    def load(path: Path) -> Ledger:
        """Reads what `enter` wrote.

        Raises:
            InputError: no such file, or another content. A ledger that cannot be read is no empty one.
        """
        field = f"ledger {path}"
        hint = "give a file that Ledger.enter wrote; spent budget is not forgotten by deleting it"
        with refusing(field, "cannot be read", hint, OSError, ValueError):
            content = read_json(path)
        require(isinstance(content, dict) and content.get("format") == FORMAT, field, "is not a ledger", hint)
        try:
            releases = tuple(
                Release(
                    noise_multiplier=float(r["noise_multiplier"]), sample_rate=float(r["sample_rate"]), steps=r["steps"]
                )
                for r in content["releases"]
            )
            return Ledger(accountant=content["accountant"], unit=Unit(content["unit"]), releases=releases)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(field, f"is damaged ({error})", hint) from error


@contextmanager
def entering(path: Path) -> Iterator[Callable[[Ledger], Path]]:
    """The only writer of a ledger, from reading it to writing it: call what is given to write.

    Raises:
        InputError: its folder cannot be written.
    """

    def write(book: Ledger) -> Path:
        content = {
            "format": FORMAT,
            "accountant": book.accountant,
            "unit": book.unit.value,
            "releases": [asdict(release) for release in book.releases],
        }
        return write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    lock, hint = Lock(path.with_name(f".{path.name[:150]}.lock")), "give a file in a folder that you may write to"
    with refusing(f"ledger {path}", "cannot be written", hint, OSError):
        taken = lock.take(PATIENCE)
    require(taken, f"ledger {path}", f"is in use by another process for {PATIENCE:g} s", "run again when it has ended")
    try:
        yield write
    finally:
        lock.release()
