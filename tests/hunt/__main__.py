"""``make hunt``: draws scenarios until time or number runs out, and tells new causes as scripts of ten lines."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import time
import warnings
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from random import Random

import torch

from hunt.audits import audits, worded
from hunt.flags import flagged
from hunt.reducer import reduced, script, signature, violated
from hunt.relations import LOUD, Pair, pairs
from hunt.scenarios import Scenario
from leakgauge.intervals import bounded_upper
from promises import HUNTS as KEPT

ROOT = Path(__file__).parents[2]
AGAIN = 1_000_003
"""What is added to a seed for a fresh draw. A wrong certificate needs none: one is enough."""


def origin() -> str:
    """What the draws start from: the commit, or the day where there is none. Never chosen."""
    try:
        asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return date.today().isoformat()


@dataclass
class Hunt:
    """What came of a number of scenarios.

    Attributes:
        causes: signature of a reduced failure → (its script, what was seen, how often, whether it is loud).
        curve: (CPU seconds, scenarios, loud causes, calm ones) whenever one is new.
        hit: of each scenario, whether any relation was confirmed to fail.
    """

    start: str
    held_out: bool = False
    on: frozenset[str] = frozenset()
    relations: dict[str, list[int]] = field(default_factory=dict)
    causes: dict[str, list[object]] = field(default_factory=dict)
    curve: list[tuple[float, int, int, int]] = field(default_factory=list)
    hit: list[float] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def scenario(self, index: int, *, most: int | None = None) -> None:
        """One scenario, with at most so many relations."""
        rng = Random(f"{self.start} {index}")
        drawn = list(pairs(Scenario.drawn(rng, held_out=self.held_out), rng, held_out=self.held_out))
        rng.shuffle(drawn)
        confirmed = 0
        for pair in drawn[:most]:
            if cause := flagged(pair, self.on):
                self.skipped[cause] = self.skipped.get(cause, 0) + 1
                continue
            tally = self.relations.setdefault(pair.relation, [0, 0])
            tally[0] += 1
            if violated(pair) and violated(pair.anew(pair.one.seed + AGAIN)):
                tally[1] += 1
                confirmed += 1
                self._cause(pair, index)
            confirmed += sum(self._proved(one, index) for one in (pair.one, pair.other))
        self.hit.append(float(confirmed > 0))

    def _proved(self, scenario: Scenario, index: int) -> bool:
        """Whether anything that was certified in it is none of the client's."""
        pair = Pair("certificate", scenario, scenario, same=False)
        if not violated(pair):
            return False
        self._cause(pair, index)
        return True

    def audit(self, index: int) -> None:
        """The audits of one scenario, which say the same thing however it is written."""
        rng = Random(f"{self.start} audit {index}")
        plain, other = worded(Scenario.drawn(rng, held_out=self.held_out), rng, held_out=self.held_out)
        cause = flagged(Pair("words", plain, other), self.on)
        if cause or plain.net.spec.is_text:
            self.skipped[cause] = self.skipped.get(cause, 0) + bool(cause)
            return
        for relation, seen, loud in audits(plain, other):
            tally = self.relations.setdefault(relation, [0, 0])
            tally[0] += 1
            if seen:
                tally[1] += 1
                self._note(f"{relation}: {seen[:60]}", f"one = {plain}\nother = {other}", seen, index, loud=loud)

    def _cause(self, pair: Pair, index: int) -> None:
        small = reduced(pair)
        loud = pair.relation in LOUD
        self._note(signature(small), script(small), violated(small), index, loud=loud)

    def _note(self, name: str, how: str, seen: str, index: int, *, loud: bool) -> None:
        if name in self.causes:
            self.causes[name][2] = int(str(self.causes[name][2])) + 1
            return
        self.causes[name] = [how, seen, 1, loud]
        alarms = sum(bool(cause[3]) for cause in self.causes.values())
        self.curve.append((round(time.process_time(), 1), index + 1, alarms, len(self.causes) - alarms))
        print(f"{'LOUD ' * loud}{name}\n  {seen}\n", flush=True)  # noqa: T201 - the result

    def told(self) -> str:
        """The whole in lines."""
        upper = 100 * bounded_upper(self.hit) if len(self.hit) > 1 else float("nan")
        checked, failed = (sum(t[i] for t in self.relations.values()) for i in (0, 1))
        lines = [f"start {self.start}{', words that nobody looked at' * self.held_out}"]
        lines += [f"{name:12s} {n:5d} checked {bad:4d} confirmed" for name, (n, bad) in sorted(self.relations.items())]
        lines.append(f"{len(self.hit)} scenarios, {checked} relations, {failed} confirmed, {len(self.causes)} causes")
        lines.append(f"scenarios with a violation: {int(sum(self.hit))}, upper 95 % bound {upper:.1f} in a hundred")
        lines += [f"switched off: {name} ({count})" for name, count in self.skipped.items() if count]
        lines += [f"{t:8.0f} CPU s  {n:4d} scenarios  {a:2d} loud, {b:3d} calm causes" for t, n, a, b in self.curve]
        return "\n".join([*lines, f"{time.process_time():.0f} CPU s in all"])

    def row(self, words: str) -> dict[str, object]:
        """For the page of promises, beside those of other hunts in ``kept.json``."""
        commit, count = origin()[:8], len(self.hit)
        row = {"words": words, "commit": commit, "scenarios": count, "violated": int(sum(self.hit))}
        wrong = sum(bool(cause[3]) and "certificate" in name for name, cause in self.causes.items())
        alarms = sum(bool(cause[3]) for cause in self.causes.values())
        upper = round(100 * bounded_upper(self.hit), 1)
        return row | {"upper": upper, "wrong": wrong, "contradictions": alarms - wrong, "curve": self.curve}

    def write(self, folder: Path) -> None:
        """Scripts, one a cause, and the numbers."""
        folder.mkdir(exist_ok=True)
        for number, (name, (how, seen, count, loud)) in enumerate(self.causes.items(), 1):
            words = f'"""{name}\n\n{seen}\nSeen {count} times{", loud" * bool(loud)}.\n"""\n{how}\n'
            (folder / f"{number:02d}.py").write_text(words, encoding="utf-8")
        kept = {"start": self.start, "relations": self.relations, "curve": self.curve, "scenarios": len(self.hit)}
        (folder / "hunt.json").write_text(json.dumps(kept | {"causes": list(self.causes)}, indent=1), encoding="utf-8")
        (folder / "hunt.txt").write_text(self.told() + "\n", encoding="utf-8")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--scenarios", type=int, default=300)
    asked.add_argument("--audits", type=int, default=40)
    asked.add_argument("--first", type=int, default=0, help="where a hunt of the same commit goes on")
    asked.add_argument("--cpu-minutes", type=float, default=60.0)
    asked.add_argument("--held-out", action="store_true", help="with the words that nobody looks at")
    asked.add_argument("--on", nargs="*", default=[], help="known causes that are tried all the same")
    asked.add_argument("--keep", metavar="WORDS", help="adds the result to the page of promises, as of those words")
    asked.add_argument("--out", type=Path, default=ROOT / ".hunt")
    given = asked.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = origin()
    part = hashlib.sha256(f"{start} {given.held_out}".encode()).hexdigest()[:16]
    hunt = Hunt(part, given.held_out, frozenset(given.on))
    for index in range(given.first, max(given.scenarios, given.audits)):
        if time.process_time() > 60 * given.cpu_minutes:
            break
        if index < given.scenarios:
            hunt.scenario(index)
        if index < given.audits:
            hunt.audit(index)
        hunt.write(given.out)
    print(hunt.told())  # noqa: T201 - the result
    if given.keep:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        kept["hunts"].append(hunt.row(given.keep))
        KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
