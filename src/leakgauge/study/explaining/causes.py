"""Compares a plan's account of a round with what was captured, and finds what the plan has wrong.

One table holds what people forget (`leakgauge.study.explaining.mistakes`), and one loop tries its rows. What a capture
recorded beside the update (the order of the steps, the examples, the weights' digest) is compared before anything is
simulated: it says what is wrong without a guess.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.labels.strategy import Unknown, find_classifier
from leakgauge.clients import Protocol
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Knowledge, Observation
from leakgauge.study.explaining.mistakes import SHUFFLE, Account, mistakes, shuffled
from leakgauge.study.explaining.record import Recorded, contradictions, loop_of
from leakgauge.study.explaining.setting import ENOUGH, EXACT, RECORD, Explained, Fit, Setting, TensorFit, products
from leakgauge.study.judging.records import Cause
from leakgauge.task import Batch
from leakgauge.tensors import Tensors
from leakgauge.update import EXAMPLES, Update

ROUNDS = 6
"""Rounds of the plan that are simulated to see how much the right plan would explain: draws are unknown."""

OTHERS = 6
"""Rounds on other people's pictures with the plan's labels, whose mean is what any pictures explain."""

SLIGHT, GENEROUS = 1e-4, 10.0
"""Share of an update's length that is not looked into, for other orders of summation leave as much; and how many times
the rounding of what was sent may be left."""

ODD, FAINT = 0.5, 1e-3
"""Share of a tensor below which the plan does not explain it, if what is left is more than so much of the update's
length: gradients that are zero but for rounding, as of a bias before BatchNorm, are less. Small tensors hide in the
share of the whole, and reads may rest on them: of labels on the last bias, of inputs on the first."""

CERTAIN = 5.0
"""Standard deviations of chance, 1/√entries, that the right plan's cosine must exceed to be recognised at all."""

DEVIATIONS = 4
"""Standard deviations over rounds of the plan by which a captured one may show less of the plan's pictures."""

RATES = 6
"""Corrections of a learning rate by the ratio of norms."""

ALL = 0.99
"""Share from which a change is taken for the true one, and no other is tried: the simplest come first."""

MUCH_LESS = 0.25
"""Share of what a plan leaves that an account may leave to be preferred to it, where nothing is drawn."""

BETTER, HALF = 0.1, 0.5
"""Where something is drawn: gain in the share explained from which an account counts as better, beyond what it gains on
the plan's own rounds; and the least share that it must explain."""

SHORT = 18
"""Accounts that are compared with several draws."""

ALIKE = 0.6
"""Cosine of two moves of a classifier's bias above which the labels are taken for the same."""

