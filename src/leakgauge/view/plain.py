"""A network that computes the same with linear layers as modules of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from leakgauge.batch import DataSpec
from leakgauge.task import cross_entropy
from leakgauge.tensors import Tensors
from leakgauge.view.axes import shape_of
from leakgauge.view.graph import Graph
from leakgauge.view.layer import Effective
from leakgauge.view.trace import Instead, operation

__all__ = ["PlainNetwork"]


class PlainNetwork(nn.Module):
    """The traced forward pass with layers in the place of what they come to; all else runs as it was traced.

    Attributes:
        gone: parameters of the original that it has no more.
    """

    def __init__(self, graph: Graph, layers: tuple[Effective, ...], data: DataSpec) -> None:
        """
        Args:
            data: the format of what it is called with.
        """
        super().__init__()
        self.shared = _Shared(graph, data, {_name(graph, layer): layer for layer in layers})
        self.gone = frozenset(name for layer in layers for name in layer.parameters)
        like = next(iter(graph.task.parameters.values()))
        for name, layer in self.shared.layers.items():
            tensors = {key: value.to(like).contiguous() for key, value in _tensors(layer).items()}
            _place(self, name, tensors.pop("weight"), tensors.pop("bias", None))
            for key, value in tensors.items():
                _hold(self, f"{name}_{key}", value, False)
        for name, value in graph.task.parameters.items():
            if name not in self.gone:
                _hold(self, name, value, True)
        for name, value in graph.task.buffers.items():
            _hold(self, name, value, False)

    def forward(self, x: Tensor) -> Tensor:
        graph, data = self.shared.graph, self.shared.data
        layers, kind = self.shared.layers, x.dtype if x.is_floating_point() else next(self.parameters()).dtype
        if data is not graph.task.data and all(layer.given != (graph.inputs,) for layer in layers.values()):
            x = _reformatted(x, data, graph.task.data)
        held = {f"p:{k}": v for k, v in self.named_parameters()} | {f"b:{k}": v for k, v in self.named_buffers()}
        given = {node: held[key] for key, node in graph.trace.nodes.items() if key in held}
        given |= {graph.trace.nodes["inputs"]: x, graph.inputs: x}
        instead = {layer.output: Instead(layer.given, self._layer(name)) for name, layer in layers.items()}
        end = cast(fx.Node, graph.trace.outputs)
        if operation(end) == "_log_softmax" and graph.task.loss is cross_entropy:  # which takes it again, to no effect
            end = cast(fx.Node, end.args[0])
        return graph.trace.run([end], given, len(x), kind, instead)[0]

    def tensors(self, sent: Tensors) -> Tensors:
        """Tensors of an update of the original as they would be of this one."""
        found = {k: t for k, t in sent.items() if k not in self.gone}
        for name, layer in self.shared.layers.items():
            gradient, like = layer.solved(sent), sent[layer.used[0]]
            gradient = gradient if layer.rows is None else layer.rows.to(gradient.device) @ gradient
            found[f"{name}.weight"] = gradient[:, :-1].to(like).contiguous()
            if layer.moves:
                found[f"{name}.bias"] = gradient[:, -1].to(like).contiguous()
        return found

    def _layer(self, name: str) -> Any:
        held, shape = dict(self.named_buffers()), shape_of(self.shared.layers[name].output)[1:]

        def layer(*given: Tensor) -> Tensor:
            h = torch.cat([g.flatten(1) for g in given], 1)
            out = self.get_submodule(name)(h)
            if f"{name}_rows" in held:
                out = out @ held[f"{name}_rows"] + h @ held[f"{name}_rest"].T
            out = out + held[f"{name}_shift"] if f"{name}_shift" in held else out
            return cast(Tensor, out.unflatten(1, shape))

        return layer


@dataclass(frozen=True, eq=False)
class _Shared:
    """What copies of a network have together."""

    graph: Graph
    data: DataSpec
    layers: dict[str, Effective]

    def __deepcopy__(self, memo: object) -> _Shared:
        return self


def _name(graph: Graph, layer: Effective) -> str:
    """Where a layer is held: at the user's own name of the module, or of the weight."""
    owners, shared = [name.split(".")[:-1] for name in layer.parameters], list[str]()
    for parts in zip(*owners, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    largest = max(layer.used, key=lambda name: graph.task.parameters[name].numel())
    found = ".".join(shared) or largest.removesuffix(".weight")
    taken = {*graph.task.parameters, *graph.task.buffers} - set(layer.parameters)
    inside = any(name.startswith(f"{found}.") for name in taken)
    return largest.replace(".", "_") if inside else found


def _tensors(layer: Effective) -> Tensors:
    """What stands for a layer. Of one that is determined in part that part trains, and the rest stays."""
    weight, bias, shift, found = layer.weight, layer.bias, layer.bias, dict[str, Tensor]()
    if layer.rows is not None:
        weight, bias = layer.rows @ weight, layer.rows @ bias
        found = {"rows": layer.rows, "rest": layer.weight - layer.rows.T @ weight}
        shift = shift - layer.rows.T @ bias * layer.moves
    if layer.moves:
        found["bias"] = bias
    if (not layer.moves or layer.rows is not None) and bool(shift.any()):
        found["shift"] = shift
    return {**found, "weight": weight}


def _reformatted(x: Tensor, now: DataSpec, before: DataSpec) -> Tensor:
    """Normalised in one way what was in another."""

    def each(values: tuple[float, ...]) -> Tensor:
        return x.new_tensor(values).view(-1, *([1] * (x.ndim - 2)))

    return (x * each(now.std) + each(now.mean) - each(before.mean)) / each(before.std)


def _owner(root: nn.Module, path: list[str]) -> nn.Module:
    for part in path:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    return root


def _place(root: nn.Module, name: str, weight: Tensor, bias: Tensor | None) -> None:
    linear = nn.Linear(weight.shape[1], len(weight), bias=bias is not None)
    linear.weight.data = weight
    if bias is not None:
        linear.bias.data = bias
    *path, last = name.split(".")
    _owner(root, path).add_module(last, linear)


def _hold(root: nn.Module, name: str, value: Tensor, trained: bool) -> None:
    *path, last = name.split(".")
    if trained:
        _owner(root, path).register_parameter(last, nn.Parameter(value.detach().clone()))
    else:
        _owner(root, path).register_buffer(last, value.detach().clone())
