"""`python -m reproduce.denoiser.command`: trains the denoiser, from names on the command line to a weights file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from safetensors import SafetensorError, safe_open

from leakgauge.cli import OneLine
from leakgauge.compute import Compute
from leakgauge.data import Source
from leakgauge.errors import InputError, require
from leakgauge.metrics.metric import LPIPS
from leakgauge.task import Batch
from reproduce.classifier.weights import Scores, check_output, halved, keep_weights, source_of, without_folder
from reproduce.denoiser.degradations import Shrink
from reproduce.denoiser.discriminator import conditional
from reproduce.denoiser.network import DenoisingUNet, read_denoiser
from reproduce.denoiser.training import DenoiserRecipe, Progress, fit_denoiser, restored

CANVAS = Shrink(factors=(4,), weights=(1.0,), modes=("bicubic",), sigma=0.1)
"""What held-out pictures are degraded by: ROG's canvas."""


def fit_denoiser_command(
    *,
    data: str,
    size: int | None,
    held_out: str | None,
    part: range | None,
    held_out_part: range | None,
    lpips: Path | None,
    output: Path,
    conditional: bool,
    start: Path | None,
    width: int,
    steps: int,
    batch_size: int,
    lr: float,
    adversarial: float,
    alone: float,
    every: int,
    bfloat16: bool,
    half: bool,
    threads: int,
    seed: int,
    console: Console,
) -> None:
    """Trains, writes the weights, and says how they do on held-out pictures."""
    check_output(output)
    recipe = DenoiserRecipe(
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        adversarial=adversarial,
        alone=alone,
        every=every,
        bfloat16=bfloat16,
    )
    require(lpips is None or held_out is not None, "lpips", "has no pictures to score", "give held-out ones (--test)")
    score = None if lpips is None else LPIPS(weights=str(lpips))
    Compute(threads=threads).apply()
    source = _pictures(data, size, "data")
    tests = None if held_out is None else _pictures(held_out, size, "test")
    if conditional and tests is not None:
        same = tests.classes == source.classes
        require(same, "--test", f"has {tests.classes} classes, --data {source.classes}", "give pictures of the same")
    torch.manual_seed(seed)
    began = "" if start is None else _command(start)
    network = _network(start, width, source.classes if conditional else 0)
    chosen, tested = (
        _part(source, part, "--part"),
        None if tests is None else _part(tests, held_out_part, "--test-part"),
    )
    console.print(f"reading {len(chosen)} examples", style="dim")
    examples = source.read(chosen)

    def say(leg: Progress) -> None:
        console.print(
            f"step {leg.step}/{steps}  L1 {leg.l1:.4f}  generator loss {leg.generator_loss:.3f}  "
            f"discriminator loss {leg.discriminator_loss:.3f}  {leg.seconds:.0f} s"
        )

    checkpoint = output.with_suffix(".checkpoint")
    fit_denoiser(network, examples, recipe, seed=seed, checkpoint=checkpoint, on_leg=say)
    state = halved(network.state_dict(), half)
    meta = {
        "model": f"denoiser width {network.width}, {network.classes} classes",
        "recipe": repr(recipe),
        "seed": str(seed),
        "data": without_folder(source.name),
        "command": " ".join(["python -m reproduce.denoiser.command", *sys.argv[1:]]),
    }
    if start is not None:
        meta["start"] = began

    def scores() -> Scores:
        assert tests is not None
        assert tested is not None
        network.load_state_dict(state)
        return held_out_scores(network.eval(), tests.read(tested[:256]), score, console)

    keep_weights(state, output, meta, checkpoint=checkpoint, score=None if tests is None else scores)
    console.print(str(output))


def held_out_scores(network: DenoisingUNet, tests: Batch, lpips: LPIPS | None, console: Console) -> dict[str, str]:
    """Mean distance to the sharp pictures, of those degraded by `CANVAS` and of the network's answers to them."""
    degraded = CANVAS(tests.inputs, torch.Generator().manual_seed(0))
    answers = restored(network, degraded, tests.labels if network.classes else None)
    found = {"held_out": f"{len(tests)} pictures"}
    pairs = {"before": degraded, "after": answers}
    found |= {f"l1_{name}": f"{float((x - tests.inputs).abs().mean()):.4f}" for name, x in pairs.items()}
    if lpips is not None:
        found |= {f"lpips_{name}": f"{float(lpips(x, tests.inputs).mean()):.4f}" for name, x in pairs.items()}
    console.print("  ".join(f"{name} {value}" for name, value in found.items()))
    return found


