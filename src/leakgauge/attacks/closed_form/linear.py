"""The read of a linear layer's rows, and the read that a dishonest server prepared."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.proof import corrected, name_labels, signals_cost, simulated, tried_labels
from leakgauge.attacks.closed_form.single import gradients, read_one
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.features.span import HiddenSpan
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.observation import Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch
from leakgauge.tracing import LinearLayer, input_layers
from leakgauge.view.entries import Entries, one_factor

RESCALED = "the client's optimiser scales every entry by itself (Adam), so ratios of entries show no input"
BLURRED = 0.05  # rows whose ratio rounding may have moved by more, relative to its length, are not read
SLACK = 1e-2  # how far outside the range, in shares of its width, a ratio may lie
APART = 0.1
"""Most of what an example puts into a layer further in that may lie outside the span of its gradient, as a share."""
UNLIKE = "; not certified: a defence or an optimiser that is not known may have scaled weight and bias unlike"
NOTHING = "no unit of the layer was driven: every row of its gradient is zero"


@ATTACKS.register(
    "closed-form", needs="a linear layer with bias that reads the input; batch 1, or rows that one example drives"
)
@dataclass(frozen=True, kw_only=True)
class LinearRead(SearchingAttack):
    """The input of a biased linear layer, without a search: x = ∂L/∂W_i ÷ ∂L/∂b_i for a unit i that one example drives.

    Source: Geiping et al., 2020, Proposition 3.1. Differs: the proposition's condition is not enough. A
    unit must be *active*: an inactive ReLU gives 0/0. Holds for FedAvg deltas of one example too, since every local
    step has the same ratio; with weight decay for one step (`leakgauge.view.entries.undecayed` takes it off).

    One example: the least-squares ratio over all rows, x = Σ b_i·W_i / Σ b_i², over the entries that a known sparsifier
    sent. Certified where rounding explains all that one outer product does not and moved no input by more than half a
    grey level of 8 bits (`read_one`); not where a defence rounded entries, nor, of an unknown defence, by a single
    driven row. Where weight and bias may have been shortened unlike, every simulated tensor must point as the observed.
    Several examples: rows that agree on a ratio inside the data's range, then corners of the rows inside the range.
    Where that are all examples, each gets its label by least squares (`tried_labels`), and a simulated update that
    explains the observed one certifies them. Else their labels are a multiset, not paired with the images.

    Attributes:
        agreement: relative distance up to which two rows count as the same example, beside what rounding makes.
        rows: fewest rows that must agree on one of several examples, which no layer further in takes for one.
    """

    agreement: float = 1e-3
    rows: int = 1

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """`EXACT` when certified, `CONVERGED` for an uncertain read."""
        found = self._inputs(observation, effort.generator)
        if found.status is Status.EXACT and observation.examples == 1 and not one_factor(observation):
            assert found.inputs is not None
            # As it was only where every tensor points as it makes it point: a weight that was shortened otherwise than
            # its bias shows another example.
            draws, room = effort.generator.clone_state(), effort.budget.gradient_evaluations
            named, explainer = name_labels(observation.view, draws, found.inputs), Explainer.of(observation, draws)
            affords = room is None or room >= named.cost + explainer.simulator.cost(1)
            batch = None if named.labels is None or not affords else Batch(found.inputs, named.labels)
            if batch is not None and not observation.task.stochastic and explainer.turned(batch) <= 1.0:
                found = replace(found, labels=batch.labels)
            else:
                found = replace(found, status=Status.CONVERGED, message=found.message + UNLIKE)
            found = found.after(explainer.spent + named.cost)
        solved = observation.view is not observation  # bounds are of entries as sent
        if observation.examples != 1 or (solved and found.status is Status.CONVERGED):
            found = self._proved(observation.view, found, effort)
        return self._named(observation, found, effort.generator).with_view(observation)

    def read(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        """Of several examples without labels of their own and proof. Costs no gradient evaluation, but one a class
        where the label of a certified example has to be tried."""
        return self._named(observation, self._inputs(observation, generator), generator)

    @staticmethod
    def _named(observation: Observation, found: Reconstruction, generator: torch.Generator) -> Reconstruction:
        """With labels, where it has none."""
        if found.inputs is None or found.labels is not None:
            return found
        sure = found.inputs if found.status is Status.EXACT else None
        named = name_labels(observation.view, generator, sure)
        found = replace(found, labels=named.labels, label_confidence=named.confidence, paired=observation.examples == 1)
        return found.after(named.cost)

    def _inputs(self, observation: Observation, generator: torch.Generator) -> Reconstruction:
        observation = observation.view
        task, sent, examples = observation.task, observation.update.tensors, observation.examples
        layer = next((one for one in input_layers(task, generator, sent) if one.bias is not None), None)
        if layer is None or layer.bias is None:
            return Reconstruction.not_applicable("the model has no linear layer with bias that reads the input")
        if observation.rescaled:
            return Reconstruction.not_applicable(RESCALED)
        if examples is None:
            return Reconstruction.not_applicable("needs the number of examples (knows: example_count, or labels)")
        if not (bool(sent[layer.weight].any()) and bool(sent[layer.bias].any())):
            return Reconstruction(None, None, Status.FAILED, NOTHING)
        if examples != 1:
            return self._several(observation, layer, examples)
        one = read_one(observation, layer)
        status = Status.EXACT if one.certain else Status.CONVERGED
        return Reconstruction(_raw(one.x, observation), None, status, one.message)

    def _proved(self, observation: Observation, found: Reconstruction, effort: Effort) -> Reconstruction:
        """All examples with labels of their own, by simulation."""
        inputs, count = found.inputs, observation.examples or 0
        if inputs is None or len(inputs) < count:
            return found
        draws = effort.generator.clone_state()  # a search starts from the same draws, whatever is read before it
        explainer = Explainer.of(observation, draws)
        room, price = effort.budget.gradient_evaluations, (2 + 2 * count) * explainer.simulator.cost(count)
        if room is not None and room < price + signals_cost(observation, count):
            return found
        tried = tried_labels(observation, inputs)
        if tried.labels is None:
            return replace(found, message=f"{found.message}; nothing tells which label is whose")

        def again(made: Observation) -> Tensor | None:
            return self._inputs(made, draws.clone_state()).inputs

        effort = replace(
            effort, budget=replace(effort.budget, gradient_evaluations=None if room is None else room - price)
        )
        inputs = corrected(explainer, again, inputs, tried.labels, effort)
        return simulated(observation, inputs, replace(tried, confidence=None), draws, explainer)

    def _several(self, observation: Observation, layer: LinearLayer, examples: int) -> Reconstruction:
        (sums, totals), data = gradients(observation, layer), observation.task.data
        edge = sums.value.new_zeros((1, *data.shape))
        low, high = (data.normalise(edge + v).flatten() for v in (data.low, data.high))
        slack = SLACK * (high - low)
        groups = agreeing_rows(sums, totals, self.agreement, (low - slack, high + slack))
        groups = self._judged(groups, layer.weight, observation) if groups else []
        if not groups:
            message = "no unit was driven by one example alone: every ratio is a mixture outside the data's range"
            return Reconstruction(None, None, Status.FAILED, message)
        agreed = sum(len(group) > 1 for group in groups)
        message = f"{len(groups)} of {examples} examples read off rows, {agreed} of them off rows that agree"
        inputs = _raw(torch.stack([group.x for group in groups]), observation)
        return Reconstruction(inputs, None, Status.CONVERGED, f"{message}; not certified")

    def _judged(self, groups: "list[AgreeingRows]", weight: str, observation: Observation) -> "list[AgreeingRows]":
        """One for each example: those that layers further in take for examples, else those on which rows agree, and
        corners of the rest, where enough rows agree. After several local steps, where an example is only near for a
        layer, those on which rows agree come first."""
        x, count = torch.stack([group.x for group in groups]), observation.examples or 0
        enough = [k for k, group in enumerate(groups) if len(group) >= self.rows]
        agreed = [k for k, group in enumerate(groups) if len(group) > 1]
        first, fit = list[int](), None
        if len(groups) > 1 and not len(agreed) == len(groups) <= count:
            data = observation.task.data
            inputs = data.denormalise(x.view(-1, *data.shape))
            behind = (layer for layer in HiddenSpan.behind(observation, weight) if layer.tells(inputs))
            fit = next((layer.fit(inputs) for layer in behind), None)
        agreed = [k for k in agreed if k in enough]
        if fit is not None:
            first = [k for k in fit.picked(count) if float(fit.apart[k]) < APART]
            if observation.gradient is None:
                first = list(dict.fromkeys(agreed[:count] + first))
            elif first and self.rows > 1:
                enough = []
        first = first or [agreed[k] for k in corners(x[agreed], count)]
        pool = list(dict.fromkeys(first + enough))
        return [groups[pool[k]] for k in corners(x[pool], count, range(min(len(first), count)))]


def _raw(z: Float[Tensor, "k d"], observation: Observation) -> Float[Tensor, "k *shape"]:
    """Normalised examples as raw ones, in the model's type or a wider one."""
    data = observation.task.data
    return data.denormalise(z.view(-1, *data.shape)).to(observation.task.like.dtype)


