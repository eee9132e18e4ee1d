"""How labels are found: the contract, labels that are known, the layer that gives them away, what stands in for it, and
its own steps: what it was given lies in the span of its update, and is solved for there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import jacrev, vmap

from leakgauge.clients.protocol import Protocol as ClientProtocol
from leakgauge.clients.protocol import mean_gradient
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.registry import LABELS
from leakgauge.step.training import no_loss_of_logits, watched
from leakgauge.task import Batch, DataSpec, Loss, Task, cross_entropy
from leakgauge.tensors import Tensors
from leakgauge.tracing import LinearLayer, without_dropout
from leakgauge.update import UpdateKind

PROBED = 16  # classes at most that a loss is asked about


@dataclass(frozen=True, eq=False)
class LabelGuess:
    """Labels read from an update."""

    labels: Int[Tensor, " n"]  #: a sorted multiset, one per example; their order says nothing about the client's.
    #: 0 to 1, the share of labels that the method expects to be right (an expected multiset F1). Each strategy's
    #: docstring says how it is computed and how well it was met when measured.
    confidence: float


@dataclass(frozen=True)
class Unknown:
    """No answer: `message` names what the observation lacks."""

    message: str


@runtime_checkable
class LabelStrategy(Protocol):
    """Finds the labels of a batch that are not known. Guarantees that tests hold: it does not read `Knowledge.labels`;
    the same observation and seed give the same answer; what is missing is an `Unknown`, never an exception."""

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown: ...


def find_classifier(observation: Observation) -> LinearLayer | Unknown:
    """The linear layer that makes the logits, by type and by comparing outputs on a probe, never by position. A model
    that ends in anything else has no such layer, and an adapter-only or frozen head sends no gradient of it."""
    task = observation.task
    if not task.outputs or task.loss is no_loss_of_logits:
        return Unknown("the loss is not one of the model's logits and classes, so there is no classifier to read")
    calm = without_dropout(task)
    outputs: list[tuple[str, Tensor]] = []
    # One without parameters calls another in its place (`leakgauge.view.normal`), and so makes the same output.
    linear = [n for n, m in calm.module.named_modules() if isinstance(m, nn.Linear) and list(m.parameters())]
    low, high = task.data.low, task.data.high
    probe = torch.linspace(low, high, 2 * max(1, torch.Size(task.data.shape).numel())).view(2, *task.data.shape)
    with torch.no_grad(), watched(calm.module, linear, lambda name, _given, out: outputs.append((name, out))):
        logits, _ = calm.logits(calm.parameters, calm.buffers, probe.to(calm.like))
    found = [name for name, out in outputs if out.shape == logits.shape and torch.equal(out, logits)]
    if not found:
        return Unknown("no nn.Linear of the model makes its logits, so there is no classifier gradient to read")
    prefix, last = f"{found[-1]}." if found[-1] else "", calm.module.get_submodule(found[-1])
    names = [f"{prefix}{kind}" for kind in ("weight", "bias") if getattr(last, kind) is not None]
    if missing := [name for name in names if name not in observation.update.tensors]:
        return Unknown(f"the update does not carry {', '.join(missing)}; is the classifier frozen?")
    return LinearLayer(found[-1], names[0], names[1] if len(names) > 1 else None)


@LABELS.register("idlg", needs="one example")
@dataclass(frozen=True)
class IDLG:
    """The only class whose logit the update raises.

    Source: Zhao et al., *iDLG*, 2020: ∂L/∂b_i = p_i − [i = y] < 0 for i = y alone. Without a bias the rows
    ∂L/∂W_i = (p_i − [i = y])·h: the label's row has a negative inner product with every other (iDLG's own
    criterion; no sign of h is assumed), and for two outputs the negative row sum decides.
    Assumes: one example with one class, and a loss whose slope in the logits is negative for the label alone, as that
    of cross-entropy; of another loss the lowest slope is to be the label's (both are checked on random logits). Several
    local steps keep the signs.
    Differs: a delta θ_local − θ_server points the other way and is turned first.
    Confidence: the winner's share of the negative mass; 1 on an undefended update, less under noise.
    Known failure: two outputs, no bias, and features of negative sum give the other class."""

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        observation = observation.view
        count = observation.examples
        if count != 1:
            return Unknown(f"iDLG reads the label of one example; this update has {count or 'an unknown number'}")
        if isinstance(layer := find_classifier(observation), Unknown):
            return layer
        if not lowers_the_label(observation.task):
            return Unknown("labels are not read: under this loss the label's logit is not the one that rises most")
        evidence = _evidence(observation, layer)[: observation.task.data.classes]
        negative = (-evidence).clamp_min(0)
        if not bool(negative.sum() > 0):
            return Unknown(
                "no entry of the classifier's gradient is negative: the update is empty or was changed on its way"
            )
        return LabelGuess(negative.argmax().view(1), float(negative.max() / negative.sum()))


def lowers_the_label(task: Task) -> bool:
    """Whether the loss of one example falls fastest in its label's own logit, at random logits of every label."""
    labels = torch.arange(min(task.data.classes, PROBED))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(labels), task.outputs, generator=generator)
    logits = logits.to(next(iter(task.parameters.values()))).requires_grad_()
    labels = labels.to(logits.device)
    try:
        total = torch.stack([task.loss_of(z[None], y[None]) for z, y in zip(logits, labels, strict=True)]).sum()
        (slope,) = torch.autograd.grad(total, logits)
    except FOREIGN:
        return False
    falls = slope.gather(1, labels[:, None])[:, 0] < 0
    return bool((falls & (slope.argmin(1) == labels)).all())


