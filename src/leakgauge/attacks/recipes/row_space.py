"""A search in the few directions that a linear input layer's gradient leaves, and its certificate."""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.closed_form.proof import NamedLabels, name_labels, signals_cost, simulated, tried_labels
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.features.span import HiddenSpan, RowSpan
from leakgauge.attacks.labels.targets import ErrorSignals
from leakgauge.attacks.matching.canvases import Given, Uniform
from leakgauge.attacks.matching.curvature import BoundedLBFGS
from leakgauge.attacks.matching.engine import Matching
from leakgauge.attacks.matching.parts import Canvas, Cosine, JointSoftLabels, Minimiser, Objective, SquaredL2, Start
from leakgauge.attacks.matching.problem import Meter
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.attacks.recipes.any_loss import proved
from leakgauge.compute import Budget
from leakgauge.errors import Checked, positive
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, DataSpec
from leakgauge.tensors import Tensors
from leakgauge.tracing import input_layers, is_smooth
from leakgauge.view.entries import SentTensor, sent_decay
from leakgauge.view.normal import look_at

FAINT = 1e-6  # singular values below this share of the largest are rounding in float32

CLEAN = 1e-4
"""Singular values of the layer's gradient beyond the number of examples, in shares of the largest, above which noise
or rounding has filled its row space."""

ENOUGH = 60  # evaluations an example after which a start has mostly ended; fewer are not worth a second start


@dataclass(frozen=True, eq=False)
class SpanCanvas(Canvas):
    """Examples as combinations of fixed ones. No box: coefficients have none."""

    basis: Float[Tensor, "r d"]
    first: Start = field(default_factory=Uniform)

    def start(self, examples: int, data: DataSpec, generator: torch.Generator) -> Tensors:
        return {"coefficients": self.first(examples, data, generator).flatten(1) @ self.basis.T}

    def decode(self, variables: Tensors, data: DataSpec) -> Float[Tensor, "n *shape"]:
        coefficients = variables["coefficients"]
        return (coefficients @ self.basis.to(coefficients)).view(len(coefficients), *data.shape)


def _without_decay(observation: Observation, name: str) -> Float[Tensor, "units d"]:
    """A weight's update: of what weight decay adds no row is a combination of examples."""
    return SentTensor.of(observation, name, decay=sent_decay(observation) or 0.0)[...].value.cpu()


@ATTACKS.register(
    "row-space", needs="a linear layer on the input as wide as the batch; example_count; a smooth network"
)
@dataclass(frozen=True, kw_only=True)
class RowSpace(Checked, SearchingAttack):
    """Matches gradients over combinations of the rows of ∂L/∂W.

    ∂L/∂W = Σ_k δ_k x_kᵀ, so with at least as many units as examples its rows span the examples: B·B numbers are
    unknown in place of B·d. For smooth activations; on ReLU it often stalls.

    Source: ours; the span is the "rows" argument behind Qian & Hansen's Proposition 2. Of several `restarts` from
    `first` the lowest distance is the answer."""

    minimiser: Minimiser = field(
        default_factory=lambda: BoundedLBFGS(steps=2000, history=100, scale=1e6, tolerance=0.0)
    )
    restarts: int = positive(4)
    objective: Objective = field(default_factory=SquaredL2)
    first: Start = field(default_factory=Uniform)

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        observation, count = observation.view, observation.examples
        layers = input_layers(observation.task, effort.generator, observation.update.tensors)
        if count is None:
            return Reconstruction.not_applicable("needs the number of examples (knows: example_count)")
        if not layers:
            return Reconstruction.not_applicable("needs a linear layer that reads the input")
        values, directions = torch.linalg.svd(_without_decay(observation, layers[0].weight), full_matrices=False)[1:]
        kept = min(count, int((values > FAINT * values[0]).sum()))
        if not kept:
            return Reconstruction.not_applicable("the input layer's gradient is zero")
        attack = Matching(
            objective=self.objective,
            canvas=SpanCanvas(directions[:kept], self.first),
            minimiser=self.minimiser,
            labels=JointSoftLabels(),
            restarts=self.restarts,
        )
        return effort.of(attack, observation)


