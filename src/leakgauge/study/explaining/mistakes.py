"""The table of mistakes that people make when they describe a round, each undone: what was forgotten, the change, and
the account of the round with it, which says how the update moves."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from leakgauge.clients import SGD, Adam, FedSGD, LocalTraining, Optimiser, Protocol, adamw
from leakgauge.clients.local_training import BCEWithLogits, CrossEntropy
from leakgauge.data.source import CIFAR_MEAN, CIFAR_STD
from leakgauge.defenses import NoDefense, TopK, parts_of
from leakgauge.draws import Draws
from leakgauge.study.explaining.rounds import loop_of
from leakgauge.study.explaining.setting import Fit, Setting, products
from leakgauge.task import Loss, Mode, cross_entropy
from leakgauge.tensors import Tensors, entries
from leakgauge.update import Update, UpdateKind

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation a channel that torchvision's models are trained with."""

CLEARLY = 0.2  # share of a tensor by which another one's values must fit it better to be taken for its own
MOST_STEPS = 100  # minibatches of a client up to which other numbers of epochs and sizes are tried
PROBED = 1e-3  # weight decay whose effect on a round says how much of it there is

SHUFFLE = "clients[0].shuffle"
NO_FIT = Fit(0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Account:
    """An account of a captured round, and the update as it reads it: the plan's, or that with one mistake undone. With
    `fit_rate` its learning rate is to be found, which lets a wrong account explain more."""

    setting: Setting
    update: Update
    key: str = ""
    change: str = ""
    fit_rate: bool = False
    fit: Fit = NO_FIT

    def but(
        self, key: str, change: str, *, update: Update | None = None, fit_rate: bool = False, **changed: Any
    ) -> "Account":
        """With one mistake undone: the update read otherwise, or parts of the setting changed."""
        return Account(replace(self.setting, **changed), update or self.update, key, change, fit_rate)


def _swapped(plan: Account, draws: Draws) -> Iterator[Account]:
    """An update whose tensors of one shape fit the plan's better under each other's names."""
    tensors = plan.update.tensors
    ours, groups = plan.setting.simulated(plan.update, draws), defaultdict[torch.Size, list[str]](list)
    for name, tensor in tensors.items():
        groups[tensor.shape].append(name)
    other: dict[str, str] = {}
    for names in groups.values():
        fits = [[Fit.between({a: ours[a]}, {a: tensors[b]}).share for b in names] for a in names]
        rows, columns = linear_sum_assignment(fits, maximize=True)
        other |= {names[i]: names[j] for i, j in zip(rows, columns, strict=True) if fits[i][j] > fits[i][i] + CLEARLY}
    if other and other.keys() == set(other.values()):
        words = f"{' and '.join(list(other)[:4])} hold each other's values: arrays in another order"
        swapped = {k: tensors[other.get(k, k)] for k in tensors}
        yield plan.but("update", words, update=replace(plan.update, tensors=swapped))


def shuffled(plan: Account, _: Draws) -> Iterator[Account]:
    """Minibatches in another order: a framework's loader may shuffle unasked."""
    loop, examples = loop_of(plan.setting.protocol), len(plan.setting.batch)
    if loop is not None and max(loop.parts(examples)) < examples:
        yield plan.but(SHUFFLE, str(not loop.shuffle).lower(), protocol=replace(loop, shuffle=not loop.shuffle))


def _misread(plan: Account, draws: Draws) -> Iterator[Account]:
    setting, update, tensors = plan.setting, plan.update, plan.update.tensors
    norm = setting.fit(update, draws).norm
    norm = norm if 0 < norm < math.inf else 1.0

    def read(change: str, tensors: Tensors) -> Account:
        return plan.but("update", change, update=replace(update, tensors=tensors))

    def called(kind: UpdateKind, change: str, protocol: Protocol, *, fit_rate: bool = False) -> Account:
        other = replace(update, header=replace(update.header, kind=kind))
        return plan.but("update", change, update=other, protocol=protocol, fit_rate=fit_rate)

    turned = {k: -norm * v for k, v in tensors.items()}
    if update.header.kind is UpdateKind.GRADIENT:
        words = "it is a delta (after − before), and its header says gradient;"
        for size in dict.fromkeys((None, (len(setting.batch) + 1) // 2, 1)):
            yield called(UpdateKind.DELTA, words, LocalTraining(batch_size=size), fit_rate=True)
        yield read("it points against the plan's gradient", turned)
        words = f"it is {1 / norm:.3g} times the plan's gradient: a sum over examples for a mean, or a rate in it?"
        yield read(words, {k: norm * v for k, v in tensors.items()})
        return
    own = setting.task.parameters
    words = "these are the weights after training, not how far they moved: give after − before"
    yield read(words, {k: v - own[k].to(v) for k, v in tensors.items()})
    yield called(UpdateKind.GRADIENT, "it is the gradient itself, and its header says delta", FedSGD())
    yield plan.but("clients[0].lr", "set", fit_rate=True)
    yield read("it points against the plan's; was before − after handed in?", turned)
    before = setting.task.with_state({k: v - tensors[k].to(v) for k, v in own.items()})
    words = "these are the weights after training; give those before"
    yield plan.but("model.weights", words, task=before)


def _other_defense(plan: Account, _: Draws) -> Iterator[Account]:
    """The defence left out; or one that leaves out as many entries as the update does."""
    tensors = plan.update.tensors
    kept = sum(int(t.count_nonzero()) for t in tensors.values()) / entries(tensors)
    if parts_of(plan.setting.defense):
        yield plan.but("defenses", "none was applied", defense=NoDefense())
    elif kept < 1:
        words = f"{{topk: {{keep: {kept:.3g}}}}} or another that leaves entries out"
        yield plan.but("defenses", words, defense=TopK(keep=kept))


def _other_mode(plan: Account, _: Draws) -> Iterator[Account]:
    task = plan.setting.task
    drops = [m for m in task.module.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    if drops or any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in task.module.modules()):
        other = Mode.EVAL if task.mode is Mode.TRAIN else Mode.TRAIN
        module, drawn = task.module_copy().train(other is Mode.TRAIN), bool(drops) and other is Mode.TRAIN
        yield plan.but("mode", other.value, task=replace(task, module=module, mode=other, stochastic=drawn))


def _other_values(plan: Account, _: Draws) -> Iterator[Account]:
    task, data = plan.setting.task, plan.setting.task.data
    low, width = data.low, data.range
    raw = "the network saw raw values: normalise: false"
    ways: list[tuple[str, tuple[float, ...], tuple[float, ...]]] = [(raw, (0.0,), (1.0,))]
    if data.is_image and data.shape[0] == 3:
        for name, means, stds in (("CIFAR-10's", CIFAR_MEAN, CIFAR_STD), ("ImageNet's", *IMAGENET)):
            scaled = tuple(low + width * m for m in means), tuple(width * s for s in stds)
            ways.append((f"{name} mean and standard deviation, here or in the module", *scaled))
    spans = {"−1 to 1": (low + width / 2, width / 2), "0 to 1": (low, width), "0 to 255": (low, width / 255)}
    for ends, (middle, scale) in spans.items():
        ways.append((f"values from {ends}: put that into the module", (middle,), (scale,)))
    for words, mean, std in ways:
        if (set(data.mean), set(data.std)) != (set(mean), set(std)):
            yield plan.but("data.normalise", words, task=replace(task, data=replace(data, mean=mean, std=std)))


def _other_loss(plan: Account, _: Draws) -> Iterator[Account]:
    others: dict[str, Loss] = {"plain cross-entropy": cross_entropy}
    others |= {f"label smoothing of {s:g}": CrossEntropy(label_smoothing=s) for s in (0.1, 0.2, 0.05)}
    for words, loss in (others | {"bce-with-logits": BCEWithLogits()}).items():
        if loss != plan.setting.task.loss:
            yield plan.but("loss", words, task=replace(plan.setting.task, loss=loss))


def _other_decay(plan: Account, draws: Draws) -> Iterator[Account]:
    """Weight decay that the plan has otherwise: as much as explains most of what is left."""
    loop, update = loop_of(plan.setting.protocol), plan.update
    if loop is None or not isinstance(sgd := loop.optimiser, SGD):
        return

    def decaying(decay: float) -> Account:
        other = replace(loop, optimiser=replace(sgd, weight_decay=decay))
        return plan.but("clients[0].weight_decay", f"{decay:g}", protocol=other)

    plain, more = (decaying(sgd.weight_decay + by).setting.simulated(update, draws) for by in (0.0, PROBED))
    way = {k: more[k] - plain[k] for k in plain}
    missing = {k: update.tensors[k].to(plain[k]) - plain[k] for k in plain}
    size, _, along = products(way, missing)
    found = sgd.weight_decay + PROBED * along / (size or 1.0)
    if found > 0 and math.isfinite(found):
        for decay in dict.fromkeys((float(f"{found:.1g}"), float(f"{found:.3g}"))):
            yield decaying(decay)


def _other_training(plan: Account, _: Draws) -> Iterator[Account]:
    loop, examples = loop_of(plan.setting.protocol), len(plan.setting.batch)
    if loop is None:
        return
    sizes = dict.fromkeys((loop.batch_size, None, *(2**i for i in range(8) if 2**i < examples)))
    epochs = dict.fromkeys((loop.epochs, 1, 2, 3, 5, 10))
    others = [replace(loop, epochs=n, batch_size=size) for n in epochs for size in sizes]
    others = [other for other in others if other != loop and other.steps(examples) <= MOST_STEPS]
    for other in sorted(others, key=lambda o: (o.epochs != loop.epochs) + (o.batch_size != loop.batch_size)):
        words = f"epochs: {other.epochs}, batch_size: {other.batch_size or examples}"
        yield plan.but("clients[0]", words, protocol=other)
    lr = loop.optimiser.lr
    optimisers: dict[str, Optimiser] = {"SGD": SGD(lr=lr), "SGD with momentum 0.9": SGD(lr=lr, momentum=0.9)}
    if not loop.optimiser.rescales_entries:
        optimisers |= {"Adam": Adam(), "AdamW": adamw()}
    for name, optimiser in optimisers.items():
        if optimiser != loop.optimiser:
            other = replace(loop, optimiser=optimiser)
            yield plan.but("clients[0].optimiser", f"{name},", protocol=other, fit_rate=True)


TABLE: tuple[Callable[[Account, Draws], Iterator[Account]], ...] = (
    _swapped,
    shuffled,
    _misread,
    _other_defense,
    _other_mode,
    _other_values,
    _other_loss,
    _other_decay,
    _other_training,
)
"""What people forget, each with the round as it then was."""
