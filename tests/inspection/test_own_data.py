"""The client's own batch: crafted heads, rows and losses stand out against honest networks."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from cases import SPEC, batch, task
from leakgauge.clients.protocol import example_gradients
from leakgauge.inspection.drives import driven, drives
from leakgauge.inspection.rule import Received, Rule
from leakgauge.inspection.rules.own_data import FixedAnswer, LossLevel, RowDifferences, isolated_examples
from leakgauge.task import Batch, DataSpec, Mode, Task

D = 192
RULES: tuple[Rule, ...] = (LossLevel(), FixedAnswer(), RowDifferences())


def perceptron(width: int = 64) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(D, width), nn.ReLU(), nn.Linear(width, 5))


def statistic(rule: Rule, module: nn.Module | Task, b: Batch | None = None) -> float:
    t = module if isinstance(module, Task) else Task.of(module, SPEC)
    return rule.measure(Received(state={}, task=t, batch=b or batch(16, torch.float32))).statistic


def brightnesses(n: int = 16) -> Batch:
    """Examples of clearly different brightness."""
    b = batch(n, torch.float32)
    level = torch.linspace(0.1, 0.9, n)[torch.randperm(n, generator=torch.Generator().manual_seed(2))]
    return Batch(0.9 * level[:, None, None, None] + 0.1 * b.inputs, b.labels)


@pytest.mark.parametrize("model", ["smooth", "relu", "normed", "flat"])
def test_honest_models_are_quiet(model: str) -> None:
    t, b = task(model), batch(16)
    limits = {LossLevel: 3, FixedAnswer: 10}
    for rule in RULES:
        assert statistic(rule, t, b) <= limits.get(type(rule), 0), rule


def test_rows_are_those_of_each_examples_gradient() -> None:
    """Oracle: example by example, with the residual's length taken out."""
    t, b = task("flat"), batch(6)
    found = drives(t, b)
    whole = example_gradients(t, t.parameters, t.buffers, b, None)
    logits = t.logits(t.parameters, t.buffers, b.inputs)[0]
    residual = (logits.softmax(1) - nn.functional.one_hot(b.labels, 5)).norm(dim=1)
    hidden = found.hidden[0]
    assert (hidden.name, hidden.linear, hidden.head) == ("1", True, False)
    assert found.layers[-1].head
    torch.testing.assert_close(found.residuals, residual)
    torch.testing.assert_close(hidden.rows * residual[:, None], whole["1.bias"].abs())
    assert hidden.signed is not None
    torch.testing.assert_close(hidden.signed * residual[:, None], whole["1.bias"])
    torch.testing.assert_close(hidden.gain * residual, whole["1.weight"].flatten(1).norm(dim=1))


def test_a_batch_in_pieces_is_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    t, b = task("relu"), batch(7)
    whole = drives(t, b)
    monkeypatch.setattr("leakgauge.inspection.drives.VALUES_AT_ONCE", 2 * D)
    pieces = drives(t, b)
    for one, other in zip(whole.layers, pieces.layers, strict=True):
        torch.testing.assert_close(one.rows, other.rows)
        torch.testing.assert_close(one.inputs, other.inputs)


def test_in_place_activations_do_not_disturb() -> None:
    def net(inplace: bool) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(
                nn.Conv2d(3, 4, 3, 2, 1),
                nn.ReLU(inplace),
                nn.Flatten(),
                nn.Linear(64, 8),
                nn.ReLU(inplace),
                nn.Linear(8, 5),
            )

    b = batch(4, torch.float32)
    for one, other in zip(
        drives(Task.of(net(True), SPEC), b).layers, drives(Task.of(net(False), SPEC), b).layers, strict=True
    ):
        torch.testing.assert_close(one.rows, other.rows)


def test_a_dead_start_singles_nobody_out() -> None:
    net = perceptron()
    nn.init.zeros_(net[3].weight)
    nn.init.zeros_(net[3].bias)
    for rule in RULES:
        assert statistic(rule, net) <= (1 if isinstance(rule, LossLevel) else 0) + 1e-6, rule


def test_a_decoy_shows_in_the_loss_and_the_answer() -> None:
    net = perceptron()
    with torch.no_grad():
        net[3].bias[2] += 30
    assert statistic(LossLevel(), net) > 10
    assert statistic(FixedAnswer(), net) > 10


def test_large_answers_that_vary_are_no_decoy() -> None:
    net = perceptron()
    with torch.no_grad():
        net[3].weight *= 300
    assert statistic(LossLevel(), net) < 3
    t = Task.of(net, SPEC)
    assert float(drives(t, batch(16, torch.float32)).losses.mean()) > 10 * math.log(5)


