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
from leakgauge.resolve import Named, label, labelled, resolve, split
from leakgauge.task import DataSpec, Loss, Mode, Task, cross_entropy


def model_label(name: str, arguments: Mapping[str, object], weights: str | None) -> str:
    return label(name, {**arguments, "weights": Path(weights).name} if weights else arguments)


def fitted(accepted: Iterable[str], data: DataSpec) -> dict[str, object]:
    """Those of a constructor's arguments that the data decide, unless somebody gives them."""
    known: dict[str, object] = {"classes": data.classes, "shape": data.shape}
    if data.is_image:
        known |= {"channels": data.shape[0], "size": data.shape[-1]}
    if data.is_text:
        known |= {"vocabulary": data.vocabulary, "padding": data.padding, "length": data.shape[0]}
    return {name: known[name] for name in accepted if name in known}


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A network, or a training step of it, and where its weights come from."""

    name: str  #: name, arguments: of the constructor, as a plan has it
    arguments: dict[str, object]
    weights: str | None  #: a file, or ``packaged:NAME``; `None` for those that it has.
    field: str
    loss: Loss = cross_entropy
    given: nn.Module | Task | None = None  #: in place of a name, the same for every seed

    @property
    def drawn(self) -> bool:
        """Whether its weights come from a seed, as those of a model of ours; a user's function may load some."""
        return self.given is None and self.weights is None and ":" not in self.name

    def built(self, seed: int) -> nn.Module | Task:
        """The model, or a training step of it; one without weights draws them from `seed`."""
        if self.given is not None:
            made = self.given if self.weights is None else copy.deepcopy(self.given)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                with refusing(self.field, "cannot be built", "set data.size or the model to match"):
                    made = resolve(MODELS, {self.name: self.arguments}, self.field).value
        module, problem = (
            made.module if isinstance(made, Task) else made,
            f"'{self.name}' gives a {type(made).__name__}",
        )
        require(isinstance(module, nn.Module), self.field, problem, "return a torch.nn.Module, or a leakgauge.Task")
        if self.weights is not None:
            load_weights(module, weights_path(self.weights, self.field), self.field)
            made = made.of_module(module) if isinstance(made, Task) else made
        return made

    def task(self, seed: int, data: DataSpec, mode: Mode, label: str) -> Task:
        """The training step of a module on that data, or the user's own. Raises `InputError` where it does not fit."""
        try:
            made = self.built(seed)
            if not isinstance(made, Task):
                return Task.of(made, data, mode=mode, loss=self.loss, name=label)
        except InputError as error:
            raise InputError(error.field.replace("model", self.field, 1), error.problem, error.hint) from error
        ours, theirs, own = made.mode.value, mode.value, made.data.shape
        require(ours == theirs, "mode", f"is {theirs}, the model's training step is in {ours}", f"write mode: {ours}")
        same = own == data.shape
        require(same, self.field, f"takes examples of shape {own}, the data have {data.shape}", "give its parts")
        return replace(made, name=label)


def spec_of(given: Any, field: str, data: DataSpec | None = None, loss: Loss = cross_entropy) -> Named:
    """The model that a plan names, or that it is given: a module, a training step, or ``{label: one of them}``. The
    data decide arguments that nobody gives."""
    given, called = labelled(given, field)
    if isinstance(given, Mapping) and len(given) == 1 and isinstance(next(iter(given.values())), nn.Module | Task):
        ((name, given),) = given.items()
        called = called or str(name)
    if isinstance(given, nn.Module | Task):
        shown = given.name if isinstance(given, Task) else type(given).__name__
        return Named(called or shown, ModelSpec(shown, {}, None, field, loss, given))
    name, arguments = split(given, field)
    weights = arguments.pop("weights", None)
    if weights is not None and not isinstance(weights, str):
        raise InputError(f"{field}.weights", f"is {weights!r}", "give a file, or packaged:NAME")
    with blamed_on(field):
        entry = MODELS[name]
    full = ({} if data is None else fitted(entry.parameters, data)) | arguments
    shown = called or model_label(name, arguments, weights)
    return Named(shown, ModelSpec(name, full, weights, field, loss), (name,), field)


def step_of(given: Any, field: str) -> Task | None:
    """The training step that a plan gives or names as its model; `None` where that is a network."""
    spec: ModelSpec = spec_of(given, field).value
    own = spec.given is None and ":" in spec.name
    made = replace(spec, weights=None).built(0) if own else spec.given
    return made if isinstance(made, Task) else None


def model_of(given: Any, field: str, data: DataSpec, mode: Mode, loss: Loss = cross_entropy) -> Named:
    """The model that a plan names, or that it is given, tried once on the data's format."""
    found = spec_of(given, field, data, loss)
    found.value.task(0, data, mode, found.label)
    return found


def loss_of(given: Any) -> Loss:
    """What the clients minimise: a name, ``package.module:function`` of logits and labels, or a function."""
    if isinstance(given, str | Mapping):
        name, arguments = split(given, "loss")
        if ":" in name and not arguments:
            return TRAINING_LOSSES[name].build
    return resolve(TRAINING_LOSSES, given, "loss").value  # type: ignore[no-any-return]
