"""What must hold between two scenarios, whatever is read of them: no ground truth is needed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cache
from random import Random
from typing import TypeVar

import torch

from hunt.scenarios import Scenario, recipes, task_of, wrong
from hunt.zoo import POOLS, reworded
from leakgauge.clients import SGD, FedSGD, SecureAggregation
from leakgauge.clients.protocol import Protocol
from leakgauge.defenses import Clip, Compose, Defense, NoDefense, TopK
from leakgauge.observation import Reconstruction, Status
from leakgauge.risk.count import Replay, hidden_inputs, replay
from leakgauge.risk.jacobian import count_layers
from same.readings import READ, Reading, reading, unlike, weaker

T = TypeVar("T")


@dataclass(frozen=True)
class Pair:
    """Two scenarios, of which the second says no less than the first; where they are the same, neither does."""

    relation: str
    one: Scenario
    other: Scenario
    same: bool = True

    def anew(self, seed: int) -> Pair:
        """With other weights, examples and draws."""
        return replace(self, one=self.one.anew(seed), other=self.other.anew(seed))

    def violation(self) -> str:
        """In words; empty where the relation holds."""
        return CHECKS[self.relation](self)

    @property
    def differs(self) -> tuple[str, ...]:
        """Fields in which the two differ, those of the network by their own name."""
        nets = [f"net.{f.name}" for f in fields(self.one.net) if _apart(self.one.net, self.other.net, f.name)]
        return (*nets, *(f.name for f in fields(Scenario) if f.name != "net" and _apart(self.one, self.other, f.name)))


def _apart(one: object, other: object, name: str) -> bool:
    return bool(
        getattr(one, name) != getattr(other, name) or type(getattr(one, name)) is not type(getattr(other, name))
    )


def _readings(pair: Pair) -> str:
    one, other = pair.one.read(), pair.other.read()
    if min(one.certified, other.certified) < 0:  # refused: by both, or one knows less than the other
        both = one.certified == other.certified
        return "" if both else f"only one is refused: {min(one, other, key=lambda r: r.certified).why}"
    labels = "labels" not in {*pair.one.lacks} ^ {*pair.other.lacks}
    return unlike(other, one) if pair.same and labels else weaker(other, one, labels=labels)


def _certificates(pair: Pair) -> str:
    """Of searches that start elsewhere no more is asked."""
    one, other = pair.one.read().certified, pair.other.read().certified
    return "" if one == other else f"{other} certified for {one}: {pair.other.read().why}"


@dataclass(frozen=True)
class Counts:
    """What the counts say of a network and a batch."""

    unknowns: int
    bound: int
    read: int | None
    # of each layer that gives its input away its filters, places and largest batch; what gives none away is held in one
    # parameter or three, as queries, keys and values are
    hidden: tuple[tuple[int, ...], ...]


@cache
def counts(scenario: Scenario) -> Counts:
    """As ``leakgauge count`` has them."""
    task = task_of(scenario.net, scenario.seed)
    told, found = count_layers(task, scenario.examples), replay(task, scenario.batch, torch.Generator().manual_seed(0))
    hidden = tuple((one.filters, one.places, one.largest) for one in hidden_inputs(task) if one.largest)
    return Counts(told.unknowns, told.bound, found.read if isinstance(found, Replay) else None, hidden)


def _counted(pair: Pair) -> str:
    one, other = counts(pair.one), counts(pair.other)
    return "" if one == other else f"{other} for {one}"


def by_hand(scenario: Scenario) -> Reading:
    """Every row of the first layer's gradient over its bias's: what the best of them is worth."""
    refused, _, update, _ = scenario.observed()
    if refused:
        return Reading(-1, (0.0,) * scenario.examples, False, why=refused)
    data, rows = scenario.net.spec, scenario.truth.inputs[:0]
    for name, slope in update.tensors.items():
        bias = update.tensors.get(f"{name.removesuffix('weight')}bias")
        if slope.ndim == 2 and bias is not None and slope.shape[1] == scenario.batch.inputs[0].numel():
            kept = bias.abs() > 1e-6 * bias.abs().max()
            ratios = (slope[kept].double() / bias[kept, None].double()).view(-1, *data.shape)
            rows = data.denormalise(ratios).to(rows)
            break
    rows = rows[rows.flatten(1).isfinite().all(1)]
    if not len(rows):
        return Reading(0, (0.0,) * scenario.examples, False, why="no row")
    truth = scenario.truth
    near = torch.cdist(truth.inputs.flatten(1), rows.flatten(1)).argmin(1)
    found = Reconstruction(rows[near].clamp(data.low, data.high), None, Status.CONVERGED, "rows over bias")
    return reading(found, replace(truth, labels=torch.zeros(len(truth), dtype=torch.long)), data)


def _by_hand(pair: Pair) -> str:
    hand, found = by_hand(pair.one), pair.other.read()
    for own, auto in zip(hand.psnr, found.psnr, strict=True):
        if own > READ > auto:
            return f"by hand {own:.1f} dB, auto {auto:.1f}: {found.why}"
    return ""


def _one_of_many(pair: Pair) -> str:
    """What each of several examples gets, one alone gets."""
    many, one = pair.one.read(), pair.other.read()
    share = Reading(many.certified // pair.one.examples, (min(many.psnr),), many.labels, why=many.why)
    return weaker(one, share, labels=False)


def _rest(pair: Pair) -> str:
    """What is read beside examples that are proved is what is read of a client that never had those."""
    whole, found, truth = pair.one, pair.one.result(), pair.one.truth
    if isinstance(found, str) or found.inputs is None or found.certified is None or whole.net.spec.is_text:
        return ""
    proved = found.inputs[found.certified].to(truth.inputs)
    taken = {int(torch.cdist(p.flatten()[None], truth.inputs.flatten(1)).argmin()) for p in proved}
    left = tuple(i for i in range(whole.examples) if i not in taken)
    if len(left) != whole.examples - len(proved) or not 0 < len(left) < whole.examples:
        return ""
    alone = replace(whole, only=left).read()
    beside = replace(found, inputs=found.inputs[~found.certified], labels=None, certified=None, status=Status.CONVERGED)
    here = reading(beside, truth.take(torch.tensor(left)), whole.net.spec)
    return weaker(replace(here, why=whole.read().why), replace(alone, certified=0), labels=False)


def _certified(pair: Pair) -> str:
    return wrong(pair.other)


CHECKS: dict[str, Callable[[Pair], str]] = {
    "words": _readings,
    "loop": _readings,
    "nothing": _readings,
    "order": _certificates,
    "knowledge": _readings,
    "budget": _readings,
    "recipe": _readings,
    "defended": _readings,
    "by hand": _by_hand,
    "one of many": _one_of_many,
    "rest": _rest,
    "counts": _counted,
    "certificate": _certified,
}
LOUD = ("certificate",)
"""Relations whose violation is a wrong assurance to whoever trusts a read; the others understate or overlook."""


def loops(client: Protocol, examples: int) -> list[Protocol]:
    """The same local training in other words."""
    found: list[Protocol] = [SecureAggregation(cohort=1, client=client), _subclass(client)]
    loop = client.loop
    if loop is not None and loop is client and isinstance(loop.optimiser, SGD):
        plain = loop.accumulate == 1 and loop.clip is None and not loop.proximal and not loop.drop_last
        if plain and loop.batch_size is None:
            found += [replace(loop, batch_size=examples), replace(loop, batch_size=examples + 3)]
            found.append(replace(loop, shuffle=True))
        if plain and loop.epochs == 1 and loop.batch_size is None:
            found.append(replace(loop, proximal=0.1))
            found.append(replace(loop, batch_size=1, accumulate=examples))
        found.append(replace(loop, optimiser=_subclass(loop.optimiser)))
    return found


def _subclass(part: T) -> T:
    made = copy.copy(part)
    object.__setattr__(made, "__class__", _subclass_of(type(part)))
    return made


@cache
def _subclass_of(kind: type) -> type:
    return type(f"My{kind.__name__}", (kind,), {"__module__": __name__})


def nothings(defense: Defense) -> list[Defense]:
    """The same defence in other words. (Of several that act in one stage each has a stream of its own.)"""
    found: list[Defense] = [_subclass(defense), Compose((defense, NoDefense())), Compose((NoDefense(), defense))]
    found += [Compose((defense, Clip(norm=1e9))), Compose((defense, TopK(keep=1.0)))]
    return [*found, Compose((defense, defense))] if isinstance(defense, Clip | TopK) else found


def pairs(scenario: Scenario, rng: Random, *, held_out: bool = False) -> Iterator[Pair]:
    """Of one scenario, a pair for each relation that applies to it."""
    s, net = scenario, scenario.net
    other = reworded(net, rng, 0.5, held_out=held_out)
    if other != net:
        plain = replace(net, **dict.fromkeys(net.words, ""))
        yield Pair("words", replace(s, net=plain), replace(s, net=other))
        own = any(getattr(POOLS[f].get(getattr(other, f)), "own", False) for f in net.words)
        if not own and not net.spec.is_text and rng.random() < 0.3:
            yield Pair("counts", replace(s, net=plain), replace(s, net=other))
    yield Pair("loop", s, replace(s, client=rng.choice(loops(s.client, s.examples))))
    yield Pair("nothing", s, replace(s, defense=rng.choice(nothings(s.defense))))
    changes: list[dict[str, object]] = [{"luck": 1}, {"wide_wire": not s.wide_wire}]
    changes += [{"reverse": True}] if s.examples > 1 and type(s.client) is FedSGD else []
    yield Pair("order", s, replace(s, **rng.choice(changes)))  # type: ignore[arg-type]
    lacking = rng.choice(["labels", "defense"] if type(s.defense) is not NoDefense else ["labels"])
    known = replace(s, lacks=())
    yield Pair("knowledge", replace(s, lacks=(lacking,)), known, same=False)
    if rng.random() < 0.3:
        yield Pair("budget", s, replace(s, evaluations=3 * s.evaluations), same=False)
    yield Pair("recipe", replace(known, using=rng.choice(recipes())), known, same=False)
    if type(s.defense) is not NoDefense:
        yield Pair("defended", s, replace(s, defense=NoDefense()), same=False)
    if net.family == "perceptron":
        yield Pair(
            "by hand", replace(s, net=replace(net, first="")), replace(s, net=replace(net, first="")), same=False
        )
    if s.examples > 1 and "cohort" not in repr(s.client):
        yield Pair("one of many", s, replace(s, examples=1), same=False)
    if net.family == "perceptron" and rng.random() < 0.2:  # of many examples and few units some are read alone
        few = replace(s, net=replace(net, units=32), client=FedSGD(), defense=NoDefense())
        bare = replace(few, examples=rng.choice((8, 10, 12)))
        yield Pair("rest", bare, bare, same=False)


def simpler(pair: Pair) -> Iterator[Pair]:
    """The pair with one thing less that is not plain: in both scenarios alike, or of what they differ in."""
    plain = Scenario()
    for name in ("defense", "client", "examples", "lacks", "wide_wire", "evaluations"):
        if not _apart(pair.one, pair.other, name) and _apart(pair.one, plain, name):
            yield _both(pair, **{name: getattr(plain, name)})
    if pair.one.examples > 2 and pair.one.examples == pair.other.examples:
        yield _both(pair, examples=2)
    yield from _parts(pair)
    nets = pair.one.net, pair.other.net
    for f in fields(nets[0]):
        own, its = (getattr(net, f.name) for net in nets)
        if own == its != f.default:
            one, other = (replace(net, **{f.name: f.default}) for net in nets)
            yield replace(pair, one=replace(pair.one, net=one), other=replace(pair.other, net=other))
        elif own != its and len(pair.differs) > 1:
            other = replace(nets[1], **{f.name: own})
            yield replace(pair, other=replace(pair.other, net=other))


def _both(pair: Pair, **change: object) -> Pair:
    one, other = (replace(s, **change) for s in (pair.one, pair.other))  # type: ignore[arg-type]
    return replace(pair, one=one, other=other)


def _parts(pair: Pair) -> Iterator[Pair]:
    """One part of a composition."""
    defense = pair.one.defense
    if isinstance(defense, Compose) and defense == pair.other.defense:
        for part in defense.defenses:
            yield _both(pair, defense=part)
