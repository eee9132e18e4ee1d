"""What a linear layer's gradient is a sum of, and how exact its numbers are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation
from leakgauge.observation import Observation
from leakgauge.tensors import Wire
from leakgauge.tracing import LinearLayer
from leakgauge.update import UpdateKind


@dataclass(frozen=True, eq=False)
class Sums:
    """A layer's gradient as sums over the batch: weight row i is Σ_k s·δ_ki·x_k and bias entry i is Σ_k s·δ_ki.

    Attributes:
        weight, bias: the sums.
        scale: s: 1 / B for a mean gradient, −lr / B for the delta of one local step.
        wire: the format that the sums came in.
        floor: absolute rounding of any entry, however small it is.
        low, high: the range of what enters the layer; `None` where it is not known.
        labels: those that an example may have.
        examples: in the batch, B.
    """

    weight: Float[Tensor, "units d"]
    bias: Float[Tensor, " units"]
    scale: float
    wire: Wire
    floor: float
    low: Float[Tensor, " d"] | None
    high: Float[Tensor, " d"] | None
    labels: Int[Tensor, " classes"]
    examples: int

    @property
    def reach(self) -> float:
        """The largest number that enters the layer, at least one."""
        if self.low is None or self.high is None:
            driven = self.bias.abs() > 1e-3 * self.bias.abs().max()
            return max(1.0, float((self.weight[driven].abs().amax(1) / self.bias[driven].abs()).median()))
        return max(1.0, float(torch.maximum(self.low.abs(), self.high.abs()).max()))


def sums_of(
    observation: Observation,
    layer: LinearLayer,
    examples: int,
    scale: float,
    device: torch.device,
    *,
    reads_input: bool,
) -> Sums:
    """The sums of a layer in float64, on `device`.

    Parameters that a delta was taken of were rounded as large as they are.
    """
    task, tensors, data = observation.task, observation.update.tensors, observation.task.data
    assert layer.bias is not None
    weight, bias = (tensors[name].to(device) for name in (layer.weight, layer.bias))
    wire = Wire.of(weight, bias)
    floor = wire.least
    if observation.update.header.kind is UpdateKind.DELTA:
        largest = max(float(task.parameters[name].abs().max()) for name in (layer.weight, layer.bias))
        floor += largest * torch.finfo(task.parameters[layer.weight].dtype).eps
    edge = torch.zeros((1, *data.shape), dtype=torch.float64, device=device)
    low, high = (data.normalise(edge + value).flatten() for value in (data.low, data.high))
    known = observation.knowledge.labels
    labels = torch.arange(data.classes) if known is None or known.ndim > 1 else known.unique()
    return Sums(
        weight.double(),
        bias.double(),
        scale,
        wire,
        floor,
        low if reads_input else None,
        high if reads_input else None,
        labels.to(device),
        examples,
    )


def scale_of(observation: Observation, examples: int) -> float | str:
    """s in the sums of an update, or the reason why the update is no sum over examples at one point."""
    protocol: Protocol = observation.knowledge.local_training or FedSGD()
    while isinstance(protocol, SecureAggregation):
        if protocol.steps(examples) > protocol.cohort:
            return "clients of the cohort take several local steps"
        protocol = protocol.client
    if observation.update.header.kind is UpdateKind.GRADIENT:
        return 1 / examples
    if not isinstance(protocol, FedAvg):
        return "the update is a delta, and the local training is not known (knows: local_training)"
    if protocol.steps(examples) > 1:
        return "the client takes several local steps, so its update is no sum of gradients at one point"
    if protocol.weight_decay:
        return "weight decay moves every row"
    return -protocol.lr * (1 + protocol.momentum * protocol.nesterov) / examples
