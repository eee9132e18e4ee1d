"""Rounds of every kind of target, drawn where proofs are hard, and what is certified of them that is none of the
client's: `python -m hunt.targets --out rows.jsonl` (in `tests`) writes a row for each kind and each hundred batches.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leakgauge as lg
from hunt.certificates import SURE, WIRES, client_of, defense_of
from leakgauge.clients import FedSGD, client_update
from leakgauge.clients.client import trained_on
from leakgauge.compute import Budget
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.step import losses
from leakgauge.step.parts import BatchPart, Target
from leakgauge.task import Batch, Task
from leakgauge.tensors import squared_norm
from leakgauge.update import Update

Step = Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
Parts = Mapping[str, BatchPart]

READERS = ("any-loss", "peeling", "rank-one", "closed-form")
"""Of numbers and pictures; of texts there is one reader."""
EVERY = 10
"""One round in so many is attacked as a whole too, with so few evaluations that no search gets far."""
BUDGET = Budget(gradient_evaluations=6)
NEAR = 1e-2
"""Share of its range that a value may be off."""


class Lookup(nn.Module):
    """Numbers beside a table of categories."""

    def __init__(self, numbers: int, kinds: int, body: nn.Module) -> None:
        super().__init__()
        self.numbers, self.table, self.body = numbers, nn.Embedding(kinds, 3), body

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        return self.body(torch.cat([x, self.table(kind[:, 0])], 1))  # type: ignore[no-any-return]


class Causal(nn.Module):
    """A causal language model of one block."""

    def __init__(self, vocabulary: int, width: int, length: int, *, tied: bool, norm: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.first = nn.LayerNorm(width) if norm else nn.Identity()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        seen = self.first(x)
        score = self.q(seen) @ self.k(seen).transpose(1, 2) / seen.shape[-1] ** 0.5
        hidden = torch.ones_like(score, dtype=torch.bool).triu(1)
        x = x + score.masked_fill(hidden, -1e9).softmax(-1) @ self.v(seen)
        return self.head(x + self.down(F.gelu(self.up(x))))  # type: ignore[no-any-return]


class Places(nn.Module):
    """Logits of every place."""

    def __init__(self, body: nn.Module, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.body, self.shape = body, shape

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).view(-1, *self.shape)  # type: ignore[no-any-return]


def _body(rng: Random, inputs: int, outputs: int) -> nn.Sequential:
    """A perceptron with units that are saturated, shared or rare."""
    units = rng.choice((12, 60, 200))
    activation = rng.choice((nn.ReLU, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU))
    net = nn.Sequential(nn.Flatten(), nn.Linear(inputs, units), activation(), nn.Linear(units, outputs))
    if rng.random() < 0.2:
        net[1].bias.data += 3.0  # all examples drive all units: only mixtures are in the rows
    if rng.random() < 0.2:
        net[3].weight.data *= 30.0
    return net


def _given(rng: Random, outputs: int) -> tuple[nn.Module, Parts, Callable[[nn.Module, Mapping[str, Tensor]], Tensor]]:
    """A network, its inputs, and how it is called."""
    kind = rng.choice(("picture", "numbers", "ranges", "looked up"))
    if kind == "picture":
        shape = rng.choice(((1, 4, 4), (3, 3, 3)))
        return _body(rng, torch.Size(shape).numel(), outputs), {"x": lg.Image(shape)}, lambda m, b: m(b["x"])
    if kind == "looked up":
        net = Lookup(5, 4, _body(rng, 8, outputs))
        return net, {"x": lg.Numbers(5), "kind": lg.Categories((4,))}, lambda m, b: m(b["x"], b["kind"])
    count = rng.choice((4, 8, 15))
    low, high = (-2.0,) * count, tuple(rng.choice((-1.0, 2.0, 30.0)) for _ in range(count))
    numbers = lg.Numbers(count) if kind == "numbers" else lg.Numbers(count, low, high)
    return _body(rng, count, outputs), {"x": numbers}, lambda m, b: m(b["x"])


def _values(rng: Random) -> tuple[nn.Module, Parts, Step]:
    count, loss = rng.choice((1, 1, 3)), rng.choice((losses.squares, losses.squares, losses.huber))
    net, parts, called = _given(rng, count)
    return net, {**parts, "y": lg.Values(count)}, lambda m, b: loss(called(m, b), b["y"])


def _labels(rng: Random, count: int) -> tuple[nn.Module, Parts, Step]:
    loss = rng.choice((losses.bce, losses.bce, losses.focal)) if count > 1 else losses.bce
    net, parts, called = _given(rng, count)
    return net, {**parts, "y": lg.Labels(count)}, lambda m, b: loss(called(m, b), b["y"].to(called(m, b)))


def _classes(rng: Random) -> tuple[nn.Module, Parts, Step]:
    count = rng.choice((2, 4, 6))
    weight = torch.linspace(0.5, 2, count) if rng.random() < 0.4 else None
    loss = rng.choice((F.cross_entropy, F.cross_entropy, losses.focal)) if weight is None else F.cross_entropy
    net, parts, called = _given(rng, count)

    def step(m: nn.Module, b: Mapping[str, Tensor]) -> Tensor:
        z = called(m, b)
        return F.cross_entropy(z, b["y"], weight=weight.to(z)) if weight is not None else loss(z, b["y"])

    return net, {**parts, "y": lg.Classes(count)}, step


def _survival(rng: Random) -> tuple[nn.Module, Parts, Step]:
    net, parts, called = _given(rng, 1)
    return net, {**parts, "y": lg.TimeToEvent()}, lambda m, b: losses.cox(called(m, b), b["y"])


def _mask(rng: Random) -> tuple[nn.Module, Parts, Step]:
    count, side = rng.choice((1, 2, 3)), 4
    loss = rng.choice((losses.dice_ce, losses.places if count > 1 else losses.bce, losses.dice))
    parts = {"x": lg.Image((1, side, side)), "y": lg.Mask(count, (side, side))}
    if rng.random() < 0.6:
        net: nn.Module = Places(_body(rng, side * side, count * side * side), (count, side, side))
    else:
        deep = (nn.ReLU, nn.GELU, nn.Tanh)[rng.randrange(3)]()
        net = nn.Sequential(nn.Conv2d(1, rng.choice((4, 12)), 3, padding=1), deep)
        net.append(nn.Conv2d(net[0].out_channels, count, 1))
    return net, parts, lambda m, b: loss(m(b["x"]), b["y"] if count > 1 else b["y"].to(b["x"]))


def _tokens(rng: Random) -> tuple[nn.Module, Parts, Step]:
    vocabulary, length = rng.choice((12, 40)), rng.choice((4, 7))
    net = Causal(vocabulary, rng.choice((8, 24)), length, tied=rng.random() < 0.4, norm=rng.random() < 0.6)
    if rng.random() < 0.2:
        net.head.weight.data *= 20.0
    return net, {"x": lg.Text(length, vocabulary)}, lambda m, b: losses.next_token(m(b["x"]), b["x"])


KINDS: dict[str, Callable[[Random], tuple[nn.Module, Parts, Step]]] = {
    "regression": _values,
    "one logit": lambda rng: _labels(rng, 1),
    "several labels": lambda rng: _labels(rng, rng.choice((3, 6))),
    "masks": _mask,
    "survival": _survival,
    "next tokens": _tokens,
    "classes": _classes,
}


@dataclass(frozen=True)
class Round:
    """One update, its attacker, and what the client trained on."""

    observation: Observation
    truth: Batch
    words: str

    @staticmethod
    def drawn(kind: str, seed: int) -> Round | None:
        """A random one; `None` where no client can run it."""
        rng, g = Random(f"{kind} {seed}"), torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        net, parts, step = KINDS[kind](rng)
        net = net.to(rng.choice((torch.float32, torch.float32, torch.float64)))
        task, n = Task.of_step(net, step, dict(parts)), rng.choice((1, 1, 2, 2, 3, 5))
        n += kind == "survival"  # one example alone has no gradient there
        made = {name: part.made_up(n, g) for name, part in parts.items()}
        if rng.random() < 0.3:
            made = {name: v[:1].expand_as(v) if isinstance(parts[name], Target) else v for name, v in made.items()}
        batch = task.layout.batch(made)
        batch = Batch(batch.inputs.to(next(net.parameters())), batch.labels)
        whole = float(squared_norm(client_update(task, FedSGD(), batch, Draws(seed)).tensors)) ** 0.5
        plain = rng.random() < 0.6
        client = FedSGD() if plain else client_of(rng, whole, n)
        defense = NoDefense() if plain and rng.random() < 0.8 else defense_of(rng, whole)
        wire = rng.choice((None, None, None, *WIRES))
        try:
            update = client_update(task, client, batch, Draws(seed), defense=defense)
        except InputError:
            return None
        if wire is not None:
            update = Update({k: v.to(wire).to(v) for k, v in update.tensors.items()}, update.header)
        told = defense if rng.random() < 0.8 or type(defense) is NoDefense else None
        knows = Knowledge(example_count=n, local_training=client, defense=told)
        words = f"{[*parts.values()]} {n} {client} {defense} {wire} {told is None} {net}"
        truth = trained_on(client, batch, Draws(seed), defense)
        return Round(Observation(defense.on_task(task), update, knows), truth, " ".join(words.split()))

    def read(self, reader: str) -> tuple[int, list[str]]:
        """What a reader certifies (examples, or tokens in their places), and what of it is wrong."""
        budget = BUDGET if reader == "auto" else Budget()
        draws = torch.Generator().manual_seed(0)
        found = ATTACKS[reader].build().reconstruct(self.observation, draws, budget=budget)
        if found.tokens is not None:
            return self._of_texts(found)
        if found.inputs is None:
            return 0, []
        sure = torch.full((len(found.inputs),), found.status is Status.EXACT)
        sure = sure if found.certified is None else found.certified.cpu()
        truth, off = self.truth.inputs.double(), []
        task = self.observation.task
        read = [v for name, v in found.in_parts(task).parts.items() if name in task.layout.targets]
        for i in sure.nonzero().flatten().tolist():
            near = PSNR()(found.inputs[i].double().expand_as(truth), truth)
            if float(near.max()) < SURE:
                off.append(f"an example of {float(near.max()):.1f} dB")
            for target in read if float(near.max()) >= SURE else ():
                off += self._target(target[i], self.truth.labels[near >= SURE])
        return int(sure.sum()), off

    def _of_texts(self, found: Reconstruction) -> tuple[int, list[str]]:
        tokens = found.tokens
        if tokens is None or found.status is not Status.EXACT:
            return 0, []
        true = self.truth.inputs.long()
        if tokens.order is not None:
            right = Counter(map(tuple, tokens.order.tolist())) == Counter(map(tuple, true.tolist()))
            return tokens.order.numel(), [] if right else [f"the texts {tokens.order.tolist()} for {true.tolist()}"]
        read, held = set(tokens.counts.sum(0).nonzero().flatten().tolist()), set(true.flatten().tolist())
        right = read == held if tokens.whole else read <= held
        return len(read), [] if right else [f"the tokens {sorted(read)} for {sorted(held)}"]

    def _target(self, read: Tensor, true: Tensor) -> list[str]:
        """What is wrong of the target of an example that is the client's; of several that are alike, of the nearest."""
        gap = (true.double() - read.double()).abs().flatten(1) if read.ndim else (true.double() - read.double()).abs()
        far = float(gap.amax(1).min() if read.ndim else gap.min())
        (part,) = self.observation.task.layout.targets.values()
        wide = part.edges[1][0] - part.edges[0][0]
        return [f"a target {read.tolist()} that is {far:.2g} off"] if far > NEAR * wide else []


def wrong(kind: str, seeds: Iterable[int]) -> tuple[int, int, list[str]]:
    """Reads, what is certified, and each certificate that is wrong, in words that say how to draw it again."""
    reads, certified, off = 0, 0, []
    for seed in seeds:
        if (one := Round.drawn(kind, seed)) is None:
            continue
        readers = ("tokens",) if one.observation.task.data.is_text else READERS
        for reader in (*readers, *(("auto",) if seed % EVERY == 0 else ())):
            sure, bad = one.read(reader)
            reads, certified = reads + 1, certified + sure
            off += [f"{kind} {seed}, {reader}: {what}; {one.words}" for what in bad]
    return reads, certified, off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first batch")
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    end = options.first + options.batches
    for first in range(options.first, end, 100):
        for kind in options.kind or KINDS:
            began = time.process_time()
            reads, certified, off = wrong(kind, range(first, min(first + 100, end)))
            row = {"kind": kind, "first": first, "reads": reads, "certified": certified, "wrong": off}
            row["seconds"] = round(time.process_time() - began, 1)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
