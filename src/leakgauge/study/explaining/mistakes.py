"""The table of mistakes that people make when they describe a round, each undone: what was forgotten, the change, and
the plan's account with it, which says how the update moves."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from leakgauge.clients import SGD, Adam, FedSGD, LocalTraining, Optimiser, Protocol, adamw
from leakgauge.clients.losses import BCEWithLogits, CrossEntropy
from leakgauge.clients.protocol import GradientRule
from leakgauge.data.source import CIFAR_MEAN, CIFAR_STD
from leakgauge.defenses import NoDefense, TopK, parts_of
from leakgauge.draws import Draws
from leakgauge.study.explaining.fit import Fit, products
from leakgauge.study.explaining.setting import Setting
from leakgauge.task import Batch, Loss, Mode, Task, cross_entropy
from leakgauge.tensors import Tensors, entries
from leakgauge.update import Update, UpdateKind

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation a channel that torchvision's models are trained with."""

CLEARLY = 0.2
"""Share of a tensor by which another one's values must fit it better to be taken for its own."""

PAIRS = 24
"""Pairs of layers of equal shapes that are tried the other way round."""

MOST_STEPS = 100
"""Minibatches of a client up to which other numbers of epochs and sizes are tried."""

PROBED = 1e-3
"""Weight decay whose effect on a round says how much of it there is."""

SHUFFLE = "clients[0].shuffle"


@dataclass(frozen=True, eq=False)
class RoundAccount:
    """A plan's account of a round, the update that was captured, and draws for simulated rounds."""

    setting: Setting
    update: Update
    draws: Draws


@dataclass(frozen=True, eq=False)
class Mistake:
    """One mistake undone.

    Attributes:
        key: of the plan.
        change: what the plan should say.
        setting: the plan's account without the mistake.
        fit_rate: its learning rate has to be found.
        against: the update points the other way.
        kind: of the update, whatever its header says.
        tensors: those of the update without the mistake, where it is in them.
    """

    key: str
    change: str
    setting: Setting
    fit_rate: bool = False
    against: bool = False
    kind: UpdateKind | None = None
    tensors: Tensors | None = None


def mistakes(account: RoundAccount) -> Iterator[Mistake]:
    """Every row of the table. The simplest first: of those that explain equally much, the first is named."""
    for row in TABLE:
        yield from row(account)


def _of_the_zeros(account: RoundAccount) -> Iterator[Mistake]:
    """Small entries that were left out."""
    setting, update = account.setting, account.update
    if not parts_of(setting.defense):
        kept = sum(int(t.count_nonzero()) for t in update.tensors.values()) / entries(update.tensors)
        if kept < 1:
            words = f"{{topk: {{keep: {kept:.3g}}}}} or another that leaves entries out"
            yield Mistake("defenses", words, replace(setting, defense=TopK(keep=kept)))


def _swapped(account: RoundAccount) -> Iterator[Mistake]:
    """An update whose tensors of one shape fit the plan's better under each other's names."""
    setting, update, draws = account.setting, account.update, account.draws
    ours, groups = setting.simulated(update, draws), defaultdict[torch.Size, list[str]](list)
    for name, tensor in update.tensors.items():
        groups[tensor.shape].append(name)
    other: dict[str, str] = {}
    for names in groups.values():
        fits = [[Fit.between({a: ours[a]}, {a: update.tensors[b]}).share for b in names] for a in names]
        rows, columns = linear_sum_assignment(fits, maximize=True)
        other |= {names[i]: names[j] for i, j in zip(rows, columns, strict=True) if fits[i][j] > fits[i][i] + CLEARLY}
    if other and other.keys() == set(other.values()):
        words = f"{' and '.join(list(other)[:4])} hold each other's values: arrays in another order"
        yield Mistake("update", words, setting, tensors={k: update.tensors[other.get(k, k)] for k in update.tensors})


def of_the_shuffle(account: RoundAccount) -> Iterator[Mistake]:
    """Minibatches in another order: a framework's loader may shuffle unasked."""
    setting = account.setting
    loop, examples = setting.protocol.loop, len(setting.batch)
    if loop is not None and loop is setting.protocol and max(loop.parts(examples)) < examples:
        other = replace(loop, shuffle=not loop.shuffle)
        yield Mistake(SHUFFLE, str(other.shuffle).lower(), replace(setting, protocol=other))


