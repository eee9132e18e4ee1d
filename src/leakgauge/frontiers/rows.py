"""One point of a frontier, and how it is called."""

from __future__ import annotations

from dataclasses import dataclass

from leakgauge.defenses import NoDefense
from leakgauge.resolve import Named

UNDEFENDED = "undefended"
"""Family of the row without a defence."""


@dataclass(frozen=True)
class FrontierRow:
    """One point of the frontier.

    Attributes:
        family, strength: where the plan has it; strengths count from 0, weak to strong.
        defense: the mechanism on each client.
        client: what each client runs, without aggregation.
        batch: examples of the attacked client.
        cohort: clients whose updates are aggregated before the server sees them.
        train: whether it is trained with.
    """

    family: str
    strength: int
    defense: Named
    client: Named
    batch: int = 1
    cohort: int = 1
    train: bool = True

    @property
    def place(self) -> str:
        """For readers, e.g. ``noise[1]``."""
        return f"{self.family}[{self.strength}]"

    @property
    def field(self) -> str:
        """Where a plan has it, for errors."""
        return f"defenses.{self.place}"

    @property
    def defended(self) -> bool:
        """Whether a mechanism changes what a client sends, rather than only how many examples are in it."""
        return not isinstance(self.defense.value, NoDefense)

    @property
    def steps(self) -> int:
        """Local steps of the attacked clients together: what one candidate of an attack costs in gradients."""
        return int(self.client.value.steps(self.batch) * self.cohort)

    @property
    def training(self) -> str:
        """Rows with the same one share a training: aggregation and the attacked client's batch do not change it."""
        return f"{self.client.label} | {self.defense.label}"

    @property
    def setting(self) -> str:
        """Rows with the same one share an audit."""
        return f"{self.client.label} | {self.batch} | {self.cohort}"


def row_label(row: FrontierRow, usual: FrontierRow) -> str:
    """A row in words: what differs from the undefended one; unique in the plan."""
    parts = [row.defense.label] if row.defended else []
    if row.client.label != usual.client.label:
        parts.append(row.client.label)
    if row.batch != usual.batch:
        parts.append(f"a client of {row.batch} examples")
    if row.cohort > 1:
        parts.append(f"mean over {row.cohort} clients")
    return " + ".join(parts) or "none"
