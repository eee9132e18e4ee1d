"""Captured rounds that a plan audits together, and which of them are of one client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path

from leakgauge.errors import require
from leakgauge.update import EXAMPLES, UPDATE, WEIGHTS, Update, round_folder


@dataclass(frozen=True)
class CapturedRound:
    """One captured round.

    Attributes:
        update: its file.
        weights: file of what the client received; `None` where the plan's model says it.
    """

    update: Path
    weights: Path | None = None

    @property
    def name(self) -> str:
        """Of its folder."""
        return self.update.parent.name

    @property
    def node(self) -> str:
        """Whose it is, as the capture recorded; empty where it is not known.

        Raises:
            InputError: the update cannot be read.
        """
        return Update.load(self.update).header.protocol.get("node", "")

    @property
    def examples(self) -> Path | None:
        """The folder with the round's examples: its own, or that of another side of the same round and node.

        Raises:
            InputError: the update cannot be read.
        """
        folder, known = self.update.parent, Update.load(self.update).header.protocol
        same = folder.with_name(round_folder(known.get("round", ""), known.get("node", "")))
        sides = sorted(folder.parent.glob(f"{escape(same.name)}-*")) if known else []
        return next((place for place in (folder, same, *sides) if (place / EXAMPLES).is_file()), None)


def rounds_of(update: str | Sequence[str] | None) -> tuple[CapturedRound, ...]:
    """A plan's ``update``: a file, the folder of a round, or a list of such folders.

    Raises:
        InputError: an entry of a list is no such folder, or is there twice.
    """
    if update is None:
        return ()
    if isinstance(update, str) and not Path(update).is_dir():
        return (CapturedRound(Path(update)),)
    single, folders = isinstance(update, str), [update] if isinstance(update, str) else list(update)
    for i, text in enumerate(folders):
        whole = all((Path(text) / file).is_file() for file in (UPDATE, WEIGHTS))
        key = "update" if single else f"update[{i}]"
        require(whole, key, f"'{text}' holds no {UPDATE} and {WEIGHTS}", "name folders of captured rounds")
    once = len(set(folders)) == len(folders) > 0
    require(once, "update", "names no round, or one of them twice", "give each folder once")
    return tuple(CapturedRound(Path(text) / UPDATE, Path(text) / WEIGHTS) for text in folders)


def clients_of(nodes: Sequence[str], holders: Sequence[int]) -> list[int]:
    """For each round the first of the same client: of one node, or on the same examples. Rounds of unknown nodes may be
    of one client, and count as one: more would be taken for independent.

    Args:
        nodes: of each round; empty where not known.
        holders: for each round the first with the same examples.
    """
    found = list(range(len(nodes)))
    for i in range(len(nodes)):
        for j in range(i):
            if nodes[i] == nodes[j] or holders[i] == holders[j] or not (nodes[i] and nodes[j]):
                one, other = sorted((found[i], found[j]))
                found = [one if client == other else client for client in found]
    return found
