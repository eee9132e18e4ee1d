"""What proves an example, in other words."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import Defense, NoDefense, TopK, noise
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, Task
from same.readings import SPEC, Perceptron, pictures
from same.seventh import LAYERS
from same.spellings import Spelled, linear
from same.test_spellings import WEIGHTS, perceptron


@cache
def tasks() -> tuple[Task, Task]:
    """A perceptron in plain words, and with sums over segments."""
    first = Spelled(LAYERS["segments of compressed rows"], *WEIGHTS.first)
    return Task.of(perceptron(), SPEC), Task.of(Perceptron(first, linear(*WEIGHTS.head)), SPEC)


@pytest.mark.parametrize("examples", [1, 4])
@pytest.mark.parametrize("defense", [NoDefense(), noise(sigma=1e-9), TopK(keep=0.5), TopK(keep=0.0005)], ids=repr)
def test_a_way_back_without_a_derivative_changes_no_certificate(defense: Defense, examples: int) -> None:
    """Of sums over segments nothing was proved. What top-k leaves of four examples proves three."""
    batch, found = pictures(examples), []
    for task in tasks():
        draws = torch.Generator().manual_seed(0)
        knows = Knowledge(labels=batch.labels, local_training=FedSGD(), defense=defense)
        seen = Observation(task, client_update(task, FedSGD(), batch, Draws(1), defense=defense), knows)
        explainer = Explainer.of(seen, draws)
        found.append(explainer.certified(Batch(batch.inputs.double(), batch.labels), draws).tolist())
    assert found[0] == found[1]
    assert any(found[0])
