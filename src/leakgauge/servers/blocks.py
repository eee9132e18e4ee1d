"""Building blocks of crafted networks."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.labels.strategy import Classifier, Unknown, find_classifier
from leakgauge.errors import InputError, require
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task
from leakgauge.tensors import map_tensors
from leakgauge.tracing import LinearLayer, input_layers, linear_inputs, linear_layers
from leakgauge.update import Update, UpdateHeader, UpdateKind


def classifier_of(task: Task) -> Classifier:
    """The task's last linear layer, found as label attacks find it.

    Raises:
        InputError: no linear layer with trained parameters makes the logits.
    """
    nothing = Update(map_tensors(torch.zeros_like, task.parameters), UpdateHeader(UpdateKind.GRADIENT))
    found = find_classifier(Observation(task, nothing, Knowledge()))
    if isinstance(found, Unknown):
        raise InputError("model", found.message, "give a model that ends in a trained nn.Linear")
    return found


def biased_classifier_of(task: Task) -> tuple[str, str]:
    """Names of its weight and its bias. Raises `InputError` where it has no bias."""
    found = classifier_of(task)
    if found.bias is None:
        raise InputError(
            "model", f"its last layer '{found.name}' has no bias, which the server must set", "give it a bias"
        )
    return found.weight, found.bias


def require_class(task: Task, target: int) -> None:
    """Raises `InputError` unless `target` is one of the task's labels and there is another."""
    classes = task.data.classes
    require(task.outputs > 1, "model", "has one output", "give a classifier of at least two classes")
    require(0 <= target < classes, "target", f"is {target}", f"give a label from 0 to {classes - 1}")


def honest_module(task: Task) -> nn.Module:
    """A copy of the task's model with the task's own values; what is frozen stays frozen."""
    module = copy.deepcopy(task.module)
    values = {**task.parameters, **task.buffers}
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            tensor.copy_(values[name])
    return module


def linear(before: int, after: int, task: Task, generator: torch.Generator, scale: float = 1.0) -> nn.Linear:
    """Weights N(0, scale²/before) from `generator` in the task's dtype and on its device, biases zero."""
    like = next(iter(task.parameters.values()))
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, before, after, device=like.device, dtype=like.dtype)
    drawn = torch.randn((after, before), generator=generator) * (scale / math.sqrt(before))
    with torch.no_grad():
        layer.weight.copy_(drawn)
        layer.bias.zero_()
    return layer


def rebuilt(task: Task, module: nn.Module, name: str) -> Task:
    """The task with another architecture around the same data format, mode and loss."""
    with torch.random.fork_rng(devices=[]):  # a model with dropout draws when it is tried out
        made = task.of_module(module, name=f"{name}({task.name})")
    return replace(made, stochastic=task.stochastic)


class Front(nn.Module):
    """x ↦ model(x + back(relu(first(x)))): a residual block on the flattened model input."""

    def __init__(self, first: nn.Linear, back: nn.Linear, model: nn.Module) -> None:
        super().__init__()
        self.first, self.back, self.model = first, back, model

    def forward(self, x: Float[Tensor, "n *shape"]) -> Float[Tensor, "n outputs"]:
        moved: Tensor = self.back(self.first(x.flatten(1)).relu())
        return self.model(x + moved.view_as(x))  # type: ignore[no-any-return]


def fronted(task: Task, rows: int, name: str, generator: torch.Generator) -> Task:
    """The task behind a `Front` of `rows` units, random as yet; its way back is small."""
    d = math.prod(task.data.shape)
    first, back = linear(d, rows, task, generator), linear(rows, d, task, generator, 0.1)
    return rebuilt(task, Front(first, back, honest_module(task)), name)


HINT = "use a fully connected model (mlp), or a server that changes the architecture (imprint-block, linear-first)"


def relu_pair(task: Task, generator: torch.Generator) -> tuple[LinearLayer, LinearLayer]:
    """The first such pair. What reaches the second layer is compared with the ReLU of what leaves the first.

    Raises:
        InputError: no linear layer with bias reads the input, or none of those is followed by ReLU and a linear layer.
    """
    with torch.random.fork_rng(devices=[]):
        firsts = [layer for layer in input_layers(task, generator) if layer.bias is not None]
        if not firsts:
            raise InputError("model", "has no linear layer with bias that reads the input", HINT)
        for first in firsts:
            second = _behind_relu(task, first, generator)
            if second is not None:
                return first, second
    raise InputError(
        "model", f"has no ReLU and second linear layer behind '{firsts[0].name}', which reads the input", HINT
    )


def _behind_relu(task: Task, first: LinearLayer, generator: torch.Generator) -> LinearLayer | None:
    assert first.bias is not None
    like = task.parameters[first.bias]
    uniform = torch.rand((2, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    raw = task.data.low + task.data.range * uniform
    # Half of the units below zero and half above, or an identity would pass for a ReLU.
    answers = task.data.normalise(raw).flatten(1) @ task.parameters[first.weight].T
    centred = {**task.parameters, first.bias: -answers.mean(0)}
    seen = linear_inputs(task, centred, raw)
    wanted = (answers - answers.mean(0)).relu()

    def follows(layer: LinearLayer) -> bool:
        got = seen.get(layer.name)
        return got is not None and got.shape == wanted.shape and bool(torch.allclose(got, wanted, atol=1e-6))

    return next((layer for layer in linear_layers(task) if follows(layer)), None)
