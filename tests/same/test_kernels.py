"""A network's hidden tensors are read, counted and linted as of the plain one, however its kernels are written."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from leakgauge.attacks.recipes import Features
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.risk.count import hidden_inputs, summary
from leakgauge.task import DataSpec
from same.kernels import FEWER, HELD_OUT, KERNELS, Deep, skewed
from same.readings import graded, pictures, reading, task_of, unlike

SPEC = DataSpec((3, 16, 16), 5)
SIZES = (1, 2)
WORDS = KERNELS | HELD_OUT


@cache
def network(name: str) -> Deep:
    return Deep((WORDS | FEWER)[name]) if name else Deep()


def features(net: nn.Module, examples: int) -> Reconstruction:
    batch, task = pictures(examples, spec=SPEC), task_of(net, SPEC)
    update = client_update(task, FedSGD(), batch, Draws(seed=1))
    known = Knowledge(local_training=FedSGD(), example_count=examples, defense=NoDefense())
    return Features().reconstruct(Observation(task, update, known), torch.Generator().manual_seed(0))


@cache
def plain(examples: int) -> Reconstruction:
    return features(network(""), examples)


def shown(found: Reconstruction) -> list[tuple[int, ...]]:
    """Of each layer the size of what is known of its input, and whether it is certified."""
    return [(*one.maps.shape, one.certified) for one in found.features]


def said(net: nn.Module) -> list[tuple[str, ...]]:
    """What the count says, but for the names of weights."""
    found = hidden_inputs(task_of(net, SPEC))
    return [tuple(line.split(": ")[-1].split(".")[0] for line in summary(found, n)) for n in SIZES]


@pytest.mark.parametrize("name", WORDS)
def test_they_are_the_same_function(name: str) -> None:
    x = pictures(4, spec=SPEC).inputs
    assert torch.allclose(network(name)(x), network("")(x), atol=1e-5)


def test_the_plain_form_is_read() -> None:
    for n in SIZES:
        assert plain(n).status is Status.EXACT, plain(n).message
        assert (n, 48, 16, True) in shown(plain(n))


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("name", WORDS)
def test_hidden_tensors_and_pictures_are_read_as_of_the_plain_form(name: str, examples: int) -> None:
    one, other = features(network(name), examples), plain(examples)
    assert shown(one) == shown(other), one.message
    batch = pictures(examples, spec=SPEC)
    assert not unlike(reading(one, batch, SPEC), reading(other, batch, SPEC))


@pytest.mark.parametrize("name", WORDS)
def test_the_count_and_the_lint_say_the_same(name: str) -> None:
    assert said(network(name)) == said(network(""))
    assert graded(network(name), 2, SPEC) == graded(network(""), 2, SPEC)


@pytest.mark.parametrize("name", FEWER)
def test_what_gradients_do_not_tell_of_a_kernel_is_not_read(name: str) -> None:
    assert not hidden_inputs(task_of(network(name), SPEC))
    assert {one.layer for one in features(network(name), 1).features} <= {"head.weight"}


@pytest.mark.parametrize("condition", [10.0, 100.0, 1000.0])
def test_a_map_that_is_ill_conditioned_blurs_what_is_read_by_as_much_as_is_said(condition: float) -> None:
    net, batch = Deep(skewed(condition)), pictures(1, spec=SPEC)
    (found,) = (one for one in features(net, 1).features if one.layer == "layers.2.w")
    with torch.no_grad():
        given = net.layers[1](net.layers[0](task_of(net, SPEC).data.normalise(batch.inputs)).relu()).relu()
    one, other = (t.flatten().double() / t.double().norm() for t in (given, found.maps))
    assert 1e-9 * condition < float((one - other).norm()) < found.error
    assert found.certified
