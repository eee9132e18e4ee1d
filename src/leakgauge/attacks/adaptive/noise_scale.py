"""How much noise is on an update, for one who knows the mechanism."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.attacks.matching.cohort import cohort_view
from leakgauge.clients import FedAvg, FedSGD
from leakgauge.defenses import DPSGD, AtSNR, Compose, FedCDP, GaussianNoise, parts_of, view_of
from leakgauge.defenses.laplace import LaplaceNoise
from leakgauge.draws import Draws
from leakgauge.observation import Observation
from leakgauge.tensors import Tensors, map_tensors


def known_scale(observation: Observation) -> Tensors | None:
    """Standard deviation of the noise on each tensor of the update, from mechanism, wire and local training;
    behind secure aggregation that on the mean.

    `None` where nothing states it: later stages have reshaped the noise, or the number of examples is unknown. Noise
    of single steps (dp-sgd, fed-cdp) adds up in a FedAvg delta to first order: what noise does to later gradients
    is left out, which is right for small lr. Where its strength is a ratio to the gradient it is estimated from the
    delta as from a gradient; too large, by up to the root of their number, where the gradients of several steps agree.
    """
    knowledge, update = observation.knowledge, observation.update
    if knowledge.defense is None:
        return None
    header = replace(update.header, example_count=observation.examples)
    protocol = knowledge.local_training
    stated = cohort_view(protocol or FedSGD(), knowledge.defense, replace(update, header=header), None).noise_scale
    if stated is not None:
        return stated
    parts = parts_of(knowledge.defense)
    in_steps = [part for part in parts if isinstance(part, DPSGD | FedCDP)]
    on_update = tuple(part for part in parts if part.acts_on_update)
    if not all(isinstance(part, GaussianNoise | LaplaceNoise) for part in on_update):
        return None  # it reshapes what came before
    if len(in_steps) != 1 or not isinstance(protocol, FedAvg) or observation.examples is None:
        return None
    if (sigma := _of_steps(in_steps[0], protocol, observation.examples, update.tensors)) is None:
        return None
    after = view_of(Compose(on_update), update, None).noise_scale if on_update else None
    if on_update and after is None:
        return None
    added = after or map_tensors(lambda t: t.new_zeros(()), update.tensors)
    return map_tensors(lambda s: (s.square() + sigma**2).sqrt(), added)


def _of_steps(part: DPSGD | FedCDP, protocol: FedAvg, examples: int, tensors: Tensors) -> float | None:
    """On every entry of a delta, from the noise of its steps."""
    if isinstance(part, FedCDP) and isinstance(part.level, AtSNR):
        return float(part.level.seen(tensors, part.norm, 1))
    variance = 0.0
    sizes = [len(index) for index in protocol.order(examples, Draws(0))]
    for step, size in enumerate(sizes):
        on_mean = part.noise_on_mean(size)
        if on_mean is None:
            return None
        variance += (on_mean * _reach(protocol, len(sizes) - step, first=step == 0)) ** 2
    return float(variance**0.5)


def _reach(protocol: FedAvg, left: int, *, first: bool) -> float:
    """How far one step's gradient moves the parameters by the end, with `left` steps to go including its own.

    By the recurrence of ``torch.optim.SGD``: the first gradient enters the velocity undamped.
    """
    if not protocol.momentum:
        return protocol.lr
    velocity = 1.0 if first else 1 - protocol.dampening
    moved = 0.0
    for step in range(left):
        applied = (1.0 if step == 0 else 0.0) + protocol.momentum * velocity if protocol.nesterov else velocity
        moved += protocol.lr * applied
        velocity *= protocol.momentum
    return moved