UNKNOWN = Cause("model", "the network that made it: activations and wiring are in no tensor", None)
OTHER_STEPS = Cause("clients[0]", "what a step does: optimiser, schedule, ema, clip, proximal term", None)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a plan is compared with beside the update.

    Attributes:
        strangers: examples that are not the round's; the plan's must explain the update better.
        elsewhere: other examples that the plan's source could have meant, each with its words.
        recorded: the round as the capture heard it.
        weights: whether the plan's weights are those that the capture recorded; `None` where it is not known.
        examples: whether the examples beside the update are those that its capture wrote; `None` likewise.
    """

    strangers: Float[Tensor, "m *shape"] | None = None
    elsewhere: Callable[[], Iterable[tuple[str, Batch]]] = tuple
    recorded: Recorded | None = None
    weights: bool | None = None
    examples: bool | None = None
    causes: bool = True


def explain(setting: Setting, update: Update, draws: Draws, evidence: Evidence = Evidence()) -> Explained:
    """How much of an update a plan explains, and what the plan has wrong."""
    account, said = _as_recorded(setting, evidence)
    found = _measured(account, update, draws, evidence)
    if evidence.examples is False and not found.holds:
        said.insert(0, ("data", f"{EXAMPLES} is not the file that this round's capture wrote: another round's?"))
    if said:
        plan = _measured(setting, update, draws, evidence)
        if not plan.enough or plan.drawn or plan.fit.share < found.fit.share:
            first = [Cause(key, change, found.fit.share if found.enough else None) for key, change in said]
            return replace(plan, causes=_one_a_key([*first, *_causes(account, update, draws, found, evidence)]))
        account, found = setting, plan  # more was heard than trained on, such as a pass that scores the examples
    return replace(found, causes=_causes(account, update, draws, found, evidence))


def _as_recorded(setting: Setting, evidence: Evidence) -> tuple[Setting, list[tuple[str, str]]]:
    """The account with its steps, and its examples, as they were recorded; and where the plan says otherwise."""
    recorded, said = evidence.recorded, list[tuple[str, str]]()
    if recorded is None or setting.protocol.aggregates:
        return setting, said
    data = setting.task.data
    placed = recorded.placed(setting.batch, data)
    if placed is None and (fixed := recorded.rescaled(setting.batch, data)) is not None:
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (fixed.mean, fixed.std))
        said.append(("data.normalise", f"the round's network saw (x − mean)/std with mean [{mean}] and std [{std}]"))
        setting = replace(setting, task=replace(setting.task, data=fixed))
        placed = recorded.placed(setting.batch, fixed)
    if placed is None:
        for words, batch in evidence.elsewhere():
            if (placed := recorded.placed(batch, data)) is not None:
                said.append(("data", words))
                break
    if placed is None:
        ours, theirs = (tuple(x.shape[1:]) for x in (setting.batch.inputs, recorded.inputs))
        shapes = f"examples of shape {ours}, and the capture recorded {theirs}: data.size, data.channels"
        return setting, [("data", "these are not the examples that the capture recorded" if ours == theirs else shapes)]
    batch, steps = placed
    if loop_of(setting.protocol) is None or recorded.training() is None:
        return replace(setting, batch=batch.take(torch.arange(recorded.own))), said
    protocol = setting.protocol
    for key, change, protocol in contradictions(setting.protocol, recorded):  # noqa: B007
        said.append((key, change))
    return replace(setting, protocol=protocol, batch=batch, steps=steps), said


def _measured(setting: Setting, update: Update, draws: Draws, evidence: Evidence) -> Explained:
    """One simulated round beside what was captured, and rounds of the plan beside each other."""
    strangers = evidence.strangers
    mean = None if strangers is None else _mean_of_others(setting, update, strangers, draws)
    rounds = (setting.own_round(update, draws.of("round", i)) for i in range(ROUNDS if setting.draws else 2))
    ours, *own = setting.closest(itertools.chain([update], rounds), draws, mean)
    simulated, beyond = setting.guessed(update, draws, ours.guess), [c.beyond for c in own]
    shares = [c.fit.share for c in own]
    entries = sum(t.numel() for t in update.tensors.values())
    parts = {name: products(simulated, {name: tensor}) for name, tensor in update.tensors.items()}
    total = sum(captured for _, captured, _ in parts.values()) or 1.0
    tensors = [TensorFit(name, part[1] / total, Fit.of(*part)) for name, part in parts.items()]
    tensors.sort(key=lambda t: t.energy * (1 - t.fit.share), reverse=True)
    pictures = None
    if mean is not None:
        low = statistics.fmean(beyond) - DEVIATIONS * statistics.stdev(beyond)
        pictures = ours.beyond, min(ENOUGH * min(beyond), low)
    rounded, size = setting.rounded(update), math.sqrt(total)
    odd = [k for k, p in parts.items() if _is_odd(*p, least=max(FAINT * size, GENEROUS * rounded[k]))]
    other = setting.guessed(update, draws, ours.guess + 1) if setting.shuffles else None
    return Explained(
        fit=ours.fit,
        expected=(min(shares), max(shares)),
        spread=statistics.stdev(shares),
        recognisable=min(c.fit.cosine for c in own) > CERTAIN / math.sqrt(entries),
        tensors=tuple(tensors),
        pictures=pictures,
        rounding=max(SLIGHT, GENEROUS * math.hypot(*rounded.values()) / size),
        odd=() if setting.protocol.rescales_entries else tuple(odd),
        unordered=other is not None and Fit.between(other, simulated).share < ENOUGH,
    )


def _causes(setting: Setting, update: Update, draws: Draws, plain: Explained, evidence: Evidence) -> tuple[Cause, ...]:
    """What explains the update clearly better than the plan, the likeliest first."""
    doubted = (plain.drawn and plain.fit.share < ENOUGH) or plain.leaves_more or not plain.holds
    blind = not plain.recognisable or plain.too_well or (plain.unordered and plain.enough)
    if not evidence.causes or blind or not doubted:
        return ()
    plan = Account(setting, update)
    tried = _tried(plan, draws, plain, evidence)
    if plain.expected[0] > EXACT:
        better = sorted((a for a in tried if a.fit.left < _much_less(plain)), key=lambda a: round(a.fit.left, 2))
        left = f" of the update's length left for {plain.fit.left:.1e}" if plain.enough else ""
        told = [_cause(replace(a, change=a.change + (left and f", {a.fit.left:.1e}{left}"))) for a in better]
        if evidence.weights is False and plain.leaves_more and (not better or better[0].fit.share < ALL):
            told.insert(0, Cause("model.weights", "they are not those that the capture recorded"))
    else:
        told = _rivals(plan, draws, plain, tried)
    if not told and plain.enough and plain.odd and not plain.drawn:
        names = ", ".join(plain.odd[:3]) + (f" and {len(plain.odd) - 3} more" if len(plain.odd) > 3 else "")
        words = f"{names} moved otherwise than the plan says: frozen, changed on the way or left out"
        told = [Cause("update", words)]
    if not told and not plain.enough:
        gained = sorted(
            (a for a in tried if a.fit.share > max(plain.fit.share, 0) + BETTER), key=lambda a: -a.fit.share
        )
        told = [*_unknown(plan, draws, plain, evidence), *map(_cause, gained)]
    return _one_a_key(told)


def _much_less(plain: Explained) -> float:
    return MUCH_LESS * min(plain.fit.left, 1.0)


def _tried(plan: Account, draws: Draws, plain: Explained, evidence: Evidence) -> list[Account]:
    """The loop over the table: each mistake undone, up to one that explains all. What was recorded is no mistake."""
    known = {"model.weights"} if evidence.weights else set[str]()
    known |= {"data", "clients[0]", SHUFFLE} if plan.setting.steps else set()
    others = (plan.but("data", words, replace(plan.setting, batch=b)) for words, b in evidence.elsewhere())
    tried: list[Account] = []
    for account in itertools.chain(mistakes(plan, draws), () if "data" in known else others):
        if account.key not in known:
            tried.append(_measured_account(account, draws))
            if tried[-1].fit.share >= ALL and tried[-1].fit.left < _much_less(plain) / 5:
                break
    return tried


def _rivals(plan: Account, draws: Draws, plain: Explained, tried: Sequence[Account]) -> list[Cause]:
    """Where dropout, order or noise are drawn: accounts that explain more of the update than the plan does, and gain
    less on rounds of the plan's own. A wrong plan may explain as much as of those, and would vindicate itself."""
    own = [plan.setting.own_round(plan.update, draws.of("round", i)) for i in range(ROUNDS)]
    plans = _closest(plan, own, draws)
    found: list[tuple[Account, float]] = []
    best = sorted(tried, key=lambda a: (a.key != SHUFFLE, -a.fit.share))[:SHORT]
    for account in sorted(best, key=tried.index):
        if closest := _closest(account, own, draws):
            gain, *others = (share - p for share, p in zip(closest, plans, strict=True))
            exact = closest[0] >= ALL and plans[0] < ENOUGH
            if exact or (gain > BETTER + max(0.0, *others) if plain.enough else gain > BETTER and closest[0] >= HALF):
                found.append((account, closest[0]))
    near = max((share for _, share in found), default=0.0) - BETTER
    found.sort(key=lambda pair: (pair[1] <= near, pair[0].fit_rate if pair[1] > near else -pair[1]))
    return [_cause(account, share) for account, share in found]


