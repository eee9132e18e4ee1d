"""Whole batches off the rows of linear layers, under any loss: no label is needed to read, nor to prove."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.closed_form.linear import agreeing_rows
from leakgauge.attacks.closed_form.single import gradients
from leakgauge.attacks.effort import ReadingAttack
from leakgauge.attacks.labels.shares import ALIKE, average_target
from leakgauge.attacks.labels.targets import ErrorSignals, jacobian, targets_of
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.errors import FOREIGN
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.step.parts import Labels, Mask, NextToken, Values
from leakgauge.step.training import inputs_of
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors
from leakgauge.tracing import LinearLayer, linear_layers
from leakgauge.view.entries import one_factor

WIDEST = 4096  # entries of an example up to which the map from it to a layer's input is worked out
NONE = 1e-12  # share of a map's largest entry that rounding makes of none
MOST_CATEGORIES = 1024  # categories of a column up to which every one is tried
CANDIDATES = 4  # candidates for each example
SLACK = 0.01  # how far outside the data's range an example may lie, in shares of its width
FURTHEST = 0.25  # off that shares are told
AGREE = 1e-4  # rows that are so near, or within their rounding, show one example


@dataclass(frozen=True, eq=False)
class Door:
    """A linear layer that an affine map of the example's numbers reaches: reached = matrix · example + offset. No
    category moves its `rows`: a table's rows stand in the others."""

    layer: LinearLayer
    matrix: Float[Tensor, "d size"]
    offset: Float[Tensor, " d"]
    rows: Bool[Tensor, " d"]


def categories(task: Task) -> dict[int, int]:
    """Entries of an example that are categories or tokens, and how many of these there are."""
    parts = () if task.layout.alone else task.layout.inputs.values()
    highs = ((part.whole, high) for part in parts for high in islice(cycle(part.edges[1]), math.prod(part.shape)))
    return {place: int(high) + 1 for place, (whole, high) in enumerate(highs) if whole}


def doors(task: Task, generator: torch.Generator) -> list[Door]:
    """Biased linear layers that an example's numbers reach by an affine map, found by sending made-up ones through."""
    data, layers = task.data, [layer for layer in linear_layers(task) if layer.bias is not None]
    size, looked_up = torch.Size(data.shape).numel(), categories(task)
    if size > WIDEST or not layers:
        return []
    drawn = torch.rand(3, size, generator=generator, dtype=torch.float64)
    one, two, other = data.low + data.range * (0.25 + 0.5 * drawn)
    numbers = torch.tensor([i for i in range(size) if i not in looked_up], dtype=torch.long)
    for i in looked_up:
        one[i], two[i], other[i] = data.low, data.low, data.high
    if not len(numbers):
        return []
    other[numbers] = one[numbers]
    # One at a time: BatchNorm in train mode refuses one, and nothing is affine behind it.
    seen = [_reached(task, x[None], layers) for x in (one, two, (one + two) / 2, other)]
    found = []
    for layer in layers:
        given = [at.get(layer.name) for at in seen]
        if any(g is None or g.numel() != g.shape[-1] for g in given):
            continue
        a, b, c, d = (g.flatten() for g in given if g is not None)
        scale = max(1e-9 * float((a - b).abs().max()), 1e-12)
        if torch.equal(a, b) or not torch.allclose((a + b) / 2, c, atol=scale, rtol=1e-9):
            continue
        step, columns = 0.25 * data.range, a.new_zeros((size, len(a)))
        for at in numbers.split(256):
            moved = one.repeat(len(at), 1)
            moved[torch.arange(len(at)), at] += step
            columns[at] = (_reached(task, moved, [layer])[layer.name].flatten(1) - a) / step
        matrix = columns.T
        found.append(Door(layer, matrix, a - matrix @ one, torch.isclose(a, d, rtol=0, atol=scale)))
    return found


def _reached(task: Task, flat: Float[Tensor, "n size"], layers: list[LinearLayer]) -> Tensors:
    names = [layer.name for layer in layers]
    with torch.no_grad(), inputs_of(task.module, names) as seen, suppress(*FOREIGN):  # it may refuse further on
        task.passed(task.parameters, task.buffers, flat.view(-1, *task.data.shape))
    return seen


