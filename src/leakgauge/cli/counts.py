"""The commands that attack nothing: `leakgauge count` and `leakgauge privacy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from leakgauge.cli.evidence import test
from leakgauge.errors import require


@click.command()
@click.argument("model")
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Examples in the client's batch.")
@click.option("--shape", help="Of one example, e.g. 3,32,32 or 1,256. By default what the model's arguments say.")
@click.option("--classes", type=click.IntRange(min=2), help="Number of labels; 10 unless the model's arguments say.")
@click.option(
    "--data",
    help="Count at real examples: a source as in a plan, which says shape and classes. By default uniform noise.",
)
@click.option("--soft-labels", is_flag=True, help="Labels are unknown and may be soft.")
@click.option("--mode", type=click.Choice(("eval", "train")), default="eval", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and examples.")
@click.option("--noise", type=float, help="Noise in shares of the update's norm: how well could it be estimated?")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to FILE.")
def count(model: str, **options: Any) -> None:
    """Counts what one update of MODEL says about a batch: unknowns against equations, and the numerical rank.

    MODEL is a name, package.module:function, or '{name: {parameter: value}}'. No attack is run. A full rank says
    that the update fixes the batch near the true one; that the search for it succeeds is another question.
    """
    from leakgauge.cli.count import count_command

    count_command(model, **options)


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
@click.option("--ledger", type=click.Path(path_type=Path), help="Enter this training into FILE, and count all in it.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to FILE.")
@click.pass_context
def privacy(context: click.Context, /, **options: Any) -> None:
    """Counts the ε of clip and noise (dp-sgd, client-dp), and says what it means for reconstruction.

    With a --ledger and no multiplier it says what has been spent. Needs the extra dp (pip install leakgauge[dp]).

    `leakgauge privacy test` checks whether the noise of your own code is what an ε rests on.
    """
    if context.invoked_subcommand is not None:
        return
    require(options["delta"] is not None, "--delta", "is missing", "give less than 1 / number of examples (or clients)")
    from rich.console import Console

    from leakgauge.cli.privacy import privacy_command

    privacy_command(**options, console=Console())


privacy.add_command(test)
