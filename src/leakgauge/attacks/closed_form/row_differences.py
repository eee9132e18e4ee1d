"""Differences of neighbouring rows of one direction: what bins in a first layer give away, whoever put them there."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.linear import RESCALED
from leakgauge.attacks.closed_form.places import places_in
from leakgauge.attacks.closed_form.proof import name_labels
from leakgauge.attacks.closed_form.single import CERTAIN
from leakgauge.attacks.effort import ReadingAttack
from leakgauge.defenses import parts_of
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.view.entries import OPERATIONS, SentTensor
from leakgauge.view.graph import Graph, OuterSum, followed
from leakgauge.view.trace import probe

SLACK, EDGE = 1e-2, 1e-5
"""How far outside the range a single example may be read, in shares of the range's width, and how far beyond its bin,
in shares of what the measured number can span."""
TERMS = 256  # examples whose sums may round before an empty bin looks driven
PARALLEL = 1e-5  # most distance of two rows of length one that point the same way, of float32 weights
PROBES, ALIKE = 4, 1e-4
"""Examples that drive every row of a direction, and the relative distance up to which two rows' answers to a signal are
in one proportion for all of them."""


@dataclass(frozen=True, eq=False)
class Ladder:
    """Rows of a first layer that measure one number of the input, by their thresholds, the lowest first."""

    product: OuterSum
    bias: str
    order: Int[Tensor, " d"]  # where each column of the weight stands in the flattened input
    rows: Int[Tensor, " bins"]
    size: Float[Tensor, " bins"]  # what an example that drives all of the rows sends to each, relative to the others

    def of(self, tensors: Tensors) -> tuple[Float[Tensor, "bins d"], Float[Tensor, " bins"]]:
        """The rows of the weight and the bias in float64."""
        weight, bias = (tensors[name].detach().cpu().double() for name in (self.product.weight or "", self.bias))
        return self.product.matrices(weight)[0][self.rows], bias[self.rows]

    def steps(self, of: Float[Tensor, "bins ..."], sign: float = -1.0) -> Float[Tensor, "bins ..."]:
        """What lies between neighbouring thresholds; nothing stands above the last row, which is a bin itself."""
        own = of / self.size.view(-1, *[1] * (of.ndim - 1))
        return torch.cat([own[:-1] + sign * own[1:], own[-1:]])

    def errors(self, observation: Observation, terms: int) -> list[Float[Tensor, " bins"]]:
        """Bounds on the rounding of each bin's entries and of its bias, sums of so many terms, by client and wire. A
        sum of n products is off by at most n·v of its largest partial sum, for which the row's largest entry stands
        (Higham, *Accuracy and Stability*, §3.1); a delta also as the parameter that it moved, once a step."""
        bounds = {
            name: SentTensor.of(observation, name, operations=terms + OPERATIONS)[...].bound
            for name in (self.product.weight or "", self.bias)
        }
        return [self.steps(of.reshape(len(of), -1).amax(1), 1.0) for of in self.of(bounds)]


def ladders(task: Task) -> Iterator[Ladder]:
    """Those of a network's first layers, however it is written. Raises what the model raises in float64."""
    if isinstance(graph := followed(task), str):
        return
    exact = task.to(torch.empty((), dtype=torch.float64))
    for group in graph.first:
        for product in (p for p in group.products if p.weight and len(p.terms) == 1 and p.shape[0] == 1):
            signal = product.terms[0].signal.node
            biases = [s.weight for s in group.shifts if s.weight and s.terms[0].signal.node is signal]
            order = places_in(graph, product) if biases else None
            if order is not None and len(order) == 1:
                weight = product.matrices(exact.parameters[product.weight or ""])[0].detach().cpu()
                for rows in parallel(weight):
                    found = Ladder(product, biases[0], order[0], rows, torch.ones(len(rows), dtype=torch.float64))
                    if (measured := _measured(graph, found, exact)) is not None:
                        yield measured


def parallel(weight: Float[Tensor, "units d"]) -> list[Int[Tensor, " k"]]:
    """Groups of rows that point the same way."""
    length = weight.norm(dim=1)
    unit = weight / length.clamp_min(torch.finfo(weight.dtype).tiny)[:, None]
    key = unit @ torch.randn(unit.shape[1], generator=torch.Generator().manual_seed(0), dtype=unit.dtype)
    order = key.argsort()
    order = order[length[order] > 0]
    near = (unit[order[1:]] - unit[order[:-1]]).norm(dim=1) < PARALLEL
    group = torch.cat([torch.zeros(1, dtype=torch.long), (~near).cumsum(0)])[: len(order)]
    return [order[group == k] for k, count in enumerate(group.bincount().tolist()) if count > 1]


def _measured(graph: Graph, ladder: Ladder, task: Task) -> Ladder | None:
    """By threshold, those rows that an example drives with signals in one proportion, whatever its label."""
    data, batch, term = task.data, probe(task, PROBES), ladder.product.terms[0]
    weight, offset = ladder.of(task.parameters)
    most = torch.full((len(ladder.order),), data.low, dtype=torch.float64)
    most[ladder.order[weight[0] > 0]] = data.high
    batch = replace(batch, inputs=most.view(1, *data.shape).expand(PROBES, *data.shape).to(batch.inputs))
    rows = ladder.rows[(-offset / weight.norm(dim=1)).argsort()]
    sent = graph.rows(term, term.signal, task, batch)[0][:, rows].detach().cpu()
    rows, sent = (t[..., sent.abs().amax(0) > 0] for t in (rows, sent))
    if len(rows) < 2:
        return None
    loudest = sent[:, -1].abs().argmax()
    size = sent[loudest] / sent[loudest, -1]
    alike = (sent - sent[:, -1:] * size).norm(dim=0) <= ALIKE * sent.norm(dim=0)
    alike &= (size > 0) & size.isfinite()
    own = size[alike] / size[alike].max()
    return replace(ladder, rows=rows[alike], size=own) if len(own) > 1 else None