def corners(x: Float[Tensor, "k d"], count: int, first: Sequence[int] = ()) -> list[int]:
    """Rows that lie farthest out, those that come `first` and then one by one: the farthest from the affine hull of
    those before it.

    A mixture whose shares are not negative lies within the hull of its examples, so that the distance from a flat is
    largest at one of them. At most `count` of k, in that order.

    Source: Gillis & Vavasis, 2014, Algorithm 1 (successive projections), on the affine hull.
    """
    start, chosen = list(first)[:count], list[int]()
    away = (x - x[start[0]] if start else x - x.mean(0)).double()
    while len(chosen) < min(count, len(x)):
        length = torch.linalg.vector_norm(away, dim=1)
        length[chosen] = -1.0
        chosen.append(start[len(chosen)] if len(chosen) < len(start) else int(length.argmax()))
        if len(chosen) == 1:
            away = (x - x[chosen[0]]).double()
        elif float(length[chosen[-1]]) > 0:
            side = away[chosen[-1]] / length[chosen[-1]]
            away = away - torch.outer(away @ side, side)
    return chosen


@dataclass(frozen=True, eq=False)
class AgreeingRows:
    """What entered a layer, as rows have it that agree."""

    x: Float[Tensor, " d"]
    rows: Int[Tensor, " k"]

    def __len__(self) -> int:
        return len(self.rows)


