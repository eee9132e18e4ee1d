"""The update of a crafted network without running its convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from leakgauge.errors import require
from leakgauge.servers.mkor import FeatureMap
from leakgauge.servers.network import NetworkLayer, linear_stack
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind
from reproduce.mkor.pooled import features


def shortcut_update(
    task: Task, found: FeatureMap, batch: Batch, *, chunk: int = 64, dtype: torch.dtype | None = None
) -> Update:
    """The FedSGD update of a crafted network's linear layers, from the features that its layers below compute.

    Exact where the features are: they come from `features` instead of the convolutions, whose own gradient
    is left at zero, as no reader of MKOR looks at it. Features that are not read count as zero: with
    the `constant` head all logits move by the same amount, so that the gradient of the features read is the same.

    Args:
        task: as broadcast, in eval mode, with ReLU or no activation between its linear layers.
        found: the crafting's map.
        batch: raw images.
        chunk: images whose features are made at a time.
        dtype: precision of the linear layers; by default that of the task.
    """
    stack = linear_stack(task)
    require(not any(s.smooth for s in stack), "model", "has smooth activations", "run the network itself")
    first = stack[0]
    parameters = {name: task.parameters[name] for layer in stack for name in (layer.weight, layer.bias) if name}
    kind = dtype or parameters[first.weight].dtype
    positions = found.positions
    read = torch.cat([features(found, part) for part in batch.inputs.split(chunk)]).to(kind)
    trained = {name: value.to(kind) for name, value in parameters.items()}
    trained[first.weight] = trained[first.weight][:, positions]
    trained = {name: value.detach().requires_grad_() for name, value in trained.items()}
    loss = task.loss(_logits(stack, trained, read), batch.labels)
    gradients = dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))
    tensors = {name: torch.zeros_like(value, dtype=kind) for name, value in task.parameters.items()}
    tensors[first.weight][:, positions] = gradients.pop(first.weight)
    return Update(tensors | gradients, UpdateHeader(UpdateKind.GRADIENT, len(batch)))


def _logits(
    stack: tuple[NetworkLayer, ...], parameters: Tensors, features: Float[Tensor, "n f"]
) -> Float[Tensor, "n outputs"]:
    out = features
    for layer in stack:
        out = F.linear(out, parameters[layer.weight], parameters[layer.bias] if layer.bias else None)
        out = F.relu(out) if layer.relu else out
    return out
