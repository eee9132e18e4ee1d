"""`leakgauge privacy`: the ε of clip and noise, and what it means for reconstruction."""

import math
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakgauge.cli.options import NEW_FILE, SPEC, show, to_json, write_json
from leakgauge.errors import InputError, require
from leakgauge.registry import Registry

if TYPE_CHECKING:
    from leakgauge.privacy.accounting import Ledger

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

    With a --ledger and no multiplier it says what has been spent. Needs the extra dp.

    `leakgauge privacy test` checks whether the noise of your own code is what an ε rests on.
    """
    if context.invoked_subcommand is not None:
        return
    if delta is None:
        raise InputError("--delta", "is missing", "give less than 1 / number of examples (or clients)")

    from leakgauge.privacy.accounting import check_delta, entering, multiplier_for
    from leakgauge.privacy.guarantee import in_words

    both = noise_multiplier is not None and target_epsilon is not None
    require(not both, "--target-epsilon", "is given beside --noise-multiplier", "give one of them")
    enters = noise_multiplier is not None or target_epsilon is not None
    # From reading the ledger to writing it nobody else writes; what cannot be counted or written is not entered.
    with entering(ledger) if ledger is not None and enters else nullcontext() as write:
        book = _book(ledger, accountant, unit)
        if units is not None:
            check_delta(delta, units, f"{book.unit.value}s")
        entered = None
        if enters:
            if sample_rate is None:
                raise InputError("--sample-rate", "is missing", RATES)
            entered, steps = noise_multiplier, rounds * steps
            if entered is None:
                by, most = book.accountant, target_epsilon or 0.0
                entered = multiplier_for(most, sample_rate=sample_rate, steps=steps, delta=delta, accountant=by)
            book = book.spend(noise_multiplier=entered, sample_rate=sample_rate, steps=steps)
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
        epsilon = math.inf if result["epsilon"] is None else result["epsilon"]
        other = "" if result["exchanged"] is None else f"; replace one: ε = {in_words(result['exchanged'])}"
        show(
            f"ε = {in_words(epsilon)} at δ = {delta:g} over {book.steps} steps, by {book.accountant}",
            f"adjacency: add or remove one {book.unit.value}{other}",
            *([] if entered is None else [f"noise multiplier: {entered:.4g}"]),
            f"reconstruction: {result['reconstruction']['sentence']}",
            "not covered:",
            *(f"  {each}" for each in NOT_COVERED),
        )


def _book(path: Path | None, accountant: str | None, unit: str | None) -> "Ledger":
    from leakgauge.privacy.accounting import Ledger, Unit, check_accountant

    if accountant is not None:
        check_accountant(accountant)
    if path is None or not path.exists():
        return Ledger(accountant=accountant or "prv", unit=Unit(unit or "example"))
    book = Ledger.load(path)
    for option, asked, has in (("--accountant", accountant, book.accountant), ("--unit", unit, book.unit.value)):
        require(asked in (None, has), option, f"is {asked}, the ledger's is {has}", "leave it out, or use a new ledger")
    return book


def _result(book: "Ledger", entered: float | None, delta: float, prior: float) -> dict[str, Any]:
    from leakgauge.privacy.accounting import epsilon_exchanged, sentence, success_bound

    epsilon = book.epsilon(delta)
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else None,  # JSON has no infinity
        "delta": delta,
        "accountant": book.accountant,
        "unit": book.unit.value,
        "exchanged": epsilon_exchanged(book.releases, delta, book.accountant),
        "steps": book.steps,
        "noise_multiplier": entered,
        "reconstruction": {
            "prior": prior,
            "at_most": success_bound(book.releases, prior),
            "sentence": sentence(book.releases, prior),
        },
        "not_covered": list(NOT_COVERED),
    }


@privacy.command()
@click.argument("path", required=False)
@click.option(
    "--defense", type=SPEC, help="Test a defence of this package: '{dp-sgd: {norm: 1, noise_multiplier: 1}}'."
)
@click.option("--noise-multiplier", type=float, help="As stated: noise on the sum over the clip, in one release.")
@click.option("--epsilon", type=float, help="As stated for all rounds, without sampling; instead of the multiplier.")
@click.option("--delta", type=float, required=True, help="Below 1 / number of examples (or clients).")
@click.option("--clip", type=float, help="As stated: the norm that each update is clipped to.")
@click.option("--unit", type=click.Choice(("example", "client")), help="Whose update a row is; example by default.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Releases of the same units.")
@click.option("--updates", type=click.IntRange(min=1), help="Rows of each call, if it must be a fixed number.")
@click.option("--canaries", type=click.IntRange(min=20), default=1000, show_default=True)
@click.option("--size", type=click.IntRange(min=20), default=10_000, show_default=True, help="Numbers in an update.")
@click.option("--numpy", "is_numpy", is_flag=True, help="Call the function with NumPy arrays, not PyTorch tensors.")
@click.option("--any-noise", is_flag=True, help="The noise is not Gaussian: use the bound that holds for any.")
@click.option("--replay", "replays", is_flag=True, help="Instead of canaries: hold the noise, and name the line.")
@click.option("--seed", type=int, default=0, show_default=True)
@to_json("the result")
def test(
    path: str | None,
    defense: Any,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float,
    clip: float | None,
    unit: str | None,
    rounds: int,
    updates: int | None,
    canaries: int,
    size: int,
    is_numpy: bool,
    any_noise: bool,
    replays: bool,
    seed: int,
    json_file: Path | None,
) -> None:
    """Is the noise really there? Sends canaries through PATH and bounds its ε from below.

    PATH is your own clip-and-noise code, your_package.module:function. It is called with updates, one a row, and a
    generator, and returns what leaves: the noisy sum or mean of the clipped updates.

    With --replay it runs on neighbouring updates with the same Gaussian noise: what one update moves over that noise,
    exactly, and the line that lets more through.

    Exit code 0: the stated ε is not contradicted, which is no proof; 1: it is, or the test had no power; 2: the input
    cannot be used.
    """
    import torch

    from leakgauge.privacy.accounting import Unit
    from leakgauge.privacy.replay import Code, replay
    from leakgauge.privacy.tested import Claim, ClaimOutcome, NoisePath, check_claim
    from leakgauge.resolve import resolve_defense

    problem = "is missing" if path is None else "is given beside --defense"
    require((path is None) != (defense is None), "path", problem, "give your_package.module:function, or --defense")
    if path is None:
        given = [noise_multiplier, epsilon, clip, unit]
        hint = "leave out --noise-multiplier, --epsilon, --clip and --unit"
        require(all(value is None for value in given), "--defense", "states them itself", hint)
        code = NoisePath.of_defense(resolve_defense(defense, "--defense").value, updates)
        claim, clip = Claim.of_noise(code.noise_multiplier, delta, rounds), code.clip
    else:
        require(":" in path, "path", f"'{path}' names no function", "write your_package.module:function")
        built = Registry("path", ())[path].build
        code = NoisePath.of_function(built, Unit(unit or "example"), updates, numpy=is_numpy)
        hint = "give --noise-multiplier, or --epsilon of all rounds with every unit in each"
        problem = "is given twice" if epsilon is not None else "--noise-multiplier or --epsilon is missing"
        require((noise_multiplier is None) != (epsilon is None), "claim", problem, hint)
        if epsilon is not None:
            claim = Claim(epsilon, delta, rounds, gaussian=not any_noise)
        else:
            require(not any_noise, "--any-noise", "goes with --epsilon", "a noise multiplier is that of Gaussian noise")
            claim = Claim.of_noise(noise_multiplier or 0.0, delta, rounds)
        require(clip is not None, "--clip", "is missing", "give the norm that each update is clipped to")
    bound = clip or 0.0
    if replays:
        own = path is not None and not any_noise
        require(own, "--replay", "is for your own code with Gaussian noise", "leave out --defense and --any-noise")
        stated = claim.noise_multiplier
        found = replay(Code(built, is_numpy), noise_multiplier=stated, clip=bound, size=size, updates=updates)
        write_json(json_file, asdict(found))
        show(found.sentence(stated), *([found.line] if found.line else []))
        sys.exit(1 if found.fault or found.unjudged else 0)
    generator = torch.Generator().manual_seed(seed)
    result = check_claim(code, claim, clip=bound, generator=generator, canaries=canaries, size=size)
    write_json(json_file, result.to_json())
    show(result.sentence, "", *result.lines)
    sys.exit(0 if result.outcome is ClaimOutcome.NOT_CONTRADICTED else 1)
