"""What a defence of the user's own made of an update, undone by who knows it. No search is as strong as that: a running
sum of all entries hides every picture from one, and nothing from subtraction."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse import diags
from scipy.sparse.linalg import aslinearoperator, lsmr
from torch import Tensor

from leakgauge.defenses import Compose, Defense, parts_of, steps_of
from leakgauge.defenses.steps import Act, DefenseStage, DefenseStep, EntryGrid, Nonlinear
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation, Status, Tried
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.view.derivatives import jacobian
from leakgauge.view.entries import undecayed, wire_of

NEWTON, HALVINGS, PRODUCTS = 30, 12, 4000  # steps, of each at most so many halvings, and products with the Jacobian
WORK = 2e8  # entries times products
COLUMNS = 8  # random vectors that tell the lengths of the Jacobian's columns
SOLVED = 1e-6  # share of what was sent that may be left, beside its rounding
BACK = 1e-3  # share of a made-up update by which it may come back otherwise
SIZES = 1.0, 1.0, 0.01  # of made-up updates, in shares of the client's
SAFE = 4.0  # times the largest error of a made-up update that the client's may have
KEPT = "the defence's own function of the update could not be undone, so what it hides is not known"


@dataclass(frozen=True, eq=False)
class Undone(Defense):
    """What is left of a defence that was undone."""

    width: Tensors  # largest error of an entry
    sent: Tensors  # as it came

    def steps(self) -> tuple[DefenseStep, ...]:
        return (EntryGrid(levels=1 << 30, how=lambda raw: raw, width=lambda _: self.width),)


def plainer(observation: Observation) -> tuple[Observation, tuple[Tried, ...]]:
    """The same client in plainer words, as attacks are given it: `undecayed`, and without a known defence's last part
    where that sends a function of the update from which the update follows, as it does of made-up ones. Beside it that
    a part's own function stays: no read knows it, so that what attacks do not find says little."""
    observation = undecayed(observation)
    known = observation.knowledge
    kept, sent = () if known.defense is None else parts_of(known.defense), observation.update.tensors
    how = _function(kept[-1]) if kept else None
    found = None if how is None else _undone(how, sent, wire_of(observation, *sent).unit)
    if found is not None:
        tensors, width = found
        kept = *kept[:-1], Undone(width, sent)
        update = replace(observation.update, tensors=tensors)
        observation = replace(observation, update=update, knowledge=replace(known, defense=Compose(kept)))
    own = any(isinstance(step, Nonlinear) and step.how for part in kept for step in steps_of(part))
    return observation, (Tried("undoing", Status.FAILED, KEPT, opaque=True),) if own else ()


def as_sent(observation: Observation) -> Observation:
    """With the update as it came, for whoever does not know the defence."""
    known, update = observation.knowledge.defense, observation.update
    undone = [part for part in (() if known is None else parts_of(known)) if isinstance(part, Undone)]
    return replace(observation, update=replace(update, tensors=undone[-1].sent)) if undone else observation


def _function(part: Defense) -> Act | None:
    """What a part makes of a raw update, where its own words are all that is known of it."""
    steps = steps_of(part)
    own = all(isinstance(s, Nonlinear) and s.stage is DefenseStage.UPDATE and s.how and not s.drawn for s in steps)
    if not own or not steps:
        return None

    def how(raw: Tensors) -> Tensors:
        for step in steps:
            raw = step.sent(raw)
        return raw

    return how


def _undone(how: Act, sent: Tensors, unit: float) -> tuple[Tensors, Tensors] | None:
    """The raw update, and the largest error of an entry of each tensor; `None` where made-up ones do not come back."""
    like = {name: t.detach().double() for name, t in sent.items()}

    def flat(tensors: Tensors) -> Tensor:
        return torch.cat([tensors[name].flatten() for name in like])

    def named(values: Tensor) -> Tensors:
        parts = values.split([t.numel() for t in like.values()])
        return {name: part.view_as(t) for (name, t), part in zip(like.items(), parts, strict=True)}

    def function(values: Tensor) -> Tensor:
        return flat(how(named(values))).double()

    try:
        found = _solved(function, flat(like), unit)
        if found is None or float((function(2 * found) - flat(like)).norm()) <= BACK * float(flat(like).norm()):
            return None  # the second where its length does not matter
        sizes = map_tensors(lambda t: t.square().mean().sqrt().expand_as(t), named(found))
        draws, width = torch.Generator().manual_seed(0), torch.zeros_like(found)
        for size in SIZES:
            made = size * flat(sizes) * torch.randn(len(found), generator=draws, dtype=torch.float64)
            rounding = unit * (2 * torch.rand(len(found), generator=draws, dtype=torch.float64) - 1)
            again = _solved(function, function(made) * (1 + rounding), unit)
            if again is None:
                return None
            width = torch.maximum(width, (again - made).abs())
    except FOREIGN:  # what has no derivatives, say
        return None
    if any(float(w.norm()) > BACK * float(sizes[k].norm()) for k, w in named(width).items()):
        return None
    kind = {name: t.dtype for name, t in sent.items()}
    return {k: t.to(kind[k]) for k, t in named(found).items()}, map_tensors(lambda t: SAFE * t.amax(), named(width))


def _solved(function: Callable[[Tensor], Tensor], sent: Float[Tensor, " n"], unit: float) -> Float[Tensor, " n"] | None:
    """Newton's method from zero, then from what was sent, with least squares by LSMR scaled by the columns' lengths;
    `None` where it does not end."""
    size, products = float(sent.norm()), min(PRODUCTS, int(WORK / len(sent)))
    if not math.isfinite(size) or size == 0:
        return None
    ends = (_newton(function, sent, start, unit, products) for start in (torch.zeros_like(sent), sent))
    return next((x for x in ends if float((sent - function(x)).norm()) <= (SOLVED + unit) * size), None)


def _newton(
    function: Callable[[Tensor], Tensor], sent: Float[Tensor, " n"], x: Float[Tensor, " n"], unit: float, products: int
) -> Float[Tensor, " n"]:
    for _ in range(NEWTON):
        made, operator = jacobian(function, x)
        left = sent - made
        if float(left.norm()) <= 0.01 * unit * float(sent.norm()):
            break
        draws = np.random.default_rng(0).standard_normal((len(x), COLUMNS))
        lengths = np.linalg.norm(operator.rmatmat(draws), axis=1)
        scale = 1 / np.maximum(lengths, 1e-9 * lengths.max() + 1e-300)
        scaled = operator @ aslinearoperator(diags(scale))
        found = lsmr(scaled, left.numpy(), atol=1e-10, btol=0.01 * unit, conlim=0, maxiter=products)[0]
        tries = ((k, x + torch.from_numpy(scale * found) / 2**k) for k in range(HALVINGS))
        most = float(left.norm())
        nearer = (at for k, at in tries if float((sent - function(at)).norm()) < most * (1 - 0.1 / 2**k))
        if (after := next(nearer, None)) is None:
            break
        x = after
    return x
