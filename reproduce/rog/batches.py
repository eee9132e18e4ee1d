"""ROG on whole batches (Figures 12 to 15), against PRECODE's draws, and with finer quantisers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.attacks.matching import LBFGS, Matching, Normal, Pixels, SquaredL2
from leakgauge.attacks.recipes import inverting_gradients, rog
from reproduce.item import Inputs
from reproduce.rog.ablations import SMALL
from reproduce.rog.runs import SEEDS, Named, Sheet
from reproduce.rog.settings import PRECODE, PUBLISHED, QSGD, REDUCED
from reproduce.rows import Row

BATCH = replace(SMALL, examples=16)


def with_ends(rows: list[Row], count: int = 1) -> Iterator[Row]:
    """Rows, and of each the mean of the `count` pictures with the least and the greatest values over its seeds."""
    yield from rows
    for row in rows:
        values = sorted(statistics.fmean(by_seed) for by_seed in row.per_image)
        some = "" if count == 1 else f" {count}"
        for end, part in (("least", values[:count]), ("greatest", values[-count:])):
            name = f"{row.metric}, {end}{some}"
            yield replace(row, metric=name, per_image=[[value] for value in part], seeds=row.seeds[:1])


def _seeds(inputs: Inputs) -> tuple[int, ...]:
    return SEEDS[:1] if inputs.quick else SEEDS


def figure12(inputs: Inputs) -> Iterator[Row]:
    """Sixteen pictures under QSGD with seven values."""
    sheet, client = Sheet("figure12", inputs), replace(BATCH, defense=QSGD)
    yield from sheet.controls(client)
    yield from with_ends(list(sheet.rows(client, Naive(attack=rog()), seeds=_seeds(inputs))))


def figure13(inputs: Inputs) -> Iterator[Row]:
    """The best and the worst picture by batch size."""
    sheet = Sheet("figure13", inputs)
    for examples in (16, 32) if inputs.quick else (16, 32, 64, 128):
        client = replace(SMALL, examples=examples)
        yield from sheet.controls(client)
        yield from with_ends(list(sheet.rows(client, seeds=_seeds(inputs))))


def figure14(inputs: Inputs) -> Iterator[Row]:
    """The best and worst sixteen of a batch of 128 (quick: of 32)."""
    sheet, client = Sheet("figure14", inputs), replace(SMALL, examples=32 if inputs.quick else 128)
    yield from sheet.controls(client)
    yield from with_ends(list(sheet.rows(client)), 16)


def figure15(inputs: Inputs) -> Iterator[Row]:
    """Rivals with the post-processor on sixteen pictures."""
    sheet, quick = Sheet("figure15", inputs), inputs.quick
    yield from sheet.controls(BATCH)
    seeds = _seeds(inputs)
    yield from sheet.rows(BATCH, seeds=seeds)
    steps, iterations = (200, 100) if quick else (2000, 300)
    yield from sheet.rows(
        BATCH, inverting_gradients(steps=steps), name=f"Inverting Gradients, {steps} steps", seeds=seeds
    )
    rival = Matching(
        objective=SquaredL2(),
        canvas=Pixels(first=Normal(), box=False),
        minimiser=LBFGS(steps=iterations),
    )
    yield from sheet.rows(BATCH, rival, name=f"DLG, {iterations} iterations, labels given", seeds=seeds)


def precode(inputs: Inputs) -> Iterator[Row]:
    """By batch size: the attacker who takes the update for an undefended one, and the one who reads the draws."""
    sheet = Sheet("precode", inputs)
    small = [replace(SMALL, defense=PRECODE, examples=n) for n in ((1, 4) if inputs.quick else (1, 4, 16))]
    for client in small if inputs.quick else [*small, replace(PUBLISHED, defense=PRECODE)]:
        seeds = SEEDS if client in small and not inputs.quick else SEEDS[:1]
        yield from sheet.controls(client)
        bare = replace(client, defense=Named())
        yield from sheet.rows(bare, seeds=seeds)
        yield from sheet.rows(client, Naive(attack=rog()), seeds=seeds)
        yield from sheet.rows(client, Adapted(attack=rog()), name="ROG, adapted", seeds=seeds)


FINER = (
    Named("uniform, 15 values", {"quantise": {"levels": 7}}),
    Named("QSGD, 15 values", {"qsgd": {"levels": 7}}),
)


def values15(inputs: Inputs) -> Iterator[Row]:
    """Seven levels on either side of zero."""
    sheet = Sheet("values15", inputs)
    for client in (REDUCED,) if inputs.quick else (REDUCED, PUBLISHED):
        for defense in FINER:
            yield from sheet.rows(replace(client, defense=defense), Naive(attack=rog()))
