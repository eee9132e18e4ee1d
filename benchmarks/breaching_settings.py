"""Looks for the best setting of `breaching` on LeNet, by a random search.

`python benchmarks/breaching_settings.py --data F --python P` draws settings of its matching attack, adds its own
presets, and runs all on development photos. They are printed by their median PSNR at the end. Each run is a row of
`peers.py`'s kind in `--out`; rows that are there are not repeated. None of these photos is in `peers.HELD_OUT`. A step
of a quasi-Newton preset takes up to twenty gradients.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path

from peers import THEIRS, Case, recorded

DEVELOPMENT = (6000, 6001, 6002)
STEPS = 1000

CHOICES: dict[str, tuple[str, ...]] = {
    "optim.signed": ("hard", "soft", "null"),
    "optim.step_size": ("0.003", "0.01", "0.03", "0.1", "0.3"),
    "optim.step_size_decay": ("step-lr", "cosine-decay", "null"),
    "optim.boxed": ("true", "false"),
    "objective.type": ("cosine-similarity", "euclidean"),
    "regularization.total_variation.scale": ("0", "1e-5", "1e-4", "1e-3", "1e-2", "0.1"),
    "init": ("randn", "patterned-4", "zeros"),
}
PRESETS = (
    "invertinggradients",
    "invertinggradients regularization.total_variation.scale=0.02",
    "invertinggradients regularization.total_variation.scale=0.002",
    "modern",
    "modern regularization.total_variation.scale=0.01",
    "deepleakage attack_type=optimization",
    "legacy",
    "wei",
)


def drawn(count: int, seed: int) -> list[str]:
    """Settings at random, without repetition."""
    chooser = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        picked = [f"{key}={chooser.choice(values)}" for key, values in CHOICES.items()]
        found[" ".join(["invertinggradients", *picked])] = None
    return list(found)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "breaching_settings.jsonl")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="of the environment that has breaching")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    settings = [*PRESETS, *drawn(given.count, given.seed)]
    scores = {s: statistics.median(quality(given, s, photo) for photo in DEVELOPMENT) for s in settings}
    for setting in sorted(settings, key=lambda s: -scores[s]):
        print(f"{scores[setting]:.2f} dB  {setting}")


def quality(given: argparse.Namespace, setting: str, photo: int) -> float:
    """PSNR at the end of a run."""
    return float(recorded(Case("quality", "lenet", THEIRS, setting, photo, STEPS), given)["final"])


if __name__ == "__main__":
    main()
