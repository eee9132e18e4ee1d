"""Reading inputs off a biased linear layer."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.attacks.labels import CountsFromLastLayer, Unknown
from leakgauge.clients import rescales_entries
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import RandomK, parts_of, view_of
from leakgauge.observation import Cost, Observation, OnStep, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import DataSpec
from leakgauge.tracing import LinearLayer, input_layers
from leakgauge.update import UpdateKind

RESCALED = "the client's optimiser scales every entry by itself (Adam), so ratios of entries show no input"
NOTHING = "no unit of the layer was driven: every row of its gradient is zero"


@ATTACKS.register(
    "closed-form", needs="a linear layer with bias that reads the input; batch 1, or rows that one example drives"
)
@dataclass(frozen=True, kw_only=True)
class LinearRead:
    """The input of a biased linear layer, without a search: x = ∂L/∂W_i ÷ ∂L/∂b_i for a unit i that one example drives.

    Source: Geiping et al., 2020, Proposition 3.1. Differs: the proposition's condition is not enough. A
    unit must be *active*: an inactive ReLU gives 0/0. Holds for FedAvg deltas of one example too (no weight
    decay), since every local step has the same ratio.

    One example: the least-squares ratio over all rows, x = Σ b_i·W_i / Σ b_i², over the entries that a
    known sparsifier sent, and a certificate: the share of ‖∂W‖² that one outer product does not explain. It says
    nothing about rounded entries (the signs of an outer product are one too), and where the defence is unknown
    nothing about a single driven row (which any input explains) or inputs that no row shows (zero, or left out).
    Several examples: rows that agree on a ratio inside the data's range are taken for rows that one
    example drives, then single rows inside the range. Never certified: units that the same examples
    activate in the same proportions agree on a mixture too (two classes, equal labels). Labels of several
    examples are a multiset, not paired with the images.

    Attributes:
        agreement: relative distance up to which two rows count as the same example.
        slack: how far outside the range, in shares of its width, a ratio may lie.
    """

    agreement: float = 1e-3
    slack: float = 1e-2

    def reconstruct(
        self,
        observation: Observation,
        generator: torch.Generator,
        *,
        budget: Budget = Budget(),  # noqa: B008 - frozen
        compute: Compute = Compute(),  # noqa: B008 - frozen
        on_step: OnStep | None = None,
    ) -> Reconstruction:
        """Costs no gradient evaluation. `EXACT` when certified, `CONVERGED` for an uncertain read."""
        del budget, compute, on_step
        began = time.perf_counter()
        layers = [layer for layer in input_layers(observation.task, generator) if layer.bias is not None]
        if not layers:
            return Reconstruction.not_applicable("the model has no linear layer with bias that reads the input")
        if rescales_entries(observation.knowledge.local_training):
            return Reconstruction.not_applicable(RESCALED)
        examples = observation.examples
        if examples is None:
            return Reconstruction.not_applicable("needs the number of examples (knows: example_count, or labels)")
        data = observation.task.data
        weight, bias = _gradients(observation, layers[0])
        if not bool((bias != 0).any()):
            return Reconstruction(None, None, Status.FAILED, NOTHING)
        z: Tensor | None
        if examples == 1:
            read = read_one(observation, layers[0])
            z, certain, message = read.x, read.certain, read.message
        else:
            z, certain, message = self._several(weight, bias, examples, data)
        if z is None:
            return Reconstruction(None, None, Status.FAILED, message)
        inputs = data.denormalise(z.view(-1, *data.shape))
        labels, confidence = _labels(observation, generator)
        cost = Cost(0, time.perf_counter() - began)
        status = Status.EXACT if certain else Status.CONVERGED
        paired = examples == 1
        return Reconstruction(inputs, labels, status, message, None, confidence, cost, paired=paired)

    def _several(
        self, weight: Float[Tensor, "rows d"], bias: Float[Tensor, " rows"], examples: int, data: DataSpec
    ) -> tuple[Float[Tensor, "k d"] | None, bool, str]:
        driven = bias.abs() > 1e-6 * bias.abs().max()
        ratios, strength = weight[driven] / bias[driven][:, None], bias[driven].abs()
        edge = ratios.new_zeros((1, *data.shape))
        low, high = (data.normalise(edge + v).flatten() for v in (data.low, data.high))
        slack = self.slack * (high - low)
        plausible = ((ratios >= low - slack) & (ratios <= high + slack)).all(1)
        ratios, strength = ratios[plausible], strength[plausible]
        groups: list[list[int]] = []
        for row in strength.argsort(descending=True).tolist():
            for group in groups:
                gap = (ratios[row] - ratios[group[0]]).norm() / ratios[group[0]].norm().clamp_min(1e-12)
                if float(gap) < self.agreement:
                    group.append(row)
                    break
            else:
                groups.append([row])
        groups.sort(key=len, reverse=True)
        if not groups:
            return (
                None,
                False,
                "no unit was driven by one example alone: every ratio is a mixture outside the data's range",
            )
        groups = groups[:examples]
        pooled = [(ratios[g] * strength[g, None].square()).sum(0) / strength[g].square().sum() for g in groups]
        agreed = sum(len(g) > 1 for g in groups)
        message = (
            f"{len(groups)} of {examples} examples read off rows, {agreed} of them off rows that agree; not certified"
        )
        return torch.stack(pooled), False, message


def _gradients(observation: Observation, layer: LinearLayer) -> tuple[Float[Tensor, "rows d"], Float[Tensor, " rows"]]:
    """Without the factors of a known random-k, which differ between the two, as k is rounded up."""
    tensors, defense = observation.update.tensors, observation.knowledge.defense
    assert layer.bias is not None
    weight, bias = tensors[layer.weight], tensors[layer.bias]
    for part in () if defense is None else parts_of(defense):
        if isinstance(part, RandomK):
            weight, bias = weight / part.factor(weight), bias / part.factor(bias)
    return weight, bias


def _sent(observation: Observation, layer: LinearLayer) -> Float[Tensor, "rows d"]:
    """Entries of the weight gradient that the client sent, as far as a known defence tells: 1 or 0."""
    knowledge, weight = observation.knowledge, observation.update.tensors[layer.weight]
    if knowledge.defense is None:
        return torch.ones_like(weight)
    support = view_of(knowledge.defense, observation.update, knowledge.draws).support
    return torch.ones_like(weight) if support is None else support[layer.weight].to(weight)


def _grey(data: DataSpec) -> Float[Tensor, " d"]:
    middle = torch.full((1, *data.shape), (data.low + data.high) / 2)
    return data.normalise(middle).flatten()


@dataclass(frozen=True, eq=False)
class Read:
    """What a layer's gradient says of the only example.

    Attributes:
        x: normalised; inputs that no sent entry shows are grey.
        unexplained: share of ‖∂W‖² that one outer product does not explain.
        seen: whether each input is shown.
        rounded: whether entries were rounded, as far as the defence or the entries tell.
        ambiguous: the defence is unknown, and left-out entries could look like this.
    """

    x: Float[Tensor, "1 d"]
    unexplained: float
    seen: Bool[Tensor, " d"]
    rounded: bool
    ambiguous: bool

    @property
    def certain(self) -> bool:
        return self.unexplained < 1e-6 and bool(self.seen.all()) and not (self.rounded or self.ambiguous)

    @property
    def message(self) -> str:
        shown = f"{int(self.seen.sum())} of {len(self.seen)} inputs seen"
        rounded = "; entries were rounded, which certifies nothing" if self.rounded else ""
        silent = "; entries may have been left out, as the defence is unknown" if self.ambiguous else ""
        return f"{shown}, {self.unexplained:.1e} of the layer's gradient unexplained{rounded}{silent}"


def read_one(observation: Observation, layer: LinearLayer) -> Read:
    """Least squares over the entries that were sent."""
    weight, bias = _gradients(observation, layer)
    sent = _sent(observation, layer)
    evidence = bias.square() @ sent
    seen = evidence > 0
    x = torch.where(
        seen,
        (bias @ (weight * sent)) / torch.where(seen, evidence, torch.ones_like(evidence)),
        _grey(observation.task.data).to(bias),
    )
    residual = sent * (weight - bias[:, None] * x) * (bias != 0)[:, None]
    unexplained = float(residual.square().sum() / weight.square().sum().clamp_min(torch.finfo(weight.dtype).tiny))
    rounded = _one_size(weight, observation) or _rounds(observation)
    driven = weight[bias != 0]
    ambiguous = len(driven) < 2 or not bool((driven != 0).any(0).all())
    return Read(x[None], unexplained, seen, rounded, ambiguous and observation.knowledge.defense is None)


def _one_size(weight: Float[Tensor, "rows d"], observation: Observation) -> bool:
    """Whether all entries but zeros are equally large, as signs are and quantisers with one level.

    Of a delta from an optimiser that nobody names, half of them nearly so is enough: Adam's first steps are like that.
    """
    sizes = weight[weight != 0].abs()
    if len(sizes) < 2:
        return False
    unnamed = observation.update.header.kind is UpdateKind.DELTA and observation.knowledge.local_training is None
    low = sizes.median() / 0.9 if unnamed else sizes.min() / (1 - 1e-6)
    return bool(low >= sizes.max())


def _rounds(observation: Observation) -> bool:
    """Whether the known defence states a likelihood that is not one of added noise, as quantisers and signs do."""
    knowledge = observation.knowledge
    if knowledge.defense is None:
        return False
    view = view_of(knowledge.defense, observation.update, knowledge.draws)
    return view.log_likelihood is not None and view.noise_scale is None


def _labels(observation: Observation, generator: torch.Generator) -> tuple[Tensor | None, float | None]:
    if observation.knowledge.labels is not None:
        return observation.knowledge.labels, None
    guess = CountsFromLastLayer().infer(observation, generator)
    if isinstance(guess, Unknown):
        return None, None
    return guess.labels, guess.confidence
