"""Labels of examples that were read: known, counted, or those whose gradients make up the update; the proof."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.labels.strategy import Unknown, find_classifier
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.clients.protocol import example_gradients
from leakgauge.errors import FOREIGN
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.task import Batch
from leakgauge.tensors import Tensors, entries, map_tensors
from leakgauge.update import UpdateKind

TIMES = 16
"""Entries of the update that are compared, for each pair of an example and a label."""
MOST_PAIRS = 2048
"""Pairs of an example and a label."""
MOST_ENTRIES = 2**24
"""Of the gradients that are held at once."""


@dataclass(frozen=True, eq=False)
class TriedLabels:
    """Labels of given examples.

    Attributes:
        labels: of each.
        unexplained: share of the length of the entries that were compared which no labels explain.
        cost: gradient evaluations.
    """

    labels: Int[Tensor, " n"]
    unexplained: float
    cost: int


def tried_labels(observation: Observation, inputs: Float[Tensor, "n *shape"]) -> TriedLabels | None:
    """Each example under each label, and least squares for how much of each is in the update.

    It asks for nothing of the model's head. The update's length need not be known, nor need it be of one local step:
    only its direction is compared, in the smallest tensors that say enough, where entries were sent.

    Args:
        inputs: raw examples, all those of the update.

    Returns:
        `None` where examples have no gradients of their own, a client's optimiser rescales entries, or there are more
        than `MOST_PAIRS` to try.
    """
    task, known = observation.task, observation.knowledge
    n, classes = len(inputs), task.data.classes
    given = known.labels
    if task.stochastic or task.penalties or observation.rescaled or n * classes > MOST_PAIRS:
        return None
    if given is not None and (given.ndim != 1 or len(given) != n):
        return None
    task = task.to(torch.empty((), dtype=torch.float64))
    inputs = inputs.detach().to(next(iter(task.parameters.values())))
    names = _smallest(observation.update.tensors, TIMES * n * classes)
    pairs = torch.arange(n * classes)
    made = []
    try:
        for at in pairs.split(max(1, MOST_ENTRIES // entries(task.parameters))):
            batch = Batch(inputs[at // classes], at % classes)
            each = example_gradients(task, task.parameters, task.buffers, batch, None)
            made.append(torch.cat([each[name].detach().flatten(1) for name in names], 1))
    except FOREIGN:
        return None
    sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
    sent = sign * torch.cat([observation.values(name).flatten().cpu() for name in names])
    columns = torch.cat(made).cpu()
    if (support := observation.defended.support) is not None:
        seen = torch.cat([support[name].flatten().cpu() for name in names]).bool()
        sent, columns = sent[seen], columns[:, seen]
    size = float(sent.norm())
    if not 0 < size < float("inf") or not bool(columns.isfinite().all()):
        return None
    # Σ_c p_c·g(c) is zero for cross-entropy: of all solutions the shortest, whose largest entry is the label's.
    unit = columns.norm(dim=1).max().clamp_min(torch.finfo(torch.float64).tiny)
    solved = torch.linalg.lstsq((columns / unit).T, sent / size, driver="gelsd").solution
    unexplained = float(((columns / unit).T @ solved - sent / size).norm())
    return TriedLabels(assigned(solved.view(n, classes), given), unexplained, classes)


def mean_gradient_of(observation: Observation) -> Tensors | None:
    """The gradient of the mean loss: as sent, or as a delta of small local steps says nearly; `None` if unknown."""
    observation = observation.view
    told = observation.linear
    return None if told is None else map_tensors(lambda t: t / told.total, observation.update.tensors)


def paired_labels(
    observation: Observation, inputs: Float[Tensor, "n *shape"], gradient: Tensors
) -> Int[Tensor, " n"] | None:
    """The label of each of all examples of a batch, which were read in some order.

    n·∂L/∂W = Σ_k (p_k − e_k) h_kᵀ and n·∂L/∂b = Σ_k (p_k − e_k) for the classifier, whose inputs h_k and answers p_k
    follow from the examples: linear in the one-hot labels e_k, and solved by least squares. Where the multiset is known
    the most likely assignment of it is taken, else the largest entry of each.

    Args:
        gradient: of the mean loss, as one local step has it.

    Returns:
        `None` where the model has no linear classifier.
    """
    observation = observation.view
    layer = find_classifier(observation)
    if isinstance(layer, Unknown):
        return None
    task = observation.task
    with torch.no_grad():
        like = next(iter(task.parameters.values()))
        features, logits = layer.features(task, inputs.to(like))
    h, p = features.detach().cpu().double(), logits.detach().cpu().double().softmax(1)
    slope, offset = layer.of(gradient)
    if offset is not None:
        h, slope = torch.cat([h, h.new_ones(len(h), 1)], 1), torch.cat([slope, offset[:, None]], 1)
    explained = p.T @ h - len(h) * slope  # Σ e_k h_kᵀ, classes by features
    shares: Tensor = (explained @ torch.linalg.pinv(h)).T[:, : task.data.classes]
    return assigned(shares, observation.knowledge.labels)


def assigned(shares: Float[Tensor, "n classes"], given: Int[Tensor, " n"] | None) -> Int[Tensor, " n"]:
    """The label of each example by its largest share, or the best order of labels that are known."""
    if given is None or len(given) != len(shares):
        return shares.argmax(1)
    slots, which = linear_sum_assignment(-shares[:, given.cpu().long()].numpy())
    labels = given.cpu().clone()
    labels[slots] = given.cpu()[which]
    return labels


def _smallest(tensors: Tensors, wanted: int) -> list[str]:
    """Names of the smallest tensors that have so many entries together."""
    names, total = [], 0
    for name in sorted(tensors, key=lambda name: tensors[name].numel()):
        names.append(name)
        total += tensors[name].numel()
        if total >= wanted:
            break
    return names


@dataclass(frozen=True, eq=False)
class NamedLabels:
    """Labels of examples.

    Attributes:
        labels: `None` where nothing tells them.
        confidence: as in `Reconstruction`; `None` where they are known, or the update's fit is to say it.
        cost: gradient evaluations.
        why: what hinders.
    """

    labels: Int[Tensor, " n"] | None
    confidence: float | None = None
    cost: int = 0
    why: str = ""


def name_labels(
    observation: Observation, generator: torch.Generator, inputs: Float[Tensor, "n *shape"] | None = None
) -> NamedLabels:
    """Those that are known, else counted off the last layer, else tried on the raw inputs, if these are given."""
    if observation.knowledge.labels is not None:
        return NamedLabels(observation.knowledge.labels)
    guess = CountsFromLastLayer().infer(observation, generator)
    if not isinstance(guess, Unknown):
        return NamedLabels(guess.labels, guess.confidence)
    tried = None if inputs is None else tried_labels(observation, inputs)
    if tried is None:
        return NamedLabels(None, why=guess.message)
    return NamedLabels(tried.labels, 1.0 - min(tried.unexplained, 1.0), tried.cost)


def simulated(
    observation: Observation,
    inputs: Float[Tensor, "n *shape"],
    named: NamedLabels,
    generator: torch.Generator,
    explainer: Explainer | None = None,
) -> Reconstruction:
    """Raw examples as a result: `EXACT` where the simulated update explains the observed one and proves them all,
    else `CONVERGED`; without labels nothing is simulated.

    Args:
        explainer: one that has spent already.
    """
    kind = torch.promote_types(next(iter(observation.task.parameters.values())).dtype, torch.float32)
    if named.labels is None:
        return Reconstruction(inputs.to(kind), None, Status.CONVERGED, f"read, not certified: {named.why}")
    explainer = explainer or Explainer.of(observation, generator)
    batch = Batch(inputs, named.labels)
    left, certified = explainer.left(batch), explainer.certified(batch, generator)
    fitted = None if observation.knowledge.labels is not None else 1.0 - min(left, 1.0)
    return Reconstruction(
        inputs.to(kind),
        named.labels,
        Status.EXACT if bool(certified.all()) else Status.CONVERGED,
        f"{left:.1e} of the update's length unexplained",
        label_confidence=fitted if named.confidence is None else named.confidence,
        cost=Cost(explainer.spent + named.cost),
        certified=certified,
    )
