"""The linear layer that reads the input, and the one that reads its ReLU: found by probing."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakgauge.attacks.closed_form.layers import LinearLayer, input_layers, linear_layers
from leakgauge.errors import InputError
from leakgauge.task import Task

MEND = "use a fully connected model (mlp), or a server that changes the architecture (imprint-block, linear-first)"


def relu_pair(task: Task, generator: torch.Generator) -> tuple[LinearLayer, LinearLayer]:
    """The first such pair. What reaches the second layer is compared with the ReLU of what leaves the first.

    Raises:
        InputError: no linear layer with bias reads the input, or none of those is followed by ReLU and a linear layer.
    """
    with torch.random.fork_rng(devices=[]):
        firsts = [layer for layer in input_layers(task, generator) if layer.bias is not None]
        if not firsts:
            raise InputError("model", "has no linear layer with bias that reads the input", MEND)
        for first in firsts:
            second = _behind_relu(task, first, generator)
            if second is not None:
                return first, second
    raise InputError(
        "model", f"has no ReLU and second linear layer behind '{firsts[0].name}', which reads the input", MEND
    )


def _behind_relu(task: Task, first: LinearLayer, generator: torch.Generator) -> LinearLayer | None:
    assert first.bias is not None
    like = task.parameters[first.bias]
    uniform = torch.rand((2, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    raw = task.data.low + task.data.range * uniform
    # Half of the units below zero and half above, or an identity would pass for a ReLU.
    answers = task.data.normalise(raw).flatten(1) @ task.parameters[first.weight].T
    centred = {**task.parameters, first.bias: -answers.mean(0)}
    seen: dict[str, Tensor] = {}
    handles = []
    for layer in linear_layers(task):

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], name: str = layer.name) -> None:
            seen[name] = inputs[0].detach()

        handles.append(task.module.get_submodule(layer.name).register_forward_pre_hook(keep))
    try:
        with torch.no_grad():
            task.logits(centred, task.buffers, raw)
    finally:
        for handle in handles:
            handle.remove()
    wanted = (answers - answers.mean(0)).relu()

    def follows(layer: LinearLayer) -> bool:
        got = seen.get(layer.name)
        return got is not None and got.shape == wanted.shape and bool(torch.allclose(got, wanted, atol=1e-6))

    return next((layer for layer in linear_layers(task) if follows(layer)), None)
