"""Rounds drawn where proofs are hard: saturated or shared units, clips to a whole part of the length, rounding near the
tolerances; and what the exact readers certify of them that is none of the client's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn

from leakgauge.clients import SGD, FedAvg, FedSGD, LocalTraining, Protocol, SecureAggregation, client_update
from leakgauge.clients.client import trained_on
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    ClientDP,
    Clip,
    ClipExamples,
    Compose,
    Defense,
    NoDefense,
    Prune,
    Quantise,
    RandomK,
    Sign,
    Soteria,
    TopK,
    laplace,
    noise,
)
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics import PSNR
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import squared_norm
from leakgauge.update import Update

READERS = ("closed-form", "rank-one", "patches", "span-fit", "peeling", "any-loss")
"""Those that certify without a search."""

SURE = 45.0
"""dB that a certificate promises (`leakgauge.attacks.exact.candidates.NEAR`)."""

Map = Callable[[Tensor], Tensor]
FRONTS: dict[str, Map] = {
    "as it is": lambda x: x,
    "turned over": lambda x: 1.5 - 2 * x.flip(1),
    "squares beside": lambda x: torch.cat([x, (2 * x - 1) ** 2], 1),
    "a power": lambda x: (x + 0.1) ** 1.7,
    "splines": lambda x: (1 - (5 * x.unsqueeze(-1) - torch.arange(6).to(x)).abs()).clamp_min(0).flatten(1),
    "squares": lambda x: (2 * x - 1) ** 2,
    "sizes": lambda x: (2 * x - 1).abs(),
    "some left out": lambda x: x[:, 2:],
    "one masked": lambda x: x * (torch.arange(x.shape[1]).to(x) > 0),
    "clamped": lambda x: x.clamp(0.2, 0.8),
    "sorted": lambda x: x.sort(dim=1).values,
    "less their mean": lambda x: x - x.mean(1, keepdim=True),
    "a wave": lambda x: torch.cat([(15 * x).sin(), (15 * x).cos()], 1),
    "bins": lambda x: ((8 * x).floor().unsqueeze(-1) == torch.arange(8).to(x)).to(x).flatten(1),
    "neighbours added": lambda x: x + x.roll(1, 1),
}
"""What stands between an example and the first layer. Behind some of them others look the same."""


class Front(nn.Module):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    def forward(self, x: Tensor) -> Tensor:
        return FRONTS[self.word](x.flatten(1))


SHAPES = (((3, 2, 2), 20, 2), ((3, 3, 3), 40, 4), ((3, 4, 4), 30, 5))
"""Shape of an example, units, classes."""


@dataclass(frozen=True)
class Round:
    """One update, its attacker, and what the client trained on."""

    observation: Observation
    truth: Tensor
    words: str

    @staticmethod
    def drawn(seed: int, *, columns: bool = False, fronts: bool = False) -> Round | None:
        """A random one, with a defence in front that leaves `columns` out, or a map in front of the network; `None`
        where no client can run it."""
        rng, g = Random(f"certificates {seed}"), torch.Generator().manual_seed(seed)
        shape, units, classes = rng.choice(SHAPES)
        front = Random(f"fronts {seed}").choice(list(FRONTS)) if fronts else "as it is"
        task, n = _task(rng, shape, units, classes, seed, front), rng.choice((1, 1, 2, 3, 4, 6))
        kind = next(task.module.parameters()).dtype
        x, y = torch.rand((n, *shape), generator=g).to(kind), torch.randint(classes, (n,), generator=g)
        batch = Batch(x, y[:1].repeat(n) if rng.random() < 0.4 else y)
        whole = float(squared_norm(client_update(task, FedSGD(), batch, Draws(seed)).tensors)) ** 0.5
        client, defense, wire = client_of(rng, whole, n), defense_of(rng, whole), rng.choice((None, None, *WIRES))
        if columns:
            own = Random(f"columns {seed}")
            defense = Compose((Soteria(prune=own.choice((5.0, 30.0, 60.0)), layer=own.choice(("", "3"))), defense))
        try:
            update = client_update(task, client, batch, Draws(seed), defense=defense)
        except InputError:
            return None
        if wire is not None:
            update = Update({k: v.to(wire).to(v) for k, v in update.tensors.items()}, update.header)
        told = defense if rng.random() < 0.8 or type(defense) is NoDefense else None
        knows = Knowledge(example_count=n, local_training=client, defense=told)
        words = f"{shape} {units} {classes} {kind} {n} {batch.labels.tolist()} {client} {defense} {wire} {told is None}"
        words += f" {front}"
        truth = trained_on(client, batch, Draws(seed), defense).inputs
        return Round(Observation(defense.on_task(task), update, knows), truth, words)

    def read(self, reader: str) -> tuple[int, list[float]]:
        """Examples that a reader certifies, and the dB of those that are none of the client's."""
        found = ATTACKS[reader].build().reconstruct(self.observation, torch.Generator().manual_seed(0))
        if found.inputs is None:
            return 0, []
        sure = torch.full((len(found.inputs),), found.status is Status.EXACT)
        sure = sure if found.certified is None else found.certified.cpu()
        truth = self.truth.double()
        near = [float(PSNR()(x.double().expand_as(truth), truth).max()) for x in found.inputs[sure]]
        return len(near), [psnr for psnr in near if psnr < SURE]


