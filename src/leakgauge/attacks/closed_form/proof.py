"""Labels of examples that were read: known, counted, or those whose error signals the update shows; the proof."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Real
from scipy.optimize import linear_sum_assignment
from scipy.sparse import block_diag, identity
from scipy.sparse.linalg import aslinearoperator, lsmr
from torch import Tensor

from leakgauge.attacks.effort import Effort
from leakgauge.attacks.features.fits import nudged
from leakgauge.attacks.features.inside import Inside
from leakgauge.attacks.features.read import layer_gradients
from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.labels.strategy import Unknown
from leakgauge.attacks.labels.targets import ErrorSignals, least, slopes_at, targets_of
from leakgauge.attacks.labels.targets import jacobian as slopes_of
from leakgauge.attacks.matching.problem import Meter, Over
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.errors import FOREIGN
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import UpdateKind
from leakgauge.view.derivatives import jacobian
from leakgauge.view.entries import noise_of, rounding_norms

TIMES = 16  # entries of the update that are compared, for each signal
MOST_SIGNALS = 2048  # of all examples, that labels are looked for by
MOST_ENTRIES = 2**24  # of one tensor, times the signals
ITERATIONS, TURNS, PRODUCTS, PARTS = 200, 6, 4, (1.0, 0.3, 0.1, 0.03)
"""Of each least squares, how many of them, the evaluations that an iteration takes (products with a derivative of a
gradient, and with its transpose), and which parts of a step are tried."""
FAINT = 10.0  # times the share of the update that is left, how near to zero units may be on the wrong side
SHOWN, APART = 1e-12, 1e-3  # least share of the largest eigenvalue of signals that entries show; least gap of classes


@dataclass(frozen=True, eq=False)
class NamedLabels:
    """Labels of examples, `None` where nothing tells them, and why. No confidence where they are known, or the update's
    fit is to say it. Their cost is in gradient evaluations."""

    labels: Real[Tensor, "n *target"] | None
    confidence: float | None = None
    cost: int = 0
    why: str = ""


def tried_labels(observation: Observation, inputs: Real[Tensor, "n *shape"]) -> NamedLabels:
    """The class of each raw example of the update whose own error signal points as the one does that the update shows;
    of other targets those that make it (`targets_of`).

    Only the update's direction is compared, in the last tensors that say enough, where entries were sent. Labels that
    are known as a multiset are put in order. Confidence: the share of what was compared which error signals explain.
    None where examples have no signals of their own, an optimiser rescales entries, or there are over `MOST_SIGNALS`.
    """
    observation = observation.origin
    task, given, n = observation.task, observation.knowledge.labels, len(inputs)
    if not task.of_classes:
        told = None
        with suppress(*FOREIGN):  # a network that cannot be run in float64 has no targets read, and loses nothing else
            shown = ErrorSignals.of(observation)
            told = None if isinstance(shown, str) or not shown.affords(inputs) else targets_of(shown, inputs)
        return NamedLabels(told, cost=0 if told is None else task.outputs)
    alone = not (task.stochastic or task.penalties or observation.rescaled) and 0 < n * task.outputs <= MOST_SIGNALS
    if not alone or (given is not None and (given.ndim != 1 or len(given) != n)):
        return NamedLabels(None)
    task, signals = task.to(torch.empty((), dtype=torch.float64)), n * task.outputs
    names, more, compared, spent = list[str](), _last(observation.update.tensors, signals), None, 0
    while len(more) > len(names) and not (compared and compared[2]):  # until classes are told apart
        names, spent = more, spent + signals_cost(observation, n, more)
        try:
            compared = _compared(observation, task, names, inputs)
        except FOREIGN:
            return NamedLabels(None)
        more = _last(observation.update.tensors, signals, sum(task.parameters[name].numel() for name in names))
    if compared is None:
        return NamedLabels(None)
    scores, left, tells = compared
    labels = scores.argmax(1)
    if given is not None:
        slots, which = linear_sum_assignment(-scores[:, given.cpu().long()].numpy())
        labels = given.cpu().clone()
        labels[slots] = given.cpu()[which]
    confidence = 1.0 - min(left, 1.0) if tells else 0.0
    return NamedLabels(labels, confidence, spent)


def _compared(
    observation: Observation, task: Task, names: list[str], inputs: Real[Tensor, "n *shape"]
) -> tuple[Float[Tensor, "n classes"], float, bool] | None:
    """How alike the error signals that some entries show are to those of each class, the share of the entries' length
    that they leave, and whether no second class looks like the first there."""
    n, support = len(inputs), observation.defended.support
    sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
    sent = sign * torch.cat([observation.values(name).flatten() for name in names]).cpu()
    z, matrix = slopes_of(task, names, inputs.detach().to(next(iter(task.parameters.values()))))
    every = [slopes_at(task, z, torch.full((n,), label, device=z.device)) for label in range(task.data.classes)]
    matrix, slopes = matrix.cpu(), torch.stack(every, 1).cpu()
    if support is not None:
        seen = torch.cat([support[name].flatten() for name in names]).bool().cpu()
        sent, matrix = sent[seen], matrix[seen]
    size = float(sent.norm())
    if not 0 < size < float("inf") or not bool(matrix.isfinite().all()):
        return None
    solved, left = least(matrix, sent / size)
    tiny = torch.finfo(torch.float64).tiny
    scores = (slopes * solved.view(n, 1, -1)).sum(2) / slopes.norm(dim=2).clamp_min(tiny)
    columns = (norm := matrix.norm(dim=0)).where(norm > 0, 1.0)
    values, basis = torch.linalg.eigh((matrix / columns).T @ (matrix / columns))
    basis = basis[:, values > SHOWN * values[-1]]
    rows, sizes = basis.view(n, -1, basis.shape[1]), columns.view(n, -1)
    own = (rows @ rows.mT) * (sizes.unsqueeze(1) / sizes.unsqueeze(2))
    shown = torch.nn.functional.normalize(slopes @ own.mT, dim=2)
    apart = (shown - shown.take_along_dim(scores.argmax(1).view(n, 1, 1), 1)).norm(dim=2)
    second = apart.scatter(1, scores.argmax(1, keepdim=True), float("inf")).min()
    return scores, float(left.norm()), float(second) > APART


def signals_cost(observation: Observation, examples: int, names: list[str] | None = None) -> int:
    """Gradient evaluations that labels take by some tensors, by default the first that are looked at: one for each
    output, of a part of the parameters."""
    outputs, sent = observation.task.outputs, observation.update.tensors
    names = _last(sent, examples * outputs) if names is None else names
    part, whole = (sum(sent[name].numel() for name in some) for some in (names, sent))
    return round(outputs * part / max(whole, 1))


def _last(tensors: Tensors, signals: int, entries: int = 0) -> list[str]:
    """The last tensors that have `TIMES` as many entries as there are signals, or as `entries`; no large ones."""
    names, total = list[str](), 0
    for name in reversed(tensors):
        if total < TIMES * max(signals, entries) and signals * tensors[name].numel() <= MOST_ENTRIES:
            names.append(name)
            total += tensors[name].numel()
    return names


def name_labels(
    observation: Observation, generator: torch.Generator, inputs: Real[Tensor, "n *shape"] | None = None
) -> NamedLabels:
    """Those that are known, else counted off the last layer, else tried on the raw inputs, if these are given."""
    if observation.knowledge.labels is not None:
        return NamedLabels(observation.knowledge.labels)
    why = "its target is no class"
    if observation.task.of_classes:
        guess = CountsFromLastLayer().infer(observation, generator)
        if not isinstance(guess, Unknown):
            return NamedLabels(guess.labels, guess.confidence)
        why = guess.message
    tried = NamedLabels(None) if inputs is None else tried_labels(observation, inputs)
    return NamedLabels(None, why=why) if tried.labels is None else tried


def simulated(
    observation: Observation,
    inputs: Float[Tensor, "n *shape"],
    named: NamedLabels,
    generator: torch.Generator,
    explainer: Explainer | None = None,
    *,
    doubt: float | None = None,
) -> Reconstruction:
    """Raw examples as a result: `EXACT` where the simulated update explains the observed one and proves them all,
    else `CONVERGED`; without labels nothing is simulated. `doubt`: how far known noise can have moved an input, where
    that is little: they are proved too where the update leaves no more than such noise."""
    kind = observation.task.like.dtype
    if named.labels is None:
        return Reconstruction(inputs.to(kind), None, Status.CONVERGED, f"read, not certified: {named.why}")
    explainer = explainer or Explainer.of(observation, generator)
    batch = Batch(inputs, named.labels)
    left, certified, words = explainer.left(batch), explainer.certified(batch, generator), ""
    if doubt is not None and not bool(certified.all()) and left <= 2 * noise_share(observation) + explainer.tolerance:
        certified, words = torch.ones_like(certified), f"noise has moved inputs by {doubt:.1e} of the range at most; "
    fitted = None if observation.knowledge.labels is not None else 1.0 - min(left, 1.0)
    return Reconstruction(
        inputs.to(kind),
        named.labels,
        Status.EXACT if bool(certified.all()) else Status.CONVERGED,
        f"{words}{left:.1e} of the update's length unexplained{explainer.why}",
        label_confidence=fitted if named.confidence is None else named.confidence,
        cost=Cost(explainer.spent + named.cost),
        certified=certified,
    )


def noise_share(observation: Observation) -> float:
    """Of the update's length, what known noise makes."""
    scale, sent = noise_of(observation).noise_scale or {}, observation.update.tensors
    noise = sum(float(scale[name]) ** 2 * sent[name].numel() for name in scale)
    return math.sqrt(noise / max(float(squared_norm(map_tensors(Tensor.double, sent))), 1e-300))


