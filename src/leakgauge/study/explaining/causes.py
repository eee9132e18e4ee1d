"""Why a plan may not explain its captured update: likely mistakes are undone one by one, in simulated rounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.labels.strategy import Unknown, find_classifier
from leakgauge.clients import FedAvg, LocalTraining, Protocol, SecureAggregation
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.study.explaining.explained import ENOUGH, Cause, Explained, FindCauses
from leakgauge.study.explaining.fit import Fit
from leakgauge.study.explaining.mistakes import SHUFFLE, Mistake, mistakes, of_the_shuffle, slight, swapped
from leakgauge.study.explaining.rivals import ALL, BETTER, Account, rivals, sufficient
from leakgauge.study.explaining.setting import Setting
from leakgauge.task import Batch
from leakgauge.tensors import Tensors
from leakgauge.update import Update

MUCH_LESS = 0.25
"""Share of what a plan leaves that an account may leave to be preferred to it, where both explain nearly all."""

RATES = 6
"""Corrections of a learning rate by the ratio of norms."""

STRANGERS = 24
"""Rounds on other people's examples that show whether an update belongs to the plan's weights."""

TELLING = 0.8
"""Share of a plan's own round that those must span to tell weights from pictures."""

ALIKE = 0.6
"""Cosine of two moves of a classifier's bias above which the labels are taken for the same."""

Elsewhere = Callable[[], Iterator[tuple[str, Batch]]]
"""Other examples that the plan's source could have meant, each with its words."""


def causes_from(strangers: Float[Tensor, "m *shape"], elsewhere: Elsewhere) -> FindCauses:
    """How causes are looked for: `strangers` are examples that are not the round's."""

    def find(setting: Setting, update: Update, draws: Draws, plain: Explained) -> tuple[Cause, ...]:
        if plain.enough and plain.leaves_more:
            return _one_a_key(_slight(setting, update, draws, plain))
        if plain.enough:
            tried = _tried(setting, update, draws, elsewhere) if plain.drawn else []
            if found := rivals(setting, update, draws, tried):
                return _one_a_key(found)
            order = [] if plain.holds else [_undone(m, update, draws).cause for m in swapped(setting, update, draws)]
            return _one_a_key(_enough(order))
        tried = _tried(setting, update, draws, elsewhere)
        if told := _enough([account.cause for account in tried]):
            return _one_a_key([*_order_first(setting, update, draws, tried, told[0].share or 0), *told])
        tried += _reshuffled(setting, update, draws, elsewhere)
        if told := sufficient(setting, update, draws, tried):
            return _one_a_key(told)
        least = max(plain.fit.share, 0) + BETTER
        gained = [a.cause for a in tried if a.share > least]
        gained.sort(key=lambda c: -(c.share or 0))
        words = "the network that made it: activations and wiring are in no tensor"
        unknown = [*_weights_or_pictures(setting, update, draws, strangers), Cause("model", words, None)]
        return _one_a_key([*unknown, *gained])

    return find


def _slight(setting: Setting, update: Update, draws: Draws, plain: Explained) -> list[Cause]:
    """Why a plan that explains nearly all leaves more than rounding: what explains nearly all of that, else tensors of
    which the plan explains little."""
    accounts = [_undone(mistake, update, draws) for mistake in slight(setting, update, draws)]
    found = sorted((a for a in accounts if a.left < MUCH_LESS * plain.fit.left), key=lambda a: a.left)
    words = f"of the update's length left for {plain.fit.left:.1e}"
    causes = [replace(a.cause, change=f"{a.cause.change}, {a.left:.1e} {words}") for a in found]
    if plain.odd and not causes:
        names = ", ".join(plain.odd[:3]) + (f" and {len(plain.odd) - 3} more" if len(plain.odd) > 3 else "")
        change = f"{names} moved otherwise than the plan says: frozen, changed on the way or left out"
        causes.append(Cause("update", change, None))
    return causes


def _order_first(setting: Setting, update: Update, draws: Draws, tried: list[Account], best: float) -> list[Cause]:
    """An order that is drawn explains no more than its own rounds, and something fitted may explain more."""
    if best >= ALL:
        return []
    orders = sufficient(setting, update, draws, [a for a in tried if a.group == SHUFFLE])
    return [c for c in orders if (c.share or 0) > best - BETTER / 2]


def _tried(setting: Setting, update: Update, draws: Draws, elsewhere: Elsewhere) -> list[Account]:
    """Each likely mistake undone, up to one that explains all."""
    tried: list[Account] = []
    for account in itertools.chain(
        (_undone(mistake, update, draws) for mistake in mistakes(setting, update, draws)),
        (_undone(Mistake("data", w, replace(setting, batch=b)), update, draws) for w, b in elsewhere()),
    ):
        tried.append(account)
        if account.share >= ALL:
            break
    return tried


def _reshuffled(setting: Setting, update: Update, draws: Draws, elsewhere: Elsewhere) -> list[Account]:
    """Each likely mistake undone together with an order that the plan leaves out: of two mistakes at once that is the
    commonest."""
    found: list[Account] = []
    for order in of_the_shuffle(setting):
        if order.change != "true":
            continue
        for account in _tried(order.setting, update, draws, elsewhere):
            if account.cause.key != order.key:
                both = f"{order.change}, and {account.cause.key}: {account.cause.change}"
                found.append(
                    replace(
                        account, cause=Cause(order.key, both, account.cause.share), group=f"{order.key} {account.group}"
                    )
                )
    return found


def _enough(causes: list[Cause]) -> list[Cause]:
    """Those that explain the update, the best first; of equally good ones the simplest, which came first."""
    found = [c for c in causes if c.share is not None and c.share >= ENOUGH]
    return sorted(found, key=lambda c: -round(100 * (c.share or 0)))


