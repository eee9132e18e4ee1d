"""The layer that makes the logits, as servers that craft it see it."""

from __future__ import annotations

import torch

from leakgauge.attacks.labels.classifier import Classifier, find_classifier
from leakgauge.attacks.labels.strategy import Unknown
from leakgauge.errors import InputError, require
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Task
from leakgauge.tensors import map_tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind


def classifier_of(task: Task) -> Classifier:
    """The task's last linear layer, found as label attacks find it.

    Raises:
        InputError: no linear layer with trained parameters makes the logits.
    """
    nothing = Update(map_tensors(torch.zeros_like, task.parameters), UpdateHeader(UpdateKind.GRADIENT))
    found = find_classifier(Observation(task, nothing, Knowledge()))
    if isinstance(found, Unknown):
        raise InputError("model", found.message, "give a model that ends in a trained nn.Linear")
    return found


def biased_classifier_of(task: Task) -> tuple[str, str]:
    """Names of its weight and its bias. Raises `InputError` where it has no bias."""
    found = classifier_of(task)
    if found.bias is None:
        raise InputError(
            "model", f"its last layer '{found.name}' has no bias, which the server must set", "give it a bias"
        )
    return found.weight, found.bias


def require_class(task: Task, target: int) -> None:
    """Raises `InputError` unless `target` is one of the task's labels and there is another."""
    classes = task.data.classes
    require(task.outputs > 1, "model", "has one output", "give a classifier of at least two classes")
    require(0 <= target < classes, "target", f"is {target}", f"give a label from 0 to {classes - 1}")
