"""Are wrong plans told from the right one? `python benchmarks/mistakes.py --out rows.jsonl [--table]`.

A client's loop trains two shuffled epochs on grey pictures of 64 px while leakgauge captures it. The true plan must
explain at least 99 % of each round. Ten mistakes, each with five values, must be refused, and named first, in nine of
ten rounds each. Rounds, networks, values and keys are named here, and were before any row. A row is written after each
plan, and a plan whose row is there is not repeated; takes some 15 CPU minutes.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from skimage import data as scenes
from torch import nn

from leakgauge.capture import Recorder, watching
from leakgauge.cli.captured import plan_of
from leakgauge.compute import Compute
from leakgauge.study.plan import resolve_plan
from leakgauge.update import Update

SHARE, NAMED = 0.99, 0.9
"""The claim: of each update that the truth explains, and of each mistake's rounds that are refused and named first."""

ROUNDS = 5
SIZE, CLASSES, HELD = 64, 4, 120
SGD_RATE, ADAM_RATE = 0.05, 0.002
CENTRE, SPREAD = 0.45, 0.22
"""Normalisation of the rounds of odd number, inside the client's loader."""

Plan = dict[str, Any]
Mistake = Callable[[Plan, "Round"], None]


def network(
    norm: str, activation: Callable[[], nn.Module] = nn.ReLU, pool: type[nn.Module] = nn.AvgPool2d
) -> nn.Module:
    """A small CNN for grey pictures."""

    def normed(width: int) -> nn.Module:
        return nn.GroupNorm(4, width) if norm == "grouped" else nn.BatchNorm2d(width)

    first, second = nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.Conv2d(8, 16, 3, stride=2, padding=1)
    body = [first, normed(8), activation(), second, normed(16), activation(), pool(2)]  # type: ignore[call-arg]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(1024, CLASSES))


def grouped() -> nn.Module:
    """With GroupNorm."""
    return network("grouped")


def batched() -> nn.Module:
    """With BatchNorm."""
    return network("batched")


OTHERS: dict[str, Callable[[str], nn.Module]] = {
    "gelu": partial(network, activation=nn.GELU),
    "leaky": partial(network, activation=partial(nn.LeakyReLU, 0.2)),
    "tanh": partial(network, activation=nn.Tanh),
    "peak": partial(network, pool=nn.MaxPool2d),
    "silu": partial(network, activation=nn.SiLU),
}


def other(norm: str, name: str) -> nn.Module:
    """A network of the same parameters and another function."""
    return OTHERS[name](norm)


@dataclass(frozen=True)
class Cell:
    """One kind of client."""

    norm: str
    optimiser: str
    examples: int


CELLS = [Cell(n, o, e) for n in ("grouped", "batched") for o in ("sgd", "adam") for e in (16, 40)]


@dataclass(frozen=True)
class Round:
    """One captured round, the second of its client, and the truth about it."""

    cell: Cell
    index: int
    folder: Path
    first: int

    @property
    def truth(self) -> Plan:
        """The right plan."""
        return plan_of([self.folder], model=f"mistakes:{self.cell.norm}", client=self.client(), mode="train", data=None)

    def client(self, kind: str = "", **more: Any) -> Plan:
        """As under clients, with another optimiser or without."""
        made = {"sgd": {"fedavg": {"lr": SGD_RATE}}, "adam": _local({"adam": {"lr": ADAM_RATE}})}
        client = copy.deepcopy(made[kind or self.cell.optimiser])
        next(iter(client.values())).update({"epochs": 2, "batch_size": 8, "shuffle": True, **more})
        return client


def _local(optimiser: Any) -> Plan:
    return {"local-training": {"optimiser": optimiser}}


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """Parts of photos that ship with scikit-image, none twice, and labels."""
    rng = np.random.default_rng(7)
    photos = [scenes.camera(), scenes.moon(), scenes.coins(), scenes.page(), scenes.brick(), scenes.grass()]
    found = []
    for i in range(HELD):
        photo = photos[i % len(photos)]
        y, x = (int(rng.integers(side - 2 * SIZE)) for side in photo.shape)
        found.append(photo[y : y + 2 * SIZE : 2, x : x + 2 * SIZE : 2] / np.float32(255))
    inputs = torch.from_numpy(np.stack(found))[:, None].float()
    return inputs, torch.from_numpy(rng.integers(CLASSES, size=HELD))


