"""How strongly examples drive rows and layers, against each example's own gradient."""

from __future__ import annotations

import copy

import torch
from torch import nn

from cases import batch, task
from leakgauge.clients.protocol import example_gradients
from leakgauge.inspection.drives import driven, drives
from leakgauge.task import Mode

D = 192


def test_rows_are_those_of_each_examples_gradient() -> None:
    """Oracle: example by example, with the residual's length taken out."""
    t, b = task("flat"), batch(6)
    found = drives(t, b)
    whole = example_gradients(t, t.parameters, t.buffers, b, None)
    logits = t.logits(t.parameters, t.buffers, b.inputs)[0]
    residual = (logits.softmax(1) - nn.functional.one_hot(b.labels, 5)).norm(dim=1)
    hidden = found.hidden[0]
    assert (hidden.name, hidden.first) == ("1", True)
    assert len(found.hidden) == len([name for name in whole if name.endswith("weight")]) - 1
    assert bool(found.erring.all())
    torch.testing.assert_close(hidden.rows * residual[:, None], whole["1.weight"].norm(dim=2))


def test_driven_means_a_share_of_the_row() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.5], [1e-4, 0.0, 0.0]])
    assert driven(rows).tolist() == [[True, False, True], [False, False, True], [False, False, False]]


def test_measuring_changes_nothing_and_repeats() -> None:
    t, b = task("normed", Mode.TRAIN), batch(16)
    before, inputs, drawn = copy.deepcopy(t), b.inputs.clone(), torch.get_rng_state()
    first, again = drives(t, b), drives(t, b)
    assert all(torch.equal(one.rows, other.rows) for one, other in zip(first.hidden, again.hidden, strict=True))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(b.inputs, inputs)
    assert t.module.training
    assert not any(m._forward_hooks for m in t.module.modules())
    for mine, theirs in ((t.parameters, before.parameters), (t.buffers, before.buffers)):
        assert all(torch.equal(v, theirs[k]) for k, v in mine.items())
