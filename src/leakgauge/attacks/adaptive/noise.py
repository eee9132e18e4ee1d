"""How much noise is on an update, and the label of a single example behind it, for one who knows the mechanism."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.adaptive.counter import counters, ignores_length
from leakgauge.attacks.labels.strategy import LabelGuess, LabelStrategy, Unknown, find_classifier, stand_ins
from leakgauge.attacks.matching.canvases import unknowns
from leakgauge.attacks.matching.engine import Matching
from leakgauge.attacks.matching.parts import Canvas, Cosine, JointSoftLabels, Objective, Prior, SquaredL2
from leakgauge.attacks.matching.priors import Balanced, Falling, NoPrior, Proportional, Scheduled, TotalVariation
from leakgauge.clients import FedSGD
from leakgauge.defenses import DPSGD, AttackerView, ClientDP, FedCDP, GaussianNoise
from leakgauge.defenses.defense import Compose, Defense, parts_of, steps_of, view_of
from leakgauge.defenses.dp import LaplaceNoise
from leakgauge.defenses.steps import DefenseStage, Noise
from leakgauge.observation import Observation
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import UpdateKind
from leakgauge.view.entries import noise_of

STAND_INS = 64  # inputs whose mean feature stands for the client's


@dataclass(frozen=True, eq=False)
class UnderNoise:
    """One label from weight and bias of the classifier together, as far as the noise lets each of them speak.

    ∂L/∂b_i = c_i and ∂L/∂W_i = c_i·h with c = p − e_y, so for Gaussian noise of standard deviations σ_b and σ_W
    ĉ_i = (b_i/σ_b² + W_i·h/σ_W²) / (1/σ_b² + ‖h‖²/σ_W²), with the mean feature of stand-ins (`stand_ins`) for h; the
    label has the least ĉ. The bias alone, which iDLG reads, leaves most of it out.
    Confidence: the label's share of exp(−ĉ·‖c‖/var ĉ), ‖c‖² estimated by ‖ĉ‖² less what noise adds. Several examples
    are left to `otherwise`."""

    scale: Tensors  # of the noise on each tensor of the update
    otherwise: LabelStrategy  # reads several examples, and one where there is no classifier

    def infer(self, observation: Observation, generator: torch.Generator) -> LabelGuess | Unknown:
        given, observation = observation, observation.view
        scale = self.scale if observation is given else known_scale(observation) or {}
        layer = find_classifier(observation)
        if observation.examples != 1 or isinstance(layer, Unknown) or layer.weight not in scale:
            return self.otherwise.infer(observation, generator)
        # Of a copy: the search starts where that of an attacker who does not know the defence starts.
        inputs = stand_ins(observation, STAND_INS, generator.clone_state())
        h = layer.features(observation.task, inputs).mean(0)
        weight, bias = layer.of(observation.update.tensors)
        variance = {name: deviation.double().cpu().mean() ** 2 for name, deviation in scale.items()}
        heard, precision = (told / variance[layer.weight] for told in (weight @ h, h.square().sum()))
        if bias is not None and layer.bias is not None:
            heard, precision = heard + bias / variance[layer.bias], precision + 1 / variance[layer.bias]
        if not bool(torch.isfinite(heard).all() & (precision > 0) & torch.isfinite(precision)):
            return self.otherwise.infer(observation, generator)  # a tensor without noise is read as it is
        sign = -1.0 if observation.update.header.kind is UpdateKind.DELTA else 1.0
        found = sign * heard[: observation.task.data.classes] / precision
        size = (found.square().sum() - len(found) / precision).clamp_min(0).sqrt()  # of c, which a clip has scaled
        odds = torch.softmax(-found * size * precision, 0)
        return LabelGuess(found.argmin().view(1), float(odds.max()))


def known_scale(observation: Observation) -> Tensors | None:
    """Standard deviation of the noise on each tensor of the update, from mechanism, wire and local training;
    behind secure aggregation that on the mean.

    `None` where nothing states it: later stages have reshaped the noise, or the number of examples is unknown. Noise
    of single steps (dp-sgd, fed-cdp) adds up in a FedAvg delta to first order: what noise does to later gradients
    is left out, which is right for small lr. Where its strength is a ratio to the gradient it is estimated from the
    delta as from a gradient; too large, by up to the root of their number, where the gradients of several steps agree.
    """
    defense, update, examples = observation.knowledge.defense, observation.update, observation.examples
    if defense is None:
        return None
    if (stated := noise_of(observation).noise_scale) is not None:
        return stated
    protocol = observation.knowledge.local_training or FedSGD()
    steps, on_update = steps_of(defense), tuple(part for part in parts_of(defense) if part.acts_on_update)
    in_steps = [step for step in steps if isinstance(step, Noise) and step.stage is DefenseStage.EXAMPLES]
    reshaped = not all(isinstance(step, Noise) for step in steps if step.stage is DefenseStage.UPDATE)
    told, known = observation.linear, observation.knowledge.local_training is not None and examples is not None
    sizes = protocol.parts(examples or 0) if known and not protocol.aggregates else ()
    if reshaped or len(in_steps) != 1 or told is None or told.shortened or len(told.weights) != len(sizes):
        return None
    (noise,), variance = in_steps, 0.0
    if noise.scale is not None:
        variance = float(next(iter(noise.scale.seen(update.tensors).values()))) ** 2
    else:
        each = [None if noise.on_mean is None else noise.on_mean(size) for size in sizes]
        if None in each:
            return None
        variance = sum((weight * one) ** 2 for weight, one in zip(told.weights, each, strict=True) if one is not None)
    after = view_of(Compose(on_update), update, None).noise_scale if on_update else None
    if on_update and after is None:
        return None
    added = after or map_tensors(lambda t: t.new_zeros(()), update.tensors)
    return map_tensors(lambda s: (s.square() + variance).sqrt(), added)


NATURAL_VARIATION = 0.115
"""Mean |∂x| + mean |∂y| of photographs of 32 px with values from 0 to 1: 0.1156 over 200 training images of CIFAR-10.
Larger pictures are smoother; an attacker's own (`Knowledge.public_data`) are measured instead."""

