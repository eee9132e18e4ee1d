"""Compares a plan's account of a round with what was captured, and finds what the plan has wrong: first by what the
capture recorded beside the update, which needs no guess, then by the table of `leakgauge.study.explaining.mistakes`."""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.labels.strategy import Unknown, find_classifier
from leakgauge.data.source import Source, public
from leakgauge.draws import Draws
from leakgauge.errors import InputError, few
from leakgauge.files import fingerprint_of_file
from leakgauge.models.weights import fingerprint, read_model
from leakgauge.observation import Knowledge, Observation
from leakgauge.study.explaining.mistakes import SHUFFLE, TABLE, Account, shuffled
from leakgauge.study.explaining.rounds import CapturedRound, Recorded, corrected
from leakgauge.study.explaining.setting import DEVIATIONS, ENOUGH, EXACT, RECORD, Explained, Fit, Setting, products
from leakgauge.study.judging.records import Cause, TensorShare
from leakgauge.task import Batch
from leakgauge.tensors import Tensors
from leakgauge.update import EXAMPLES, UPDATE, Update

STRANGERS = 64  # other examples that show whether an update belongs to the plan's weights
NEAR = 16  # batches before and after the plan's that are tried for the round's examples
ROUNDS = 6  # rounds of the plan that are simulated to see how much the right plan would explain: draws are unknown
OTHERS = 6  # rounds on other people's pictures with the plan's labels, whose mean is what any pictures explain

SLIGHT, GENEROUS = 1e-4, 10.0
"""Share of an update's length that is not looked into, for other orders of summation leave as much; and how many times
the rounding of what was sent may be left."""

ODD, FAINT = 0.5, 1e-3
"""Share of a tensor below which the plan does not explain it, if what is left is more than so much of the update's
length: gradients that are zero but for rounding, as of a bias before BatchNorm, are less. Small tensors hide in the
share of the whole, and reads may rest on them: of labels on the last bias, of inputs on the first."""

CERTAIN = 5.0
"""Standard deviations of chance, 1/√entries, that the right plan's cosine must exceed to be recognised at all."""

RATES = 6  # corrections of a learning rate by the ratio of norms
ALL = 0.99  # share from which a change is taken for the true one, and no other is tried: the simplest come first
MUCH_LESS = 0.25  # share of what a plan leaves that an account may leave to be preferred to it, where nothing is drawn

BETTER, HALF = 0.1, 0.5
"""Where something is drawn: gain in the share explained from which an account counts as better, beyond what it gains on
the plan's own rounds; and the least share that it must explain."""

SHORT = 18  # accounts that are compared with several draws
ALIKE = 0.6  # cosine of two moves of a classifier's bias above which the labels are taken for the same