def _evidence(observation: Observation, layer: LinearLayer) -> Float[Tensor, " outputs"]:
    """A number per class, negative for the label."""
    sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
    weight, bias = layer.of(observation.update.tensors)
    if bias is not None or len(weight) == 2:
        return sign * (weight.sum(1) if bias is None else bias)
    # Rows are c_i·h with Σ c_i = 0 and one c_i of its own sign: the label's row opposes every other.
    gram = weight @ weight.T
    opposed = (gram.sign() < 0).sum(1)
    return torch.where(opposed == opposed.max(), -gram.diagonal(), gram.new_zeros(()))


ENOUGH = 64  # from that many public examples on, nothing is made up


def stand_ins(observation: Observation, count: int, generator: torch.Generator) -> Float[Tensor, "m *shape"]:
    """At most `count` public examples if the attacker has enough of them, else `count` made-up ones."""
    public = observation.knowledge.public_data
    like = next(iter(observation.task.parameters.values()))
    if public is not None and len(public) >= ENOUGH:
        return public[torch.randperm(len(public), generator=generator)[:count]].to(like)
    return made_up(observation.task.data, count, generator).to(like)


def made_up(data: DataSpec, count: int, generator: torch.Generator) -> Float[Tensor, "count *shape"]:
    """Random inputs in the data's range: images as photographs vary to second order (Field, 1987), Gaussian fields with
    an amplitude spectrum 1/f^α, α ~ U(.7, 1.7), of random mean and contrast; else uniform noise."""
    if not data.is_image:
        return torch.rand(count, *data.shape, generator=generator) * data.range + data.low
    channels, height, width = data.shape
    frequency = (torch.fft.fftfreq(height)[:, None] ** 2 + torch.fft.rfftfreq(width)[None] ** 2).sqrt()
    frequency[0, 0] = 1.0
    alpha = 0.7 + torch.rand(count, 1, 1, 1, generator=generator)
    grey = torch.randn(count, 1, height, width, generator=generator)
    colour = torch.randn(count, channels, height, width, generator=generator)
    field = torch.fft.irfft2(torch.fft.rfft2(0.9 * grey + 0.45 * colour) * frequency**-alpha, s=(height, width))
    field = field - field.mean((2, 3), keepdim=True)
    field = field / field.flatten(1).std(1).clamp_min(1e-6)[:, None, None, None]
    mean = 0.5 + 0.18 * torch.randn(count, 1, 1, 1, generator=generator)
    mean = mean + 0.07 * torch.randn(count, channels, 1, 1, generator=generator)
    contrast = 0.08 + 0.2 * torch.rand(count, 1, 1, 1, generator=generator)
    images: Tensor = (mean + contrast * field).clamp(0, 1)
    return images * data.range + data.low