def _pictures(text: str, size: int | None, field: str) -> Source:
    source = source_of(text, field, **({} if size is None else {"size": size}))
    require(
        len(source.shape) == 3 and source.shape[0] == 3 and (source.low, source.high) == (0.0, 1.0),
        f"--{field}",
        f"has examples of shape {source.shape} in [{source.low:g}, {source.high:g}]",
        "give colour pictures",
    )
    return source


def _part(source: Source, part: range | None, field: str) -> range:
    """The examples that are asked for, all of them where none are.

    Raises:
        InputError: the source has not as many.
    """
    if part is None:
        return range(len(source))
    require(part.stop <= len(source), field, f"ends at {part.stop}, and there are {len(source)}", "give a part of them")
    return part


class Part(click.ParamType):
    """``FIRST:END``, the end not included."""

    name = "FIRST:END"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        first, _, end = str(value).partition(":")
        if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            self.fail(f"'{value}' is not FIRST:END, such as 64:900", param, ctx)
        return range(int(first), int(end))


def _command(path: Path) -> str:
    """How a weights file says that it was made."""
    require(path.suffix == ".safetensors", "start", f"is {path}", "give a .safetensors file")
    try:
        with safe_open(path, framework="pt") as file:
            return str((file.metadata() or {}).get("command", "unknown"))
    except (OSError, SafetensorError) as error:
        raise InputError("start", f"{path} cannot be read ({error})", "give a denoiser's weights") from error


def _network(start: Path | None, width: int, classes: int) -> DenoisingUNet:
    if start is None:
        return DenoisingUNet(width=width, classes=classes)
    first = read_denoiser(start)
    require(first.width == width, "width", f"is {width}, and {start.name} has {first.width}", "give that of the start")
    return conditional(first, classes) if classes else first


@click.command(cls=OneLine)
@click.option("--data", required=True, help="Colour pictures: folder:PATH, parquet:PATH, or '{source: …, size: 32}'.")
@click.option("--size", type=click.IntRange(min=8), help="Side that pictures are resized to; as they are without.")
@click.option("--test", "held_out", help="Held-out pictures, for the numbers that are written into the file.")
@click.option("--part", type=Part(), help="Train on these alone: those that an attack is shown on stay out.")
@click.option("--test-part", "held_out_part", type=Part(), help="The same for the held-out pictures.")
@click.option("--lpips", type=click.Path(path_type=Path), help="LPIPS weights, to score held-out pictures with.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="A .safetensors file.")
@click.option("--conditional", is_flag=True, help="The decoder's norms depend on the label.")
@click.option("--start", type=click.Path(path_type=Path), help="Go on from a label-free denoiser's weights.")
@click.option("--width", type=click.IntRange(min=1), default=32, show_default=True, help="Channels; the paper has 64.")
@click.option("--steps", type=click.IntRange(min=1), default=3000, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--lr", type=float, default=5e-4, show_default=True)
@click.option("--adversarial", type=float, default=0.01, show_default=True, help="Weight of the discriminator's loss.")
@click.option("--alone", type=float, default=0.2, show_default=True, help="Share of the steps with L1 alone, first.")
@click.option("--every", type=click.IntRange(min=1), default=250, show_default=True, help="Steps to a checkpoint.")
@click.option("--bfloat16", is_flag=True, help="Convolutions in bfloat16, faster where the processor has it.")
@click.option("--half", is_flag=True, help="Keep the weights in half precision: half the size.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def fit(**options: Any) -> None:
    """Trains ROG's post-processor: a U-Net that gives degraded pictures back sharp, by L1 and a discriminator.

    Stopped and run again, it goes on after the last checkpoint.
    """
    fit_denoiser_command(**options, console=Console(soft_wrap=True))


if __name__ == "__main__":
    fit()