def bins(width: int = 64) -> nn.Module:
    net = perceptron(width)
    with torch.no_grad():
        # Undoes the normalisation, so that the row is the raw mean.
        std, mean = (torch.tensor(v).view(3, 1, 1).expand(3, 8, 8).flatten() for v in (SPEC.std, SPEC.mean))
        net[1].weight[:] = std / D
        net[1].bias[:] = mean.mean() - torch.linspace(0, 1, width)
        net[3].weight[:] = net[3].weight[:, :1]
    return net


def test_bins_leave_each_example_alone_in_a_difference() -> None:
    b = brightnesses()
    assert statistic(RowDifferences(), bins(), b) > 0.8
    assert statistic(RowDifferences(), perceptron(), b) == 0


def test_scaled_copies_of_a_unit_are_no_bins() -> None:
    net = perceptron()
    with torch.no_grad():
        net[1].weight[1::2], net[1].bias[1::2] = net[1].weight[::2].clone(), net[1].bias[::2].clone()
        net[3].weight[:, 1::2] = net[3].weight[:, ::2].clone()
    assert statistic(RowDifferences(), net) == 0


def test_differences_against_brute_force(generator: torch.Generator) -> None:
    drive = torch.randint(0, 3, (5, 12), generator=generator).double()
    expected = torch.zeros(5, dtype=torch.bool)
    for e in range(5):
        for i in range(12):
            for j in range(12):
                rest = [f for f in range(5) if f != e]
                same = all(drive[f, i] == drive[f, j] for f in rest)
                shared = sum(bool(drive[f, i] != 0) for f in rest) >= 2
                expected[e] |= same and shared and bool(drive[e, i] != drive[e, j])
    assert bool(expected.any())
    assert isolated_examples(drive).tolist() == expected.tolist()


def test_driven_means_a_share_of_the_row() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.5], [1e-4, 0.0, 0.0]])
    assert driven(rows).tolist() == [[True, False, True], [False, False, True], [False, False, False]]


def test_too_few_examples_are_said() -> None:
    for rule in RULES:
        found = rule.measure(Received(state={}, task=Task.of(perceptron(), SPEC), batch=batch(1, torch.float32)))
        assert math.isfinite(found.statistic)
        if not isinstance(rule, LossLevel):
            assert any(u.name == "batch" for u in found.unjudged), rule


def test_batch_norm_in_train_mode_is_said() -> None:
    r = Received(state={}, task=task("normed", Mode.TRAIN), batch=batch(16))
    found = RowDifferences().measure(r)
    assert any("BatchNorm in train mode mixes examples" in u.reason for u in found.unjudged)
    # `normed` has convolutions only below its head.
    assert any("no linear layer" in u.reason for u in found.unjudged)


def test_answers_that_are_not_finite_are_said() -> None:
    net = perceptron()
    with torch.no_grad():
        net[3].bias[0] = math.nan
    for rule in RULES:
        found = rule.measure(Received(state={}, task=Task.of(net, SPEC), batch=batch(16, torch.float32)))
        assert math.isfinite(found.statistic)
        assert found.unjudged, rule


def test_soft_labels_and_tables_work() -> None:
    data = DataSpec((20,), 3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        t = Task.of(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 3)), data)
    g = torch.Generator().manual_seed(0)
    b = Batch(torch.rand((12, 20), generator=g), torch.rand((12, 3), generator=g).softmax(1))
    for rule in RULES:
        assert math.isfinite(rule.measure(Received(state={}, task=t, batch=b)).statistic)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_measuring_changes_nothing_and_repeats(rule: Rule) -> None:
    t, b = task("normed", Mode.TRAIN), batch(16)
    before, inputs, drawn = copy.deepcopy(t), b.inputs.clone(), torch.get_rng_state()
    r = Received(state={}, task=t, batch=b)
    first = rule.measure(r)
    # New objects, or the repeat would be answered from memory.
    again = Received(state={}, task=copy.deepcopy(t), batch=Batch(b.inputs.clone(), b.labels.clone()))
    assert rule.measure(again) == first
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.equal(b.inputs, inputs)
    assert not b.inputs.requires_grad
    assert t.module.training
    assert not any(m._forward_hooks for m in t.module.modules())
    for mine, theirs in ((t.parameters, before.parameters), (t.buffers, before.buffers)):
        assert all(torch.equal(v, theirs[k]) for k, v in mine.items())
