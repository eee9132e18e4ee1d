"""ROG on several clients of a smaller size, defence by defence: a client is the unit of the claims on differences."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.attacks.matching import Matching
from leakgauge.attacks.recipes import rog
from leakgauge.observation import Attack
from reproduce.item import Inputs
from reproduce.rog.batches import FINER
from reproduce.rog.polish import EqualiseHistogram, MaxNormalise
from reproduce.rog.runs import Client, Named, Sheet, scores
from reproduce.rog.settings import COMPRESSED, NOISY, PRECODE, REDUCED, SIGNS, SOTERIA
from reproduce.rog.signs import SignTanh
from reproduce.rows import Row

CLIENTS = 5


def attack(defense: Named) -> Matching:
    """ROG as it answers a defence: signs through the tanh, all others by squared distance."""
    return rog(objective=SignTanh(), polish=(MaxNormalise(),)) if defense == SIGNS else rog()


def clients(inputs: Inputs) -> Iterator[Row]:
    """Five clients of successive photos (quick: two), one weight seed; the pictures of one client stand together."""
    sheet, bare = Sheet("clients", inputs), Named()
    yield from _rows(sheet, bare, "ROG", rog())
    for name in ("grey picture", "another picture"):
        setting = f"{REDUCED.name}, {CLIENTS} clients"
        yield from inputs.once(setting, name, partial(_null, sheet, setting, name))
    for defense in (*COMPRESSED, *FINER, SIGNS, SOTERIA, PRECODE, *NOISY):
        yield from _rows(sheet, defense, "ROG", Naive(attack=attack(defense)))
    yield from _rows(sheet, PRECODE, "ROG, adapted", Adapted(attack=attack(PRECODE)))
    equalised = replace(attack(SIGNS), polish=(MaxNormalise(), EqualiseHistogram()))
    yield from _rows(sheet, SIGNS, "ROG, equalised", Naive(attack=equalised))


def _of(defense: Named, inputs: Inputs) -> list[Client]:
    count = 2 if inputs.quick else CLIENTS
    return [replace(REDUCED, defense=defense, first=REDUCED.examples * k) for k in range(count)]


def _rows(sheet: Sheet, defense: Named, name: str, tried: Attack) -> Iterator[Row]:
    setting = f"{replace(REDUCED, defense=defense).name}, {CLIENTS} clients"
    yield from sheet.inputs.once(setting, name, lambda: _attacked(sheet, defense, name, tried, setting))


def _attacked(sheet: Sheet, defense: Named, name: str, tried: Attack, setting: str) -> Iterator[Row]:
    table: dict[str, list[float]] = {}
    seconds, spent, seed = [], 0, sheet.inputs.seed(0)
    for client in _of(defense, sheet.inputs):
        found, values = sheet.attacked(client, tried, seed, name)
        seconds.append(found.cost.seconds)
        spent = found.cost.gradient_evaluations
        for metric, own in values.items():
            table.setdefault(metric, []).extend(own)
    for metric, own in table.items():
        mean = statistics.fmean(seconds)
        yield sheet.row(setting, name, metric, [own], (seed,), evaluations=spent, seconds=mean)


def _null(sheet: Sheet, setting: str, name: str) -> Iterator[Row]:
    table: dict[str, list[float]] = {}
    for client in _of(Named(), sheet.inputs):
        truth = client.batch(sheet.inputs.data).inputs
        for metric, own in scores(sheet.null(client, truth)[name], truth, sheet.inputs.data).items():
            table.setdefault(metric, []).extend(own)
    for metric, own in table.items():
        yield sheet.row(setting, name, metric, [own])