WIRES = (torch.float16, torch.bfloat16)


def _task(rng: Random, shape: tuple[int, ...], units: int, classes: int, seed: int, front: str) -> Task:
    torch.manual_seed(seed)
    activation = rng.choice((nn.ReLU, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.GELU))
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(torch.Size(shape).numel(), units), activation(), nn.Linear(units, classes)
    )
    if front != "as it is":
        model[0] = Front(front)
        model[1] = nn.Linear(model[0](torch.zeros(1, *shape)).shape[1], units)
    if rng.random() < 0.2:
        model[1].bias.data += 3.0  # all examples drive all units: only mixtures are in the rows
    if rng.random() < 0.2:
        model[3].weight.data *= 30.0  # a saturated soft-max
    return Task.of(model.to(rng.choice((torch.float32, torch.float32, torch.float64))), DataSpec(shape, classes))


def _bound(rng: Random, whole: float) -> float:
    """A clip that shortens at random, to a whole part of the length, or not at all."""
    part = rng.choice((10 ** rng.uniform(-2, 1), 1 / rng.choice((2, 3, 4)), 1.0))
    return max(whole, 1e-9) * part * (1 + rng.choice((-1, 1)) * 10 ** rng.uniform(-9, -2))


def client_of(rng: Random, whole: float, examples: int) -> Protocol:
    lr = 10 ** rng.uniform(-4, 0)
    decay, momentum = rng.choice((0.0, 0.0, 5e-4, 0.05)), rng.choice((0.0, 0.9))
    nesterov = bool(momentum) and rng.random() < 0.5
    return rng.choice(
        (
            FedSGD(),
            FedAvg(lr=lr, weight_decay=decay, momentum=momentum, nesterov=nesterov),
            FedAvg(lr=lr, epochs=2),
            LocalTraining(optimiser=SGD(lr=lr, weight_decay=decay), clip=_bound(rng, whole)),
            LocalTraining(optimiser=SGD(lr=lr), batch_size=1, accumulate=examples),
            SecureAggregation(cohort=examples, client=FedAvg(lr=lr, weight_decay=decay)),
        )
    )


def defense_of(rng: Random, whole: float) -> Defense:
    parts = tuple(_one(rng, whole) for _ in range(rng.choice((0, 1, 1, 1, 2, 2))))
    return Compose(parts) if len(parts) > 1 else parts[0] if parts else NoDefense()


def _one(rng: Random, whole: float) -> Defense:
    levels, keep, bound = rng.choice((15, 255, 4095, 32767)), rng.uniform(0.2, 1), _bound(rng, whole)
    return rng.choice(
        (
            noise(sigma=max(whole, 1e-9) * 10 ** rng.uniform(-10, -2)),
            noise(relative=10 ** rng.uniform(-8, -0.5)),
            noise(tensor_std=10 ** rng.uniform(-7, -1)),
            laplace(sigma=max(whole, 1e-9) * 10 ** rng.uniform(-10, -2)),
            Quantise(levels=levels),
            QSGD(levels=levels),
            Clip(norm=bound),
            ClipExamples(norm=bound),
            TopK(keep=keep),
            RandomK(keep=keep, unbiased=rng.random() < 0.5),
            Prune(rate=1 - keep),
            Sign(),
            Sign(scaled=True),
            DPSGD(noise_multiplier=10 ** rng.uniform(-8, -1), norm=bound),
            ClientDP(noise_multiplier=10 ** rng.uniform(-8, -1), norm=bound),
        )
    )


def wrong(seeds: range, *, columns: bool = False, fronts: bool = False) -> tuple[int, int, list[str]]:
    """Reads, certified examples, and each certificate that is wrong, in words that say how to draw it again."""
    reads, certified, off = 0, 0, []
    for seed in seeds:
        if (one := Round.drawn(seed, columns=columns, fronts=fronts)) is None:
            continue
        for reader in (*READERS, *(("features",) if fronts else ())):
            sure, bad = one.read(reader)
            reads, certified = reads + 1, certified + sure
            off += [f"seed {seed}, {reader}: {psnr:.1f} dB; {one.words}" for psnr in bad]
    return reads, certified, off
