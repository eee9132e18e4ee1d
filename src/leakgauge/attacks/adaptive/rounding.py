"""Likelihood objectives, and the counters to rounding and signs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.adaptive.counter import counters
from leakgauge.attacks.matching import Balanced, Matching, Prior, Scheduled, TotalVariation, falling
from leakgauge.attacks.matching.canvases import unknowns
from leakgauge.attacks.matching.objectives import Cosine
from leakgauge.attacks.matching.parts import Objective
from leakgauge.clients import FedSGD, cohort_view
from leakgauge.defenses import QSGD, AttackerView, Quantise, Sign
from leakgauge.defenses.quantise import SOFTNESS, sign_misfit
from leakgauge.errors import require
from leakgauge.observation import Observation
from leakgauge.registry import OBJECTIVES
from leakgauge.tensors import Tensors, entries, inner, map_tensors, squared_norm
from leakgauge.update import UpdateKind

STRENGTH = 0.5
"""Weight of the mean total variation beside a likelihood, in unknowns per entry of the update."""


@OBJECTIVES.register("likelihood", needs="defense; the cosine where the defence states none")
@dataclass(frozen=True)
class Likelihood(Objective):
    """−log p(observed | raw) / entries, as `AttackerView.log_likelihood` has it, up to a constant.

    It is given the raw simulated update: what a mechanism makes of it is in the likelihood. Where the view states
    none (behind secure aggregation, say) it is `Cosine` to the update as it would look on the wire.

    Beside a base that compares directions (`scale_free`, as in `auto`) the simulated update is brought to its best
    length a = ⟨s, o⟩/‖s‖² first. A base that compares lengths as well keeps doing so.

    In these units a total variation weighs what `matching_variation` says.
    """

    scale_free: bool = True

    def wants_raw(self, view: AttackerView) -> bool:
        """Whether what a view states is about the raw update; else the usual simulation is compared."""
        return view.log_likelihood is not None

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        if view.log_likelihood is None:
            return Cosine()(simulated, observed, view)
        best = _at_best_length(simulated, observed) if self.scale_free else simulated
        return -view.log_likelihood(best) / max(entries(observed), 1)


def _at_best_length(simulated: Tensors, observed: Tensors) -> Tensors:
    tiny = torch.finfo(next(iter(observed.values())).dtype).tiny
    # Not negative: an update that points away has no length at which it fits.
    length = (inner(simulated, observed) / squared_norm(simulated).clamp_min(tiny)).clamp_min(1e-6)
    return map_tensors(lambda t: length * t, simulated)


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
    prior, data = attack.prior, observation.task.data
    own = prior.prior if isinstance(prior, Balanced) else prior
    own = own.prior if isinstance(own, Scheduled) else own
    examples = observation.examples
    if not isinstance(own, TotalVariation) or examples is None:
        return prior
    last = STRENGTH * unknowns(attack.canvas, examples, data) / max(entries(observation.update.tensors), 1)
    return falling(prior=TotalVariation(10 * last, smoothing=1e-6, coupled=own.coupled), to=0.1)


@OBJECTIVES.register("signs")
@dataclass(frozen=True, kw_only=True)
class Signs(Objective):
    """Mean over entries of log(1 + exp(−sign(o)·g/τ)), τ = `softness` × root mean square of the simulated tensor.

    The logistic likelihood of signs. Neither the length of the update nor that of a tensor matters, so it needs
    nothing that a sign does not send; of the observed update it reads signs alone. Entries observed as zero count as
    if either sign had been seen, half each, which is least at zero. Entries that were left out whatever their size
    (random-k, Soteria) are not compared.

    Differs from ROG's ‖tanh(gain·g) − sign‖²: a wrong sign costs in proportion to its size and keeps its gradient,
    where tanh has saturated and has none.
    """

    softness: float = SOFTNESS

    scale_free: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.softness > 0, "softness", f"is {self.softness}", "give a positive number, e.g. 0.1")

    def wants_raw(self, view: AttackerView) -> bool:
        """Always: the sign of a raw value is what is matched."""
        del view
        return True

    def __call__(self, simulated: Tensors, observed: Tensors, view: AttackerView) -> Float[Tensor, ""]:
        # Zero is a good guess of what top-k left out, and none of what was left out whatever its size.
        support = {} if view.support is None or view.unsent_small else view.support
        terms = []
        for name, sent in observed.items():
            g, sign = simulated[name], sent.sign()
            if not g.numel():
                continue
            if name in support:
                g = g * support[name]
            compared = support[name].sum().clamp_min(1) if name in support else g.numel()
            terms.append(sign_misfit(g, sign, g.square().sum() / compared, self.softness))
        return torch.stack(terms).sum() / max(entries(observed), 1)


def _for_the_grid(defense: Quantise | QSGD, observation: Observation) -> str:
    return "" if _states_cells(defense, observation) else "the grid, which averaging or a later stage has covered"


def _states_cells(defense: Quantise | QSGD, observation: Observation) -> bool:
    """Whether the view states a likelihood, as the objective will see it."""
    known = observation.knowledge
    client, asked = known.local_training or FedSGD(), known.defense or defense
    return cohort_view(client, asked, observation.update, known.draws).log_likelihood is not None


@counters(
    Quantise,
    QSGD,
    name="cell-likelihood",
    because="a rounded value says in which interval the true one lies, and how likely each value in it is",
    missing=_for_the_grid,
)
def against_rounding(attack: Matching, defense: Quantise | QSGD, observation: Observation) -> Matching:
    """`Likelihood` in place of the objective, with a total variation of matching weight.

    It ignores the update's length where the objective does. The attack as it is where a later stage has covered the
    grid, secure aggregation has averaged it, or the rounding is known draw by draw. The gain shrinks with the step, see
    the table of defences in the docs.
    """
    if not _states_cells(defense, observation):
        return attack
    objective = Likelihood(scale_free=ignores_length(attack.objective, observation))
    return replace(attack, objective=objective, prior=matching_variation(attack, observation))


@counters(
    Sign,
    name="sign-likelihood",
    because="signs are matched as signs, whatever the size of an entry",
)
def against_signs(attack: Matching, defense: Sign, observation: Observation) -> Matching:
    """`Signs` in place of the objective, with a total variation of matching weight."""
    del defense
    return replace(attack, objective=Signs(), prior=matching_variation(attack, observation))
