"""One way to look inside a network: its linear layers, their inputs, its curvature."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.defenses.representations import bottlenecks, draw_buffer
from leakgauge.step.training import inputs_of
from leakgauge.task import Batch, Mode, Task
from leakgauge.tensors import Tensors


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer by its parameters' names in the update; `bias` is `None` where it has none."""

    name: str
    weight: str
    bias: str | None

    def of(self, tensors: Tensors) -> tuple[Float[Tensor, "outputs features"], Float[Tensor, " outputs"] | None]:
        """Weight and bias out of named tensors, in float64 on the CPU."""
        bias = None if self.bias is None else tensors[self.bias].detach().cpu().double()
        return tensors[self.weight].detach().cpu().double(), bias

    def entered(self, tensors: Tensors) -> Float[Tensor, "1 features"] | None:
        """What an only example put into the layer, by its gradient's rows: Σ b_i·W_i ÷ Σ b_i². `None` without a bias
        that moved."""
        weight, bias = self.of(tensors)
        return None if bias is None or not bool(bias.any()) else (bias @ weight)[None] / bias.square().sum()

    def features(self, task: Task, inputs: Float[Tensor, "n *shape"]) -> Float[Tensor, "n features"]:
        """What enters the layer for raw inputs, in float64 on the CPU."""
        calm = without_dropout(task)
        with torch.no_grad(), inputs_of(calm.module, [self.name]) as given:
            calm.logits(calm.parameters, calm.buffers, inputs)
        return given[self.name].cpu().double()


def without_dropout(task: Task) -> Task:
    """The same task on a module of its own with dropout off and bottlenecks at their mean: nothing is drawn."""
    module = task.module_copy()
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.eval()
    still = {draw_buffer(name): next(iter(task.parameters.values())).new_zeros(1) for name in bottlenecks(task)}
    return replace(task, module=module, buffers={**task.buffers, **still}, stochastic=False)


def linear_layers(task: Task) -> list[LinearLayer]:
    """All `nn.Linear` layers whose weight the update carries."""
    found = []
    for name, module in task.module.named_modules():
        weight, bias = (f"{name}.{kind}" if name else kind for kind in ("weight", "bias"))
        if isinstance(module, nn.Linear) and weight in task.parameters:
            found.append(LinearLayer(name, weight, bias if bias in task.parameters else None))
    return found


def input_layers(task: Task, generator: torch.Generator, sent: Tensors | None = None) -> list[LinearLayer]:
    """Linear layers that receive the flattened model input itself; of an update's, those that it moved first.

    A random probe is sent through the model: a layer qualifies when what reaches it is the probe, to rounding.
    """
    like = next(iter(task.parameters.values()))
    probe = torch.rand((2, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    raw = task.data.low + task.data.range * probe
    flat = task.data.normalise(raw).flatten(1)
    rounding = 1e-5 * float(flat.abs().max())
    with torch.no_grad(), inputs_of(task.module, [layer.name for layer in linear_layers(task)]) as reached:
        task.passed(task.parameters, task.buffers, raw)
    same = {k for k, got in reached.items() if got.shape == flat.shape and torch.allclose(got, flat, atol=rounding)}
    found = [layer for layer in linear_layers(task) if layer.name in same]
    return found if sent is None else sorted(found, key=lambda layer: not bool(sent[layer.weight].any()))


EXAMPLES, ENTRIES = 8, 8 * 3 * 32 * 32
"""Random examples that curvature is measured on, and most input values: fewer examples where one is large."""
STEP = 1e-2  # of a finite difference, in shares of the data's range
KINKED = 0.1
"""Relative gap of the curvature, at most 1e-2 of sigmoid and tanh networks, and of order one behind ReLU and max-pool:
the finite difference crosses their kinks, which the derivative does not see."""


def is_smooth(task: Task, generator: torch.Generator) -> bool:
    """Whether quasi-Newton methods may trust the network's curvature: the derivative of the input gradient along a
    direction is its finite difference.

    A network with dropout in train mode is not: its loss changes from call to call. One that only adds noise to its
    features (a variational bottleneck) is measured at a fixed draw, as simulations hold it.
    """
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 and m.training for m in task.module.modules()):
        return False
    task = task.to(torch.empty((), dtype=torch.float64))
    least = 2 if task.mode is Mode.TRAIN else 1  # BatchNorm in train mode refuses one
    shape = (max(least, min(EXAMPLES, ENTRIES // math.prod(task.data.shape))), *task.data.shape)
    x = task.data.low + task.data.range * torch.rand(shape, generator=generator, dtype=torch.float64)
    labels = torch.randint(task.data.classes, shape[:1], generator=generator)
    direction = torch.randn(shape, generator=generator, dtype=torch.float64) * task.data.range
    room = STEP * direction.abs()  # what looks categories up takes nothing beyond the range
    x = torch.minimum(torch.maximum(x, task.data.low + room), task.data.high - room)

    def loss(inputs: Tensor) -> Tensor:
        model = torch.Generator().manual_seed(0) if task.stochastic else None
        return task(task.parameters, task.buffers, Batch(inputs, labels), model)[0]

    def slope(value: Tensor, *, again: bool = False) -> Tensor:
        if not value.requires_grad:
            return torch.zeros_like(x)
        return torch.autograd.grad(value, x, create_graph=again, materialize_grads=True)[0]

    x.requires_grad_()
    with torch.enable_grad():  # torch.func does not take functions of a user's own
        exact = slope((slope(loss(x), again=True) * direction).sum())
        ahead, behind = (slope(loss(x + step * direction)) for step in (STEP, -STEP))
    measured = (ahead - behind) / (2 * STEP)
    scale = torch.maximum(exact.norm(), measured.norm()).clamp_min(1e-30)
    return float((exact - measured).norm() / scale) < KINKED