def corrected(
    explainer: Explainer,
    read: Callable[[Observation], Tensor | None],
    near: Float[Tensor, "n *shape"],
    labels: Real[Tensor, "n *target"],
    effort: Effort,
) -> Float[Tensor, "n *shape"]:
    """Raw examples that were read nearly, less what the same read gets wrong of the updates that they make, as long as
    that explains twice as much. So local steps of weights that stand for others, of which a read knows the first order
    alone, are explained to rounding, at two simulated updates a turn.

    Source: defect correction (Stetter, 1978)."""
    origin, simulator = explainer.observation, explainer.simulator
    meter, steps, best = Meter(effort.budget, effort.on_step), simulator.cost(len(near)), near
    left = explainer.left(Batch(near, labels))
    for index in range(TURNS):
        meter.spent = explainer.spent
        meter.note(index, left)
        if left <= explainer.tolerance or meter.over(2 * steps) is not None:
            break
        with torch.no_grad():
            made = simulator(Batch(best.double(), labels))
        explainer.spent += steps
        found = read(replace(origin, update=replace(origin.update, tensors=made)))
        if found is None or found.shape != near.shape:
            break
        apart = torch.cdist(best.double().flatten(1), found.double().flatten(1)).cpu()
        moved = best.double() + near.double() - found.double()[linear_sum_assignment(apart.numpy())[1]]
        after = explainer.left(Batch(moved, labels))
        if not after < left / 2:
            break
        best, left = moved, after
    return best


