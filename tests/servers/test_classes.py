"""What the loss mixes, and how it is taken apart: against class means, and against plain cross-entropy's failure."""

from __future__ import annotations

import pytest
import torch
from reproduce.mkor.quiet import AbsentClass, Inconspicuous
from reproduce.mkor.variants import CrossEntropy

from leakgauge.errors import InputError
from leakgauge.servers.mkor import Constant, Decoy, NLLRaw
from leakgauge.task import nll_raw
from mkor_cases import classifier, craft, error, pictures, read

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


@pytest.mark.parametrize("repeats", [0, 1, 5, 10, 17], ids=lambda r: f"K={10 + r}")
@pytest.mark.parametrize("loss", [AbsentClass(), CrossEntropy()], ids=repr)
def test_a_batch_with_every_class_gives_a_reason_and_no_picture(loss, repeats) -> None:
    """Counts K_n and K_n − 1 give proportional totals: a present class must not pass for an absent one."""
    task = classifier()
    extra = torch.arange(repeats) % 7
    answer = read(craft(task, Constant(), loss), pictures(task, [*UNIQUE, *extra.tolist()]))
    assert isinstance(answer, str)
    assert answer.startswith("cross-entropy shares only differences between classes")