def _one_a_key(causes: list[Cause]) -> tuple[Cause, ...]:
    first: dict[str, Cause] = {}
    for cause in causes:
        first.setdefault(cause.key, cause)
    return tuple(first.values())


def _undone(mistake: Mistake, update: Update, draws: Draws) -> Account:
    setting, words = mistake.setting, mistake.change
    if mistake.kind is not None:
        update = replace(update, header=replace(update.header, kind=mistake.kind))
    if mistake.tensors is not None:
        update = replace(update, tensors=mistake.tensors)
    fit = setting.fit(update, draws)
    if mistake.against:  # its length may be another as well
        turned = replace(update, tensors={k: -v for k, v in update.tensors.items()})
        return Account(Cause(mistake.key, words, -fit.cosine), setting, turned, mistake.key)
    if mistake.fit_rate:
        setting, fit = _fitted(setting, fit, update, draws)
        rate = _rate(setting.protocol)
        words = words if rate is None else f"{words} lr: {rate:.3g}"
    return Account(Cause(mistake.key, words, fit.share), setting, update, mistake.key, mistake.fit_rate, fit.left)


def _rate(protocol: Protocol) -> float | None:
    if isinstance(protocol, SecureAggregation):
        return _rate(protocol.client)
    if isinstance(protocol, FedAvg):
        return protocol.lr
    return protocol.optimiser.lr if isinstance(protocol, LocalTraining) else None


def _with_rate(protocol: Protocol, lr: float) -> Protocol:
    if isinstance(protocol, SecureAggregation):
        return replace(protocol, client=_with_rate(protocol.client, lr))
    if isinstance(protocol, FedAvg):
        return replace(protocol, lr=lr)
    assert isinstance(protocol, LocalTraining)
    return replace(protocol, optimiser=protocol.optimiser.with_rate(lr))


def _fitted(setting: Setting, fit: Fit, update: Update, draws: Draws) -> tuple[Setting, Fit]:
    """With the learning rate that explains most: by the ratio of norms, over and over, then round numbers near it.

    Where steps are large the norm says little of the rate; people write 1, 2, 3 or 5 times a power of ten.
    """
    tried = [(setting, fit)]

    def at(lr: float) -> None:
        changed = replace(setting, protocol=_with_rate(setting.protocol, lr))
        tried.append((changed, changed.fit(update, draws)))

    for _ in range(RATES):
        lr, norm = _rate(tried[-1][0].protocol), tried[-1][1].norm
        if lr is None or norm <= 0 or abs(math.log(norm)) < 1e-3:
            break
        at(lr / norm if math.isfinite(norm) else lr / 100)
    best, best_fit = max(tried, key=lambda t: t[1].share)
    lr = _rate(best.protocol)
    if lr is not None and best_fit.share < 0.99:
        power = 10 ** math.floor(math.log10(lr))
        for rate in (k * power * ten for ten in (0.1, 1, 10) for k in (1, 2, 3, 5)):
            if lr / 3 <= rate <= 3 * lr:
                at(rate)
    return max(tried, key=lambda t: t[1].share)


def _weights_or_pictures(setting: Setting, update: Update, draws: Draws, strangers: Tensor) -> list[Cause]:
    """What no simulated round can try. Other labels in the classifier's bias speak for pictures; so do rounds on other
    people's examples that span as much of this update as of the plan's own, which they do under its weights alone."""
    weights = Cause("model.weights", "those that the server broadcast in this round", None)
    pictures = Cause("data", "the round's own examples and labels (source, start, batch)", None)
    bare = replace(setting, defense=NoDefense())
    simulated = bare.simulated(update, draws)
    if _labels_differ(setting, simulated, update):
        return [pictures, weights]
    ours, theirs = _spanned(bare, update, draws, strangers, (simulated, update.tensors))
    return [pictures, weights] if ours > TELLING and theirs > 0.8 * ours else [weights, pictures]


def _labels_differ(setting: Setting, simulated: Tensors, update: Update) -> bool:
    """Whether the classifier's bias moved for other classes than the plan's: most of its move is the labels'."""
    layer = find_classifier(Observation(setting.task, update, Knowledge()))
    if isinstance(layer, Unknown):
        return False
    name = layer.weight if layer.bias is None else layer.bias
    both = simulated[name].double(), update.tensors[name].double()
    one, two = both if layer.bias is not None else (t.flatten(1).sum(1) for t in both)
    return float(nn.functional.cosine_similarity(one, two, dim=0)) < ALIKE


def _spanned(
    setting: Setting, update: Update, draws: Draws, strangers: Tensor, targets: tuple[Tensors, Tensors]
) -> tuple[float, float]:
    """Share of each target's norm that rounds on strangers span."""
    g, rounds = draws.generator("strangers"), []
    for i in range(STRANGERS):
        chosen = torch.randint(len(strangers), (len(setting.batch),), generator=g)
        labels = torch.randint(setting.task.data.classes, (len(setting.batch),), generator=g)
        other = replace(setting, batch=Batch(strangers[chosen], labels))
        try:
            flat = _flat(other.simulated(update, draws.of("stranger", i)))
        except (InputError, RuntimeError):
            continue
        if bool(torch.isfinite(flat).all()) and float(flat.norm()) > 0:
            rounds.append(flat / flat.norm())
    if not rounds:
        return 0.0, 0.0
    basis = torch.linalg.qr(torch.stack(rounds).T)[0]
    ours, theirs = (float((basis.T @ f).norm() / f.norm().clamp_min(1e-300)) for f in map(_flat, targets))
    return ours, theirs


def _flat(tensors: Tensors) -> Tensor:
    return torch.cat([tensors[k].detach().double().flatten() for k in sorted(tensors)])