def improved(
    explainer: Explainer,
    near: Float[Tensor, "n *shape"],
    labels: Real[Tensor, "n *target"],
    effort: Effort,
    ways: Float[Tensor, "m *shape"] | None = None,
) -> tuple[Float[Tensor, "n *shape"], Status | None]:
    """Raw examples that are near, moved in some directions or all, by Gauss–Newton on the update's entries in units of
    their rounding, until they explain it, the effort ends, or a step explains no more. Units of ReLUs near zero are
    first put on the side that the update shows (`nudged`): each that is not moves it by a jump. The status says what
    ended it before that; `None` where nothing did."""
    observation, simulator, meter = explainer.observation, explainer.simulator, Meter(effort.budget, effort.on_step)
    steps, seen = simulator.cost(len(near)), simulator.observed
    rounded = rounding_norms(observation.update, observation.task.parameters, steps)
    size = {name: rounded[name] / t.numel() ** 0.5 for name, t in seen.items() if rounded[name] > 0}
    inside = Inside.of(observation.task, len(near))
    gradients = layer_gradients(observation, inside)

    def off(inputs: Tensor) -> Tensor:
        made = simulator(Batch(inputs, labels))
        return torch.cat([((made[name] - seen[name]) / each).flatten() for name, each in size.items()])

    def nearest(*every: Tensor) -> tuple[float, Tensor]:
        explainer.spent += len(every) * steps
        with torch.no_grad():
            return min(((float(off(one).norm()), one) for one in every), key=lambda pair: pair[0])

    near = near.double()
    each = identity(near[0].numel()) if ways is None else ways.flatten(1).T.numpy()
    moves = aslinearoperator(block_diag([each] * len(near), format="csr"))
    for index in range(TURNS):
        left, meter.spent = explainer.left(Batch(near, labels)), explainer.spent
        meter.note(index, left)
        if left <= explainer.tolerance:
            return near, None
        if meter.over(PRODUCTS * steps) is not None:
            break
        room = meter.affordable(PRODUCTS * steps)
        _, near = nearest(near, nudged(inside, gradients, Batch(near, labels), FAINT * left))
        made, operator = jacobian(off, near, meter.tick)
        try:
            most = ITERATIONS if room is None else min(room, ITERATIONS)
            found = lsmr(operator @ moves, -made.numpy(), atol=0, btol=0, conlim=0, maxiter=most)
        except Over:
            break
        explainer.spent += PRODUCTS * found[2] * steps
        step = torch.from_numpy(moves @ found[0]).view_as(near)
        after, moved = nearest(*(near + part * step for part in PARTS))
        if not after < float(made.norm()):
            break
        near = moved
    return near, meter.over(PRODUCTS * steps)
