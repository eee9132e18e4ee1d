"""What a training has spent so far, on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.privacy.accounting import Release, check_accountant, epsilon_of
from leakgauge.privacy.guarantee import Unit

FORMAT = "leakgauge privacy ledger 1"


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

    def save(self, path: Path) -> Path:
        """Writes JSON at once: a kill leaves the old file or the new one. Two writers at a time would lose one."""
        content = {
            "format": FORMAT,
            "accountant": self.accountant,
            "unit": self.unit.value,
            "releases": [asdict(release) for release in self.releases],
        }
        return write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    @staticmethod
    def load(path: Path) -> Ledger:
        """Reads what `save` wrote.

        Raises:
            InputError: no such file, or another content. A ledger that cannot be read is no empty one.
        """
        field, mend = (
            f"ledger {path}",
            "give a file that Ledger.save wrote; spent budget is not forgotten by deleting it",
        )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError(field, f"cannot be read ({error})", mend) from error
        require(isinstance(content, dict) and content.get("format") == FORMAT, field, "is not a ledger", mend)
        try:
            releases = tuple(
                Release(
                    noise_multiplier=float(r["noise_multiplier"]), sample_rate=float(r["sample_rate"]), steps=r["steps"]
                )
                for r in content["releases"]
            )
            return Ledger(accountant=content["accountant"], unit=Unit(content["unit"]), releases=releases)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(field, f"is damaged ({error})", mend) from error
