"""Defences of what a network is given: MixUp and InstaHide train on mixtures of examples; PRECODE samples what a linear
layer is given, Soteria leaves what tells most out of its gradient."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from scipy.special import betaincinv
from torch import Tensor, nn
from torch.func import functional_call

from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import DefenseStep, EntryMask, Mix
from leakgauge.errors import InputError, limited, positive, require
from leakgauge.registry import DEFENSES
from leakgauge.step.training import inputs_of, watched
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors


def soft_labels(labels: Tensor) -> Float[Tensor, "n classes"]:
    """Labels as distributions, in as many columns as the batch needs: a `Task` gives the outputs beyond no weight."""
    if labels.is_floating_point():
        return labels
    width = int(labels.max()) + 1 if len(labels) else 1
    return F.one_hot(labels, width).to(torch.get_default_dtype())


@DEFENSES.register("mixup", needs="several examples; one has nothing to be mixed with")
@dataclass(frozen=True, kw_only=True)
class MixUp(Defense):
    """x̃ᵢ = λxᵢ + (1−λ)x_π(i), labels alike, with a random permutation π of the client's batch and λ ~ Beta(α, α).

    Source: Zhang et al., *mixup*, ICLR 2018, algorithm of Fig. 1. π and λ are drawn once a round, over
    all of the client's examples, before local training.

    No guarantee. One example, or a fixed point of π, is sent unmixed: each of n with chance 1/n, so that a client of
    two is mixed every other time; and who knows the labels can undo the mixing, see the counter ``unmixing``.

    `alpha` is α: small ones mix little, 1 is uniform."""

    alpha: float = positive(1.0, "number, e.g. 1.0")

    def weights(self, examples: int, generator: torch.Generator) -> Float[Tensor, "n"]:
        """λ of each example, the same for all, float64: the inverse distribution function at a uniform draw."""
        draws = torch.rand(1, generator=generator, dtype=torch.float64)
        lam: Tensor = torch.from_numpy(betaincinv(self.alpha, self.alpha, draws.numpy()))
        return lam.expand(examples)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Mix(several=True),)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        n = len(batch)
        order = torch.randperm(n, generator=generator)
        lam = self.weights(n, generator)
        matrix = torch.diag(lam)
        matrix[torch.arange(n), order] += 1 - lam
        return mixed(batch, matrix)


def mixed(batch: Batch, matrix: Float[Tensor, "m n"]) -> Batch:
    """Each example Σⱼ matrix[i, j]·xⱼ, with labels alike."""
    matrix = matrix.to(batch.inputs)
    soft = soft_labels(batch.labels).to(batch.inputs)
    return Batch(torch.einsum("mn,n...->m...", matrix, batch.inputs), matrix @ soft)


@DEFENSES.register("instahide", needs="centre: the mean that the model subtracts from the data")
@dataclass(frozen=True, kw_only=True)
class InstaHide(Defense):
    """x̃ᵢ = sᵢ ∘ Σⱼ wᵢⱼ·x_πⱼ(i) in model-input units, with a sign mask sᵢ ∈ {±1} per entry; labels mixed with w.

    Source: Huang et al., *InstaHide*, ICML 2020, Algorithm 1. k of the client's own examples are mixed, by random
    permutations (the first is the identity); the paper also mixes public ones in. The weights are uniform, scaled to
    sum to one, and drawn anew until none exceeds `largest`. Mask, weights and partners are fresh every round; the paper
    also encodes anew every epoch.

    The sign is taken of what the model sees, (x − mean) ÷ std; std cancels, so only the mean is asked for. The
    encoding leaves the data's raw range.

    No guarantee: broken from the encodings of a whole training set by Carlini et al., *Is Private Learning
    Possible with Instance Encoding?*, IEEE S&P 2021. Signs are no secret of a picture: ``|x̃|`` shows its
    outlines. One example alone is not mixed, only masked.

    Attributes:
        k: how many examples make one.
        largest: of the weights, in (1/k, 1]; 0.65 in the paper. Ignored for k = 1.
        centre: the data's mean per channel, as the model subtracts it (`DataSpec.mean`).
    """

    k: int = 2
    largest: float = 0.65
    centre: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        require(self.k > 0, "k", f"is {self.k}", "give how many examples are mixed, e.g. 2")
        # Near 1/k nearly every draw would be rejected.
        least = 1 / self.k + (1 - 1 / self.k) / 10
        fits = self.k == 1 or least - 1e-9 <= self.largest <= 1
        require(fits, "largest", f"is {self.largest}", f"give a weight from {least:.3g} to 1")

    def on_task(self, task: Task) -> Task:
        """The task of encodings, which lie as far on either side of the mean as examples do on one. Raises `InputError`
        where its mean is not `centre`, about which signs are hidden."""
        channels = max(len(task.data.mean), len(self.centre))
        ours, theirs = (torch.tensor(c * (channels if len(c) == 1 else 1)) for c in (self.centre, task.data.mean))
        same = ours.shape == theirs.shape and bool(torch.allclose(ours, theirs, atol=1e-6))
        require(same, "centre", f"is {self.centre}, the model subtracts {task.data.mean}", "make them agree")
        low, high = task.data.low, task.data.high
        mirrored = [2 * float(c) - edge for c in theirs for edge in (low, high)]
        return replace(task, data=replace(task.data, low=min(low, *mirrored), high=max(high, *mirrored)))

    def weights(self, examples: int, generator: torch.Generator) -> Float[Tensor, "n k"]:
        """Rows of positive weights that sum to one, float64."""
        rows: list[Tensor] = []
        while len(rows) < examples:
            row = torch.rand(self.k, generator=generator, dtype=torch.float64)
            row = row / row.sum()
            if self.k == 1 or float(row.max()) <= self.largest:
                rows.append(row)
        return torch.stack(rows)

    def steps(self) -> tuple[DefenseStep, ...]:
        return (Mix(several=True),)

    def on_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        n = len(batch)
        if not n:
            return batch
        weights = self.weights(n, generator)
        matrix = torch.zeros(n, n, dtype=torch.float64)
        for j in range(self.k):
            order = torch.randperm(n, generator=generator) if j else torch.arange(n)
            matrix[torch.arange(n), order] += weights[:, j]
        made = mixed(batch, matrix)
        mask = torch.randint(2, made.inputs.shape, generator=generator).to(made.inputs) * 2 - 1
        centre = made.inputs.new_tensor(self.centre).view(-1, *([1] * (made.inputs.ndim - 2)))
        return Batch(centre + mask * (made.inputs - centre), made.labels)


class VariationalBottleneck(nn.Module):
    """b = μ + σ·ε with (μ, ρ) = encoder(x), σ = softplus(ρ), ε ~ N(0, I), then decoder(b).

    It samples in eval mode too: a client trains on what it computes, in whichever mode BatchNorm is.
    """

    #: a buffer, empty: ε is drawn from torch's global generator. Filled, by whoever guesses it: ε itself, broadcast to
    #: ``(n, size)``. No part of the state dict.
    draw: Tensor

    def __init__(self, features: int, size: int = 256) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, 2 * size)
        self.decoder = nn.Linear(size, features)
        self.register_buffer("draw", torch.empty(0), persistent=False)

    def forward(self, x: Float[Tensor, "*n features"]) -> Float[Tensor, "*n features"]:
        mean, std = moments(self.encoder(x))
        # Drawn in one precision, so that whoever knows the draw repeats it in any other.
        draw = self.draw if self.draw.numel() else torch.randn(mean.shape, dtype=torch.float64).to(mean)
        return cast(Tensor, self.decoder(mean + std * draw))


def moments(encoded: Float[Tensor, "*n encoded"]) -> tuple[Float[Tensor, "*n size"], Float[Tensor, "*n size"]]:
    """μ, the first half, and σ, the soft-plus of the rest."""
    mean, rest = encoded.chunk(2, dim=-1)
    return mean, F.softplus(rest)


def bits_to_standard_normal(weight: float, encoded: Float[Tensor, "*n encoded"]) -> Float[Tensor, ""]:
    """weight · KL(N(μ, σ²) ‖ N(0, I)) in bits: ½ Σ (μ² + σ² − 1 − ln σ²) ÷ ln 2 over the bottleneck, batch mean."""
    mean, std = moments(encoded)
    tiny = torch.finfo(std.dtype).tiny
    nats = (mean.square() + std.square() - 1).sum(-1) / 2 - std.clamp_min(tiny).log().sum(-1)
    return weight * nats.mean() / math.log(2)


@DEFENSES.register("precode", needs="a linear layer")
@dataclass(frozen=True, kw_only=True)
class Precode(Defense):
    """Puts a `VariationalBottleneck` before a linear layer, and adds ``beta`` times its KL term to the client's loss.

    Source: Scheliga, Mäder and Seeland, *PRECODE*, WACV 2022, as ROG evaluates it (Yue et al., 2023): K = 256,
    β = 1e-3, KL in bits. Placement: between feature extractor and classifier. Its parameters train, so
    they are part of the broadcast model and of the update; server and attacker see the changed task. ε is drawn
    afresh in every step, from the client's stream for the model.

    No guarantee. Every layer below the bottleneck sends its gradient, and the bottleneck sends its own: with one
    example, encoder weight gradient ÷ encoder bias gradient *is* the feature vector, and decoder weight ÷ decoder
    bias gradient is b, hence ε. With several, ε is a variable like the pixels. See the counter ``sampled-bottleneck``.

    Attributes:
        size: K, the width of the bottleneck.
        beta: weight of the KL term, ≥ 0.
        layer: name of the linear layer that reads the bottleneck; by default the last in the order of computation.
        seed: of the bottleneck's first weights (PyTorch's default), which the server broadcasts.
    """

    size: int = positive(256, "width, e.g. 256")
    beta: float = limited(1e-3, lambda beta: 0 <= beta < math.inf, "give a number ≥ 0, e.g. 0.001")
    layer: str = ""
    seed: int = 0

    def on_task(self, task: Task) -> Task:
        """The task with the bottleneck. Raises `InputError` where it has no such layer."""
        name = chosen_layer(task, self.layer, place=-1, by="precode")
        module = task.module_copy()
        layer = cast(nn.Linear, module.get_submodule(name))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            bottleneck = VariationalBottleneck(layer.in_features, self.size).to(layer.weight)
            wrapped = nn.Sequential(OrderedDict(bottleneck=bottleneck, layer=layer))
            if name:
                parent, _, own = name.rpartition(".")
                setattr(module.get_submodule(parent), own, wrapped)
            else:
                module = wrapped
            made = task.of_module(module, name=f"precode({task.name})")
        encoder = f"{name}.bottleneck.encoder".removeprefix(".")
        penalty = encoder, partial(bits_to_standard_normal, self.beta)
        return replace(made, stochastic=True, penalties=(*task.penalties, penalty))


def bottlenecks(task: Task) -> dict[str, VariationalBottleneck]:
    return {name: part for name, part in task.module.named_modules() if isinstance(part, VariationalBottleneck)}


def draw_buffer(name: str) -> str:
    return f"{name}.draw".removeprefix(".")


def chosen_layer(task: Task, layer: str, *, place: int, by: str) -> str:
    """Name of a linear layer: the given one, else that at a place in the order of computation. Raises `InputError` if
    there is none."""
    like, module = next(iter(task.parameters.values())), task.module_copy().eval()
    probe = task.data.given(like.new_full((1, *task.data.shape), (task.data.low + task.data.high) / 2))
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), inputs_of(module, linear) as seen:
        functional_call(module, {**task.parameters, **task.buffers}, (probe,))
    require(bool(seen), "model", f"computes no linear layer, which {by} needs", "give a model with one")
    name = layer or list(seen)[place]
    require(name in seen, "layer", f"'{name}' is no linear layer of the model", f"name one of {', '.join(seen)}")
    return name


MOST_FEATURES = 4096  # inputs of a defended layer: 2 048 take a minute for four images on a busy core
MOST_ENTRIES = 2**19  # entries of the input gradients of one chunk; what the layers keep is several times that


def defended_layer(task: Task, layer: str = "") -> str:
    """Name of the linear layer that Soteria defends: the named one, else the first in the order of computation. Raises
    `InputError` where the model has no such layer, or the update does not carry its weight."""
    require(not task.data.is_text, "data", "are texts, and soteria takes slopes by the inputs", "take another defence")
    name = chosen_layer(task, layer, place=0, by="soteria")
    problem = f"'{name}' does not train, so the update does not carry it"
    require(f"{name}.weight" in task.parameters, "layer", problem, "name a layer that trains")
    return name


def feature_sensitivity(task: Task, batch: Batch, layer: str = "") -> Float[Tensor, " f"]:
    """s_f = Σ_k ‖∂r_kf/∂x_k‖ / (|r_kf| + 1e-10), over examples k, for the inputs r of a linear layer.

    x is what the model sees (normalised), ‖·‖ Euclidean over all its entries. The model is held in eval mode here, so
    that examples do not mix and nothing is drawn: then one backward pass of Σ_k r_kf gives ∂r_kf/∂x_k for all k. As
    many backward passes as features, in chunks and in double precision. Raises `InputError`: see `defended_layer`; or
    the layer's input is not one vector an example."""
    name = defended_layer(task, layer)
    task = task.to(torch.empty((), dtype=torch.float64, device=batch.inputs.device))
    module = task.module.eval()  # of the copy that `to` makes
    x = task.data.normalise(batch.inputs.detach().double()).requires_grad_()
    found: list[Tensor] = []
    with torch.enable_grad(), watched(module, [name], lambda _name, given, _out: found.append(given[0])):
        functional_call(module, {**task.parameters, **task.buffers}, (x.clone(),))  # a layer may write into it
    r = found[0]  # at its first use
    require(r.ndim == 2, "layer", f"'{name}' sees inputs of shape {tuple(r.shape)}", "name a layer that sees vectors")
    if not r.requires_grad:  # codes, say, have no slopes
        return r.new_zeros(r.shape[1])
    chunk = max(1, MOST_ENTRIES // max(x.numel(), 1))
    scores = []
    for features in torch.arange(r.shape[1], device=r.device).split(chunk):
        one_hot = F.one_hot(features, r.shape[1]).to(r)
        ways = one_hot[:, None].expand(-1, len(r), -1)
        (slopes,) = torch.autograd.grad(r, x, ways, retain_graph=True, is_grads_batched=True)
        scores.append((slopes.flatten(2).norm(dim=2).T / (r[:, features].abs() + 1e-10)).sum(0))
    return torch.cat(scores).detach()


def soteria_mask(task: Task, batch: Batch, layer: str = "", *, prune: float = 30.0) -> Bool[Tensor, " f"]:
    """Features that are kept: s_f not below the `prune`-th percentile (linear interpolation) over the features.

    Ties at the threshold are kept. Where more than `prune` percent of the features have the smallest score, none
    is below the threshold and nothing is pruned: MNIST's always-black pixels behind a ReLU, for one."""
    scores = feature_sensitivity(task, batch, layer)
    return scores >= torch.quantile(scores, prune / 100)


@DEFENSES.register("soteria", needs="a linear layer; as many backward passes as it has inputs")
@dataclass(frozen=True, kw_only=True)
class Soteria(Defense):
    """Zeroes the columns of one linear layer's weight gradient whose features have the smallest score s_f.

    Source: Sun et al., *Soteria*, CVPR 2021, as MKOR evaluates it: see `feature_sensitivity` and
    `soteria_mask`. The bias gradient and all other layers stay as they are. Where the update is a delta, the same
    columns of the delta are zeroed, with the scores at the broadcast parameters over the client's whole batch.

    No guarantee. The kept entries are exact, all layers below are sent whole, and the zero columns tell
    which features were pruned. Nothing may be pruned at all (`soteria_mask`).

    The mask depends on the data, so this defence acts only once bound to a batch (`for_batch`).

    Attributes:
        prune: percentile of the scores below which features are pruned, in percent.
        layer: name of the linear layer; by default the first in the order of computation.
    """

    prune: float = limited(30.0, lambda percent: 0 <= percent <= 100, "give percent, 0 to 100")
    layer: str = ""

    def on_task(self, task: Task) -> Task:
        """The task as it is. Raises `InputError` where it has no such layer, or one of too many features."""
        name = defended_layer(task, self.layer)
        features = task.parameters[f"{name}.weight"].shape[1]
        problem = f"soteria needs a backward pass a feature, and layer '{name}' has {features}"
        require(features <= MOST_FEATURES, "defenses", problem, f"name a layer of at most {MOST_FEATURES}")
        return task

    def for_batch(self, task: Task, batch: Batch) -> Defense:
        name = defended_layer(task, self.layer)
        return ZeroedColumns(f"{name}.weight", soteria_mask(task, batch, name, prune=self.prune))

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        raise InputError("defenses", "soteria has no mask before it has seen the batch", "call for_batch first")

    def steps(self) -> tuple[DefenseStep, ...]:
        return (EntryMask(looks=True, blind=False, shows=self._zero_columns),)

    def _zero_columns(self, sent: Tensors) -> Tensors | None:
        """Zero columns on the wire, of every matrix where no `layer` is named; `None` where noise has filled them."""

        def kept(name: str, t: Tensor) -> Tensor:
            if t.ndim != 2 or (self.layer and name != f"{self.layer}.weight"):
                return torch.ones_like(t, dtype=torch.bool)
            return (t != 0).any(0).expand_as(t)

        support = {name: kept(name, t) for name, t in sent.items()}
        return None if all(bool(s.all()) for s in support.values()) else support


@dataclass(frozen=True, eq=False)
class ZeroedColumns(Defense):
    """Soteria bound to one batch: keeps the columns `kept` of the tensor `weight`. Never leaves the client."""

    weight: str
    kept: Bool[Tensor, " f"]

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        t = tensors[self.weight]
        return {**tensors, self.weight: torch.where(self.kept, t, torch.zeros_like(t))}