UNKNOWN = Cause("model", "the network that made it: activations and wiring are in no tensor", None)
OTHER_STEPS = Cause("clients[0]", "what a step does: optimiser, schedule, ema, clip, proximal term", None)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a plan is compared with beside the update."""

    # examples that are not the round's; the plan's must explain the update better.
    strangers: Float[Tensor, "m *shape"] | None = None
    # other examples that the plan's source could have meant, each with its words
    elsewhere: Callable[[], Iterable[tuple[str, Batch]]] = tuple
    recorded: Recorded | None = None
    # weights, examples: whether the plan's weights are those that the capture recorded, and the examples beside the
    # update those that it wrote; `None` where it is not known.
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
    right = corrected(setting.protocol, recorded)
    if right is None:
        return replace(setting, batch=batch.take(torch.arange(recorded.own))), said
    loop, wrong = right
    return replace(setting, protocol=loop, batch=batch, steps=steps), [*said, *wrong]


def _measured(setting: Setting, update: Update, draws: Draws, evidence: Evidence) -> Explained:
    """One simulated round beside what was captured, and rounds of the plan beside each other."""
    mean = None if evidence.strangers is None else _mean_of_others(setting, update, evidence.strangers, draws)
    rounds = (setting.own_round(update, draws.of("round", i)) for i in range(ROUNDS if setting.draws else 2))
    ours, *own = setting.closest(itertools.chain([update], rounds), draws, mean)
    simulated, beyond = setting.simulated(update, draws, ours.guess), [c.beyond for c in own]
    shares = [c.fit.share for c in own]
    entries = sum(t.numel() for t in update.tensors.values())
    parts = {name: products(simulated, {name: tensor}) for name, tensor in update.tensors.items()}
    total = sum(captured for _, captured, _ in parts.values()) or 1.0
    fits = {name: Fit.of(*part) for name, part in parts.items()}
    energy = {name: captured / total for name, (_, captured, _) in parts.items()}
    order = sorted(fits, key=lambda name: energy[name] * (1 - fits[name].share), reverse=True)
    pictures = None
    if mean is not None:
        low = statistics.fmean(beyond) - DEVIATIONS * statistics.stdev(beyond)
        pictures = ours.beyond, min(ENOUGH * min(beyond), low)
    rounded, size = setting.rounded(update), math.sqrt(total)
    left = {name: math.sqrt(max(own + theirs - 2 * inner, 0.0)) for name, (own, theirs, inner) in parts.items()}
    odd = [k for k in parts if fits[k].share < ODD and left[k] > max(FAINT * size, GENEROUS * rounded[k])]
    other = setting.simulated(update, draws, ours.guess + 1) if setting.shuffles else None
    return Explained(
        fit=ours.fit,
        expected=(min(shares), max(shares)),
        spread=statistics.stdev(shares),
        recognisable=min(c.fit.cosine for c in own) > CERTAIN / math.sqrt(entries),
        tensors=tuple(TensorShare(name, energy[name], fits[name].cosine, fits[name].norm) for name in order),
        pictures=pictures,
        rounding=max(SLIGHT, GENEROUS * math.hypot(*rounded.values()) / size),
        odd=() if setting.protocol.rescales_entries else tuple(odd),
        unordered=other is not None and Fit.between(other, simulated).share < ENOUGH,
    )


def _causes(setting: Setting, update: Update, draws: Draws, plain: Explained, evidence: Evidence) -> tuple[Cause, ...]:
    doubted = (plain.drawn and plain.fit.share < ENOUGH) or plain.leaves_more or not plain.holds
    blind = not plain.recognisable or plain.too_well or (plain.unordered and plain.enough)
    if not evidence.causes or blind or not doubted:
        return ()
    plan = Account(setting, update)
    tried = _tried(plan, draws, plain, evidence)
    if plain.expected[0] > EXACT:
        less = (a for a in tried if a.fit.left < MUCH_LESS * min(plain.fit.left, 1.0))
        better = sorted(less, key=lambda a: round(a.fit.left, 2))
        left = f" of the update's length left for {plain.fit.left:.1e}" if plain.enough else ""
        told = [Cause(a.key, a.change + (left and f", {a.fit.left:.1e}{left}"), a.fit.share) for a in better]
        if evidence.weights is False and plain.leaves_more and (not better or better[0].fit.share < ALL):
            told.insert(0, Cause("model.weights", "they are not those that the capture recorded"))
    else:
        told = _rivals(plan, draws, plain, tried)
    if not told and plain.enough and plain.odd and not plain.drawn:
        words = f"{few(plain.odd, 3)} moved otherwise than the plan says: frozen, changed on the way or left out"
        told = [Cause("update", words)]
    if not told and not plain.enough:
        least = max(plain.fit.share, 0) + BETTER
        gained = sorted((a for a in tried if a.fit.share > least), key=lambda a: -a.fit.share)
        told = [*_unknown(plan, draws, plain, evidence), *(Cause(a.key, a.change, a.fit.share) for a in gained)]
    return _one_a_key(told)


def _tried(plan: Account, draws: Draws, plain: Explained, evidence: Evidence) -> list[Account]:
    """The loop over the table: each mistake undone, up to one that explains all. What was recorded is no mistake."""
    known = {"model.weights"} if evidence.weights else set[str]()
    known |= {"data", "clients[0]", SHUFFLE} if plan.setting.steps else set()
    others = (plan.but("data", words, batch=batch) for words, batch in evidence.elsewhere())
    rows = itertools.chain.from_iterable(row(plan, draws) for row in TABLE)
    tried: list[Account] = []
    for account in itertools.chain(rows, () if "data" in known else others):
        if account.key not in known:
            tried.append(_fitted(account, draws))
            if tried[-1].fit.share >= ALL and tried[-1].fit.left < MUCH_LESS * min(plain.fit.left, 1.0) / 5:
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
    return [Cause(account.key, account.change, share) for account, share in found]


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


def _closest(account: Account, own: Sequence[Update], draws: Draws) -> list[float]:
    """Shares explained of the update, and of each of `own`; empty where it cannot be simulated."""
    try:
        return [c.fit.share for c in account.setting.closest([account.update, *own], draws)]
    except (InputError, RuntimeError, ValueError):
        return []


def _fitted(account: Account, draws: Draws) -> Account:
    """With the fit of one simulated round; and with the learning rate that explains most, where it is to be found: by
    the ratio of norms, over and over."""
    protocol = account.setting.protocol
    if not account.fit_rate or protocol.loop is None:
        return replace(account, fit=account.setting.fit(account.update, draws))

    def at(rate: float) -> Account:
        other = protocol.with_loop(lambda loop: replace(loop, optimiser=loop.optimiser.with_rate(rate)))
        setting, change = replace(account.setting, protocol=other), f"{account.change} lr: {rate:.3g}"
        return replace(account, setting=setting, change=change, fit=setting.fit(account.update, draws))

    lr = protocol.loop.optimiser.lr
    found = best = at(lr)
    for _ in range(RATES):
        norm = found.fit.norm
        if norm <= 0 or abs(math.log(norm)) < 1e-3:
            break
        lr = lr / norm if math.isfinite(norm) else lr / 100
        found = at(lr)
        best = max(best, found, key=lambda account: account.fit.share)
    return best


def _labels_differ(plan: Account, draws: Draws) -> bool:
    """Whether the classifier's bias moved for other classes than the plan's: most of its move is the labels'."""
    layer = find_classifier(Observation(plan.setting.task, plan.update, Knowledge()))
    if isinstance(layer, Unknown):
        return False
    name = layer.weight if layer.bias is None else layer.bias
    both = plan.setting.simulated(plan.update, draws)[name].double(), plan.update.tensors[name].double()
    one, two = both if layer.bias is not None else (t.flatten(1).sum(1) for t in both)
    return float(nn.functional.cosine_similarity(one, two, dim=0)) < ALIKE


