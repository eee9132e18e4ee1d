"""A batch of named parts and the two tensors that protocols, defences and attacks work on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from leakgauge.batch import Batch, BatchPart, DataSpec, Shape
from leakgauge.errors import InputError, require
from leakgauge.step.parts import Classes, Target
from leakgauge.tensors import map_tensors

Values = dict[str, Tensor]  # parts of a batch by name


@dataclass(frozen=True)
class Layout:
    """How named parts lie in a `Batch`: what is given to the network in `inputs`, what it is taught in `labels`.

    A single part lies there as it is. Of several inputs, or of one whose entries have ranges of their own, `inputs` is
    a row of numbers from 0 to 1, each its entry's place in its range: what holds for one tensor (searches, defences,
    scores) so holds for all parts. Of several targets `labels` is a row of raw numbers; of none it is zeros.
    """

    parts: Mapping[str, BatchPart]
    fixed: Mapping[str, Tensor]  # values of parts that both sides know, of one example; the same for all

    @staticmethod
    def of(batch: Mapping[str, BatchPart | Tensor]) -> "Layout":
        """Of the parts by name; a tensor in place of a part is `fixed`. Raises `InputError` where no part is an
        input."""
        parts = {name: part for name, part in batch.items() if not isinstance(part, Tensor)}
        odd = next((name for name, part in parts.items() if not isinstance(part, BatchPart)), None)
        hint = "give parts such as leakgauge.Image((3, 32, 32)), or a tensor of what both sides know"
        require(odd is None, f"batch.{odd}", f"is a {type(parts.get(odd or '')).__name__}", hint)
        fixed = {name: part for name, part in batch.items() if isinstance(part, Tensor)}
        made, problem = Layout(parts, fixed), "has no part that a client keeps to itself"
        require(bool(made.inputs), "batch", problem, "name what the network is given")
        return made

    @staticmethod
    def plain(data: DataSpec) -> "Layout":
        """One input called ``inputs``, and classes called ``labels``."""
        return Layout({"inputs": data, "labels": Classes(data.classes)}, {})

    @property
    def inputs(self) -> dict[str, BatchPart]:
        return {name: p for name, p in self.parts.items() if not isinstance(p, Target)}

    @property
    def targets(self) -> dict[str, Target]:
        return {name: p for name, p in self.parts.items() if isinstance(p, Target)}

    @property
    def alone(self) -> str:
        """The name of the input that lies in `Batch.inputs` as it is; empty where they are a row."""
        (name, part), *others = self.inputs.items()
        return "" if others or any(len(edge) != 1 for edge in part.edges) else name

    @property
    def of_classes(self) -> bool:
        """Whether there is one target, one class of several, or none: then every batch has the labels 0."""
        return [type(target) for target in self.targets.values()] in ([], [Classes])

    @property
    def spec(self) -> DataSpec:
        """The format of `Batch.inputs`. `classes` is how many plain targets there are, at least one."""
        classes = next((t.classes for t in self.targets.values()), 1) if len(self.targets) == 1 else 1
        if not self.alone:
            return DataSpec((sum(math.prod(p.shape) for p in self.inputs.values()),), classes)
        part = self.inputs[self.alone]
        if isinstance(part, DataSpec):
            return replace(part, classes=classes)
        (low,), (high,) = part.edges
        return DataSpec(part.shape, classes, low, high)

    def batch(self, values: Any) -> Batch:
        """Named tensors, or those of a tuple or dataclass in order, as a batch. Raises `InputError`: a part is missing,
        unknown, of another shape, not finite or outside its range."""
        if isinstance(values, Batch):
            return values
        given = _named(values, list(self.parts))
        missing, unknown = [n for n in self.parts if n not in given], [n for n in given if n not in self.parts]
        clear = not missing and not set(unknown) - set(self.fixed)
        said = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        require(clear, "batch", said, f"give {', '.join(self.parts)}")
        count = len(next(iter(given.values())))
        for name, part in self.parts.items():
            _check(name, part, given[name], count)
        inputs = given[self.alone] if self.alone else self._row(given)
        return Batch(_floating(inputs), self._labels({n: given[n] for n in self.targets}, count))

    def _row(self, values: Values) -> Tensor:
        rows = []
        for name, part in self.inputs.items():
            raw = _floating(values[name].flatten(1))
            low, high = _edges(part, raw)
            rows.append((raw - low) / (high - low))
        return torch.cat(rows, 1)

    def _labels(self, values: Values, count: int) -> Tensor:
        if not values:
            return torch.zeros(count, dtype=torch.long)
        if len(values) == 1:
            return next(iter(values.values()))
        return torch.cat([value.reshape(count, -1).float() for value in values.values()], 1)

    def raw(self, batch: Batch) -> Values:
        """The parts of a batch by name, in raw numbers; whole ones are not rounded."""
        found = self._raw_inputs(batch.inputs) | self.raw_targets(batch.labels)
        return {name: found[name] for name in self.parts}

    def raw_inputs(self, inputs: Tensor) -> Values:
        """Inputs by name, as what is read of them is shown: whole numbers rounded and in their range."""
        found = self._raw_inputs(inputs)
        whole = {n: _inside(value.round(), self.parts[n]) for n, value in found.items() if self.parts[n].whole}
        return found | map_tensors(Tensor.long, whole)

    def _raw_inputs(self, inputs: Tensor) -> Values:
        if self.alone:
            return {self.alone: inputs}
        found, pieces = {}, inputs.flatten(1).split([math.prod(p.shape) for p in self.inputs.values()], 1)
        for (name, part), piece in zip(self.inputs.items(), pieces, strict=True):
            low, high = _edges(part, piece)
            found[name] = (low + (high - low) * piece).view(len(inputs), *part.shape)
        return found

    def raw_targets(self, labels: Tensor) -> Values:
        if len(self.targets) < 2:
            return dict.fromkeys(self.targets, labels)
        if labels.ndim == 1:  # plain ones
            return dict.fromkeys(self.targets, labels * 0)
        found, pieces = {}, labels.split([math.prod(p.shape) for p in self.targets.values()], 1)
        for (name, target), piece in zip(self.targets.items(), pieces, strict=True):
            value = piece.view(len(labels), *target.shape)
            found[name] = value.round().long() if target.whole else value
        return found

    def given(self, batch: Batch) -> Values:
        """What the loss is called with: normalised, whole numbers as such, plain targets in their form."""
        found: Values = {}
        for name, value in self.raw(batch).items():
            part = self.parts[name]
            found[name] = part.given(_inside(value, part) if part.whole and not isinstance(part, Target) else value)
        for name, value in self.fixed.items():
            found[name] = value.to(batch.inputs.device).expand(len(batch), *value.shape)
        return found

    def made_up(self, count: int, generator: torch.Generator) -> Values:
        """Raw values of all parts, in their ranges."""
        return {name: part.made_up(count, generator) for name, part in self.parts.items()}

    def sought(self, count: int) -> dict[str, Shape]:
        """Of the numbers that stand for so many targets in a search, by name; empty where no search moves them all."""
        shapes = {n: t.sought(count) for n, t in self.targets.items()}
        joined = len(shapes) > 1 and any(t.whole for t in self.targets.values())  # classes lie in one column there
        return {} if joined else {n: s for n, s in shapes.items() if s is not None and None not in shapes.values()}

    def soft(self, numbers: Mapping[str, Tensor], *, settled: bool = False) -> Tensor:
        """Targets that these numbers stand for, as `Batch.labels` has them; `settled`, those nearest to them."""
        values = {name: target.soft(numbers[name]) for name, target in self.targets.items()}
        if settled:
            values = {name: target.settled(values[name]) for name, target in self.targets.items()}
        return self._labels(values, len(next(iter(values.values()))))

    def made_up_targets(self, count: int, generator: torch.Generator) -> Tensor:
        """Targets as `Batch.labels` has them."""
        return self._labels({n: t.made_up(count, generator) for n, t in self.targets.items()}, count)


def _floating(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.to(torch.get_default_dtype())


def _edges(part: BatchPart, like: Tensor) -> tuple[Tensor, Tensor]:
    low, high = part.edges
    return like.new_tensor(low), like.new_tensor(high)


def _inside(value: Tensor, part: BatchPart) -> Tensor:
    """Nobody looks up what lies beyond the last category, wherever a search may step."""
    return value.clamp(*_edges(part, value))


def _named(values: Any, names: list[str]) -> Values:
    if isinstance(values, Mapping):
        return dict(values)
    if is_dataclass(values) and not isinstance(values, type):
        return {f.name: getattr(values, f.name) for f in fields(values)}
    if isinstance(values, tuple | list) and len(values) == len(names):
        return dict(zip(names, values, strict=True))
    hint = f"give a dict, tuple or dataclass of tensors: {', '.join(names)}"
    raise InputError("batch", f"is a {type(values).__name__}", hint)


def _check(name: str, part: BatchPart, value: Tensor, count: int) -> None:
    field = f"batch.{name}"
    require(isinstance(value, Tensor), field, f"is a {type(value).__name__}", "give a tensor")
    soft = isinstance(part, Classes) and value.is_floating_point()
    shape = (part.classes,) if soft else part.shape
    hint = f"give {(count, *shape)}: examples, then {type(part).__name__}"
    require(tuple(value.shape) == (count, *shape), field, f"has shape {tuple(value.shape)}", hint)
    finite = not value.is_floating_point() or bool(value.isfinite().all())
    require(finite, field, "holds NaN or infinity", "clean the data: no client can train on them")
    if part.whole and not soft and count:
        low, high = _edges(part, value.float())
        inside = bool(((value >= low) & (value <= high)).all())
        problem = f"goes from {value.min():g} to {value.max():g}"
        require(inside, field, problem, f"give whole numbers from {low.min():g} to {high.max():g}")