def _of_the_update(account: RoundAccount) -> Iterator[Mistake]:
    setting, update = account.setting, account.update
    task = setting.task
    if update.header.kind is UpdateKind.DELTA:
        after = {k: v.to(update.tensors[k]) for k, v in task.parameters.items()}
        words = "these are the weights after training, not how far they moved: give after − before"
        yield Mistake("update", words, setting, tensors={k: v - after[k] for k, v in update.tensors.items()})
        gradient = replace(setting, protocol=FedSGD())
        yield Mistake(
            "update", "it is the gradient itself, and its header says delta", gradient, kind=UpdateKind.GRADIENT
        )
        yield Mistake("clients[0].lr", "set", setting, fit_rate=True)
        yield Mistake("update", "it points against the plan's; was before − after handed in?", setting, against=True)
        before = task.with_state({k: v - update.tensors[k].to(v) for k, v in task.parameters.items()})
        words = "these are the weights after training; give those before"
        yield Mistake("model.weights", words, replace(setting, task=before))
        return
    for size in dict.fromkeys((None, (len(setting.batch) + 1) // 2, 1)):
        local = replace(setting, protocol=LocalTraining(batch_size=size))
        words = "it is a delta (after − before), and its header says gradient;"
        yield Mistake("update", words, local, fit_rate=True, kind=UpdateKind.DELTA)
    yield Mistake("update", "it points against the plan's gradient", setting, against=True)
    fit = setting.fit(update, Draws(0))
    factor = 1 / fit.norm if fit.norm > 0 else 1.0
    words = f"it is {factor:.3g} times the plan's gradient: a sum over examples for a mean, or a rate in it?"
    yield Mistake("update", words, replace(setting, protocol=Scaled(setting.protocol, factor)))


def _of_the_decay(account: RoundAccount) -> Iterator[Mistake]:
    """Weight decay that the plan has otherwise: as much as explains most of what is left."""
    setting, update, draws = account.setting, account.update, account.draws
    loop = setting.protocol.loop
    if loop is None or loop is not setting.protocol or not isinstance(loop.optimiser, SGD):
        return
    sgd = loop.optimiser

    def decaying(decay: float) -> Setting:
        return replace(setting, protocol=replace(loop, optimiser=replace(sgd, weight_decay=decay)))

    plain, more = (decaying(sgd.weight_decay + by).simulated(update, draws) for by in (0.0, PROBED))
    way = {k: more[k] - plain[k] for k in plain}
    missing = {k: update.tensors[k].to(plain[k]) - plain[k] for k in plain}
    size, _, along = products(way, missing)
    found = sgd.weight_decay + PROBED * along / (size or 1.0)
    if found <= 0 or not math.isfinite(found):
        return
    for decay in dict.fromkeys((float(f"{found:.1g}"), float(f"{found:.3g}"))):
        yield Mistake("clients[0].weight_decay", f"{decay:g}", decaying(decay))


def _of_the_order(account: RoundAccount) -> Iterator[Mistake]:
    """Weights whose arrays came in another order: those of equal shapes do not show it."""
    setting = account.setting
    task, layers = setting.task, defaultdict[tuple[tuple[str, torch.Size], ...], list[str]](list)
    for name, module in task.module.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if own and all(f"{name}.{k}" in task.parameters for k in own):
            layers[tuple((k, v.shape) for k, v in own.items())].append(name)
    pairs = [(form, pair) for form, names in layers.items() for pair in itertools.combinations(names, 2)]
    for form, (one, two) in pairs[:PAIRS]:
        both = (one, two), (two, one)
        swaps = {f"{a}.{key}": task.parameters[f"{b}.{key}"] for key, _ in form for a, b in both}
        words = f"{one} and {two} hold each other's values: arrays without names in another order"
        yield Mistake("model.weights", words, replace(setting, task=task.with_state(swaps)))


def _of_the_mode(account: RoundAccount) -> Iterator[Mistake]:
    setting = account.setting
    task = setting.task
    drops = [m for m in task.module.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    norms = [m for m in task.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if drops or norms:
        other = Mode.EVAL if task.mode is Mode.TRAIN else Mode.TRAIN
        module = task.module_copy().train(other is Mode.TRAIN)
        changed = replace(task, module=module, mode=other, stochastic=bool(drops) and other is Mode.TRAIN)
        yield Mistake("mode", other.value, replace(setting, task=changed))


def _of_the_loss(account: RoundAccount) -> Iterator[Mistake]:
    setting = account.setting
    others: list[tuple[str, Loss]] = [("plain cross-entropy", cross_entropy)]
    others += [(f"label smoothing of {s:g}", CrossEntropy(label_smoothing=s)) for s in (0.1, 0.2, 0.05)]
    others += [("bce-with-logits", BCEWithLogits())]
    for words, loss in others:
        if loss != setting.task.loss:
            yield Mistake("loss", words, replace(setting, task=replace(setting.task, loss=loss)))


def _of_normalisation(account: RoundAccount) -> Iterator[Mistake]:
    setting = account.setting
    data = setting.task.data
    low, width = data.low, data.range
    ways: list[tuple[str, tuple[float, ...], tuple[float, ...]]] = [
        ("the network saw raw values: normalise: false", (0.0,), (1.0,))
    ]
    if data.is_image and data.shape[0] == 3:
        for name, (means, stds) in (("CIFAR-10's", (CIFAR_MEAN, CIFAR_STD)), ("ImageNet's", IMAGENET)):
            scaled = tuple(low + width * m for m in means), tuple(width * s for s in stds)
            ways.append((f"{name} mean and standard deviation, here or in the module", *scaled))
    ways.append(("values from −1 to 1: put that into the module", (low + width / 2,), (width / 2,)))
    ways.append(("values from 0 to 1: put that into the module", (low,), (width,)))
    ways.append(("values from 0 to 255: put that into the module", (low,), (width / 255,)))
    for words, mean, std in ways:
        if (set(data.mean), set(data.std)) != (set(mean), set(std)):
            changed = replace(setting.task, data=replace(data, mean=mean, std=std))
            yield Mistake("data.normalise", words, replace(setting, task=changed))


def _of_local_training(account: RoundAccount) -> Iterator[Mistake]:
    setting = account.setting
    loop = setting.protocol.loop
    if loop is None or loop is not setting.protocol:
        return
    examples = len(setting.batch)
    sizes = dict.fromkeys((loop.batch_size, None, *(2**i for i in range(8) if 2**i < examples)))
    others: list[LocalTraining] = []
    for epochs in dict.fromkeys((loop.epochs, 1, 2, 3, 5, 10)):
        for size in sizes:
            other = replace(loop, epochs=epochs, batch_size=size)
            if other != loop and other.steps(examples) <= MOST_STEPS:
                others.append(other)
    for other in sorted(others, key=lambda o: (o.epochs != loop.epochs) + (o.batch_size != loop.batch_size)):
        words = f"epochs: {other.epochs}, batch_size: {other.batch_size or examples}"
        yield Mistake("clients[0]", words, replace(setting, protocol=other))
    lr = loop.optimiser.lr
    optimisers: list[tuple[str, Optimiser]] = [("SGD", SGD(lr=lr)), ("SGD with momentum 0.9", SGD(lr=lr, momentum=0.9))]
    if not loop.optimiser.rescales_entries:
        optimisers += [("Adam", Adam()), ("AdamW", adamw())]
    for name, optimiser in optimisers:
        if optimiser != loop.optimiser:
            changed = replace(setting, protocol=replace(loop, optimiser=optimiser))
            yield Mistake("clients[0].optimiser", f"{name},", changed, fit_rate=True)


def _of_the_defense(account: RoundAccount) -> Iterator[Mistake]:
    setting = account.setting
    if parts_of(setting.defense):
        yield Mistake("defenses", "none was applied", replace(setting, defense=NoDefense()))


TABLE: tuple[Callable[[RoundAccount], Iterator[Mistake]], ...] = (
    _swapped,
    of_the_shuffle,
    _of_the_update,
    _of_the_zeros,
    _of_the_order,
    _of_the_mode,
    _of_normalisation,
    _of_the_loss,
    _of_the_decay,
    _of_the_defense,
    _of_local_training,
)
"""What people forget, each with the round as it then was."""


@dataclass(frozen=True)
class Scaled(Protocol):
    """A protocol whose update is multiplied, such as the gradient of a sum for that of a mean."""

    client: Protocol
    factor: float

    @property
    def kind(self) -> UpdateKind:
        return self.client.kind

    def steps(self, examples: int) -> int:
        return self.client.steps(examples)

    def local_training(self, task: Task, batch: Batch, draws: Draws, gradient: GradientRule) -> tuple[Tensors, Tensors]:
        moved, buffers = self.client.local_training(task, batch, draws, gradient)
        return {k: self.factor * v for k, v in moved.items()}, buffers