MOVED = 0.02  # below that mean change of a logit through the layers below, they are held still
AVERAGED = 8  # inputs whose average the tangent kernel is taken at


class _Head(nn.Module):
    def __init__(self, weight: Tensor, bias: Tensor | None, tangent: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.drift = nn.Parameter(tangent.new_zeros(tangent.shape[1]))
        self.register_buffer("tangent", tangent)

    def forward(self, h: Tensor) -> Tensor:
        z = h @ self.weight.T + self.get_buffer("tangent") @ self.drift
        return z if self.bias is None else z + self.bias


Summary = Callable[[Float[Tensor, "outputs q"], Float[Tensor, " outputs"] | None], Float[Tensor, " p"]]
"""Update of weight (in the simulation's coordinates) and bias → statistics."""


@dataclass(frozen=True, eq=False)
class SimulatedHead:
    """The client's last layer, whose examples are features of stand-ins."""

    task: Task
    protocol: ClientProtocol
    features: Float[Tensor, "m q"]
    summary: Summary

    @staticmethod
    def of(
        client: Task,
        layer: LinearLayer,
        protocol: ClientProtocol,
        basis: Float[Tensor, "q features"],
        features: Float[Tensor, "m features"],
        summary: Summary,
        tangent: Float[Tensor, "outputs k"] | None = None,
    ) -> "SimulatedHead":
        """With the client's loss. Weights and features are expressed in orthonormal rows; parameters that do not move
        are left out."""
        (weight, bias), kind = layer.of(client.parameters), next(iter(client.parameters.values())).dtype

        def in_its_type(logits: Tensor, labels: Tensor) -> Tensor:
            return client.loss_of(logits.to(kind), labels).to(logits)  # it may hold tensors of its own

        loss: Loss = client.loss if client.loss is cross_entropy else in_its_type
        module = _Head(weight @ basis.T, bias, weight.new_zeros(len(weight), 1) if tangent is None else tangent)
        task = Task.of(module, DataSpec(shape=(len(basis),), classes=len(weight)), loss=loss, name="head")
        return SimulatedHead(task.to(weight), protocol, features @ basis.T, summary)

    def __call__(self, index: Int[Tensor, "r n"], labels: Int[Tensor, "r n"]) -> Float[Tensor, "r p"]:
        """Statistics of r simulated clients; client i holds the stand-ins ``index[i]`` under
        ``labels[i]``, in that order; a shuffled protocol uses one order for all, as labels come in any order."""

        def one(h: Tensor, y: Tensor) -> Tensor:
            update, _ = self.protocol.local_training(self.task, Batch(h, y), Draws(0), mean_gradient)
            return self.summary(update["weight"], update.get("bias"))

        rows = max(labels.shape[1], len(self.task.parameters["weight"]))
        chunk = max(1, 4_000_000 // (self.features.shape[1] * rows))
        parts = zip(index.split(chunk), labels.split(chunk), strict=True)
        return torch.cat([vmap(one, randomness="same")(self.features[i], y) for i, y in parts])


def tangent_below(
    observation: Observation, layer: LinearLayer, inputs: Float[Tensor, "m *shape"]
) -> Float[Tensor, "outputs k"] | None:
    """L with L·Lᵀ = J·Jᵀ, J = ∂(mean logits)/∂(parameters below the classifier) halfway through the update; `None` for
    a gradient, where nothing moves, and where logits move less than `MOVED`."""
    task, update = without_dropout(observation.task), observation.update
    below = [name for name in task.parameters if name not in (layer.weight, layer.bias)]
    if update.header.kind is UpdateKind.GRADIENT or not below:
        return None

    def moved(share: float) -> Tensors:
        return {n: task.parameters[n] + share * update.tensors[n].to(task.parameters[n]) for n in below}

    def mean_logits(parameters: Tensors) -> Tensor:
        return task.logits({**task.parameters, **parameters}, task.buffers, inputs[:AVERAGED])[0].mean(0)

    with torch.no_grad():
        change = (mean_logits(moved(1.0)) - mean_logits(moved(0.0))).abs().mean()
    if float(change) < MOVED:
        return None
    slopes = jacrev(mean_logits, chunk_size=1)(moved(0.5))
    jacobian = torch.cat([slope.flatten(1) for slope in slopes.values()], 1).detach().cpu().double()
    values, vectors = torch.linalg.eigh(jacobian @ jacobian.T)
    tangent: Tensor = vectors * values.clamp_min(0).sqrt()
    return tangent


PATIENCE, SLOW = 12, 0.9  # fits end where in so many iterations none has fallen below that share


@dataclass(frozen=True, eq=False)
class HeadSpan:
    """Under soft-max cross-entropy and plain SGD the classifier's update is Σ_t factor·(p_t − y_t)ᵀ·h_t / n_t, with
    p_t = softmax(h_t·W_tᵀ + b_t): it depends on nothing but what the layer is given, whatever the layers below do. The
    n of them lie in the span of its n leading right singular vectors, so that n² coordinates are unknown."""

    basis: Float[Tensor, "n features"]
    weight: Float[Tensor, "outputs n"]  # in that basis, as the bias at the start
    bias: Float[Tensor, " outputs"]
    moved: Float[Tensor, "outputs n"]
    shifted: Float[Tensor, " outputs"] | None  # `None` where no bias trains
    sizes: tuple[int, ...]  # examples of each step
    factor: float = 1.0  # of each step's mean gradient

    @staticmethod
    def of(
        parameters: tuple[Tensor, Tensor | None],
        update: tuple[Tensor, Tensor | None],
        sizes: tuple[int, ...],
        factor: float = 1.0,
    ) -> "HeadSpan":
        (weight, bias), (moved, shifted) = parameters, update
        basis = torch.linalg.svd(moved, full_matrices=False).Vh[: sum(sizes)]
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        return HeadSpan(basis, weight @ basis.T, bias, moved @ basis.T, shifted, sizes, factor)

    def residual(self, h: Float[Tensor, "n n"], labels: Float[Tensor, "n outputs"]) -> Float[Tensor, " equations"]:
        """What inputs, in the basis, and labels leave of the update, relative."""
        w, b, moves, tiny = self.weight, self.bias, [], torch.finfo(h.dtype).tiny
        for part, coded in zip(h.split(self.sizes), labels.split(self.sizes), strict=True):
            moves.append(self.factor * ((part @ w.T + b).softmax(1) - coded) / len(part))
            w, b = w + moves[-1].T @ part, b + moves[-1].sum(0)
        slope = torch.cat(moves)
        left: Tensor = ((slope.T @ h - self.moved) / self.moved.norm().clamp_min(tiny)).flatten()
        if self.shifted is None:
            return left
        return torch.cat([left, (slope.sum(0) - self.shifted) / self.shifted.norm().clamp_min(tiny)])


def least_squares(
    residual: Callable[..., Tensor], starts: Float[Tensor, "m *d"], iterations: int, *given: Float[Tensor, "m ..."]
) -> tuple[Float[Tensor, "m *d"], Float[Tensor, " m"]]:
    """Levenberg–Marquardt on ``residual(start, *given)`` of each of m, side by side; where they end, and the norm of
    what is left."""
    value, slopes, found = vmap(residual), vmap(jacrev(residual)), starts
    damping = torch.full((len(found),), 1e-2, dtype=found.dtype)
    left = value(found, *given)
    before = left.norm(dim=1)
    for iteration in range(1, iterations + 1):
        j = slopes(found, *given).flatten(2)
        normal = j.mT @ j
        scale = torch.diag_embed(normal.diagonal(dim1=1, dim2=2) + 1e-12)
        step, _ = torch.linalg.solve_ex(normal + damping[:, None, None] * scale, (j.mT @ left[..., None]))
        tried = found - step.view_as(found)
        after = value(tried, *given)
        better = after.norm(dim=1) < left.norm(dim=1)
        found = torch.where(better.view(-1, *[1] * (found.ndim - 1)), tried, found)
        left = torch.where(better[:, None], after, left)
        damping = torch.where(better, damping / 5, damping * 4).clamp(1e-12, 1e8)
        if iteration % PATIENCE == 0:
            now = left.norm(dim=1)
            if not bool((now < SLOW * before).any()):
                break
            before = now
    return found, left.norm(dim=1)
