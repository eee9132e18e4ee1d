"""The command group `leakgauge fit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.group()
def fit() -> None:
    """Trains the networks that audits and reproductions use."""


@fit.command("classifier")
@click.argument("model")
@click.option(
    "--data", required=True, help="A source as in a plan: folder:PATH, parquet:PATH, or '{source: …, size: 32}'."
)
@click.option(
    "--test",
    "held_out",
    help="Held-out data, for the accuracy that is written into the file; of the shape, classes and range of --data.",
)
@click.option("--start", help="Go on from these weights: a file, or packaged:NAME.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A .safetensors file.")
@click.option("--epochs", type=click.IntRange(min=1), default=120, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--lr", type=float, default=0.1, show_default=True)
@click.option("--weight-decay", type=float, default=5e-4, show_default=True)
@click.option(
    "--augment/--no-augment",
    default=None,
    help="Random crops and flips. By default for pictures (one or three channels), not for other data.",
)
@click.option("--cosine", is_flag=True, help="Learning rate along half a cosine, better for few epochs.")
@click.option("--bfloat16", is_flag=True, help="Forward passes in bfloat16, faster where the processor has it.")
@click.option("--half", is_flag=True, help="Keep the weights in half precision: half the size.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def fit_classifier_(model: str, **options: Any) -> None:
    """Trains MODEL (a name, or '{name: {parameter: value}}') by SGD with Nesterov momentum, on pictures or other data.

    The learning rate falls to a tenth at 37, 62 and 88 % of the epochs, unless --cosine. Stopped and run again, it
    goes on after the last whole epoch.
    """
    from rich.console import Console

    from leakgauge.cli.train import fit_classifier

    fit_classifier(model, **options, console=Console(soft_wrap=True))