def captured(folder: Path, cell: Cell, index: int) -> Round:
    """Two rounds of a client, and one of another; the second is the one that is looked at."""
    inputs, labels = pictures()
    seen = (inputs - CENTRE) / SPREAD if index % 2 else inputs
    first, g = 7 * index, torch.Generator().manual_seed(100 + index)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(index)
        net = (grouped if cell.norm == "grouped" else batched)().train()
        strange = (grouped if cell.norm == "grouped" else batched)()
    Recorder(folder=folder).keep(strange.state_dict(), net.state_dict(), round_="0", node="8")
    place = folder
    for number in range(2):
        rate = SGD_RATE if cell.optimiser == "sgd" else ADAM_RATE
        made = (torch.optim.SGD if cell.optimiser == "sgd" else torch.optim.Adam)(net.parameters(), rate)
        before = {k: v.clone() for k, v in net.state_dict().items()}
        own = torch.arange(first, first + cell.examples)
        with watching(listen=True) as examples:
            for _ in range(2):
                for rows in own[torch.randperm(cell.examples, generator=g)].split(8):
                    made.zero_grad()
                    nn.functional.cross_entropy(net(seen[rows]), labels[rows]).backward()
                    made.step()
        keep = Recorder(folder=folder).keep
        place = keep(before, net.state_dict(), round_=str(number), node="7", count=cell.examples, examples=examples)
    return Round(cell, index, place, first)


def loop(plan: Plan) -> Plan:
    """The options of the plan's client."""
    options: Plan = next(iter(plan["clients"][0].values()))
    return options


def rate(plan: Plan, of: Round) -> None:
    """2, ½, 10, 0.1 and 3 times the rate."""
    options = loop(plan)
    (options if "lr" in options else options["optimiser"]["adam"])["lr"] *= (2, 0.5, 10, 0.1, 3)[of.index]


def epochs(plan: Plan, of: Round) -> None:
    """Another number of epochs."""
    loop(plan)["epochs"] = (1, 3, 4, 5, 10)[of.index]


def batch_size(plan: Plan, of: Round) -> None:
    """Other minibatches."""
    loop(plan)["batch_size"] = (4, 16, 2, 5, 1)[of.index]


def shuffle(plan: Plan, of: Round) -> None:
    """In order."""
    del of
    loop(plan)["shuffle"] = False


def weights(plan: Plan, of: Round) -> None:
    """Those of the round before, those after training, of another client, rounded, and with noise."""
    rounds, g = of.folder.parent, torch.Generator().manual_seed(9)
    own, moved = load_file(of.folder / "weights.safetensors"), Update.load(of.folder / "update.safetensors").tensors
    trained = {k: own[k] for k in moved}
    ways = (
        lambda: load_file(rounds / "round-0-node-7" / "weights.safetensors"),
        lambda: {k: v + moved[k] for k, v in trained.items()},
        lambda: load_file(rounds / "round-0-node-8" / "weights.safetensors"),
        lambda: {k: v.to(torch.bfloat16).to(v.dtype) for k, v in trained.items()},
        lambda: {k: v + 0.01 * v.std() * torch.randn(v.shape, generator=g) for k, v in trained.items()},
    )
    file = of.folder / "wrong.safetensors"
    save_file(own | ways[of.index](), file)
    next(iter(plan["model"].values()))["weights"] = str(file)


def _file(of: Round, inputs: torch.Tensor, labels: torch.Tensor) -> str:
    np.savez(of.folder / "pictures.npz", x=inputs.numpy(), y=labels.numpy())
    return f"npz:{of.folder / 'pictures.npz'}"


def normalisation(plan: Plan, of: Round) -> None:
    """Put in where there was none, and left out where there was one."""
    plan["data"] |= {"source": _file(of, *pictures()), "start": of.first, "normalise": not of.index % 2}


def model(plan: Plan, of: Round) -> None:
    """Other activations, another pool."""
    (_, options) = plan["model"].popitem()
    name = list(OTHERS)[of.index]
    plan["model"] = {"mistakes:other": {"norm": of.cell.norm, "name": name, **options}}


def rows(plan: Plan, of: Round) -> None:
    """Shifted by three and by a client, one of another, two labels exchanged, all labels of another client."""
    inputs, labels = pictures()
    seen = (inputs - CENTRE) / SPREAD if of.index % 2 else inputs
    first, n, i = of.first, of.cell.examples, of.index
    start = {0: first + 3, 1: first + n}.get(i, first)
    if i == 2:
        seen[first + 1] = seen[first + n + 1]
    if i == 3:
        one, two = (first + int((labels[first : first + n] == c).nonzero()[0]) for c in (0, 1))
        labels[[one, two]] = labels[[two, one]]
    if i == 4:
        labels = labels.roll(1)
    span = {"low": float(seen.min()), "high": float(seen.max())}
    plan["data"] |= {"source": _file(of, seen, labels), "start": start, "normalise": False, **span}