@ATTACKS.register(
    "span-fit", needs="several examples; a linear layer on the input as wide as the batch, and another behind it"
)
@dataclass(frozen=True, kw_only=True)
class SpanFit(SearchingAttack):
    """Whole batches from two layers: combinations of the first one's rows that the next one holds.

    Each example is a combination of the rows of ∂L/∂W of the layer that reads the input, and what it puts into a layer
    further in lies in the span of that layer's rows; a mixture does not (`RowSpan.fitted`). So each is found by itself,
    whatever the activation, the loss and the labels; after several local steps too, where the layer further in has as
    many independent rows as there are pairs of an example and a step. A simulated update certifies all of them, under a
    loss of real numbers error signals do.

    Source: ours. Dimitrov et al., 2024 (SPEAR) use the zeros of a ReLU in the same factorisation.

    Known failure: noise and coarse rounding fill the rows' span. A head alone has fewer independent rows than classes.
    """

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """`EXACT` when certified; else the examples that were found, in no order of labels."""
        observation, generator, count = observation.view, effort.generator, observation.examples
        if count is None or count == 1:
            return Reconstruction.not_applicable("needs several examples, and their number (knows: example_count)")
        first = input_layers(observation.task, generator, observation.update.tensors)
        if not first or not (layers := HiddenSpan.behind(observation, first[0].weight)):
            return Reconstruction.not_applicable(
                "no linear layer reads the input, or none behind it has as many independent rows as there are examples"
            )
        if (span := RowSpan.of(observation, count, generator)) is None:
            return Reconstruction.not_applicable("noise, rounding or several steps fill the rows of the first layer")
        explainer = Explainer.of(observation, generator.clone_state())
        price = (2 + 2 * count) * explainer.simulator.cost(count) + signals_cost(observation, count)
        limit, seconds = effort.budget.gradient_evaluations, effort.budget.seconds
        if limit is not None and limit <= price:
            return Reconstruction(None, None, Status.OUT_OF_BUDGET, "no budget for a search")
        meter = Meter(Budget(None if limit is None else limit - price, seconds), effort.on_step)
        inputs = span.fitted(layers, observation.task.data, count, meter, generator)
        found, message = len(inputs), f"{len(inputs)} of {count} examples fit what a layer further in holds"
        if not found:
            return Reconstruction(None, None, meter.over(1) or Status.FAILED, message, cost=Cost(meter.spent))
        if not observation.task.of_classes:
            return proved(observation, inputs, ErrorSignals.of(observation), count, generator).after(meter.spent)
        tried = tried_labels(observation, inputs) if found == count else NamedLabels(None)
        if tried.labels is None:
            named = name_labels(observation, generator)
            bare = Reconstruction(inputs, named.labels, Status.CONVERGED, message, paired=False)
            return replace(bare, label_confidence=named.confidence, cost=Cost(meter.spent + named.cost))
        explainer.spent, order = meter.spent + tried.cost, tried.labels.argsort(stable=True)
        return simulated(observation, inputs[order], NamedLabels(tried.labels[order]), generator, explainer)


@ATTACKS.register(
    "span-read",
    needs="several examples; a linear layer on the input as wide as the batch; with kinks (ReLU), rows to start from",
)
@dataclass(frozen=True, kw_only=True)
class SpanRead(SearchingAttack):
    """`search` from one start after the other, its `restarts` in all, until a simulated update proves what was found.

    A network with kinks is searched once, with the cosine, from what `LinearRead` makes of its rows, between which the
    examples lie. Factors of a low rank mix all units, so that no row is a start; there it is searched as a smooth one,
    from twice as many."""

    search: RowSpace = field(default_factory=lambda: RowSpace(restarts=2))

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """`EXACT` when certified; else the best that was found, and how much of the update it leaves unexplained."""
        observation, generator = observation.view, effort.generator
        if why := self._refuses(observation, generator):
            return Reconstruction.not_applicable(why)
        count, attack = observation.examples, self.search
        assert count is not None
        if not is_smooth(observation.task, generator):
            rows, form = LinearRead().reconstruct(observation, generator), look_at(observation.origin.task).form
            if rows.inputs is not None and rows.labels is not None and rows.paired and len(rows.inputs) == count:
                attack = replace(attack, objective=Cosine(), first=Given(rows.inputs), restarts=1)
                observation = replace(observation, knowledge=replace(observation.knowledge, labels=rows.labels))
            elif form is None or all(layer.rows is None for layer in form.network.plain_form.layers.values()):
                return Reconstruction.not_applicable("the network has kinks, and no rows give this search a start")
            else:
                attack = replace(attack, restarts=2 * attack.restarts)
        explainer = Explainer.of(observation, generator)
        price = (2 + 2 * count) * explainer.simulator.cost(count)
        best, least, spent = Reconstruction(None, None, Status.OUT_OF_BUDGET, "no budget for a search"), 1.0, 0
        limit = effort.budget.gradient_evaluations
        for index in range(attack.restarts):
            room = None
            if limit is not None:
                even = (limit - spent) // (attack.restarts - index)
                room = min(limit - spent, max(even, ENOUGH * count)) - price
                if room < 10 * price:
                    break
            left_effort = effort.left(spent, room)
            if isinstance(left_effort, Status):
                break
            found = left_effort.of(replace(attack, restarts=1), observation)
            spent += found.cost.gradient_evaluations
            if found.inputs is None or found.labels is None:
                best = found if best.inputs is None else best
                break
            batch, before = Batch(found.inputs, found.labels), explainer.spent
            left, certified = explainer.left(batch), explainer.certified(batch, generator)
            spent += explainer.spent - before
            if left < least or best.inputs is None:
                best, least = replace(found, certified=certified), left
            if bool(certified.all()):
                best = replace(best, status=Status.EXACT)
                break
            if found.status in (Status.STOPPED, Status.TIME_LIMIT):
                break
        said = best.message if best.inputs is None else f"{least:.1e} of the update's length unexplained"
        return replace(best, message=said, cost=Cost(spent))

    def _refuses(self, observation: Observation, generator: torch.Generator) -> str:
        count, layers = observation.examples, input_layers(observation.task, generator, observation.update.tensors)
        if count is None:
            return "needs the number of examples (knows: example_count)"
        if count == 1:
            return "needs several examples"
        if not layers:
            return "no linear layer reads the input"
        weight = _without_decay(observation, layers[0].weight)
        if min(weight.shape) < count:
            return f"the layer has {min(weight.shape)} rows or columns for {count} examples"
        values = torch.linalg.svdvals(weight / weight.abs().max().clamp_min(torch.finfo(torch.float64).tiny))
        if min(weight.shape) > count and float(values[count]) > CLEAN * float(values[0]):
            return "noise, rounding or several local steps fill the row space of the layer's gradient"
        return ""