def _mean_of_others(setting: Setting, update: Update, strangers: Tensor, draws: Draws) -> Tensors:
    g, mean = draws.generator("others"), {k: torch.zeros_like(v) for k, v in update.tensors.items()}
    for i in range(OTHERS):
        chosen = torch.randint(len(strangers), (len(setting.batch),), generator=g)
        other = replace(setting, batch=Batch(strangers[chosen], setting.batch.labels))
        for name, tensor in other.simulated(update, draws.of("other", i)).items():
            if name in mean:
                mean[name].add_(tensor.detach().to(mean[name]), alpha=1 / OTHERS)
    return mean


def explained_round(
    captured: CapturedRound, update: Update, setting: Setting, source: Source, indices: list[int], draws: Draws
) -> Explained:
    """How much of a captured round the plan explains; where it does not, other examples of its source are tried."""
    size, here = len(indices), indices[0]

    def elsewhere() -> Iterator[tuple[str, Batch]]:
        near = {here + k for k in range(-size, size + 1)} | {here + k * size for k in range(-NEAR, NEAR + 1)}
        for start in sorted(near - {here}, key=lambda s: (abs(s - here), s)):
            if 0 <= start <= len(source) - size:
                yield f"start: {start}", source.read(range(start, start + size))

    file, said = captured.weights, update.header.protocol.get("weights")
    same = None if said is None or file is None else said == fingerprint(read_model(file, "model.weights"))
    recorded = own = None
    if (place := captured.examples) is not None:
        recorded = Recorded.read(place / EXAMPLES)
        wrote = Update.load(place / UPDATE).header.protocol.get("examples") if (place / UPDATE).is_file() else None
        own = None if wrote is None else wrote == fingerprint_of_file(place / EXAMPLES)
    alone = recorded is not None and len(source) == size  # then the record says whether these are the round's
    strangers = None if alone else public(source, indices, STRANGERS, draws.generator("public"))
    return explain(setting, update, draws, Evidence(strangers, elsewhere, recorded, same, own))
