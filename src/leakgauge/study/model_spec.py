"""A model as a plan names it (constructor, arguments, weights), or as it is given from Python."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.errors import FOREIGN, InputError, require, said
from leakgauge.models.weights import load_weights, weights_path
from leakgauge.registry import MODELS, TRAINING_LOSSES
from leakgauge.resolve import Named, labelled, resolve, split
from leakgauge.task import DataSpec, Loss, Mode, Task, cross_entropy


def model_label(name: str, arguments: Mapping[str, object], weights: str | None) -> str:
    """How reports call a model."""
    shown = [f"{k}={v}" for k, v in arguments.items()] + ([f"weights={Path(weights).name}"] if weights else [])
    return f"{name}({', '.join(shown)})" if shown else name


def fitted(accepted: Iterable[str], data: DataSpec) -> dict[str, object]:
    """Those of a constructor's arguments that the data decide, unless somebody gives them."""
    known: dict[str, object] = {"classes": data.classes, "shape": data.shape}
    if data.is_image:
        known |= {"channels": data.shape[0], "size": data.shape[-1]}
    if data.is_text:
        known |= {"vocabulary": data.vocabulary, "padding": data.padding, "length": data.shape[0]}
    return {name: known[name] for name in accepted if name in known}


@dataclass(frozen=True)
class ModelSpec:
    """A model's constructor with its arguments, and where its weights come from."""

    build: Any
    name: str
    arguments: dict[str, object]
    weights: str | None
    field: str
    loss: Loss = cross_entropy

    def module(self, seed: int) -> nn.Module:
        """The model; one without weights draws them from `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = resolve(MODELS, {self.name: self.arguments}, self.field).value
            except InputError:
                raise
            except FOREIGN as error:
                hint = "set data.size or the model to match"
                raise InputError(self.field, f"cannot be built ({said(error)})", hint) from error
        require(
            isinstance(module, nn.Module),
            self.field,
            f"'{self.name}' gives a {type(module).__name__}",
            "return a torch.nn.Module",
        )
        if self.weights is not None:
            load_weights(module, weights_path(self.weights, self.field), self.field)
        return module  # type: ignore[no-any-return]

    def with_weights(self, path: Path) -> ModelSpec:
        """The same with other weights."""
        return replace(self, weights=str(path))

    def task(self, seed: int, data: DataSpec, mode: Mode, label: str) -> Task:
        """Raises `InputError` when model and data do not fit."""
        try:
            return Task.of(self.module(seed), data, mode=mode, loss=self.loss, name=label)
        except InputError as error:
            raise InputError(error.field.replace("model", self.field, 1), error.problem, error.hint) from error


@dataclass(frozen=True, eq=False)
class GivenModel:
    """A module with its weights, the same for every seed."""

    module: nn.Module
    loss: Loss = cross_entropy

    def with_weights(self, path: Path) -> GivenModel:
        """The same with other weights."""
        module = copy.deepcopy(self.module)
        load_weights(module, path, "model")
        return GivenModel(module, self.loss)

    def task(self, seed: int, data: DataSpec, mode: Mode, label: str) -> Task:
        """Raises `InputError` when model and data do not fit."""
        del seed
        return Task.of(self.module, data, mode=mode, loss=self.loss, name=label)


def given_model(spec: Any, loss: Loss = cross_entropy) -> Named | None:
    """A module, or ``{label: module}``, given from Python; `None` where the plan names one."""
    if isinstance(spec, nn.Module):
        return Named(type(spec).__name__, GivenModel(spec, loss))
    if isinstance(spec, dict) and len(spec) == 1:
        ((name, module),) = spec.items()
        if isinstance(module, nn.Module):
            return Named(str(name), GivenModel(module, loss))
    return None


def loss_of(given: Any) -> Loss:
    """What the clients minimise: a name, ``package.module:function`` of logits and labels, or from Python the function.

    Raises:
        InputError: no such loss.
    """
    if callable(given):
        return given  # type: ignore[no-any-return]
    name, arguments = split(given, "loss")
    if ":" in name and not arguments:
        return TRAINING_LOSSES[name].build
    return resolve(TRAINING_LOSSES, given, "loss").value  # type: ignore[no-any-return]


def model_of(given: Any, field: str, data: DataSpec, mode: Mode, loss: Loss = cross_entropy) -> Named:
    """The model that a plan names, or that it is given, tried once on the data's format."""
    given, called = labelled(given, field)
    if called is not None:
        return replace(model_of(given, field, data, mode, loss), label=called)
    if (own := given_model(given, loss)) is not None:
        own.value.task(0, data, mode, own.label)
        return own
    name, arguments = split(given, field)
    weights = arguments.pop("weights", None)
    if weights is not None and not isinstance(weights, str):
        raise InputError(f"{field}.weights", f"is {weights!r}", "give a file, or packaged:NAME")
    try:
        entry = MODELS[name]
    except InputError as error:
        raise InputError(field, error.problem, error.hint) from error
    shown = model_label(name, arguments, weights)
    full = fitted(entry.parameters, data) | arguments
    resolver = ModelSpec(entry.build, name, full, weights, field, loss)
    resolver.task(0, data, mode, shown)
    return Named(shown, resolver, (name,), field)
