"""A model as a plan names it (constructor, arguments, weights), or as it is given from Python."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leakgauge.errors import InputError, blamed_on, refusing, require
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

    def built(self, seed: int) -> nn.Module | Task:
        """The model, or a training step of it; one without weights draws them from `seed`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with refusing(self.field, "cannot be built", "set data.size or the model to match"):
                module = resolve(MODELS, {self.name: self.arguments}, self.field).value
        made = module.module if isinstance(module, Task) else module
        problem = f"'{self.name}' gives a {type(module).__name__}"
        require(isinstance(made, nn.Module), self.field, problem, "return a torch.nn.Module, or a leakgauge.Task")
        if self.weights is not None:
            load_weights(made, weights_path(self.weights, self.field), self.field)
        return module.of_module(made) if isinstance(module, Task) else made

    def with_weights(self, path: Path) -> ModelSpec:
        """The same with other weights."""
        return replace(self, weights=str(path))

    def task(self, seed: int, data: DataSpec, mode: Mode, label: str) -> Task:
        """Raises `InputError` when model and data do not fit."""
        try:
            return stepped(self.built(seed), data, mode, self.loss, label)
        except InputError as error:
            raise InputError(error.field.replace("model", self.field, 1), error.problem, error.hint) from error


def stepped(made: nn.Module | Task, data: DataSpec, mode: Mode, loss: Loss, label: str) -> Task:
    """The training step of a module on that data, or the user's own.

    Raises:
        InputError: it does not fit the data, or the mode.
    """
    if not isinstance(made, Task):
        return Task.of(made, data, mode=mode, loss=loss, name=label)
    ours, theirs = made.mode.value, mode.value
    require(made.mode is mode, "mode", f"is {theirs}, the model's training step is in {ours}", f"write mode: {ours}")
    fits = made.data.shape == data.shape
    require(fits, "model", f"takes examples of shape {made.data.shape}, the data have {data.shape}", "give its parts")
    return replace(made, name=label)


@dataclass(frozen=True, eq=False)
class GivenModel:
    """A module with its weights, or a training step of it, the same for every seed."""

    module: nn.Module | Task
    loss: Loss = cross_entropy

    def with_weights(self, path: Path) -> GivenModel:
        """The same with other weights."""
        module = copy.deepcopy(self.module.module if isinstance(self.module, Task) else self.module)
        load_weights(module, path, "model")
        return GivenModel(self.module.of_module(module) if isinstance(self.module, Task) else module, self.loss)

    def task(self, seed: int, data: DataSpec, mode: Mode, label: str) -> Task:
        """Raises `InputError` when model and data do not fit."""
        return stepped(self.module, data, mode, self.loss, label)


def step_of(given: Any) -> Task | None:
    """The training step that a plan gives or names as its model; `None` where that is a network."""
    given, _ = labelled(given, "model")
    if isinstance(given, Mapping) and len(given) == 1:
        given = next(iter(given.values())) if isinstance(next(iter(given.values())), Task) else given
    if isinstance(given, Task) or not isinstance(given, str | Mapping):
        return given if isinstance(given, Task) else None
    name, arguments = split(given, "model")
    if ":" not in name:
        return None
    arguments.pop("weights", None)
    made = ModelSpec(MODELS[name].build, name, arguments, None, "model").built(0)
    return made if isinstance(made, Task) else None


def given_model(spec: Any, loss: Loss = cross_entropy) -> Named | None:
    """A module, or ``{label: module}``, given from Python; `None` where the plan names one."""
    if isinstance(spec, nn.Module | Task):
        name = type(spec).__name__ if isinstance(spec, nn.Module) else spec.name
        return Named(name, GivenModel(spec, loss))
    if isinstance(spec, dict) and len(spec) == 1:
        ((name, module),) = spec.items()
        if isinstance(module, nn.Module | Task):
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
    with blamed_on(field):
        entry = MODELS[name]
    shown = model_label(name, arguments, weights)
    full = fitted(entry.parameters, data) | arguments
    resolver = ModelSpec(entry.build, name, full, weights, field, loss)
    resolver.task(0, data, mode, shown)
    return Named(shown, resolver, (name,), field)
