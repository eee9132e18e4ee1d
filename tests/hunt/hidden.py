"""Networks, clients and batches drawn where reads of hidden tensors turn: repeated and nearly equal examples, several
steps and clients, dead filters, coarse wires, entries that a defence leaves out, loops and defences that are not what
the attacker was told; and the certified maps that no layer was given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import torch
from torch import nn

from convolutions import Block, given, made
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation, client_update
from leakgauge.defenses import Compose, Defense, NoDefense, Prune, RandomK, Soteria, TopK, noise
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.update import Update

WEIGHTS = ("first.weight", "second.weight", "head.weight")


@dataclass(frozen=True)
class HiddenRound:
    """One update, and what made it."""

    module: nn.Module
    batch: Batch
    mode: str
    client: Protocol
    observation: Observation

    @staticmethod
    def drawn(seed: int) -> HiddenRound:
        """A random one."""
        rng = Random(f"hidden {seed}")
        torch.manual_seed(seed)
        count, mode = rng.choice((1, 2, 2, 3, 4, 4, 6)), rng.choice(("eval", "train", "train"))
        norm, act = mode == "train" or rng.random() < 0.6, rng.choice((nn.ReLU, nn.ReLU, nn.ReLU, nn.LeakyReLU))
        module = Block(rng.choice((20, 34, 72, 100, 144)), norm=norm, act=act)
        inputs, labels = made(count, size=rng.choice((6, 8)), seed=seed)
        if count > 1 and rng.random() < 0.4:
            near = rng.choice((0.0, 1e-4, 1e-3, 1e-2))
            inputs[1] = inputs[0] + near * torch.randn(inputs[0].shape, generator=torch.Generator().manual_seed(seed))
        if norm and rng.random() < 0.1:
            module.norms[2].bias.data[: rng.choice((5, 10, 20))] = -1e3
        client = HiddenRound.loop(rng, count, mode)
        task = Task.of(module, DataSpec(tuple(inputs.shape[1:]), 4), mode=mode)
        batch = Batch(inputs, labels)
        defense = NoDefense() if client.aggregates else HiddenRound.defended(Random(f"defended {seed}"))
        update = client_update(task, client, batch, Draws(seed), defense=defense)
        if rng.random() < 0.1:
            update = Update({k: v.half().to(v) for k, v in update.tensors.items()}, update.header)
        told, said = client, count
        if rng.random() < 0.25 and not isinstance(client, FedSGD):
            told = rng.choice((None, FedAvg(lr=0.1), FedAvg(epochs=2, lr=0.1), FedAvg(batch_size=1, lr=0.1)))
        elif rng.random() < 0.1:
            said = count + 1
            told = FedSGD() if isinstance(client, FedSGD) else FedAvg(lr=0.1)
        knows = None if seed % 3 == 0 else defense
        known = Knowledge(example_count=said, local_training=told, defense=knows)
        return HiddenRound(module, batch, mode, client, Observation(task, update, known))

    @staticmethod
    def defended(rng: Random) -> Defense:
        """None, mostly; else one that leaves entries, columns or small values out, now and then with noise behind."""
        if rng.random() < 0.6:
            return NoDefense()
        keep = rng.uniform(0.3, 0.99)
        masks = Soteria(prune=100 * (1 - keep), layer="head"), TopK(keep=keep), Prune(rate=1 - keep), RandomK(keep=keep)
        mask = rng.choice((masks[0], masks[0], *masks))
        return Compose((mask, noise(relative=10 ** rng.uniform(-8, -3)))) if rng.random() < 0.3 else mask

    @staticmethod
    def loop(rng: Random, count: int, mode: str) -> Protocol:
        """A client that this batch suits; batch statistics of one example are none."""
        few = [n for n in range(1, count + 1) if count % n == 0 and (mode == "eval" or n > 1 or count == 1)]
        decay = rng.choice((0.0, 0.0, 0.0, 1e-3))
        own = FedAvg(
            epochs=rng.choice((1, 1, 1, 2)),
            batch_size=rng.choice(few),
            lr=10 ** rng.uniform(-1.5, 0.3),
            momentum=rng.choice((0.0, 0.9)),
            weight_decay=decay,
        )
        if rng.random() < 0.2:
            return FedSGD()
        if count > 1 and count % 2 == 0 and (mode == "eval" or count > 2) and rng.random() < 0.3:
            size = rng.choice([n for n in (1, 2, 3) if (count // 2) % n == 0 and (mode == "eval" or n > 1)] or [None])
            inner = rng.choice((FedSGD(), replace(own, batch_size=size)))
            return SecureAggregation(cohort=2, client=inner)
        return own

    def read(self) -> HiddenTensors:
        """What comes out."""
        count = self.observation.examples
        assert count is not None
        return HiddenTensors.of(self.observation, count).read(torch.Generator().manual_seed(0))

    def wrong(self) -> tuple[int, list[str]]:
        """Certified layers, and those that hold a map that was never given, beyond twenty times what they say."""
        sure, off = 0, []
        for read in self.read().reads:
            if not read.certified or read.layers[0].weight not in WEIGHTS:
                continue
            name = read.layers[0].weight
            truth = given(self.module, self.batch, self.mode, name.removesuffix(".weight"), self.client).flatten(1)
            maps = read.maps.flatten(1)
            if read.residual is None:  # up to a factor each
                truth, maps = (t / t.norm(dim=1, keepdim=True) for t in (truth, maps))
            if not read.alike:  # all up to one
                nearest = truth[torch.cdist(maps / maps.norm(), truth / truth.norm()).argmin(1)]
                maps = maps * (nearest * maps).sum() / maps.square().sum()
            gap = float((torch.cdist(maps, truth).amin(1) / maps.norm(dim=1)).max())
            sure += 1
            if gap > max(1e-3, 20 * read.error):
                off.append(f"{name}: {gap:.0e} off, {read.error:.0e} said; {self.mode}, {self.client}")
        return sure, off


def wrong(seeds: range) -> tuple[int, list[str]]:
    """Certified layers, and each wrong one, in words that say how to draw it again."""
    certified, off = 0, []
    for seed in seeds:
        sure, bad = HiddenRound.drawn(seed).wrong()
        certified += sure
        off += [f"seed {seed}, {words}" for words in bad]
    return certified, off
