"""The layer that makes the logits, found by what it computes; and what enters it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.labels.strategy import Unknown
from leakgauge.defenses.precode import mean_draws
from leakgauge.observation import Observation
from leakgauge.task import Task
from leakgauge.tensors import Tensors


@dataclass(frozen=True, eq=False)
class Classifier:
    """An `nn.Linear` whose output is the model's output.

    Attributes:
        name: of the module.
        weight, bias: parameter names in the update; `bias` is `None` for a layer without one.
    """

    name: str
    weight: str
    bias: str | None

    def of(self, tensors: Tensors) -> tuple[Float[Tensor, "outputs features"], Float[Tensor, " outputs"] | None]:
        """Weight and bias out of named tensors, in float64 on the CPU."""
        bias = None if self.bias is None else tensors[self.bias].detach().cpu().double()
        return tensors[self.weight].detach().cpu().double(), bias

    def features(
        self, task: Task, inputs: Float[Tensor, "n *shape"]
    ) -> tuple[Float[Tensor, "n features"], Float[Tensor, "n outputs"]]:
        """What enters the layer for raw inputs, and the logits; in the task's own precision."""
        calm = without_dropout(task)
        calls: list[Tensor] = []
        layer = calm.module.get_submodule(self.name)
        layer.register_forward_pre_hook(lambda _, args: calls.append(args[0]))
        logits, _ = calm.logits(calm.parameters, calm.buffers, inputs)
        return calls[-1], logits


def without_dropout(task: Task) -> Task:
    """The same task on a module of its own with dropout off and bottlenecks at their mean: nothing is drawn."""
    module = copy.deepcopy(task.module)
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    return replace(task, module=module, buffers={**task.buffers, **mean_draws(task)}, stochastic=False)


def find_classifier(observation: Observation) -> Classifier | Unknown:
    """The linear layer that makes the logits, by type and by comparing outputs on a probe, never by position.

    Known failure: a model that ends in anything else (log-soft-max, a convolution, a weight-normalised or
    scaled product) has no such layer, and an adapter-only or frozen head sends no gradient of it.
    """
    task = observation.task
    calm = without_dropout(task)
    outputs: list[tuple[str, Tensor]] = []

    def record(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda _module, _args, out: outputs.append((name, out))

    for name, part in calm.module.named_modules():
        if isinstance(part, nn.Linear):
            part.register_forward_hook(record(name))
    low, high = task.data.low, task.data.high
    probe = torch.linspace(low, high, 2 * max(1, torch.Size(task.data.shape).numel())).view(2, *task.data.shape)
    with torch.no_grad():
        logits, _ = calm.logits(calm.parameters, calm.buffers, probe.to(next(iter(task.parameters.values()))))
    found = [name for name, out in outputs if out.shape == logits.shape and torch.equal(out, logits)]
    if not found:
        return Unknown("no nn.Linear of the model makes its logits, so there is no classifier gradient to read")
    layer = calm.module.get_submodule(found[-1])
    prefix = f"{found[-1]}." if found[-1] else ""
    weight, bias = f"{prefix}weight", None if layer.bias is None else f"{prefix}bias"
    missing = [n for n in (weight, bias) if n is not None and n not in observation.update.tensors]
    if missing:
        return Unknown(f"the update does not carry {', '.join(missing)}; is the classifier frozen?")
    return Classifier(found[-1], weight, bias)
