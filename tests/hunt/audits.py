"""Whole audits: what verdict, gate, exit code, page, JSON and lint say of one scenario, and whether they agree."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from click.testing import CliRunner

import leakgauge as lg
from hunt.relations import by_hand
from hunt.scenarios import Scenario
from hunt.zoo import reworded
from leakgauge.cli import main
from leakgauge.defenses import Compose, Defense, GaussianNoise, RelativeToNorm
from leakgauge.errors import InputError
from leakgauge.study.judging.results import Level
from same.readings import READ

CALM = (Level.NOT_RECOVERED.value,)
OPEN = (Level.EXPOSED, Level.INCONCLUSIVE)
"""Levels of a row that no gate lets pass."""
WORST = 25.0
GATE = {"identified": {"max": 0.5}, "psnr": {"worst": WORST}}
OTHERS = 30
NOISE = GaussianNoise(scale=RelativeToNorm(1e4))


@dataclass(frozen=True)
class Outcome:
    """What an audit says; `exposed` has the defences of the settings that are. `refused` says why it did not run."""

    level: str = ""
    exposed: tuple[str, ...] = ()
    passed: bool | None = None
    code: int = -1
    told: tuple[str, ...] = ()
    rules: frozenset[str] = frozenset()
    flagged: bool = False
    refused: str = ""


@cache
def audited(scenario: Scenario, *beside: Defense) -> Outcome:
    """Five clients of a scenario, by `auto`, with a gate: fewer conclude nothing; and of one setting more for each
    other defence."""
    count = 5 * scenario.examples + OTHERS
    drawn, net = scenario.net.batch(count, scenario.seed), scenario.net
    parts = scenario.defense.defenses if isinstance(scenario.defense, Compose) else (scenario.defense,)
    source = lg.data.InMemory(inputs=drawn.inputs, labels=drawn.labels, high=net.spec.high)
    with TemporaryDirectory() as folder:
        try:
            found = lg.audit(
                net.build(scenario.seed),
                source,
                batch=scenario.examples,
                batches=5,
                folder=Path(folder) / "audit",
                clients=[scenario.client],
                defenses=[list(parts), *([other] for other in beside)],
                attacks=["auto"],
                budget={"gradient_evaluations": scenario.evaluations},
                gate=GATE,
                gallery=3,
            )
        except InputError as error:
            return Outcome(refused=str(error))
        return _outcome(found, Path(folder) / "audit")


def _outcome(found: lg.Audit, folder: Path) -> Outcome:
    code = CliRunner().invoke(main, ["gate", str(folder)]).exit_code
    told = []
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    page = (folder / "report.html").read_text(encoding="utf-8")
    verdict = report["verdict"]
    if verdict["level"] != found.verdict.level.value:
        told.append(f"JSON says {verdict['level']}, the verdict {found.verdict.level.value}")
    if verdict["gate"]["passed"] != found.passed:
        told.append(f"JSON's gate says {verdict['gate']['passed']}, the verdict's {found.passed}")
    if (code == 0) is not (found.passed is True):
        told.append(f"the gate passes: {found.passed}, and the exit code is {code}")
    if f'class="verdict level-{found.verdict.level.value}"' not in page:
        told.append(f"the page does not begin with '{found.verdict.level.words}'")
    rows = [f for f in found.findings if not f.control]
    if any(f.recovered or f.certified for f in rows) and found.verdict.level is not Level.EXPOSED:
        told.append(f"an example came back, and the level is {found.verdict.level.value}")
    if found.passed:
        told += [f"{f.level.value}, and the gate passes" for f in rows if f.level in OPEN]
        told += [f"{f.psnr.highest:.1f} dB, and the gate passes" for f in rows if f.psnr and f.psnr.highest > WORST]
        told += [f"the gate passes, and says: {reason.text}" for reason in found.verdict.gate.reasons]
    if "exact-read" in {f.rule for f in found.lint} and found.verdict.level is not Level.EXPOSED:
        told.append(f"the lint reads an example exactly, and the level is {found.verdict.level.value}")
    rules = frozenset(f.rule for f in found.lint if f.rule != "not-read")
    flagged = any(f.flags for f in rows)
    exposed = tuple(f.scenario.defense for f in rows if f.level is Level.EXPOSED)
    return Outcome(found.verdict.level.value, exposed, found.passed, code, tuple(told), rules, flagged)


def worded(scenario: Scenario, rng: Random, *, held_out: bool = False) -> tuple[Scenario, Scenario]:
    """A scenario in plain words and in others, its labels unknown."""
    net = replace(scenario.net, **dict.fromkeys(scenario.net.words, ""))
    plain = replace(scenario, net=net, lacks=("labels",))
    return plain, replace(plain, net=reworded(net, rng, 0.6, held_out=held_out))


def audits(plain: Scenario, other_words: Scenario) -> list[tuple[str, str, bool]]:
    """(relation, violation in words or empty, whether it is loud) of the audits of one scenario in two spellings."""
    one, other = audited(plain), audited(other_words)
    found = [("agreement", "; ".join(o.told), True) for o in (one, other)]
    if one.refused or other.refused:
        both = bool(one.refused) is bool(other.refused)
        return [*found, ("audit words", "" if both else f"only one is refused: {one.refused or other.refused}", False)]
    calm = other.level in CALM and other.level != one.level
    words = f"{other.level}, gate {other.passed} for {one.level}, gate {one.passed}"
    same = (one.level, one.passed) == (other.level, other.passed)
    found.append(("audit words", "" if same else words, calm or bool(other.passed and not one.passed)))
    found.append(("audit lint", "" if one.rules == other.rules else f"{sorted(other.rules ^ one.rules)}", False))
    hand = max(by_hand(plain).psnr) if plain.net.family == "perceptron" else 0.0
    calmed = hand > READ and (other.level in CALM or other.passed is True)
    found.append(("reassured", f"{other.level}, gate {other.passed}; by hand {hand:.1f} dB" if calmed else "", True))
    both = audited(plain, NOISE)
    if both.refused:
        return [*found, ("settings", f"one of two is refused: {both.refused}", False)]
    milder = Level(both.level).rank > Level(one.level).rank or bool(both.passed and not one.passed)
    words = f"{both.level}, gate {both.passed} with noise beside it, {one.level}, gate {one.passed} alone"
    found.append(("agreement", "; ".join(both.told), True))
    found.append(("settings", words if milder else "", True))
    drowned = [words for words in both.exposed if words not in one.exposed]
    found.append(("pure noise", f"{drowned[0]} alone is exposed" if drowned else "", True))
    return found
