"""Which attacker knows which defence: each has a named counter, those to rounding here, or says that none is known."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.matching import Balanced, Falling, Matching, Prior, Scheduled, TotalVariation
from leakgauge.attacks.matching.canvases import unknowns
from leakgauge.attacks.matching.parts import Cosine, Objective
from leakgauge.defenses import QSGD, AttackerView, Clip, ClipExamples, ClipLayers, Defense, Prune, Quantise, RandomK
from leakgauge.defenses.compression import Sign, TopK, sign_misfit
from leakgauge.defenses.defense import parts_of
from leakgauge.defenses.representations import Soteria
from leakgauge.observation import Attack, Observation, Reconstruction
from leakgauge.registry import ATTACKS, OBJECTIVES
from leakgauge.tensors import Tensors, entries, inner, map_tensors, squared_norm
from leakgauge.update import UpdateKind
from leakgauge.view.entries import noise_of
from leakgauge.view.undone import as_sent

Adapt = Callable[[Matching, Any, Observation], Matching]
"""``(attack, defence, observation) → attack``: the same canvas, minimiser, start and number of evaluations, with other
parts where knowing the mechanism helps. It reads nothing but its arguments, and never the client's draws."""

Missing = Callable[[Observation], str]
"""What this attacker lacks for the counter; empty where it acts."""


@dataclass(frozen=True)
class Counter:
    """How an attack changes for one who knows a defence."""

    name: str  #: of the counter, as reports call it, e.g. ``support-mask``.
    because: str  #: one sentence: what the attacker makes use of.
    #: the attack with a change, or as it is where all there is to know are steps that every simulation has
    adapt: Adapt = field(default=lambda attack, *_: attack)
    #: what this attacker lacks for it in some settings, as in "the labels"; empty where it acts.
    lacks: Missing = field(default=lambda _: "")


@dataclass(frozen=True)
class NoneKnown:
    """No counter is known, with the reason. An audit says so; it does not call the defence safe."""

    reason: str
    #: who breaks the defence with more than an attack here is given, as the start of a sentence; empty where nobody has
    #: published that. A row that rests on it is flagged.
    broken_by: str = ""


COUNTERS: dict[type[Defense], Counter | NoneKnown] = {}
"""By type of defence. A defence of your own gets one by ``counters(YourDefense)``."""


def counters(
    *kinds: type[Defense], name: str, because: str, missing: Missing = lambda _: ""
) -> Callable[[Adapt], Adapt]:
    """Decorator: registers a function as the counter to some kinds of defences."""

    def add(adapt: Adapt) -> Adapt:
        COUNTERS.update(dict.fromkeys(kinds, Counter(name, because, adapt, missing)))
        return adapt

    return add


def counter_to(defense: Defense | type[Defense]) -> Counter | NoneKnown:
    """The counter to a defence that is no composition, or to a type of it: that of the nearest base that has one."""
    kind = defense if isinstance(defense, type) else type(defense)
    found = next((COUNTERS[base] for base in kind.__mro__ if base in COUNTERS), None)
    return found or NoneKnown("nobody has registered one")


def built_in(attack: Matching, observation: Observation) -> tuple[Matching, str]:
    """The attack with the counter to each defence that its attacker knows, in their order, and what it has none to. The
    canvas, minimiser, start and budget stay, so that the difference to `Naive` is what knowing the mechanism is worth.
    Defences without a counter are attacked through their steps alone."""
    defense, said = observation.knowledge.defense, []
    for part in () if defense is None else parts_of(defense):
        counter = counter_to(part)
        if isinstance(counter, Counter):
            attack = counter.adapt(attack, part, observation)
        else:
            said.append(f"no counter to {type(part).__name__} is known ({counter.reason}), so this may flatter it")
    return replace(attack, counters=False), "; ".join(said)


@ATTACKS.register("naive", needs="what its attack needs")
@dataclass(frozen=True, kw_only=True)
class Naive(SearchingAttack):
    """`attack` by one who takes the update for an undefended one: the reading that flatters a defence.

    Architecture changes (PRECODE) are in the model that the server broadcasts, so even this attacker has them.
    """

    attack: Attack

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        knows = replace(observation.knowledge, defense=None, draws=None)
        return effort.of(self.attack, replace(as_sent(observation), knowledge=knows))


@ATTACKS.register("adapted", needs="defense, and what its attack needs")
@dataclass(frozen=True, kw_only=True)
class Adapted(SearchingAttack):
    """`attack` by one who knows the defence: not applicable to one who does not.

    An attack that is given the defence uses it by itself (see `Matching.counters`), so where `knows` holds the defence
    this is `attack`; the name says so in a comparison with `Naive`."""

    attack: Attack

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        if observation.knowledge.defense is None:
            return Reconstruction.not_applicable("needs the client's defence (knows: defense)")
        return effort.of(self.attack, observation)


SUPPORT_MASK = Counter(
    "support-mask",
    "which entries were left out is plain to see, and what was sent is exact: only that is compared",
    lacks=lambda observation: (
        ""
        if noise_of(observation, observation.knowledge.draws).support
        else "zeros on the wire, which averaging or a later stage has filled"
    ),
)
"""Part of every simulation by one who knows the defence. Where secure aggregation or a later stage has filled the
zeros, simulations still leave entries out, by their own sizes."""

SIMULATED_CLIPPING = Counter(
    "simulated-clipping",
    "clipping is differentiable and part of every simulation; a cosine does not notice that of a whole update",
)

