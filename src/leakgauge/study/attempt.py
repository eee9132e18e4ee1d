"""Parts of anybody's, run so that whatever they do ends as one row and spoils no other."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from leakgauge.attacks.recipes.information import image_information
from leakgauge.compute import Budget, Compute
from leakgauge.errors import FOREIGN, InputError, said
from leakgauge.observation import Attack, Cost, KnownFeatures, Observation, Reconstruction, Status, Tried
from leakgauge.task import DataSpec, Task
from leakgauge.view.entries import undecayed


def attempt(
    attack: Attack, observation: Observation, generator: torch.Generator, budget: Budget, compute: Compute
) -> Reconstruction:
    """Runs an attack, which may be anybody's, on an observation of its own. Whatever it raises becomes a failed row
    with the reason: that it does not apply, an attack says by its answer alone, for no gate fails on that."""
    try:
        with undisturbed():
            plain = undecayed(observation)
            found = attack.reconstruct(plain, generator, budget=budget, compute=compute)
            return checked(found, observation.task).with_view(plain)
    except FOREIGN as error:
        why = str(error) if isinstance(error, InputError) else said(error)
        return Reconstruction(None, None, Status.FAILED, why)


def informed(found: Reconstruction, see: Callable[[], Observation], generator: torch.Generator) -> Reconstruction:
    """Says so where a search matched an update that hardly depends on the images: its distance is then small whatever
    the pictures. Asked of the network alone, apart from the attack's budget, in a view (`see`) of its own."""
    if found.inputs is None or not found.cost.gradient_evaluations or found.blind:
        return found
    observation = see()
    if (examples := observation.examples) is None:
        return found
    try:
        with undisturbed():
            sentence = image_information(observation, examples, generator).sentence
    except FOREIGN:  # it is asked in float64, which not every model runs in
        return found
    return replace(found, blind=sentence) if sentence else found


@contextmanager
def undisturbed() -> Iterator[None]:
    """Puts back what a part may change for the whole process: torch's settings, random numbers, working directory."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    deterministic, grad = torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(grad), chdir(os.getcwd()):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


def checked(found: Any, task: Task) -> Reconstruction:
    """The reconstruction, or a failure where its parts are no answer or do not fit together."""
    if not isinstance(found, Reconstruction) or not isinstance(found.status, Status):
        return _failed(f"gave a {type(found).__name__}, no Reconstruction with a Status")
    cost, inputs, labels, sure = found.cost, found.inputs, found.labels, found.label_confidence
    if not (isinstance(cost, Cost) and _finite(cost.seconds) and _finite(cost.gradient_evaluations)):
        return _failed(f"its cost is {cost}, no finite numbers")
    cost = Cost(int(cost.gradient_evaluations), float(cost.seconds))
    problems = (*_of_inputs(inputs, task.data), *_of_labels(labels, task))
    if not (sure is None or (_finite(sure) and 0 <= sure <= 1)):
        problems += (f"its confidence in the labels is {sure}, no share",)
    if found.certified is not None and (inputs is None or tuple(found.certified.shape) != (len(inputs),)):
        problems += ("it does not say of each example whether it is certified",)
    if problems:
        return _failed(problems[0], cost)
    if inputs is not None and not bool(torch.isfinite(inputs).all()):
        return Reconstruction(None, None, Status.NON_FINITE, "the examples are not finite", cost=cost)
    return replace(
        found,
        inputs=None if inputs is None else inputs.detach(),
        labels=None if labels is None else labels.detach().cpu(),
        message=str(found.message),
        cost=cost,
        trace=tuple((int(evaluations), float(objective)) for evaluations, objective in found.trace),
        certified=None if found.certified is None else found.certified.detach().cpu().bool(),
        blind=str(found.blind),
        restarts=tuple(float(v) for v in found.restarts),
        tried=tuple(
            Tried(str(t.name), Status(t.status), str(t.why), bool(t.raised), bool(t.opaque)) for t in found.tried
        ),
        features=tuple(
            replace(one, layer=str(one.layer), error=float(one.error))
            for one in found.features
            if isinstance(one, KnownFeatures) and _finite(one.error)
        ),
    )


def _failed(problem: str, cost: Cost = Cost()) -> Reconstruction:
    return Reconstruction(None, None, Status.FAILED, f"the attack's answer cannot be used: {problem}", cost=cost)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_inputs(inputs: Any, data: DataSpec) -> Iterator[str]:
    if inputs is None:
        return
    if not isinstance(inputs, Tensor) or inputs.layout != torch.strided:
        yield f"its examples are a {type(inputs).__name__}, no plain tensor"
    elif not inputs.is_floating_point():
        yield f"its examples are {inputs.dtype}, not real numbers with a fraction"
    elif tuple(inputs.shape[1:]) != data.shape or not len(inputs):
        yield f"gave examples of shape {tuple(inputs.shape)}, the data have {data.shape}"


def _of_labels(labels: Any, task: Task) -> Iterator[str]:
    """What is taught, classes or others."""
    if labels is None:
        return
    plain = isinstance(labels, Tensor) and labels.layout == torch.strided
    soft = plain and labels.ndim == 2
    if not task.of_classes:
        real = plain and labels.ndim and not labels.is_complex()
        if not (real and bool(torch.isfinite(labels).all())):
            yield "its targets are no finite real numbers, one row an example"
    elif not plain or labels.ndim not in (1, 2):
        yield "its labels are no list of classes and no table of shares"
    elif labels.is_complex() or labels.is_floating_point() != soft or (soft and not labels.numel()):
        yield f"its labels are {labels.dtype} of shape {tuple(labels.shape)}"
    elif not bool(torch.isfinite(labels).all()):
        yield "its labels are not finite"
    elif len(labels):
        hard = labels.argmax(1) if soft else labels
        if not 0 <= int(hard.min()) <= int(hard.max()) < task.data.classes:
            yield f"its labels are not all in [0, {task.data.classes})"
