"""The fourth list of held-out spellings, and which of them are read worse than the plain form."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from leakgauge.clients import client_update
from leakgauge.draws import Draws
from leakgauge.task import Task
from same.fourth import LAYERS, LOOPS, NETWORKS, layered
from same.readings import SPEC, attacked, pictures, share, unlike
from same.test_spellings import SIZES, perceptron, plain

ALL = (*LAYERS, *NETWORKS)
pytestmark = [  # TorchScript warns of its end, and where it meets a derivative of a derivative
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def network(name: str) -> nn.Module:
    return NETWORKS[name]() if name in NETWORKS else layered(name)


@pytest.mark.parametrize("name", ALL)
def test_they_are_the_same_function(name: str) -> None:
    x = pictures(4).inputs
    answer = network(name)(x)
    logits = getattr(answer, "logits", answer)
    assert torch.allclose(logits.log_softmax(1), perceptron()(x).log_softmax(1), atol=1e-5)


@pytest.mark.parametrize("name", LOOPS)
def test_loops_send_the_same(name: str) -> None:
    task, batch = Task.of(perceptron().double(), SPEC), pictures(4)
    own, same = (client_update(task, c, batch, Draws(1)).tensors for c in (LOOPS[name].own(4), LOOPS[name].same))
    assert own.keys() == same.keys()
    assert all(float((own[k] - same[k]).norm()) <= 1e-5 * float(same[k].norm()) for k in same)


@pytest.mark.parametrize(("name", "examples"), [pytest.param(k, n, marks=share(12, k, n)) for k in ALL for n in SIZES])
def test_they_are_read_as_the_plain_form(name: str, examples: int) -> None:
    """At their first and only blind run eight were weaker: inputs that go there and back (Fourier, logarithm, a grid
    at rest), which were followed by name, a padding as long as the traced batch with one live place, a compiled
    network, and three that are not read yet: sparse features, squared distances, and TorchScript, which is refused."""
    assert not unlike(attacked(network(name), pictures(examples)), plain(examples))


@pytest.mark.parametrize(("name", "examples"), [pytest.param(k, n, marks=share(4, k, n)) for k in LOOPS for n in SIZES])
def test_loops_are_read_as_the_plain_one(name: str, examples: int) -> None:
    own, same = LOOPS[name].own(examples), LOOPS[name].same
    net, batch = perceptron(), pictures(examples)
    read, plainly = (attacked(net, batch, client=client) for client in (own, same))
    assert not unlike(read, plainly)