COUNTERS |= dict.fromkeys((TopK, RandomK, Prune, Soteria), SUPPORT_MASK)
COUNTERS |= dict.fromkeys((Clip, ClipExamples, ClipLayers), SIMULATED_CLIPPING)

STRENGTH = 0.5  # weight of the mean total variation beside a likelihood, in unknowns per entry of the update


@OBJECTIVES.register("likelihood", needs="defense; the cosine where the defence states none")
@dataclass(frozen=True)
class Likelihood(Objective):
    """−log p(observed | raw) / entries, as `AttackerView.log_likelihood` has it, up to a constant.

    It is given the raw simulated update: what a mechanism makes of it is in the likelihood. Where the view states
    none (behind secure aggregation, say) it is `Cosine` to the update as it would look on the wire.

    Beside a base that compares directions (`scale_free`, as in `auto`) the simulated update is brought to its best
    length a = ⟨s, o⟩/‖s‖² first. A base that compares lengths as well keeps doing so."""

    scale_free: bool = True

    def wants_raw(self, view: AttackerView) -> bool:
        """Whether what a view states is about the raw update; else the usual simulation is compared."""
        return view.log_likelihood is not None

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        if view.log_likelihood is None:
            return Cosine()(simulated, observed, view)
        if self.scale_free:  # not negative: an update that points away has no length at which it fits
            tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
            length = (inner(simulated, observed) / squared_norm(simulated).clamp_min(tiny)).clamp_min(1e-6)
            simulated = map_tensors(lambda t: length * t, simulated)
        return -view.log_likelihood(simulated) / max(entries(observed), 1)


def ignores_length(objective: Objective, observation: Observation) -> bool:
    """Whether what takes an objective's place should ignore the update's length: as it does, or as it must."""
    gradient = observation.update.header.kind is UpdateKind.GRADIENT
    return objective.scale_free or not (gradient or observation.knowledge.local_training)


def matching_variation(attack: Matching, observation: Observation) -> Prior:
    """A total variation for a data term that is a mean negative log-likelihood over the entries of the update.

    log p(image) is a sum over the canvas's unknowns (pixels), so the mean variation weighs in unknowns / entries:
    `STRENGTH` of that at the end, ten times as much at the start. Priors other than a total variation stay, and so does
    none where there was none.
    """
    own = attack.prior.prior if isinstance(attack.prior, Balanced) else attack.prior
    own, examples = own.prior if isinstance(own, Scheduled) else own, observation.examples
    if not isinstance(own, TotalVariation) or examples is None:
        return attack.prior
    pixels = unknowns(attack.canvas, examples, observation.task.data)
    last = STRENGTH * pixels / max(entries(observation.update.tensors), 1)
    return Falling(prior=TotalVariation(10 * last, smoothing=1e-6, coupled=own.coupled), to=0.1)


@OBJECTIVES.register("signs")
@dataclass(frozen=True, kw_only=True)
class Signs(Objective):
    """Mean over entries of log(1 + exp(−sign(o)·g/τ)), τ = `SOFTNESS` × root mean square of the simulated tensor.

    The logistic likelihood of signs. Neither the length of the update nor that of a tensor matters, so it needs
    nothing that a sign does not send; of the observed update it reads signs alone. Entries observed as zero count as
    if either sign had been seen, half each, which is least at zero. Entries that were left out whatever their size
    (random-k, Soteria) are not compared.

    Differs from ROG's ‖tanh(gain·g) − sign‖²: a wrong sign costs in proportion to its size and keeps its gradient,
    where tanh has saturated and has none."""

    scale_free: ClassVar[bool] = True

    def wants_raw(self, view: AttackerView) -> bool:
        """Always: the sign of a raw value is what is matched."""
        return True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        # Zero is a good guess of what top-k left out, and none of what was left out whatever its size.
        support = {} if view.support is None or view.unsent_small else view.support
        terms = []
        for name, sent in observed.items():
            if sent.numel():
                g = simulated[name] * support.get(name, 1)
                compared = support[name].sum().clamp_min(1) if name in support else sent.numel()
                terms.append(sign_misfit(g, sent.sign(), g.square().sum() / compared))
        return torch.stack(terms).sum() / max(entries(observed), 1)


def _for_the_grid(observation: Observation) -> str:
    covered = noise_of(observation, observation.knowledge.draws).log_likelihood is None  # as the objective will see it
    return "the grid, which averaging or a later stage has covered" if covered else ""


@counters(
    Quantise,
    QSGD,
    name="cell-likelihood",
    because="a rounded value says in which interval the true one lies, and how likely each value in it is",
    missing=_for_the_grid,
)
def against_rounding(attack: Matching, _: Quantise | QSGD, observation: Observation) -> Matching:
    """`Likelihood` in place of the objective, with a total variation of matching weight. It ignores the update's length
    where the objective does. The attack as it is where a later stage has covered the grid, secure aggregation has
    averaged it, or the rounding is known draw by draw."""
    if _for_the_grid(observation):
        return attack
    objective = Likelihood(scale_free=ignores_length(attack.objective, observation))
    return replace(attack, objective=objective, prior=matching_variation(attack, observation))


@counters(Sign, name="sign-likelihood", because="signs are matched as signs, whatever the size of an entry")
def against_signs(attack: Matching, _: Sign, observation: Observation) -> Matching:
    """`Signs` in place of the objective, with a total variation of matching weight."""
    return replace(attack, objective=Signs(), prior=matching_variation(attack, observation))
