"""How much noise is on an update, for one who knows the mechanism."""

from __future__ import annotations

from dataclasses import replace

from leakgauge.attacks.adaptive.counter import parts_of
from leakgauge.attacks.matching.cohort import cohort_view
from leakgauge.clients import FedAvg, FedSGD
from leakgauge.defenses import DPSGD, AtSNR, FedCDP
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
    header = replace(update.header, example_count=observation.example_count)
    protocol = knowledge.local_training
    stated = cohort_view(protocol or FedSGD(), knowledge.defense, replace(update, header=header), None).noise_scale
    if stated is not None:
        return stated
    parts = parts_of(knowledge.defense)
    in_steps = [part for part in parts if isinstance(part, DPSGD | FedCDP)]
    alone = len(in_steps) == 1 and not any(part.acts_on_update for part in parts)
    if not alone or not isinstance(protocol, FedAvg) or observation.example_count is None:
        return None
    if isinstance(part := in_steps[0], FedCDP) and isinstance(part.level, AtSNR):
        estimate = part.level.seen(update.tensors, part.norm, 1)
        return map_tensors(lambda t: estimate.to(t), update.tensors)
    variance = 0.0
    sizes = [len(index) for index in protocol.order(observation.example_count, Draws(0))]
    for step, size in enumerate(sizes):
        on_mean = in_steps[0].noise_on_mean(size)
        if on_mean is None:
            return None
        variance += (on_mean * _reach(protocol, len(sizes) - step, first=step == 0)) ** 2
    sigma = float(variance**0.5)
    return map_tensors(lambda t: t.new_tensor(sigma), update.tensors)


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
