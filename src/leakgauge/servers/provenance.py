"""What an update is made of, as far as the server knows: one plain gradient, or more than that."""

from __future__ import annotations

from leakgauge.clients.fedavg import FedAvg
from leakgauge.defenses import NoDefense
from leakgauge.observation import Observation
from leakgauge.update import UpdateKind


def gradient_factor(observation: Observation) -> float | None:
    """What to multiply the update by to get one mean gradient at the broadcast parameters.

    1 for a gradient, −1/lr for a FedAvg delta of one local step without weight decay; `None` where several
    steps, or steps that the server does not know, are summed.
    """
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return 1.0
    protocol, examples = observation.knowledge.local_training, observation.examples
    if not isinstance(protocol, FedAvg) or protocol.weight_decay or examples is None:
        return None
    return -1.0 / protocol.lr if protocol.steps(examples) == 1 else None


def sums_gradients(observation: Observation) -> bool:
    """Whether the update is a weighted sum of gradients and nothing else: no weight decay, known protocol."""
    protocol = observation.knowledge.local_training
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return True
    return isinstance(protocol, FedAvg) and not protocol.weight_decay


def undefended(observation: Observation) -> bool:
    """Whether the server knows that there is no defence. One on the batch would not show in the numbers."""
    return isinstance(observation.knowledge.defense, NoDefense)