STRENGTH = 0.3  # of the prior, in shares of the literal one: differences along x and y are not independent
LEAD = 10.0  # the variation falls from this many times its last weight, or from the attack's own first weight


@dataclass(frozen=True, eq=False)
class Whitened(Objective):
    """1 − cos of the whitened updates s_k/σ_k and o_k/σ_k over all tensors k, σ_k the known scale of the noise on each;
    half their squared distance in units of the observed one's square where the length counts (not `scale_free`).

    Near the truth −log of the Gaussian likelihood at the simulated update's best length, ½(1 − cos²), in the units of
    the cosine, so that weights of priors mean the same. Tensors with less noise count for more. Where the base
    compares lengths they count here as well: see `Likelihood`."""

    scale: Tensors
    scale_free: bool = True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        whiten = {k: 1 / s.to(observed[k]) for k, s in _positive(self.scale).items()}
        ours, theirs = (map_tensors(torch.mul, t, whiten) for t in (simulated, observed))
        if self.scale_free:
            return Cosine()(ours, theirs, view)
        tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
        return SquaredL2()(ours, theirs, view) / (2 * squared_norm(theirs).clamp_min(tiny))


@counters(
    GaussianNoise,
    LaplaceNoise,
    DPSGD,
    FedCDP,
    ClientDP,
    name="maximum-a-posteriori",
    because="the scale of the noise says how far the update may be missed, so how much the prior should count",
    missing=lambda seen: "" if known_scale(seen) else "the scale of the noise that is on the update",
)
def against_noise(attack: Matching, _: Defense, observation: Observation) -> Matching:
    """The likelihood under noise of known scale with a total variation of matching weight.

    −log p(image | update) = Σ_k ‖s_k − o_k‖²/2σ_k² + λ·Σ|∂x|, λ = STRENGTH / mean variation of natural images. Divided
    by Z = Σ_k ‖o_k/σ_k‖² the first is `Whitened`, so the mean variation gets the weight λ·N/Z, N being the canvas's
    unknowns (its pixels). It falls to that weight and no further. Where the attack's own variation already ends above
    it, the noise needs no adapting, and nothing is changed but the weights of tensors with unequal noise.

    One label is read from weight and bias of the classifier together (`UnderNoise`).

    The clipping of dp-sgd and fed-cdp is in every simulation; their noise is not.
    """
    # Who knows the draws simulates the noise itself: none is left to allow for.
    scale = known_scale(observation) if observation.knowledge.draws is None else None
    if scale is None:
        return attack
    if not isinstance(attack.labels, JointSoftLabels):
        attack = replace(attack, labels=UnderNoise(scale, attack.labels))
    if not isinstance(attack.objective, Cosine | SquaredL2):
        return attack
    power = float(squared_norm({k: observation.update.tensors[k] / s for k, s in _positive(scale).items()}))
    weight = _variation_weight(attack.canvas, observation, power)
    heavier = _heavier(attack.prior, weight) if weight is not None else attack.prior
    values = [float(s) for s in _positive(scale).values()]
    if heavier is attack.prior and max(values) < 1.01 * min(values) and isinstance(attack.objective, Cosine):
        return attack
    objective = Whitened(scale, scale_free=ignores_length(attack.objective, observation))
    return replace(attack, objective=objective, prior=heavier)


def _positive(scale: Tensors) -> Tensors:
    """Tensors without noise count as having a hundredth of the least; `RelativeToTensorStd` spares single entries."""
    most = max((float(s) for s in scale.values()), default=0.0)
    noisy = [float(s) for s in scale.values() if float(s) > 1e-12 * most]
    return {k: s.clamp_min(min(noisy, default=1.0) / 100) for k, s in scale.items()}


def _variation_weight(canvas: Canvas, observation: Observation, power: float) -> float | None:
    """λ·N/Z for the mean variation in normalised units; `None` where the data are no images."""
    data, examples = observation.task.data, observation.examples
    if not data.is_image or examples is None or power <= 0:
        return None
    natural = torch.tensor(data.std).reciprocal().mean() * NATURAL_VARIATION * data.range
    public = observation.knowledge.public_data
    if public is not None and len(public):
        natural = TotalVariation(1.0)(data.normalise(public))
    return STRENGTH * unknowns(canvas, examples, data) / (power * max(float(natural), 1e-6))


def _heavier(prior: Prior, weight: float) -> Prior:
    """The prior with a total variation that never falls below `weight`; as it is where its own ends no lower."""
    if isinstance(prior, Balanced):
        return replace(prior, prior=_heavier(prior.prior, weight))
    own = prior.prior if isinstance(prior, Scheduled) else prior
    if isinstance(own, TotalVariation) and own.weight and isinstance(prior, Proportional):
        least = weight / own.weight
        return prior if prior.least >= least else replace(prior, least=least, most=max(prior.most, least))
    if not isinstance(own, NoPrior | TotalVariation) or not isinstance(prior, NoPrior | TotalVariation | Falling):
        return prior
    varied = own if isinstance(own, TotalVariation) else TotalVariation(0.0, smoothing=1e-6)
    if varied.weight * (prior.to if isinstance(prior, Falling) else 1.0) >= weight:
        return prior
    first = max(varied.weight, LEAD * weight)
    return Falling(prior=replace(varied, weight=first), to=weight / first)