def optimiser(plan: Plan, of: Round) -> None:
    """Another kind, or the same with momentum."""
    ways = {
        "sgd": [
            {"adam": {"lr": 0.05}},
            {"adam": {"lr": 0.001}},
            {"sgd": {"lr": 0.05, "momentum": 0.9}},
            "adamw",
            "adam",
        ],
        "adam": [{"sgd": {"lr": lr}} for lr in (0.002, 0.05, 0.01, 0.1, 1.0)],
    }
    plan["clients"] = [of.client("adam", optimiser=ways[of.cell.optimiser][of.index])]


def mode(plan: Plan, of: Round) -> None:
    """Eval for train."""
    del of
    plan["mode"] = "eval"


MISTAKES: dict[Mistake, tuple[str, ...]] = {
    rate: ("clients[0].lr",),
    epochs: ("clients[0].epochs",),
    batch_size: ("clients[0].batch_size",),
    shuffle: ("clients[0].shuffle",),
    weights: ("model.weights",),
    normalisation: ("data.normalise",),
    model: ("model",),
    rows: ("data",),
    optimiser: ("clients[0].optimiser",),
    mode: ("mode",),
}
"""Each with the keys of which one must be named first."""


def named(mistake: Mistake | None) -> str:
    """Of the truth, or of a mistake."""
    return "truth" if mistake is None else mistake.__name__


def plans(of: Round) -> Iterator[tuple[Mistake | None, Plan]]:
    """The truth and each mistake that is one: no layer of GroupNorm knows the mode."""
    yield None, of.truth
    for mistake in MISTAKES:
        if mistake is not mode or of.cell.norm == "batched":
            plan = of.truth
            mistake(plan, of)
            yield mistake, plan


def looked(of: Round, mistake: Mistake | None, plan: Plan) -> dict[str, Any]:
    """What the check says of a plan."""
    began = time.process_time()
    said = resolve_plan(plan).explained()
    assert said is not None
    right = said.holds and said.fit.share >= SHARE
    if mistake is not None:
        right = not said.holds and [c.key for c in said.causes][:1] in [[key] for key in MISTAKES[mistake]]
    row = asdict(of.cell) | {"index": of.index, "mistake": named(mistake), "right": right}
    row |= {"share": round(said.fit.share, 5), "holds": said.holds, "sentence": said.sentence}
    return row | {"causes": [c.key for c in said.causes], "cpu_seconds": round(time.process_time() - began, 2)}


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Each mistake beside the claim."""
    yield "| plan | rounds | refused | named first | asked | least explained | median CPU s |"
    yield "|---|---|---|---|---|---|---|"
    for mistake in (None, *MISTAKES):
        own = [r for r in found if r["mistake"] == named(mistake)]
        if own:
            least = f"{100 * min(r['share'] for r in own):.1f} %" if mistake is None else ""
            refused, right = sum(not r["holds"] for r in own), sum(r["right"] for r in own)
            asked = f"all at {SHARE}" if mistake is None else f"{NAMED}"
            spent = statistics.median(r["cpu_seconds"] for r in own)
            yield f"| {named(mistake)} | {len(own)} | {refused} | {right} | {asked} | {least} | {spent:.1f} |"


def main() -> None:
    """Runs what is missing, or prints the table."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, required=True)
    asked.add_argument("--only", nargs="*", default=[], help="mistakes by name")
    asked.add_argument("--table", action="store_true")
    given = asked.parse_args()
    found = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if given.table:
        print("\n".join(table(found)))
        return
    Compute(threads=1).apply()
    sys.path.insert(0, str(Path(__file__).parent))
    done = {(r["norm"], r["optimiser"], r["examples"], r["index"], r["mistake"]) for r in found}
    for index in range(ROUNDS):
        for cell in CELLS:
            with tempfile.TemporaryDirectory() as folder:
                of = captured(Path(folder), cell, index)
                for mistake, plan in plans(of):
                    key = (cell.norm, cell.optimiser, cell.examples, index, named(mistake))
                    if key in done or (given.only and named(mistake) not in given.only):
                        continue
                    row = looked(of, mistake, plan)
                    with given.out.open("a") as out:
                        out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
