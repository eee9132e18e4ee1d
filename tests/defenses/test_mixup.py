"""MixUp: what is mixed with what, and labels alike."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cases import batch, task
from leakgauge.clients import FedSGD, SecureAggregation, client_update
from leakgauge.defenses import Compose, MixUp
from leakgauge.defenses.representations import mixed, soft_labels
from leakgauge.draws import Draws
from leakgauge.task import Batch, Task


def fresh(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights_of(defense: MixUp, n: int, seed: int) -> torch.Tensor:
    """The mixing matrix, seen through unit vectors as examples."""
    return defense.on_batch(Batch(torch.eye(n, dtype=torch.float64), torch.arange(n)), fresh(seed)).inputs


@pytest.mark.parametrize("seed", range(5))
def test_each_example_is_a_convex_combination_of_itself_and_one_other(seed: int) -> None:
    matrix = weights_of(MixUp(), 6, seed)
    assert torch.allclose(matrix.sum(1), torch.ones(6).double())
    assert bool((matrix >= 0).all())
    assert int((matrix > 0).sum(1).max()) <= 2
    others = matrix - torch.diag(matrix.diagonal())
    assert int((others > 0).sum(0).max()) <= 1, "the partners are a permutation"
    own = matrix.diagonal()[matrix.diagonal() < 1]
    assert len(own.unique()) <= 1


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_the_weights_follow_the_beta_distribution(alpha: float) -> None:
    """Mean ½, variance 1 / (4(2α + 1)), and the median of draws below ¼ by torch's own sampler."""
    generator = fresh(0)
    lam = torch.cat([MixUp(alpha=alpha).weights(1, generator) for _ in range(20_000)])
    assert float(lam.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(lam.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.04)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = torch.distributions.Beta(alpha, alpha).sample((20_000,))
    assert float((lam < 0.25).double().mean()) == pytest.approx(float((theirs < 0.25).double().mean()), abs=0.015)


def test_labels_are_mixed_as_the_examples_are() -> None:
    b = batch(6)
    out = MixUp().on_batch(b, fresh(3))
    matrix = weights_of(MixUp(), 6, 3)
    assert torch.allclose(out.inputs, (matrix @ b.inputs.flatten(1)).view_as(b.inputs))
    assert torch.allclose(out.labels, matrix @ F.one_hot(b.labels).double())
    assert torch.allclose(out.labels.sum(1), torch.ones(6).double())


def test_the_loss_is_the_mixed_loss() -> None:
    """Cross-entropy is linear in the labels: λ·CE(x̃, y) + (1 − λ)·CE(x̃, y_π), as mixup is usually coded."""
    t, b = task("relu"), Batch(batch(2).inputs, torch.tensor([0, 3]))
    seed = next(s for s in range(9) if weights_of(MixUp(), 2, s)[0, 1] > 0)
    lam = weights_of(MixUp(), 2, seed)[0, 0]
    out = MixUp().on_batch(b, fresh(seed))
    loss, _ = t(t.parameters, t.buffers, out)
    logits, _ = t.logits(t.parameters, t.buffers, out.inputs)
    usual = lam * F.cross_entropy(logits, b.labels) + (1 - lam) * F.cross_entropy(logits, b.labels.flip(0))
    assert float(loss) == pytest.approx(float(usual), rel=1e-12)


def test_soft_labels_without_the_last_classes_are_padded() -> None:
    t, b = task("relu"), batch(3)
    b = Batch(b.inputs, torch.tensor([0, 1, 0]))
    hard, soft = (
        t(t.parameters, t.buffers, b)[0],
        t(t.parameters, t.buffers, Batch(b.inputs, soft_labels(b.labels).double()))[0],
    )
    assert soft_labels(b.labels).shape == (3, 2)
    assert float(hard) == pytest.approx(float(soft), rel=1e-12)


def test_one_example_is_sent_as_it_is() -> None:
    b = batch(1)
    out = MixUp().on_batch(b, fresh(0))
    assert torch.allclose(out.inputs, b.inputs)
    assert int(out.labels.argmax()) == int(b.labels[0])
    assert float(out.labels.max()) == pytest.approx(1)


def test_mixing_twice_and_mixing_nothing() -> None:
    out = Compose((MixUp(), MixUp())).on_batch(batch(4), fresh(0))
    assert torch.allclose(out.labels.sum(1), torch.ones(4).double())
    empty = Batch(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long))
    assert len(MixUp().on_batch(empty, fresh(0))) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precisions_are_kept(dtype: torch.dtype) -> None:
    out = MixUp().on_batch(batch(4, dtype), fresh(0))
    assert out.inputs.dtype == out.labels.dtype == dtype


def test_mixing_is_differentiable_and_matches_the_matrix() -> None:
    b = batch(2)
    matrix = torch.tensor([[0.7, 0.3], [0.4, 0.6]], requires_grad=True)
    out = mixed(b, matrix)
    assert torch.allclose(out.inputs[0], 0.7 * b.inputs[0] + 0.3 * b.inputs[1], atol=1e-7)
    assert torch.autograd.grad(out.inputs.sum() + out.labels.square().sum(), matrix)[0].abs().sum() > 0


def test_a_cohort_mixes_within_each_client() -> None:
    """The mean over two clients of two, each mixed with its own draws, by hand."""
    t: Task = task("relu")
    b, draws, protocol = batch(4), Draws(7), SecureAggregation(cohort=2)
    sent = client_update(t, protocol, b, draws, defense=MixUp()).tensors
    one, two = (
        client_update(t, FedSGD(), b.take(torch.tensor(i)), draws.of("client", c), defense=MixUp()).tensors
        for c, i in enumerate(([0, 1], [2, 3]))
    )
    assert all(torch.allclose(sent[k], (one[k] + two[k]) / 2, rtol=1e-10) for k in sent)