def _one_a_key(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    first: dict[str, Cause] = {}
    for cause in causes:
        first.setdefault(cause.key, cause)
    return tuple(first.values())


def _unknown(plan: Account, draws: Draws, plain: Explained, evidence: Evidence) -> list[Cause]:
    """What no simulated round can try, less what was recorded. Other labels in the bias speak for other pictures."""
    found = [] if evidence.weights else [Cause("model.weights", "those that the server broadcast in this round")]
    if evidence.recorded is None:
        pictures = Cause("data", "the round's own examples and labels (source, start, batch)")
        found.insert(0 if _labels_differ(plan, draws) else len(found), pictures)
    for account in [] if plan.setting.steps else shuffled(plan, draws):
        share = max(_closest(account, (), draws), default=0.0)
        if account.change == "true" and share > plain.fit.share + BETTER / 2:
            found.insert(0, Cause(SHUFFLE, f"true. {RECORD}", share))
    return [*found, UNKNOWN, *([OTHER_STEPS] if plan.setting.steps else [])]


def _measured_account(account: Account, draws: Draws) -> Account:
    """With the fit of one simulated round, and the learning rate found where it is to be."""
    setting, words = account.setting, account.change
    fit = setting.fit(account.update, draws)
    if account.fit_rate:
        setting, fit = _fitted(setting, fit, account.update, draws)
        rate = _rate(setting.protocol)
        words = words if rate is None else f"{words} lr: {rate:.3g}"
    return replace(account, setting=setting, change=words, fit=fit)


def _closest(account: Account, own: Sequence[Update], draws: Draws) -> list[float]:
    """Shares explained of the update, and of each of `own`; empty where it cannot be simulated."""
    try:
        return [c.fit.share for c in account.setting.closest([account.update, *own], draws)]
    except (InputError, RuntimeError, ValueError):
        return []


def _cause(account: Account, share: float | None = None) -> Cause:
    return Cause(account.key, account.change, account.fit.share if share is None else share)


def _rate(protocol: Protocol) -> float | None:
    return None if protocol.loop is None else protocol.loop.optimiser.lr


def _with_rate(protocol: Protocol, lr: float) -> Protocol:
    return protocol.with_loop(lambda loop: replace(loop, optimiser=loop.optimiser.with_rate(lr)))


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


def _labels_differ(plan: Account, draws: Draws) -> bool:
    """Whether the classifier's bias moved for other classes than the plan's: most of its move is the labels'."""
    layer = find_classifier(Observation(plan.setting.task, plan.update, Knowledge()))
    if isinstance(layer, Unknown):
        return False
    name = layer.weight if layer.bias is None else layer.bias
    both = plan.setting.simulated(plan.update, draws)[name].double(), plan.update.tensors[name].double()
    one, two = both if layer.bias is not None else (t.flatten(1).sum(1) for t in both)
    return float(nn.functional.cosine_similarity(one, two, dim=0)) < ALIKE


def _is_odd(simulated: float, captured: float, inner: float, *, least: float) -> bool:
    """Whether the plan explains little of a tensor, from the squared norms and the inner product."""
    missing = math.sqrt(max(simulated + captured - 2 * inner, 0.0))
    return Fit.of(simulated, captured, inner).share < ODD and missing > least


def _mean_of_others(setting: Setting, update: Update, strangers: Tensor, draws: Draws) -> Tensors:
    """Mean of rounds on other people's pictures with the plan's labels."""
    g, mean = draws.generator("others"), {k: torch.zeros_like(v) for k, v in update.tensors.items()}
    for i in range(OTHERS):
        chosen = torch.randint(len(strangers), (len(setting.batch),), generator=g)
        other = replace(setting, batch=Batch(strangers[chosen], setting.batch.labels))
        for name, tensor in other.simulated(update, draws.of("other", i)).items():
            if name in mean:
                mean[name].add_(tensor.detach().to(mean[name]), alpha=1 / OTHERS)
    return mean
