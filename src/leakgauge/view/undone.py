"""What a defence of the user's own made of an update, undone by who knows it. No search is as strong as that: a running
sum of all entries hides every picture from one, and nothing from subtraction."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, lsmr
from torch import Tensor
from torch.func import jvp, vjp

from leakgauge.defenses import Compose, Defense, parts_of, steps_of
from leakgauge.defenses.steps import Act, DefenseStage, DefenseStep, EntryGrid, Nonlinear
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation, Status, Tried
from leakgauge.tensors import Tensors, forward_mode, map_tensors
from leakgauge.view.entries import undecayed, wire_of

NEWTON, HALVINGS, PRODUCTS = 30, 12, 4000  # steps, of each at most so many halvings, and products with the Jacobian
WORK = 2e8  # entries times products
SOLVED = 1e-6  # share of what was sent that may be left, beside its rounding
BACK = 1e-3  # share of a made-up update by which it may come back otherwise
ALIKE = 0.8  # cosine of a tensor in two updates that send the same, below which the defence hides it
SIZES, SAFE = (
    (1.0, 1.0, 0.01),
    4.0,
)  # of made-up updates, and how many times their largest error is taken for the client's


@dataclass(frozen=True, eq=False)
class Undone(Defense):
    """What is left of a defence that was undone: name → largest error of an entry."""

    width: Tensors

    def steps(self) -> tuple[DefenseStep, ...]:
        return (EntryGrid(levels=1 << 30, how=lambda raw: raw, width=lambda _: self.width),)


def plainer(observation: Observation) -> tuple[Observation, tuple[Tried, ...]]:
    """The same client in plainer words, as attacks are given it: `undecayed`, and without a known defence's last part
    where that sends a function of the update from which the update follows, as it does of made-up ones. Beside it what
    was not undone though nothing shows that it hides anything: what attacks do not find then says nothing."""
    observation = undecayed(observation)
    known = observation.knowledge
    kept = () if known.defense is None else parts_of(known.defense)
    if not kept or (how := _function(kept[-1])) is None:
        return observation, ()
    sent = observation.update.tensors
    found = _undone(how, sent, wire_of(observation, *sent).unit)
    if isinstance(found, str):
        return observation, (Tried("undoing", Status.FAILED, found, opaque=True),) if found else ()
    tensors, width = found
    known = replace(known, defense=Compose((*kept[:-1], Undone(width))))
    return replace(observation, update=replace(observation.update, tensors=tensors), knowledge=known), ()


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


def _undone(how: Act, sent: Tensors, unit: float) -> tuple[Tensors, Tensors] | str:
    """The raw update, and the largest error of an entry of each tensor; else why not, empty where it hides much."""
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
            return "what the defence makes of an update was not undone, and nothing shows that it hides anything"
        sizes = map_tensors(lambda t: t.square().mean().sqrt().expand_as(t), named(found))
        draws, width, hidden = torch.Generator().manual_seed(0), torch.zeros_like(found), list[bool]()
        for size in SIZES:
            made = size * flat(sizes) * torch.randn(len(found), generator=draws, dtype=torch.float64)
            wire = function(made)
            again = _solved(
                function, wire * (1 + unit * (2 * torch.rand(len(wire), generator=draws).double() - 1)), unit
            )
            if again is None:
                return "what the defence makes of a made-up update was not undone, and nothing shows that it hides any"
            unlike = [t.numel() for a, t in zip(named(again).values(), named(made).values(), strict=True) if _off(a, t)]
            hidden += [2 * sum(unlike) > len(made)]
            width = torch.maximum(width, (again - made).abs())
    except FOREIGN:
        return "what the defence makes of an update has no derivatives, and nothing shows that it hides anything"
    if all(hidden):
        return ""
    off = {k: (float(w.norm()), float(sizes[k].norm())) for k, w in named(width).items()}
    if any(error > BACK * size for error, size in off.values()):
        return "what the defence makes of an update was undone in part, and what it hides is not known"
    kind = {name: t.dtype for name, t in sent.items()}
    return {k: t.to(kind[k]) for k, t in named(found).items()}, map_tensors(lambda t: SAFE * t.amax(), named(width))


def _off(a: Tensor, b: Tensor) -> bool:
    size = float(a.norm()) * float(b.norm())
    return size == 0 or float((a * b).sum()) < ALIKE * size


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
    size = float(sent.norm())
    left = sent - function(x)
    for _ in range(NEWTON):
        if float(left.norm()) <= 0.01 * unit * size:
            break
        pull = vjp(function, x)[1]
        draws = torch.Generator().manual_seed(1)
        lengths = torch.stack([pull(torch.randn(len(x), generator=draws).double())[0] for _ in range(8)]).norm(dim=0)
        scale = 1 / lengths.clamp_min(1e-9 * float(lengths.max()) + 1e-300)

        def push(v: Any, x: Tensor = x, scale: Tensor = scale) -> Any:
            with forward_mode():
                return jvp(function, (x,), (torch.from_numpy(v) * scale,))[1].numpy()

        def back(v: Any, scale: Tensor = scale, pull: Any = pull) -> Any:
            return (pull(torch.from_numpy(v))[0] * scale).numpy()

        both = LinearOperator((len(x), len(x)), matvec=push, rmatvec=back, dtype=np.float64)
        found = lsmr(both, left.numpy(), atol=1e-10, btol=0.01 * unit, conlim=0, maxiter=products)
        step = torch.from_numpy(found[0]) * scale
        for k in range(HALVINGS):
            nearer = sent - function(x + step / 2**k)
            if float(nearer.norm()) < float(left.norm()) * (1 - 0.1 / 2**k):
                x, left = x + step / 2**k, nearer
                break
        else:
            break
    return x