def agreeing_rows(
    sums: Entries, totals: Entries, agreement: float, within: tuple[Tensor, Tensor] | None = None
) -> list[AgreeingRows]:
    """Ratios of a layer's driven rows and its bias's, those that are alike to `agreement` and their rounding taken
    together, the largest group first. Rows beyond the least and largest values `within` are mixtures."""
    weight, bias = sums.value, totals.value
    length, off = (torch.linalg.vector_norm(t, dim=1) for t in (weight, sums.hard))
    doubt: Tensor = off / length + totals.hard / bias.abs()  # of a row's ratio, relative to its length
    driven = (bias.abs() > 1e-6 * bias.abs().max()) & (doubt < BLURRED)
    ratios, strength, doubt = weight[driven] / bias[driven][:, None], bias[driven].abs(), doubt[driven]
    rows = driven.nonzero()[:, 0]
    if within is not None:
        inside = ((ratios >= within[0]) & (ratios <= within[1])).all(1)
        ratios, strength, doubt, rows = ratios[inside], strength[inside], doubt[inside], rows[inside]
    strength = strength / bias.abs().max()
    gaps = torch.cdist(ratios, ratios) / ratios.norm(dim=1, keepdim=True).clamp_min(1e-12)
    near = (gaps < agreement + doubt[:, None] + doubt) | torch.eye(len(gaps), dtype=torch.bool, device=gaps.device)
    groups = grouped(near, strength.argsort(descending=True).tolist())
    groups.sort(key=len, reverse=True)
    return [AgreeingRows(_pooled(ratios[g], strength[g], doubt[g]), rows[g]) for g in groups]


def grouped(near: Bool[Tensor, "k k"], order: Iterable[int]) -> list[Int[Tensor, " m"]]:
    """Each of k, in an order, with all near it that are in no group yet."""
    free, groups = torch.ones(len(near), dtype=torch.bool, device=near.device), list[Tensor]()
    for index in order:
        if free[index]:
            groups.append((near[index] & free).nonzero()[:, 0])
            free[groups[-1]] = False
    return groups


def _pooled(
    ratios: Float[Tensor, "rows d"], strength: Float[Tensor, " rows"], doubt: Float[Tensor, " rows"]
) -> Float[Tensor, " d"]:
    """The mean of rows that rounding alone can have moved from their median: others are driven by more examples."""
    centre = ratios.median(0).values
    gap = (ratios - centre).norm(dim=1) / centre.norm().clamp_min(1e-12)
    near = gap <= 2 * doubt
    weight = strength.square() * (near if bool(near.any()) else torch.ones_like(near))
    return (ratios * weight[:, None]).sum(0) / weight.sum()


@ATTACKS.register("server-read", needs="a dishonest server")
@dataclass(frozen=True)
class ServerRead(SearchingAttack):
    """Reads the update as the server that crafted the model does, whichever server it is (`leakgauge.servers`)."""

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        crafting = observation.knowledge.crafting
        if crafting is None:
            return Reconstruction.not_applicable("the server is honest: nothing was prepared for reading (server: …)")
        return effort.of(crafting, observation)
