"""`leakgauge privacy test`: canaries through clip-and-noise code."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakgauge.cli.options import SPEC, to_json, write_json
from leakgauge.errors import require

if TYPE_CHECKING:
    from leakgauge.privacy.tested import Claim, PrivacyTest

LAYOUTS = {False: "all canaries in one call", True: "one canary a call"}


@click.command()
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
    seed: int,
    json_file: Path | None,
) -> None:
    """Is the noise really there? Sends canaries through PATH and bounds its ε from below.

    PATH is your own clip-and-noise code, your_package.module:function. It is called with updates, one a row, and a
    generator, and returns what leaves: the noisy sum or mean of the clipped updates.

    Exit code 0: the stated ε is not contradicted, which is no proof; 1: it is, or the test had no power; 2: the input
    cannot be used.
    """
    import torch

    from leakgauge.privacy.canaries import NoisePath
    from leakgauge.privacy.guarantee import Unit
    from leakgauge.privacy.tested import Claim, ClaimOutcome, check_claim
    from leakgauge.registry import Registry
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
        claim = _claim(noise_multiplier, epsilon, delta, rounds, any_noise)
        require(clip is not None, "--clip", "is missing", "give the norm that each update is clipped to")
    generator = torch.Generator().manual_seed(seed)
    result = check_claim(code, claim, clip=clip or 0.0, generator=generator, canaries=canaries, size=size)
    write_json(json_file, record(result))
    _show(result)
    sys.exit(0 if result.outcome is ClaimOutcome.NOT_CONTRADICTED else 1)


def _claim(z: float | None, epsilon: float | None, delta: float, rounds: int, any_noise: bool) -> Claim:
    from leakgauge.privacy.tested import Claim

    hint = "give --noise-multiplier, or --epsilon of all rounds with every unit in each"
    problem = "--noise-multiplier or --epsilon is missing" if z is None else "is given twice"
    require((z is None) != (epsilon is None), "claim", problem, hint)
    if z is not None:
        require(not any_noise, "--any-noise", "goes with --epsilon", "a noise multiplier is that of Gaussian noise")
        return Claim.of_noise(z, delta, rounds)
    assert epsilon is not None
    return Claim(epsilon, delta, rounds, gaussian=not any_noise)


def record(result: PrivacyTest) -> dict[str, object]:
    """The result as JSON has it."""
    from leakgauge.privacy.tested import CONFIDENCE

    return {
        "outcome": result.outcome.value,
        "sentence": result.sentence,
        "stated": {
            "epsilon": result.claim.epsilon,
            "delta": result.claim.delta,
            "rounds": result.claim.rounds,
            "gaussian_noise": result.claim.gaussian,
            "noise_multiplier": result.claim.noise_multiplier,
        },
        "unit": result.unit.value,
        "adjacency": "add or remove one unit, their number known",
        "canaries": result.canaries,
        "confidence": CONFIDENCE,
        "lower_bound": result.best.epsilon,
        "bounds": [
            {
                "calls": LAYOUTS[bound.alone],
                "assumes_gaussian_noise": bound.gaussian,
                "epsilon": bound.epsilon,
                "guesses": bound.guesses.made,
                "correct": bound.guesses.correct,
            }
            for bound in result.bounds
        ],
        "noise_multiplier_estimate": result.measured if math.isfinite(result.measured) else None,
        "noticed_below_share_of_noise": result.noticed,
    }


def _show(result: PrivacyTest) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from leakgauge.privacy.tested import CONFIDENCE

    claim, console = result.claim, Console()
    table = Table("canaries", "noise", "ε above", "right guesses", box=None, pad_edge=False)
    for bound in result.bounds:
        guesses = f"{bound.guesses.correct} of {bound.guesses.made}"
        table.add_row(LAYOUTS[bound.alone], "Gaussian" if bound.gaussian else "any", f"{bound.epsilon:.2f}", guesses)
    console.print(Text(result.sentence, style="bold"), "", table, "", sep="\n")
    over = "1 release" if claim.rounds == 1 else f"{claim.rounds} releases"
    for line in (
        f"stated: over {over}, each with every unit in it: no sampling counted",
        f"unit: one {result.unit.value}; adjacency: add or remove one, their number known",
        f"all bounds hold together with {100 * CONFIDENCE:.0f} % confidence",
        "not tested: the accountant, the sampling, what leaves beside this output",
    ):
        console.print(Text(line))