@dataclass(frozen=True, eq=False)
class Bins:
    """The bins of a ladder: of each Σ g·(z, 1) over the examples in it."""

    inputs: Float[Tensor, "bins d"]  # z where one example is in it, raw
    error: Float[Tensor, " bins"]  # the largest, in shares of the range
    driven: Bool[Tensor, " bins"]  # not empty, by a threshold that knows the rounding of its rows
    plausible: Bool[Tensor, " bins"]  # the read is in the data's range and falls into its own bin
    evidence: Float[Tensor, " bins"]  # size of Σ g

    @staticmethod
    def of(observation: Observation, ladder: Ladder) -> "Bins":
        """With entries of the weight off by at most e and of the bias by f, a ratio x is off by at most
        (e + f·|x|) ÷ |Σ g|."""
        data = observation.task.data
        sums, totals = (ladder.steps(of) for of in ladder.of(observation.update.tensors))
        floors = ladder.errors(observation, TERMS)
        driven = ((sums.abs().amax(1) > floors[0]) | (totals.abs() > floors[1])) & (totals != 0)
        entries, biases = ladder.errors(observation, observation.examples or TERMS)
        ratios = (sums / totals[:, None]).nan_to_num(0.0, 0.0, 0.0)
        off = (entries + biases * ratios.abs().amax(1)) / totals.abs()
        weight, bias = ladder.of(observation.task.parameters)
        answers = ratios @ weight.T + bias
        edge = EDGE * data.range / min(data.std) * weight.abs().sum(1)
        own = answers.diagonal() >= -edge
        own[:-1] &= answers.diagonal(1) <= edge[1:]
        ordered = torch.empty_like(ratios)
        ordered[:, ladder.order] = ratios
        raw, margin = data.denormalise(ordered.view(-1, *data.shape)).flatten(1), SLACK * data.range
        inside = ((raw >= data.low - margin) & (raw <= data.high + margin)).all(1)
        return Bins(raw, off * max(data.std) / data.range, driven, inside & own & driven, totals.abs())


@ATTACKS.register("bins", needs="rows of one direction with biases that read the input (an imprint)")
@dataclass(frozen=True)
class RowDifferences(ReadingAttack):
    """Examples alone in a bin of a first layer: (W_i − W_{i+1}) ÷ (b_i − b_{i+1}) of rows that are neighbours.

    Rows of one direction u measure u·x against thresholds of their own, so that a ReLU lets an example into all rows
    below it. Where these pass it on alike, the difference of two neighbours is the sum over the examples between. Both
    are measured on the broadcast network, so bins are read whoever put them there.

    Source: Fowl et al., *Robbing the Fed*, ICLR 2022; theirs knows its own thresholds and columns.

    A read is *plausible* when it lies in the data's range and in its own bin; a convex mixture passes. Plausible reads
    come first; no more are given than there are examples, and with `plausible` no others. Labels are a multiset.

    `EXACT`: all reads are plausible and there are as many driven bins as examples, fewer than bins, so that none is
    shared; the update is one gradient, no defence is known, and rounding has moved no input by more than `CERTAIN`.
    Otherwise `CONVERGED`, and the message counts."""

    plausible: bool = False

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Costs no gradient evaluation."""
        data, examples = observation.task.data, observation.examples
        if observation.rescaled:
            return Reconstruction.not_applicable(RESCALED)
        found = [Bins.of(observation, ladder) for ladder in ladders(observation.task)]
        if not found:
            return Reconstruction.not_applicable("no two rows that read the input point the same way")
        bins = max(found, key=lambda one: int(one.plausible.sum()))
        chosen = (bins.plausible if self.plausible else bins.driven).nonzero()[:, 0]
        if not len(chosen):
            return Reconstruction(None, None, Status.FAILED, "no bin of the layer was driven by one example")
        strongest = chosen[bins.evidence[chosen].argsort(descending=True)]
        chosen = strongest[bins.plausible[strongest].int().argsort(descending=True, stable=True)]
        driven, certain = int(bins.driven.sum()), int(bins.plausible.sum())
        plain, defense = observation.factor is not None, observation.knowledge.defense
        unmixed = driven == examples and driven < len(bins.driven) and certain == driven
        exact = unmixed and float(bins.error[chosen].max()) <= CERTAIN and plain
        exact = exact and defense is not None and not parts_of(defense)  # one on the batch does not show in numbers
        message = f"{driven} of {len(bins.driven)} slots driven"
        message += "" if examples is None else f" by {examples} examples"
        message += f", {certain} plausible reads, {driven - certain} doubtful ones (mixtures, or noise)"
        if not plain:
            message += "; several or unknown local steps: reads are approximate"
        kept = bins.inputs[chosen][:examples].clamp(data.low, data.high)
        named = name_labels(observation, generator)
        return Reconstruction(
            kept.view(-1, *data.shape),
            named.labels,
            Status.EXACT if exact else Status.CONVERGED,
            message,
            label_confidence=named.confidence,
            paired=False,
        )
