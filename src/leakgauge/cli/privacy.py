"""Everything behind `leakgauge privacy`."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from leakgauge.errors import InputError, require
from leakgauge.files import write_whole
from leakgauge.privacy.accounting import Release, check_accountant, check_delta, epsilon_exchanged, multiplier_for
from leakgauge.privacy.guarantee import Unit
from leakgauge.privacy.ledger import Ledger, entering
from leakgauge.privacy.one_update import in_words
from leakgauge.privacy.rero import sentence, success_bound

NOT_COVERED = (
    "samples drawn otherwise than one by one with the same rate: where batches are shuffled or fixed, count at rate 1 "
    "and one step an epoch",
    "what leaves beside the noisy updates: example counts, losses, BatchNorm statistics, label counts",
    "choosing hyper-parameters on the same data, and releases that are not entered here",
    "several examples of one person, where the unit is an example",
)


RATES = (
    "give 1 where each example is in one step of every epoch, shuffled or not (and --steps the epochs); batch size / "
    "examples only where every step draws its batch by chance (Poisson)"
)


def privacy_command(
    *,
    noise_multiplier: float | None,
    sample_rate: float | None,
    rounds: int,
    steps: int,
    delta: float,
    units: int | None = None,
    accountant: str | None = None,
    unit: str | None = None,
    prior: float = 1e-3,
    target_epsilon: float | None = None,
    ledger: Path | None = None,
    json_file: Path | None = None,
    console: Console | None = None,
) -> None:
    """Prints ε, δ and what they mean; enters the training into the ledger, where one is given.

    A ledger is written after all else: what cannot be counted or written is not entered. With neither multiplier nor
    target it is only read.

    Raises:
        InputError: input that cannot be used; the command line turns it into exit code 2.
    """
    for option, file in (("--json", json_file), ("--ledger", ledger)):
        if file is not None and not file.absolute().parent.is_dir():
            raise InputError(option, f"no folder '{file.parent}'", "make it first")
    enters = noise_multiplier is not None or target_epsilon is not None
    with ExitStack() as held:
        # From reading the ledger to writing it nobody else writes.
        write = held.enter_context(entering(ledger)) if ledger is not None and enters else None
        book = _book(ledger, accountant, unit)
        if units is not None:
            check_delta(delta, units, f"{book.unit.value}s")
        if noise_multiplier is not None and target_epsilon is not None:
            raise InputError("--target-epsilon", "is given beside --noise-multiplier", "give one of them")
        entered = None
        if enters:
            if sample_rate is None:
                raise InputError("--sample-rate", "is missing", RATES)
            entered = _release(noise_multiplier, target_epsilon, sample_rate, rounds * steps, delta, book.accountant)
            book = book.spend(
                noise_multiplier=entered.noise_multiplier, sample_rate=entered.sample_rate, steps=entered.steps
            )
        if ledger is not None and not ledger.exists() and entered is None:
            raise InputError("--ledger", f"no file '{ledger}'", "give one that is there, or an entry for a new one")
        if not book.releases:
            missing = "give it, or --target-epsilon, or a --ledger with entries"
            raise InputError("--noise-multiplier", "is missing", missing)
        result = _result(book, entered, delta, prior)
        if json_file is not None:
            write_whole(json_file, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        console = console or Console()
        if ledger is not None and write is not None:  # before anything is said: a closed pipe must not lose an entry
            kept = "added to what it held" if ledger.exists() else "a new ledger"
            write(book)
            console.print(Text(f"entered into {ledger}: {kept}"))
        _show(console, result)


def _book(path: Path | None, accountant: str | None, unit: str | None) -> Ledger:
    if accountant is not None:
        check_accountant(accountant)
    if path is None or not path.exists():
        return Ledger(accountant=accountant or "prv", unit=Unit(unit or "example"))
    book = Ledger.load(path)
    for option, asked, has in (("--accountant", accountant, book.accountant), ("--unit", unit, book.unit.value)):
        require(asked in (None, has), option, f"is {asked}, the ledger's is {has}", "leave it out, or use a new ledger")
    return book


def _release(z: float | None, target: float | None, rate: float, steps: int, delta: float, accountant: str) -> Release:
    if z is None:
        assert target is not None
        z = multiplier_for(target, sample_rate=rate, steps=steps, delta=delta, accountant=accountant)
    return Release(noise_multiplier=z, sample_rate=rate, steps=steps)


def _result(book: Ledger, entered: Release | None, delta: float, prior: float) -> dict[str, Any]:
    epsilon = book.epsilon(delta)
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else None,  # JSON has no infinity
        "delta": delta,
        "accountant": book.accountant,
        "unit": book.unit.value,
        "exchanged": epsilon_exchanged(book.releases, delta, book.accountant),
        "steps": book.steps,
        "noise_multiplier": None if entered is None else entered.noise_multiplier,
        "reconstruction": {
            "prior": prior,
            "at_most": success_bound(book.releases, prior),
            "sentence": sentence(book.releases, prior),
        },
        "not_covered": list(NOT_COVERED),
    }


def _show(console: Console, result: dict[str, Any]) -> None:
    z = result["noise_multiplier"]
    over = f"over {result['steps']} steps, by {result['accountant']}"
    epsilon = math.inf if result["epsilon"] is None else result["epsilon"]
    console.print(Text(f"ε = {in_words(epsilon)} at δ = {result['delta']:g} {over}", style="bold"))
    other = "" if result["exchanged"] is None else f"; replace one: ε = {in_words(result['exchanged'])}"
    console.print(Text(f"adjacency: add or remove one {result['unit']}{other}"))
    if z is not None:
        console.print(Text(f"noise multiplier: {z:.4g}"))
    console.print(Text(f"reconstruction: {result['reconstruction']['sentence']}"))
    console.print(Text("not covered:"))
    for line in result["not_covered"]:
        console.print(Text(f"  {line}"))
