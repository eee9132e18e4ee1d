"""The products of a forward pass with one of the model's parameters, however they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.tracing import linear_layers

__all__ = ["LOOKUPS", "PRODUCTS", "SUMS", "Product", "Trace", "alike", "products_of", "tensors_of"]

Function = Callable[..., Any]
_PRODUCTS: tuple[Function, ...] = (
    *(F.linear, torch.matmul, torch.mm, torch.addmm, torch.einsum, F.conv1d, F.conv2d, F.conv3d),
    *(Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, Tensor.mm, Tensor.addmm),
)
_SUMS: tuple[Function, ...] = (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
_LOOKUPS: tuple[Function, ...] = (F.embedding, torch.embedding, torch.index_select, Tensor.index_select)
LOOKUPS = frozenset((*_LOOKUPS, Tensor.__getitem__))
PRODUCTS, SUMS = frozenset(_PRODUCTS), frozenset(_SUMS)
ALIKE = 1e-4
"""What a layer is given or answers agrees to so much of its largest entry."""


@dataclass(frozen=True, eq=False)
class Product:
    """A call that multiplies by one parameter, or looks rows of one up.

    Attributes:
        index: among all products and lookups of a forward pass.
        given: which of its tensors is not the parameter.
        weight, bias: the parameters' names; `bias` is `None` where none is added.
        transposed: the parameter is the transpose of an `nn.Linear`'s weight.
        flat: it takes all numbers of an example together, else those along the last axis.
        answer: shape of what it answers to one example.
        plain: an `nn.Linear` or `nn.Embedding` called it.
        added: a later call adds the bias.
        order: where the example has each number that the layer is given, or the rows of a table in the order of its
            tokens; `None` where they are in order.
        table: it looks rows up.
        hot: it does so by a product with vectors of zeros and one 1.
        padding: the row that has no gradient; `None` where each has.
    """

    index: int
    given: int
    weight: str
    bias: str | None
    transposed: bool
    flat: bool
    answer: tuple[int, ...]
    plain: bool
    added: bool = False
    order: Tensor | None = None
    table: bool = False
    hot: bool = False
    padding: int | None = None

    def matrix(self, tensor: Tensor) -> Float[Tensor, "o i"]:
        """The weight of an `nn.Linear` or `nn.Embedding` that does the same."""
        found = tensor.t() if self.transposed else tensor.flatten(1)
        if self.order is None:
            return found
        return found[self.order.to(tensor.device)] if self.table else found[:, self.order.argsort().to(tensor.device)]


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, object]) -> list[Tensor]:
    """All tensors of a call in order, those in lists too."""
    nested = [v for a in (*args, *kwargs.values()) for v in (a if isinstance(a, tuple | list) else (a,))]
    return [v for v in nested if isinstance(v, Tensor)]


@dataclass(eq=False)
class Trace:
    """What a forward pass showed: products, what each was given, and the answer that still waits for its bias."""

    products: list[Product]
    reached: list[Float[Tensor, "n i"]]
    waits: Tensor | None = None
    count: int = 0
    inside: int = 0


class Products(TorchFunctionMode):
    """Finds the products of a forward pass."""

    def __init__(self, parameters: Tensors, examples: int) -> None:
        super().__init__()
        self.names = {t.untyped_storage().data_ptr(): n for n, t in parameters.items() if t.numel() > 0}
        self.parameters, self.examples, self.trace = parameters, examples, Trace([], [])

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Any:
        del types
        kwargs, trace = kwargs or {}, self.trace
        tensors = tensors_of(args, kwargs)
        if func in SUMS and len(tensors) == 2 and any(t is trace.waits for t in tensors):
            self._add(next((t for t in tensors if t is not trace.waits), tensors[0]))
        out = func(*args, **kwargs)
        if func in PRODUCTS or func in LOOKUPS:
            found = self._product(tensors, out) if func in PRODUCTS else self._lookup(tensors, out, args, kwargs)
            if found is not None:
                trace.products.append(found[0])
                trace.reached.append(found[1])
                trace.waits = out if found[0].bias is None and not found[0].table else None
            trace.count += 1
        return out

    def _name(self, tensor: Tensor) -> str | None:
        name = self.names.get(tensor.untyped_storage().data_ptr())
        return name if name is not None and self.parameters[name].numel() == tensor.numel() else None

    def _add(self, bias: Tensor) -> None:
        p, name, self.trace.waits = self.trace.products[-1], self._name(bias), None
        if name is not None and not p.flat and tuple(bias.shape) in {p.answer[-1:], (1, *p.answer[-1:])}:
            self.trace.products[-1] = replace(p, bias=name, added=True)

    def _product(self, tensors: list[Tensor], out: Tensor) -> tuple[Product, Tensor] | None:
        names = [self._name(t) for t in tensors]
        held = {len(self.parameters[n].shape) > 1: n for n in names if n is not None}  # a weight, and maybe a bias
        if len(names) - names.count(None) != len(held) or names.count(None) != 1 or True not in held:
            return None
        given = names.index(None)
        x, weight, name = tensors[given], self.parameters[held[True]], held.get(False)
        bias = None if name is None else self.parameters[name]
        if x.ndim < 2 or len(x) != self.examples or len(out) != self.examples:
            return None
        for transposed, flat in ((False, False), (True, False), (False, True), (True, True)):
            p = Product(
                self.trace.count, given, held[True], name, transposed, flat, tuple(out.shape[1:]), self.trace.inside > 0
            )
            z = x.flatten(1) if flat else x
            if (transposed and weight.ndim > 2) or z.shape[-1] != p.matrix(weight).shape[1]:
                continue
            answer = F.linear(z, p.matrix(weight), bias)
            same = answer.numel() == out.numel() if flat else answer.shape == out.shape
            if same and alike(answer.flatten(), out.flatten()):
                hot = name is None and z.ndim > 2 and bool(((z == 0) | (z == 1)).all() and (z.sum(-1) == 1).all())
                return replace(p, transposed=not transposed, table=True, hot=True) if hot else p, z
        return None

    def _lookup(
        self, tensors: list[Tensor], out: Tensor, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[Product, Tensor] | None:
        names = [self._name(t) for t in tensors]
        if len(names) != 2 or names.count(None) != 1 or kwargs.get("max_norm") is not None:
            return None
        given, name = names.index(None), names[0] or names[1] or ""
        weight, ids = self.parameters[name], tensors[given]
        if weight.ndim != 2 or ids.dtype not in (torch.int64, torch.int32) or not torch.equal(weight[ids], out):
            return None
        padding = kwargs.get("padding_idx", args[2] if given == 0 and len(args) > 2 else None)
        held = padding if isinstance(padding, int) and padding >= 0 else None
        plain = self.trace.inside > 0
        return Product(self.trace.count, given, name, None, False, False, (), plain, table=True, padding=held), ids


def alike(a: Tensor, b: Tensor, share: float = ALIKE) -> bool:
    return bool((a - b).abs().max() <= share * torch.maximum(a.abs().max(), b.abs().max()))


@contextmanager
def _counted(task: Task, trace: Trace) -> Iterator[None]:
    """Notes while an `nn.Linear` or `nn.Embedding` is running."""

    def enter(_module: nn.Module, _given: object) -> None:
        trace.inside += 1

    def leave(_module: nn.Module, _given: object, _out: object) -> None:
        trace.inside -= 1

    layers = [task.module.get_submodule(layer.name) for layer in linear_layers(task)]
    layers += [m for m in task.module.modules() if isinstance(m, nn.Embedding)]
    handles = [h for m in layers for h in (m.register_forward_pre_hook(enter), m.register_forward_hook(leave))]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def products_of(task: Task, raw: Float[Tensor, "n *shape"]) -> Trace:
    """All products where raw examples go through the model."""
    traced = Products(task.parameters, len(raw))
    with torch.no_grad(), _counted(task, traced.trace), traced:
        task.logits(task.parameters, task.buffers, raw)
    return traced.trace
