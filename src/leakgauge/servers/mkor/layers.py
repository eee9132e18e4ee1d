"""A traced network: what its nodes compute, and its convolutions as a chain up to the first linear layer."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.proxy import TraceError

from leakgauge.errors import InputError, require
from leakgauge.task import Task

FIT = "give a chain of convolutions, max-pools and linear layers with ReLUs between them, such as vgg16"


class Plain(Enum):
    """Operations without numbers."""

    RELU = "relu"
    SMOOTH = "sigmoid or tanh"
    IDENTITY = "identity"


@dataclass(frozen=True)
class MaxPool:
    """Max-pool; `side` of the square where it equals the stride and nothing is padded or rounded up, else `None`."""

    side: int | None

    @staticmethod
    def of(
        kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: Any = False
    ) -> MaxPool:
        """As torch is told: each argument one number or a pair."""
        sides = {kernel_size} if isinstance(kernel_size, int) else set(kernel_size)
        strides = {stride} if isinstance(stride, int) else set(stride or sides)
        ordinary = padding in (0, (0, 0)) and dilation in (1, (1, 1)) and not ceil_mode
        return MaxPool(int(sides.pop()) if len(sides) == 1 and strides == sides and ordinary else None)


@dataclass(frozen=True)
class Average:
    """Adaptive average pooling to an output size: one number or a pair, `None` keeps."""

    output: Any

    def target(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns that it makes of `size`."""
        rows, columns = (self.output, self.output) if isinstance(self.output, int | None) else self.output
        return (size[0] if rows is None else rows, size[1] if columns is None else columns)


@dataclass(frozen=True)
class Drop:
    """Dropout with its probability in the present mode."""

    probability: float


@dataclass(frozen=True)
class Flatten:
    """From one axis to another."""

    start: Any = 0
    end: Any = -1


@dataclass(frozen=True)
class Reshape:
    """To these sizes; a size may be a node."""

    sizes: tuple[Any, ...]


Operation = Plain | MaxPool | Average | Drop | Flatten | Reshape

_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_RELU = (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_")
_SMOOTH = (torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, "sigmoid", "tanh")


def is_size(node: fx.Node) -> bool:
    """Whether the node asks for a shape, or picks a number from one."""
    if node.op == "call_method" and node.target == "size":
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] == "shape"
    return node.target is operator.getitem and isinstance(node.args[0], fx.Node) and is_size(node.args[0])


def of_module(module: nn.Module) -> Operation | None:
    """What a module without parameters computes; `None` where it is none of these."""
    match module:
        case nn.ReLU():
            return Plain.RELU
        case nn.Sigmoid() | nn.Tanh():
            return Plain.SMOOTH
        case nn.MaxPool2d():
            return MaxPool.of(*(getattr(module, name) for name in _MAX_POOL))
        case nn.AdaptiveAvgPool2d():
            return Average(module.output_size)
        case nn.modules.dropout._DropoutNd():
            return Drop(module.p if module.training else 0.0)
        case nn.Flatten():
            return Flatten(module.start_dim, module.end_dim)
        case nn.Identity():
            return Plain.IDENTITY
    return None


def of_call(node: fx.Node) -> Operation | None:
    """What a function or method call computes; `None` where it is none of these."""
    given, named = node.args[1:], dict(node.kwargs)
    if node.target in _RELU:
        return Plain.RELU
    if node.target in _SMOOTH:
        return Plain.SMOOTH
    if node.target == "contiguous":
        return Plain.IDENTITY
    if node.target in (torch.flatten, "flatten"):
        named |= dict(zip(("start_dim", "end_dim"), given, strict=False))
        return Flatten(named.get("start_dim", 0), named.get("end_dim", -1))
    if node.target in (torch.reshape, "reshape", "view"):
        return Reshape(tuple(given[0]) if len(given) == 1 and isinstance(given[0], tuple | list) else tuple(given))
    if node.target in (F.dropout, F.dropout1d, F.dropout2d):
        named |= dict(zip(("p", "training"), given, strict=False))
        probability: Any = named.get("p", 0.5)
        return Drop(float(probability) if named.get("training", True) else 0.0)
    if node.target is F.adaptive_avg_pool2d:
        return Average((*given, *named.values())[0])
    # F.max_pool2d is a dispatcher without a name of its own before it is traced.
    if node.target is F.max_pool2d or getattr(node.target, "__name__", "") == "max_pool2d":
        return MaxPool.of(
            **(dict(zip(_MAX_POOL, given, strict=False)) | {k: v for k, v in named.items() if k in _MAX_POOL})
        )
    return None