@ATTACKS.register(
    "any-loss", needs="a linear layer with bias that an affine map of the example reaches; one gradient; example_count"
)
@dataclass(frozen=True)
class AnyLossRead(ReadingAttack):
    """Examples of a batch off rows of a linear layer (Geiping et al., 2020, Proposition 3.1), whatever the loss is.

    Rows that agree on an example are candidates, and those that do once such an example is taken off. The update is
    linear in the error signals of the right ones (`leakgauge.attacks.labels.targets.ErrorSignals`), and so least
    squares picks them and proves them. Then the targets are solved for, where the loss is one of the logits.

    Numbers reach the layer by an affine map, beside rows of tables that categories look up: each of these is tried.

    Source: ours; what is taken off, Shariati and Meybodi, 2026, see `leakgauge.attacks.exact.peeling`. Known failure:
    what reaches no such layer is not read, and nothing is then proved; nor are activations that never switch off.
    """

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """`EXACT` where every example is proved."""
        count, gradient = observation.examples, observation.gradient
        if count is None:
            return Reconstruction.not_applicable("needs the number of examples (knows: example_count)")
        if gradient is None:
            return Reconstruction.not_applicable("the update is no gradient at one point")
        task = observation.task.to(torch.empty((), dtype=torch.float64))
        if not (ways := doors(task, generator)):
            return Reconstruction.not_applicable("no linear layer with bias is reached by an affine map of the example")
        signals = ErrorSignals.of(observation)
        found = _single(task, ways, gradient) if count == 1 else _peeled(observation, task, ways, count)
        low, high = task.data.low - SLACK * task.data.range, task.data.high + SLACK * task.data.range
        best, left, any_ = None, torch.inf, False
        for candidates in found:
            inputs, any_ = candidates.view(-1, *task.data.shape), True
            inside = inputs[((inputs >= low) & (inputs <= high)).flatten(1).all(1)]
            if isinstance(signals, str) or not len(inside) or not signals.affords(inside[:count]):
                best = inside[:count] if best is None and len(inside) else best
                break
            chosen = signals.nearest(inside, count) if signals.affords(inside) else inside[:count]
            if (own := signals.left(chosen)) < left:
                best, left = chosen, own
            if left <= signals.tolerance:
                break
        if best is None:
            words = "what rows agree on lies outside the data's range" if any_ else "no rows agree on an example"
            return Reconstruction(None, None, Status.FAILED, words)
        return proved(observation, best, signals, count, generator)


def proved(
    observation: Observation,
    inputs: Float[Tensor, "m *shape"],
    signals: ErrorSignals | str,
    count: int,
    generator: torch.Generator,
) -> Reconstruction:
    """Raw examples as a result: `EXACT` where error signals prove them all, with the targets that make these."""
    labels, certified = None, torch.zeros(len(inputs), dtype=torch.bool)
    if isinstance(signals, str):
        words = signals
    elif not signals.affords(inputs):
        words = "there are too few parameters for so many logits"
    else:
        if len(inputs) == count:
            certified = signals.certified(inputs, generator)
            labels = targets_of(signals, inputs) if bool(certified.any()) else None
        words = f"{signals.left(inputs):.1e} of the update's length unexplained"
        real = any(isinstance(target, Values) for target in signals.task.layout.targets.values())
        if real and labels is None and signals.shortened and bool(certified.any()):
            words += "; real targets are told only if the defence is named, `NoDefense()` too (knows: defense)"
        if not one_factor(observation) and sum(t.ndim > 1 for t in observation.update.tensors.values()) < 2:
            certified = torch.zeros_like(certified)
            words += "; a defence or an optimiser that is not known may have scaled the only weight and its bias unlike"
    message = f"{int(certified.sum())} of {count} examples certified without labels; {words}"
    kind = observation.task.like.dtype
    if labels is not None and labels.is_floating_point():
        labels = labels.to(kind)
    return Reconstruction(
        inputs.to(kind),
        observation.knowledge.labels if labels is None else labels,
        Status.EXACT if len(inputs) == count and bool(certified.all()) else Status.CONVERGED,
        message,
        paired=labels is not None,
        certified=certified,
        cost=Cost(0 if isinstance(signals, str) else len(inputs)),
    )


def with_shares(found: Reconstruction, observation: Observation, generator: torch.Generator) -> Reconstruction:
    """An answer with shares of the places of a mask, or of the tokens, that are of each class; of several labels how
    often each holds. Counted where the labels read explain the update; else as `average_target`, off as of made-up
    inputs where those read are not proved, and withheld where they may be off by more than `FURTHEST`."""
    targets, inputs, labels = list(observation.task.layout.targets.items()), found.inputs, found.labels
    if len(targets) != 1 or not isinstance(target := targets[0][1], Labels | Mask | NextToken):
        return found
    told = None
    if inputs is not None and labels is not None and found.paired and len(labels) == len(inputs):
        with suppress(*FOREIGN):
            if Explainer.of(observation, generator).left(Batch(inputs, labels)) < ALIKE:
                several, places = isinstance(target, Labels), labels[labels >= 0].long()
                counts = labels.view(len(labels), -1).sum(0) if several else places.bincount(minlength=target.classes)
                told = counts.double() / len(labels if several else places), 0.0
    sure = found.status is Status.EXACT or (found.certified is not None and bool(found.certified.all()))
    mean, off = told or average_target(observation, inputs if sure else None, generator) or (None, 0.0)
    if mean is None or off > FURTHEST:
        return found
    if told is None and not sure and inputs is not None:  # at worst what was read is one more made-up batch
        near, _ = average_target(observation, inputs, generator) or (mean, 0.0)
        mean = near if float((near - mean).abs().max()) <= off else mean
    return replace(found, shares={targets[0][0]: mean}, shares_off={targets[0][0]: off})


