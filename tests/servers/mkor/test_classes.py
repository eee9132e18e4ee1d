"""What the loss mixes, and how it is taken apart: against class means, and against plain cross-entropy's failure."""

from __future__ import annotations

import pytest
import torch
from reproduce.mkor.quiet import AbsentClass, Inconspicuous
from reproduce.mkor.variants import CrossEntropy

from leakgauge.errors import InputError
from leakgauge.servers.mkor.mkor import Constant
from leakgauge.servers.mkor.parts import Decoy, NLLRaw
from leakgauge.task import nll_raw
from mkor_cases import classifier, craft, error, means, pictures, read

UNIQUE = list(range(10))
REPEATS = [0, 1, 1, 5, 5, 5, 7, 2]


@pytest.mark.parametrize("head", [Constant(), Inconspicuous()], ids=repr)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-11), (torch.float32, 1e-6)])
def test_a_decoy_leaves_all_other_classes_exact(head, dtype, most) -> None:
    task = classifier(dtype=dtype)
    built = craft(task, head, Decoy())
    for labels in (UNIQUE, [*REPEATS, 9, 9], [3]):
        batch = pictures(task, labels)
        found = read(built, batch)
        assert found.classes.tolist() == sorted(set(labels) - {9})
        assert error(found, batch) < most
        assert "class 9 is the decoy" in found.message


@pytest.mark.parametrize("label", [0, 4])
def test_the_decoy_can_be_chosen(label) -> None:
    task = classifier()
    batch = pictures(task, UNIQUE)
    found = read(craft(task, Constant(), Decoy(label=label)), batch)
    assert set(UNIQUE) - set(found.classes.tolist()) == {label}


def test_an_output_that_is_no_class_makes_a_free_decoy() -> None:
    task = classifier(outputs=12)
    batch = pictures(task, UNIQUE)
    found = read(craft(task, Constant(), Decoy()), batch)
    assert found.classes.tolist() == UNIQUE
    assert error(found, batch) < 1e-11
    assert "no class is lost" in found.message


def test_a_decoy_that_is_not_wired_costs_nothing() -> None:
    """More outputs than hidden units: the decoy's output must not read units of classes."""
    task = classifier(hidden=(24, 12), outputs=30)
    batch = pictures(task, UNIQUE)
    for head in (Constant(), Inconspicuous(), Inconspicuous(asleep=1000.0)):
        found = read(craft(task, head, Decoy()), batch)
        assert found.classes.tolist() == UNIQUE
        assert error(found, batch) < 1e-11


def test_a_batch_of_decoys_gives_a_reason() -> None:
    task = classifier()
    answer = read(craft(task, Constant(), Decoy()), pictures(task, [9, 9]))
    assert "no class" in answer


def test_the_decoy_shows_in_the_client_s_loss() -> None:
    task = classifier()
    built, batch = craft(task, Constant(), Decoy()), pictures(task, UNIQUE[:9])
    loss = float(built.task(built.task.parameters, built.task.buffers, batch)[0])
    assert loss == pytest.approx(30 - float(batch.inputs.mean()), abs=1e-6)


@pytest.mark.parametrize(
    ("task", "loss", "problem"),
    [
        (classifier(biases=False), Decoy(), "needs a bias in the last layer"),
        (classifier(), Decoy(label=10), "label: is 10"),
    ],
)
def test_a_decoy_that_cannot_be_is_refused(task, loss, problem) -> None:
    with pytest.raises(InputError, match=problem):
        craft(task, Constant(), loss)


def test_only_nll_raw_changes_the_loss() -> None:
    task = classifier()
    assert NLLRaw().applied(task).loss is nll_raw
    assert all(loss.applied(task).loss is task.loss for loss in (Decoy(), AbsentClass(), CrossEntropy()))
    assert AbsentClass().applied(task) is task


@pytest.mark.parametrize("head", [Constant()], ids=repr)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    "labels", [REPEATS, [4], [*range(8), 0, 1], [0] * 30 + [1]], ids=["repeats", "one", "eight", "skew"]
)
def test_absent_classes_take_the_mixing_out(head, labels, dtype, most) -> None:
    task = classifier(dtype=dtype)
    batch = pictures(task, labels)
    found = read(craft(task, head, AbsentClass()), batch)
    assert found.classes.tolist() == sorted(set(labels))
    assert error(found, batch) < most


@pytest.mark.parametrize("repeats", [0, 1, 5, 10, 17], ids=lambda r: f"K={10 + r}")
@pytest.mark.parametrize("loss", [AbsentClass(), CrossEntropy()], ids=repr)
def test_a_batch_with_every_class_gives_a_reason_and_no_picture(loss, repeats) -> None:
    """Counts K_n and K_n − 1 give proportional totals: a present class must not pass for an absent one."""
    task = classifier()
    extra = torch.arange(repeats) % 7
    answer = read(craft(task, Constant(), loss), pictures(task, [*UNIQUE, *extra.tolist()]))
    assert isinstance(answer, str)
    assert answer.startswith("cross-entropy shares only differences between classes")


def test_plain_cross_entropy_mixes_in_the_batch_s_mean() -> None:
    """(K_n·z̄_n − K·z̄/N)/(K_n − K/N), the published ratio, against its own formula and against the truth."""
    task = classifier(classes=20, hidden=(60, 50))
    labels = [0, 3, 3, 5]
    batch = pictures(task, labels)
    found = read(craft(task, Constant(), CrossEntropy()), batch)
    truth, mean = means(batch), batch.inputs.flatten(1).mean(0)
    for label, features in zip(found.classes.tolist(), found.features, strict=True):
        count = labels.count(label)
        expected = (count * truth[label] - 4 / 20 * mean) / (count - 4 / 20)
        assert torch.allclose(features, expected, rtol=1e-10)
    assert 0.01 < error(found, batch) < 0.5
    exact = read(craft(task, Constant(), AbsentClass()), batch)
    assert error(exact, batch) < 1e-12


@pytest.mark.parametrize("loss", [AbsentClass(), Decoy(), NLLRaw()], ids=repr)
def test_without_a_bias_every_treatment_still_finds_the_direction(loss) -> None:
    task = classifier(first_bias=False)
    batch = pictures(task, [0, 4, 4, 7])
    found = read(craft(task, Constant(), loss), batch)
    assert found.classes.tolist() == [0, 4, 7]
    one = dict(zip(found.classes.tolist(), found.features, strict=True))[7]
    truth = means(batch)[7]
    assert torch.allclose(one, truth / truth.sum(), rtol=1e-9)