def traced(task: Task, hint: str) -> fx.Graph:
    """The module's graph. Raises `InputError` with that hint where there is none."""
    try:
        return fx.symbolic_trace(task.module).graph
    except (TraceError, TypeError, RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError("model", f"cannot be traced, so its layers are not known ({reason})", hint) from error


@dataclass(frozen=True, kw_only=True)
class BatchNormNames:
    """A BatchNorm between a convolution and its ReLU, by the names of its parameters and buffers.

    `weight` and `bias` are `None` without an affine part, `mean` and `var` without running statistics.
    """

    name: str
    weight: str | None
    bias: str | None
    mean: str | None
    var: str | None
    eps: float


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One convolution, and what follows it before the next.

    Attributes:
        name, weight, bias: the module and its parameters; `bias` is `None` where it has none.
        inputs, outputs: channels.
        kernel: odd side of the square kernel; the convolution has stride 1 and keeps the spatial size.
        padding_mode: ``zeros`` or ``replicate``.
        size: rows and columns that the convolution sees.
        norm: a BatchNorm between the convolution and the ReLU.
        relu: whether a ReLU follows.
        pool: side (and stride) of the max-pool that follows, 1 for none.
        dropout: probability of a dropout that follows in the task's mode, 0 for none.
    """

    name: str
    weight: str
    bias: str | None
    inputs: int
    outputs: int
    kernel: int
    padding_mode: str
    size: tuple[int, int]
    norm: BatchNormNames | None = None
    relu: bool = False
    pool: int = 1
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Convolutions in the order of computation, up to the first linear layer.

    Attributes:
        features: the convolutions and what follows each.
        flat_shape: (c, h, w) of what is flattened, channels outermost.
        linear: name of the first linear layer; what comes after it is not looked at.
        dropout: probability of a dropout between flattening and linear layer, in the task's mode.
    """

    features: tuple[Stage, ...]
    flat_shape: tuple[int, int, int]
    linear: str
    dropout: float


def chain(task: Task) -> Chain:
    """Traces the task's module and reads it as a chain.

    Convolutions (stride 1, odd square kernel, size kept, zero or replicate padding), BatchNorm right after one,
    ReLU, max-pool (stride = side, no padding), dropout, average pooling that changes nothing at this size,
    flatten, and a linear layer, where it ends. Modules and functions count alike.

    Raises:
        InputError: the data are no images, or the graph holds anything else; names the node and why.
    """
    require(len(task.data.shape) == 3, "data", f"has examples of shape {task.data.shape}", "give images")
    channels, height, width = task.data.shape
    walk = _Walk(task, channels, (height, width))
    for node in traced(task, FIT).nodes:
        walk.step(node)
        if walk.linear is not None:
            break
    require(bool(walk.features), "model", "has no convolution before its linear layers", FIT)
    if walk.linear is None or walk.flat is None:
        raise InputError("model", "has no linear layer", FIT)
    features = tuple(walk.features)
    return Chain(features=features, flat_shape=walk.flat, linear=walk.linear, dropout=walk.dropped)


@dataclass
class _Walk:
    """Node by node; `last` is the node whose value the next one must take."""

    task: Task
    channels: int
    size: tuple[int, int]
    features: list[Stage] = field(default_factory=list)
    flat: tuple[int, int, int] | None = None
    linear: str | None = None
    last: fx.Node | None = None
    dropped: float = 0.0

    def step(self, node: fx.Node) -> None:
        """Reads one node; a size that is asked for is no layer, and is passed over."""
        if node.op == "placeholder":
            self._require(self.last is None, node, "is a second input")
            self.last = node
            return
        if is_size(node):
            return
        sources = [source for source in node.all_input_nodes if not is_size(source)]
        self._require(sources == [self.last], node, "does not take the output of the layer before it alone")
        if node.op != "output":
            self._read(node)
        self.last = node

    def _read(self, node: fx.Node) -> None:
        if node.op == "call_module":
            name = str(node.target)
            self._require(name not in {stage.name for stage in self.features}, node, "is used twice")
            found: nn.Module | Operation | None = self.task.module.get_submodule(name)
            if not isinstance(found, nn.Conv2d | nn.BatchNorm2d | nn.Linear):
                found = of_module(found) if isinstance(found, nn.Module) else None
        else:
            name, found = "", of_call(node)
        match found:
            case nn.Conv2d():
                self._conv(node, name, found)
            case nn.BatchNorm2d():
                self._norm(node, name, found)
            case nn.Linear():
                self._require(self.flat is not None, node, "is linear in the last axis of an image")
                self.linear = name
            case Plain.RELU:
                self.features[-1] = replace(self._stage(node), relu=True)
            case MaxPool(side):
                self._pool(node, side)
            case Average():
                target = found.target(self.size)
                problem = f"averages {self.size} to {target}, and only the identity can be inverted"
                self._require(self.flat is None and target == self.size, node, problem)
            case Drop(probability):
                self._drop(node, probability)
            case Flatten(start, end):
                self._flatten(node, start == 1 and end in (-1, 3))
            case Reshape(sizes):
                self._flatten(node, sizes[1:] in ((-1,), (self.channels * self.size[0] * self.size[1],)))
            case _:
                raise self._refusal(node, "is not one of the layers that the construction passes through")

    def _conv(self, node: fx.Node, name: str, conv: nn.Conv2d) -> None:
        self._require(self.flat is None, node, "is a convolution after the flattening")
        if self.features:
            self._require(self.features[-1].relu, node, f"follows {self.features[-1].name} without a ReLU between")
        kernel = conv.kernel_size[0]
        self._require(conv.stride == (1, 1), node, f"has stride {conv.stride}")
        self._require(conv.dilation == (1, 1) and conv.groups == 1, node, "is dilated or grouped")
        self._require(conv.kernel_size == (kernel, kernel) and kernel % 2 == 1, node, "has no odd square kernel")
        half = kernel // 2
        self._require(conv.padding in ("same", (half, half)), node, "does not keep the spatial size")
        self._require(conv.padding_mode in ("zeros", "replicate"), node, f"pads with {conv.padding_mode}")
        self.features.append(
            Stage(
                name=name,
                weight=self._own(node, name, "weight", conv.weight) or "",
                bias=self._own(node, name, "bias", conv.bias),
                inputs=conv.in_channels,
                outputs=conv.out_channels,
                kernel=kernel,
                padding_mode=conv.padding_mode,
                size=self.size,
            )
        )
        self.channels = conv.out_channels

    def _norm(self, node: fx.Node, name: str, norm: nn.BatchNorm2d) -> None:
        stage = self._stage(node)
        fresh = not stage.relu and stage.pool == 1 and stage.norm is None and stage.dropout == 0
        self._require(fresh, node, "does not directly follow a convolution")
        weight, bias, mean, var = (
            self._own(node, name, part, getattr(norm, part))
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        found = BatchNormNames(name=name, weight=weight, bias=bias, mean=mean, var=var, eps=norm.eps)
        self.features[-1] = replace(stage, norm=found)

    def _pool(self, node: fx.Node, side: int | None) -> None:
        stage = self._stage(node)
        self._require(self.flat is None, node, "pools a flat input")
        if side is None:
            raise self._refusal(node, "overlaps, pads or rounds up")
        self.features[-1] = replace(stage, pool=stage.pool * side)
        self.size = (self.size[0] // side, self.size[1] // side)

    def _drop(self, node: fx.Node, probability: float) -> None:
        stage = self._stage(node)
        if self.flat is None:
            self.features[-1] = replace(stage, dropout=1 - (1 - stage.dropout) * (1 - probability))
        else:
            self.dropped = 1 - (1 - self.dropped) * (1 - probability)

    def _flatten(self, node: fx.Node, whole: bool) -> None:
        self._stage(node)
        self._require(whole, node, "does not flatten all axes but the first")
        if self.flat is None:
            self.flat = (self.channels, *self.size)

    def _stage(self, node: fx.Node) -> Stage:
        self._require(bool(self.features), node, "comes before the first convolution")
        return self.features[-1]

    def _own(self, node: fx.Node, name: str, part: str, tensor: object) -> str | None:
        if tensor is None:
            return None
        full = f"{name}.{part}" if name else part
        known = full in self.task.parameters or full in self.task.buffers
        self._require(known, node, f"computes its {part} from other parameters, so it cannot be set")
        return full

    def _require(self, condition: bool, node: fx.Node, problem: str) -> None:
        if not condition:
            raise self._refusal(node, problem)

    def _refusal(self, node: fx.Node, problem: str) -> InputError:
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        kind = ""
        if node.op == "call_module":
            kind = f" ({type(self.task.module.get_submodule(str(node.target))).__name__})"
        return InputError("model", f"layer '{target}'{kind} {problem}", FIT)
