"""`leakgauge privacy`: the ε of clip and noise, and what it means for reconstruction."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakgauge.cli.canaries import test
from leakgauge.cli.options import NEW_FILE, to_json, write_json
from leakgauge.errors import InputError, require

if TYPE_CHECKING:
    from leakgauge.privacy.accounting import Release
    from leakgauge.privacy.ledger import Ledger

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


@click.group(invoke_without_command=True)
@click.option("--noise-multiplier", type=float, help="Noise on the sum, in units of the clip norm.")
@click.option("--target-epsilon", type=float, help="Solve for the noise multiplier instead.")
@click.option("--sample-rate", type=float, help="Probability that an example (or client) is in a step; 1 for all.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=1, show_default=True, help="Noisy steps in a round.")
@click.option("--delta", type=float, help="Below 1 / number of examples (or clients). Required.")
@click.option("--units", type=click.IntRange(min=1), help="Number of examples (or clients); δ is held against it.")
@click.option("--accountant", help="prv or rdp; prv where there is no ledger.")
@click.option("--unit", type=click.Choice(("example", "client")), help="Whose presence is hidden; example by default.")
@click.option("--prior", type=float, default=1e-3, show_default=True, help="Chance of a guess without the updates.")
@click.option("--ledger", type=NEW_FILE, help="Enter this training into FILE, and count all in it.")
@to_json("the result")
@click.pass_context
def privacy(
    context: click.Context,
    noise_multiplier: float | None,
    target_epsilon: float | None,
    sample_rate: float | None,
    rounds: int,
    steps: int,
    delta: float | None,
    units: int | None,
    accountant: str | None,
    unit: str | None,
    prior: float,
    ledger: Path | None,
    json_file: Path | None,
) -> None:
    """Counts the ε of clip and noise (dp-sgd, client-dp), and says what it means for reconstruction.

    With a --ledger and no multiplier it says what has been spent. Needs the extra dp (pip install leakgauge[dp]).

    `leakgauge privacy test` checks whether the noise of your own code is what an ε rests on.
    """
    if context.invoked_subcommand is not None:
        return
    if delta is None:
        raise InputError("--delta", "is missing", "give less than 1 / number of examples (or clients)")
    from leakgauge.privacy.accounting import check_delta
    from leakgauge.privacy.ledger import entering

    both = noise_multiplier is not None and target_epsilon is not None
    require(not both, "--target-epsilon", "is given beside --noise-multiplier", "give one of them")
    enters = noise_multiplier is not None or target_epsilon is not None
    with ExitStack() as held:
        # From reading the ledger to writing it nobody else writes; what cannot be counted or written is not entered.
        write = held.enter_context(entering(ledger)) if ledger is not None and enters else None
        book = _book(ledger, accountant, unit)
        if units is not None:
            check_delta(delta, units, f"{book.unit.value}s")
        entered = None
        if enters:
            if sample_rate is None:
                raise InputError("--sample-rate", "is missing", RATES)
            entered = _release(noise_multiplier, target_epsilon, sample_rate, rounds * steps, delta, book.accountant)
            book = book.spend(
                noise_multiplier=entered.noise_multiplier, sample_rate=entered.sample_rate, steps=entered.steps
            )
        there = ledger is None or ledger.exists() or enters
        require(there, "--ledger", f"no file '{ledger}'", "give one that is there, or an entry for a new one")
        missing = "give it, or --target-epsilon, or a --ledger with entries"
        require(bool(book.releases), "--noise-multiplier", "is missing", missing)
        result = _result(book, entered, delta, prior)
        write_json(json_file, result)
        if ledger is not None and write is not None:  # before anything is said: a closed pipe must not lose an entry
            kept = "added to what it held" if ledger.exists() else "a new ledger"
            write(book)
            click.echo(f"entered into {ledger}: {kept}")
        _show(result)


privacy.add_command(test)


def _book(path: Path | None, accountant: str | None, unit: str | None) -> Ledger:
    from leakgauge.privacy.accounting import check_accountant
    from leakgauge.privacy.guarantee import Unit
    from leakgauge.privacy.ledger import Ledger

    if accountant is not None:
        check_accountant(accountant)
    if path is None or not path.exists():
        return Ledger(accountant=accountant or "prv", unit=Unit(unit or "example"))
    book = Ledger.load(path)
    for option, asked, has in (("--accountant", accountant, book.accountant), ("--unit", unit, book.unit.value)):
        require(asked in (None, has), option, f"is {asked}, the ledger's is {has}", "leave it out, or use a new ledger")
    return book


def _release(z: float | None, target: float | None, rate: float, steps: int, delta: float, accountant: str) -> Release:
    from leakgauge.privacy.accounting import Release, multiplier_for

    if z is None:
        assert target is not None
        z = multiplier_for(target, sample_rate=rate, steps=steps, delta=delta, accountant=accountant)
    return Release(noise_multiplier=z, sample_rate=rate, steps=steps)


def _result(book: Ledger, entered: Release | None, delta: float, prior: float) -> dict[str, Any]:
    from leakgauge.privacy.accounting import epsilon_exchanged
    from leakgauge.privacy.rero import sentence, success_bound

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


def _show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.text import Text

    from leakgauge.privacy.one_update import in_words

    console, z = Console(), result["noise_multiplier"]
    over = f"over {result['steps']} steps, by {result['accountant']}"
    epsilon = math.inf if result["epsilon"] is None else result["epsilon"]
    console.print(Text(f"ε = {in_words(epsilon)} at δ = {result['delta']:g} {over}", style="bold"))
    other = "" if result["exchanged"] is None else f"; replace one: ε = {in_words(result['exchanged'])}"
    said = [f"adjacency: add or remove one {result['unit']}{other}"]
    said += [] if z is None else [f"noise multiplier: {z:.4g}"]
    said += [f"reconstruction: {result['reconstruction']['sentence']}", "not covered:"]
    for line in (*said, *(f"  {each}" for each in result["not_covered"])):
        console.print(Text(line))
