"""Everything behind `leakgauge privacy test`."""

from __future__ import annotations

import json
import math
from pathlib import Path as File

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leakgauge.errors import require
from leakgauge.files import write_whole
from leakgauge.privacy.guarantee import Unit
from leakgauge.privacy.path import NoisePath, of_defense, of_function
from leakgauge.privacy.tested import CONFIDENCE, Claim, ClaimOutcome, PrivacyTest, check_claim
from leakgauge.registry import Registry
from leakgauge.resolve import read_option, resolve_defense


def privacy_test_command(
    function: str | None,
    *,
    defense: str | None,
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
    json_file: File | None,
    console: Console,
) -> int:
    """Prints the outcome. Returns the exit code: 0 not contradicted, 1 contradicted or without power.

    Raises:
        InputError: what is missing or cannot be used.
    """
    problem = "is missing" if function is None else "is given beside --defense"
    hint = "give your_package.module:function, or --defense"
    require((function is None) != (defense is None), "path", problem, hint)
    generator = torch.Generator().manual_seed(seed)
    if defense is not None:
        given = [noise_multiplier, epsilon, clip, unit]
        hint = "leave out --noise-multiplier, --epsilon, --clip and --unit"
        require(all(value is None for value in given), "--defense", "states them itself", hint)
        stated = of_defense(resolve_defense(read_option(defense, "--defense"), "--defense").value, updates)
        path, claim, bound = stated.path, Claim.of_noise(stated.noise_multiplier, delta, rounds), stated.clip
    else:
        assert function is not None
        require(":" in function, "path", f"'{function}' names no function", "write your_package.module:function")
        path = of_function(Registry("path", ())[function].build, Unit(unit or "example"), updates, numpy=is_numpy)
        claim = _claim(noise_multiplier, epsilon, delta, rounds, any_noise)
        require(clip is not None, "--clip", "is missing", "give the norm that each update is clipped to")
        bound = clip or 0.0
    result = check_claim(path, claim, clip=bound, generator=generator, canaries=canaries, size=size)
    if json_file is not None:
        write_whole(json_file, json.dumps(record(result), indent=1, ensure_ascii=False) + "\n")
    _show(console, path, result)
    return 0 if result.outcome is ClaimOutcome.NOT_CONTRADICTED else 1


def _claim(z: float | None, epsilon: float | None, delta: float, rounds: int, any_noise: bool) -> Claim:
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
                "calls": bound.layout.value,
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


def _show(console: Console, path: NoisePath, result: PrivacyTest) -> None:
    claim = result.claim
    console.print(Text(result.sentence, style="bold"))
    console.print()
    table = Table("canaries", "noise", "ε above", "right guesses", box=None, pad_edge=False)
    for bound in result.bounds:
        guesses = f"{bound.guesses.correct} of {bound.guesses.made}"
        table.add_row(bound.layout.value, "Gaussian" if bound.gaussian else "any", f"{bound.epsilon:.2f}", guesses)
    console.print(table)
    console.print()
    over = "1 release" if claim.rounds == 1 else f"{claim.rounds} releases"
    console.print(Text(f"stated: over {over}, each with every unit in it: no sampling counted"))
    console.print(Text(f"unit: one {path.unit.value}; adjacency: add or remove one, their number known"))
    console.print(Text(f"all bounds hold together with {100 * CONFIDENCE:.0f} % confidence"))
    console.print(Text("not tested: the accountant, the sampling, what leaves beside this output"))
