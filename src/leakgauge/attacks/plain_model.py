"""The same model in plainer words, where there are some: reads know `nn.Linear`, and many modules come to one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import grad
from torch.overrides import TorchFunctionMode

from leakgauge.attacks.products import LOOKUPS, PRODUCTS, SUMS, Product, Trace, alike, products_of, tensors_of
from leakgauge.defenses import (
    parts_of,
    steps_of,
)
from leakgauge.errors import FOREIGN
from leakgauge.observation import Observation
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.tensors import Tensors
from leakgauge.tracing import tokens_given
from leakgauge.update import Update

__all__ = ["PlainModel", "plain_model", "plain_task"]

CLOSE = 1e-3
"""Gradients of both models agree to so much of their largest entry."""

DRAWN = 4
"""Forward passes of a model that draws at random, which must call the same layers in the same order."""


def plain_model(observation: Observation) -> Observation:
    """An observation of the same client, whose model calls an `nn.Linear` wherever it multiplies by a parameter, and an
    `nn.Embedding` wherever it looks rows of one up.

    ``F.linear``, matrix products, ``einsum``, a linear module of one's own and a convolution over all of its input
    become `nn.Linear`. Where what the first such layer reads is the input shifted and scaled, channel by channel, or in
    another order, the data format takes that over, so that the layer reads the input itself. Names and shapes of the
    update follow. Inputs and labels that are read mean the same.

    Proved by gradients of both models on random examples: where they differ, and behind a known defence that may go by
    names, places or layers of the update (`Step.blind`), the observation is returned as it is.
    """
    task, known = observation.task, observation.knowledge
    parts = () if known.defense is None else parts_of(known.defense)
    told = [steps_of(part) for part in parts]
    if any(known.draws is not None or not steps or not all(s.blind for s in steps) for steps in told):
        return observation
    found = plain_task(task)
    if found is None:
        return observation
    plain, products = found
    update, knowledge = observation.update, observation.knowledge
    return Observation(
        plain,
        Update(_followed(update.tensors, products), update.header, _renamed(update.buffers)),
        replace(knowledge, buffers=_renamed(knowledge.buffers)),
    )


def plain_task(task: Task) -> tuple[Task, tuple[Product, ...]] | None:
    """The plain task and the products that it replaces; `None` where there are none, or it is not the same."""
    try:
        return None if task.penalties else _rewritten(task)
    except FOREIGN:
        return None


def _renamed(buffers: Tensors | None) -> Tensors | None:
    return None if buffers is None else {f"rest.{name}": tensor for name, tensor in buffers.items()}


def _followed(tensors: Tensors, products: tuple[Product, ...]) -> Tensors:
    """Tensors of the model under the names and in the shapes of the plain one."""
    gone = {name for p in products for name in (p.weight, p.bias)}
    found = {f"rest.{name}": tensor for name, tensor in tensors.items() if name not in gone}
    for k, p in enumerate(products):
        found[f"layers.{k}.weight"] = p.matrix(tensors[p.weight]).contiguous()
        if p.bias is not None:
            found[f"layers.{k}.bias"] = tensors[p.bias].reshape(-1)
    return found


class PlainModel(nn.Module):
    """A model that calls an `nn.Linear` or `nn.Embedding` of its own in the place of some products.

    Args:
        rest: the model.
        products: to be replaced.
        tensors: its parameters.
        before, now: formats of the data that the model and this one are called with.
    """

    def __init__(
        self, rest: nn.Module, products: tuple[Product, ...], tensors: Tensors, before: DataSpec, now: DataSpec
    ) -> None:
        super().__init__()
        held = _followed(tensors, products)
        self.layers = nn.ModuleList()
        for k, p in enumerate(products):
            weight = held[f"layers.{k}.weight"]
            rows, width = weight.shape
            layer = nn.Embedding(rows, width, p.padding) if p.table else nn.Linear(width, rows, p.bias is not None)
            for name, parameter in layer.named_parameters():
                parameter.data = held[f"layers.{k}.{name}"].clone()
            self.layers.append(layer)
        self.rest = rest
        for name in {n for p in products for n in (p.weight, p.bias) if n is not None}:
            owner, _, own = name.rpartition(".")
            value, part = rest.get_parameter(name).detach(), rest.get_submodule(owner)
            delattr(part, own)
            part.__dict__[own] = value  # its code may look at it, but it is no parameter
        self.products, self.before, self.now = products, before, now

    def forward(self, x: Tensor) -> Any:
        given = x if self.now is self.before else self.before.normalise(self.now.denormalise(x))
        with _Replayed(self):
            return self.rest(given)


class _Replayed(TorchFunctionMode):
    """Calls the layers in the place of the products."""

    def __init__(self, model: PlainModel) -> None:
        super().__init__()
        self.model = model
        self.places = {p.index: k for k, p in enumerate(model.products)}
        self.count = 0
        self.biased: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, object] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in SUMS and (done := [a for a in args if any(a is b for b in self.biased)]):
            return done[0]
        if func not in PRODUCTS and func not in LOOKUPS:
            return func(*args, **kwargs)
        place, self.count = self.places.get(self.count), self.count + 1
        if place is None:
            return func(*args, **kwargs)
        p, layer = self.model.products[place], self.model.layers[place]
        given = tensors_of(args, kwargs)[p.given]
        given = given.argmax(-1) if p.hot else given.flatten(1) if p.flat else given
        if p.order is not None:
            order = p.order.argsort().to(given.device)
            given = order[given] if p.table else given[:, order]
        out: Tensor = layer(given)
        out = out.reshape(-1, *p.answer) if p.flat else out
        if p.added:
            self.biased.append(out)
        return out


def _rewritten(task: Task) -> tuple[Task, tuple[Product, ...]] | None:
    raw = _probe(task)
    with torch.random.fork_rng(devices=[]):
        traces = [products_of(task, raw) for _ in range(DRAWN if task.stochastic else 1)]
    products, data = _chosen(task, raw, traces[0])
    # What is drawn may decide which layers run: then no order of calls tells them.
    if not products or len({tuple((p.index, p.weight) for p in t.products) for t in traces}) > 1:
        return None
    rest = task.module_copy()
    for name, buffer in rest.named_buffers():
        buffer.data = task.buffers[name].clone()
    module = PlainModel(rest, products, task.parameters, task.data, data)
    plain = Task.of(module, data, mode=task.mode, loss=task.loss, name=task.name)
    return (plain, products) if _same(task, plain, raw, products) else None


def _chosen(task: Task, raw: Tensor, trace: Trace) -> tuple[tuple[Product, ...], DataSpec]:
    """Products to replace, and the format in which the first one that reads the input does."""
    found = [p for p in trace.products if not p.plain]
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in task.module.modules())
    if task.data.is_text:
        pairs = zip(trace.products, trace.reached, strict=True)
        orders = {p: order for p, ids in pairs if (order := _reserved(task, raw, p, ids)) is not None}
        return tuple(replace(p, order=orders.get(p)) for p in trace.products if p in orders or not p.plain), task.data
    if norms and task.mode is Mode.TRAIN:  # by the batch's own statistics, in no format
        return tuple(found), task.data
    for p, z in zip(trace.products, trace.reached, strict=True):
        read = None if z.ndim != 2 else _format(task.data, raw, z)
        if read is None:
            continue
        data, order = read
        if data is not task.data or order is not None:
            found = [o for o in found if o is not p] + [replace(p, order=order)]
        return tuple(found), data
    return tuple(found), task.data


def _reserved(task: Task, texts: Tensor, p: Product, ids: Tensor) -> Tensor | None:
    """The rows of an embedding in the order of the tokens, where the first ones are kept for others; else `None`."""
    count = len(task.parameters[p.weight])
    if not p.table or p.hot or p.padding is not None:
        return None
    for given in tokens_given(ids, texts.long()):
        off = int(given[0, 0] - texts[0, 0])
        if 0 < off <= count - task.data.vocabulary and torch.equal(given - off, texts.long()):
            return torch.arange(count).roll(-off)
    return None


def _probe(task: Task) -> Tensor:
    """Raw examples: of texts at random; else all low, all high, the digits of every number's place, two at random."""
    data, generator = task.data, torch.Generator().manual_seed(0)
    like = next(iter(task.parameters.values()))
    if data.is_text:
        return torch.randint(data.vocabulary, (3, *data.shape), generator=generator).to(like)
    count = math.prod(data.shape)
    place = torch.arange(count)
    digits = [(place >> digit) & 1 for digit in range(max(1, (count - 1).bit_length()))]
    ends = [torch.zeros(count), torch.ones(count), *digits, *torch.rand(2, count, generator=generator)]
    return (data.low + data.range * torch.stack([e.double() for e in ends]).view(-1, *data.shape)).to(like)