def _single(task: Task, ways: list[Door], gradient: Tensors) -> Iterator[Float[Tensor, "1 size"]]:
    """All layers that one example reaches, together."""
    read = [(door, x) for door in ways if (x := door.layer.entered(gradient)) is not None]
    if used := [door for door, _ in read]:
        yield _examples(task, used, _inverse(used), [x for _, x in read])


def _peeled(observation: Observation, task: Task, ways: list[Door], count: int) -> Iterator[Float[Tensor, "m size"]]:
    """Sets of candidates: what rows agree on, and what others agree on once the whole gradient of one is taken off, as
    its logits' slopes tell it. Of one output rows agree on mixtures as well: what is left of them shows their parts."""
    numbers = torch.Size(task.data.shape).numel() - len(categories(task))
    door = next((d for d in ways if int(d.rows.sum()) >= numbers == _rank(d.matrix[d.rows])), None)
    if door is None or door.layer.bias is None:
        return
    sums, totals = gradients(observation, door.layer)
    alike = [group for group in agreeing_rows(sums, totals, AGREE) if len(group) > 1][: count * CANDIDATES]
    if not alike:
        return
    back = partial(_examples, task, [door], _inverse([door]))
    every = back([torch.stack([group.x.cpu() for group in alike])])
    yield every
    for first in alike[: 2 * count]:
        own, group, weight, bias = every[:0], first, sums, totals
        while len(own) < count * CANDIDATES:
            one = back([group.x.cpu()[None]])
            own = torch.cat([own, one])
            slopes = jacobian(task, [door.layer.bias], one.view(1, *task.data.shape))[1].to(bias.value)
            alone = slopes[group.rows]
            if len(alone) < alone.shape[1]:
                break
            drives = slopes @ torch.linalg.lstsq(alone, bias.value[group.rows], driver="gelsd").solution
            weight = replace(weight, value=weight.value - drives[:, None] * group.x)
            bias = replace(bias, value=bias.value - drives)
            left = (g for g in agreeing_rows(weight, bias, AGREE) if len(g) > 1)
            fresh = (g for g in left if not _known(own, back([g.x.cpu()[None]])))
            if (new := next(fresh, None)) is None:
                break
            group = new
        yield torch.cat([every, own[[not _known(every, x[None]) for x in own]]])


def _known(found: Float[Tensor, "m size"], one: Float[Tensor, "1 size"]) -> bool:
    return float((found - one).norm(dim=1).min()) <= AGREE * float(one.norm())


def _alone(matrix: Float[Tensor, "d size"]) -> Tensor | None:
    """The matrix less its rounding, where each row then shows one number by itself."""
    there = matrix.abs() > NONE * matrix.abs().max()
    return matrix * there if bool((there.sum(0) <= 1).all() and (there.sum(1) <= 1).all()) else None


def _rank(matrix: Float[Tensor, "d size"]) -> int:  # counted where it can be: a decomposition takes long
    return int(torch.linalg.matrix_rank(matrix) if (single := _alone(matrix)) is None else single.count_nonzero())


def _inverse(ways: list[Door]) -> Float[Tensor, "size d"]:
    """Takes what reached these layers back to an example's numbers, by least squares; every candidate goes through."""
    matrix = torch.cat([door.matrix[door.rows] for door in ways])
    if (single := _alone(matrix)) is not None:
        return (single / single.square().sum(0).clamp_min(torch.finfo(single.dtype).tiny)).T
    inverse: Tensor = torch.linalg.pinv(matrix)
    return inverse


def _examples(
    task: Task, ways: list[Door], inverse: Float[Tensor, "size d"], seen: list[Float[Tensor, "n d"]]
) -> Float[Tensor, "n size"]:
    """What reached these layers, taken back to examples: the numbers, then categories one by one."""
    found = torch.cat([(x - door.offset)[:, door.rows] for door, x in zip(ways, seen, strict=True)], 1) @ inverse.T
    layers = [door.layer for door in ways]
    for column, count in categories(task).items():
        if count > MOST_CATEGORIES:
            continue
        gaps = []
        for value in range(count):
            found[:, column] = value / (count - 1)
            at = [_reached(task, one[None], layers) for one in found]
            far = [torch.stack([a[d.layer.name].flatten() for a in at]) - x for d, x in zip(ways, seen, strict=True)]
            gaps.append(torch.cat(far, 1).norm(dim=1))
        found[:, column] = torch.stack(gaps).argmin(0).double() / (count - 1)
    return found