def _format(data: DataSpec, raw: Tensor, z: Float[Tensor, "n i"]) -> tuple[DataSpec, Tensor | None] | None:
    """The format in which `z` is the example itself, and the order in which it stands there (`None`: its own);
    `None` where it is something else."""
    z, raw = z.double(), raw.double()
    if z.shape != raw.flatten(1).shape:
        return None
    if alike(z, data.normalise(raw).flatten(1)):
        return data, None
    slope = (z[1] - z[0]) / data.range
    if not bool((slope > 0).all()):
        return None
    digits = (z[2:-2] - z[0]) / (z[1] - z[0])
    place = (digits.round().long() << torch.arange(len(digits), device=z.device)[:, None]).sum(0)
    if not torch.equal(place.sort().values, torch.arange(len(place), device=z.device)):
        return None
    back = place.argsort()
    std, low = 1 / slope[back], z[0][back]
    mean = data.low - low * std
    channels = [t.view(data.shape[0], -1) for t in (mean, std)]
    now = replace(data, mean=tuple(channels[0].mean(1).tolist()), std=tuple(channels[1].mean(1).tolist()))
    if not alike(z, now.normalise(raw).flatten(1)[:, place]):
        return None
    return now, None if bool((place == torch.arange(len(place), device=z.device)).all()) else place


def _same(task: Task, plain: Task, raw: Tensor, products: tuple[Product, ...]) -> bool:
    """Whether both have the same loss and the same gradient on random examples."""
    batch = Batch(raw[-2:], torch.arange(2, device=raw.device) % task.data.classes)

    def gradient(of: Task) -> Tensors:
        draws = torch.Generator().manual_seed(0)  # the same for both
        found: Tensors = grad(lambda p: of(p, of.buffers, batch, draws)[0])(of.parameters)
        return found

    one, other = _followed(gradient(task), products), gradient(plain)
    return (
        one.keys() == other.keys()
        and all(one[n].shape == other[n].shape for n in one)
        and all(alike(one[n], other[n], CLOSE) for n in one)
    )
