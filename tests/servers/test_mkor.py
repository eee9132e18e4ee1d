"""The whole server on flat pictures: protocols, defences, and what it says when it cannot read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reproduce.mkor.pooled import features as computed
from reproduce.mkor.quiet import AbsentClass, Inconspicuous
from torch import nn

from leakgauge.clients import FedAvg, FedSGD, SecureAggregation
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import Clip, ClipExamples, Compose, Soteria, TopK, noise
from leakgauge.observation import Reconstruction, Status
from leakgauge.servers import Change
from leakgauge.servers.mkor import MKOR, Constant, Decoy, NLLRaw
from leakgauge.task import Batch, DataSpec, Task
from mkor_cases import FlatTaps, classifier, craft, means, observed, pictures, read

REPEATS = [0, 1, 1, 5, 5, 5, 7, 2]


def attack(batch: Batch, *, task: Task | None = None, head=None, loss=None, **options) -> Reconstruction:
    head, loss = head or Constant(), loss or Decoy()
    server = MKOR(taps=FlatTaps(), head=head, loss=loss)
    sent = server.broadcast(task or classifier(), torch.Generator().manual_seed(0))
    return sent.crafting.reconstruct(observed(sent.task, batch, **options), torch.Generator())


def worst(found: Reconstruction, batch: Batch) -> float:
    truth = means(batch)
    return max(
        float((x.flatten().double() - truth[int(c)]).norm() / truth[int(c)].norm())
        for c, x in zip(found.labels, found.inputs, strict=True)
    )


@pytest.mark.parametrize(
    ("loss", "changes"),
    [
        (Decoy(), (Change.PARAMETERS,)),
        (AbsentClass(), (Change.PARAMETERS,)),
        (NLLRaw(), (Change.PARAMETERS, Change.LOSS)),
    ],
)
def test_it_says_what_it_changes(loss, changes) -> None:
    sent = MKOR(taps=FlatTaps(), loss=loss).broadcast(classifier(), torch.Generator())
    assert sent.changes == changes


@pytest.mark.parametrize(
    ("head", "loss"),
    [(head, loss) for head in (Constant(), Inconspicuous()) for loss in (Decoy(), NLLRaw())]
    + [(Constant(), AbsentClass())],
    ids=repr,
)
@pytest.mark.parametrize(
    "protocol",
    [
        FedSGD(),
        FedAvg(lr=0.1),
        FedAvg(lr=0.1, momentum=0.9),
        SecureAggregation(cohort=2),
        SecureAggregation(cohort=2, client=FedAvg(lr=0.05), sizes=(3, 5)),
    ],
    ids=repr,
)
def test_one_image_a_class_from_any_protocol_of_one_step(protocol, head, loss) -> None:
    batch = pictures(classifier(), REPEATS)
    found = attack(batch, head=head, loss=loss, protocol=protocol)
    assert found.status is Status.CONVERGED
    assert found.labels.tolist() == [0, 1, 2, 5, 7]
    assert found.paired
    assert found.label_confidence == 1
    assert worst(found, batch) < 1e-10
    assert "approximate" not in found.message


def test_several_local_steps_are_called_approximate() -> None:
    batch = pictures(classifier(), REPEATS)
    found = attack(batch, protocol=FedAvg(epochs=2, batch_size=4, lr=1e-4))
    assert "several local steps" in found.message
    assert found.labels.tolist() == [0, 1, 2, 5, 7]
    assert worst(found, batch) < 1e-2


@pytest.mark.parametrize("loss", [Decoy(), NLLRaw()], ids=repr)
def test_small_activations_survive_local_training(loss) -> None:
    task = classifier(hidden=(200, 150), classes=50)
    batch = pictures(task, torch.arange(0, 49, 4))
    errors = []
    for scale in (1.0, 1e-2):
        local = FedAvg(batch_size=3, lr=1e-3)
        found = attack(batch, task=task, head=Constant(scale=scale), loss=loss, protocol=local)
        assert found.labels.tolist() == batch.labels.tolist()
        errors.append(worst(found, batch))
    assert errors[1] < errors[0] / 20


@pytest.mark.parametrize("defense", [Clip(norm=1e-3), Compose((Clip(norm=1e-3), Clip(norm=1e-4)))], ids=repr)
@pytest.mark.parametrize("loss", [Decoy(), AbsentClass(), NLLRaw()], ids=repr)
def test_clipping_changes_the_scale_alone(defense, loss) -> None:
    batch = pictures(classifier(), REPEATS)
    assert worst(attack(batch, loss=loss, defense=defense), batch) < 1e-10


def test_clipped_examples_weigh_differently_but_alone_they_are_exact() -> None:
    batch = pictures(classifier(), [0, 3, 7])
    found = attack(batch, defense=ClipExamples(norm=1e-2))
    assert found.labels.tolist() == [0, 3, 7]
    assert worst(found, batch) < 1e-10


@pytest.mark.parametrize("head", [Constant(), Inconspicuous()], ids=repr)
def test_a_sparse_update_is_exact_where_it_was_sent(head) -> None:
    batch = pictures(classifier(), [0, 3, 7])
    found = attack(batch, head=head, loss=NLLRaw(), defense=TopK(keep=0.05))
    truth = torch.stack([means(batch)[label] for label in found.labels.tolist()])
    image = found.inputs.flatten(1)
    sent = image != 0
    assert 0.2 < float(sent.double().mean()) < 1
    assert torch.allclose(image[sent], truth[sent], rtol=1e-9)
    assert "of the entries were sent" in found.message


def test_a_class_whose_bias_was_not_sent_stays_unread() -> None:
    batch = pictures(classifier(), [0, 0, 0, 3, 3, 7])
    found = attack(batch, loss=NLLRaw(), defense=TopK(keep=0.05))
    assert found.labels.tolist() == [0, 3]


@pytest.mark.parametrize("loss", [Decoy(), NLLRaw()], ids=repr)
def test_noise_hides_no_class_that_stands_clear_and_invents_none(loss) -> None:
    task = classifier(hidden=(200, 150), classes=50)
    present = torch.arange(0, 49, 4)
    batch = pictures(task, present)
    errors = []
    for ratio in (1e-3, 1e-2, 1e-1):
        found = attack(batch, task=task, loss=loss, defense=noise(tensor_std=ratio))
        assert found.labels.tolist() == present.tolist()
        assert "standard deviations" in found.message
        errors.append(worst(found, batch))
    assert errors == sorted(errors)
    assert errors[0] < 1e-2


def test_noise_of_an_unknown_defence_is_measured_on_idle_rows() -> None:
    task = classifier(hidden=(200, 150), classes=50)
    present = torch.arange(0, 49, 4)
    batch = pictures(task, present)
    server = MKOR(taps=FlatTaps())
    sent = server.broadcast(task, torch.Generator())
    blind = observed(sent.task, batch, defense=noise(tensor_std=0.1))
    blind = replace(blind, knowledge=replace(blind.knowledge, defense=None))
    found = sent.crafting.reconstruct(blind, torch.Generator())
    assert found.labels.tolist() == present.tolist()


def test_under_heavy_noise_labels_say_which_classes_and_without_them_there_is_a_reason() -> None:
    task = classifier(hidden=(200, 150), classes=50)
    batch = pictures(task, [3, 8, 20])
    heavy = noise(tensor_std=30.0)
    found = attack(batch, task=task, defense=heavy)
    assert found.status is Status.FAILED
    assert found.inputs is None
    assert "standard deviations of the noise" in found.message
    mild = attack(batch, task=task, defense=noise(tensor_std=0.5), labels=True)
    assert set(mild.labels.tolist()) <= {3, 8, 20}
    assert mild.label_confidence is None


def test_it_holds_no_data() -> None:
    """The same update from other pictures gives the same answer; knobs of time change nothing."""
    sent = MKOR(taps=FlatTaps(), head=Inconspicuous()).broadcast(classifier(), torch.Generator().manual_seed(0))
    seen = observed(sent.task, pictures(sent.task, REPEATS))
    first = sent.crafting.reconstruct(seen, torch.Generator().manual_seed(1))
    second = sent.crafting.reconstruct(
        seen, torch.Generator().manual_seed(2), budget=Budget(gradient_evaluations=1), compute=Compute(chunk=1)
    )
    assert torch.equal(first.inputs, second.inputs)
    assert first.message == second.message
    assert first.cost.gradient_evaluations == 0


def vgg(channels: int = 24) -> nn.Module:
    """Two poolings, and as many channels as two four-direction layers of six need."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(channels * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


@pytest.mark.parametrize("head", [Constant(), Inconspicuous()], ids=repr)
def test_the_default_taps_fit_a_small_convolutional_network(head) -> None:
    torch.manual_seed(0)
    task = Task.of(vgg().double(), DataSpec((3, 16, 16), 10))
    sent = MKOR(head=head).broadcast(task, torch.Generator().manual_seed(0))
    smooth = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    batch = Batch(nn.functional.interpolate(smooth, 16, mode="bilinear"), torch.tensor([1, 3, 4, 8]))
    found = sent.crafting.reconstruct(observed(sent.task, batch), torch.Generator())
    assert found.status is Status.CONVERGED
    assert found.labels.tolist() == [1, 3, 4, 8]
    oracle = sent.crafting.map.images(computed(sent.crafting.map, batch.inputs))
    assert torch.allclose(found.inputs, oracle, atol=1e-9)


def test_pruned_columns_stay_open_and_small_entries_are_zero() -> None:
    task = classifier(hidden=(40, 30))
    sent = craft(task, Constant())
    batch = pictures(task, [0, 1, 2])
    for defense, unsent in ((Soteria(prune=40.0), torch.isnan), (TopK(keep=0.5), lambda t: t == 0)):
        found = read(sent, batch, defense=defense)
        assert not isinstance(found, str)
        gone = unsent(found.features)
        assert 0 < int(gone.sum()) < gone.numel()
        truth = torch.stack([means(batch)[int(n)] for n in found.classes])
        assert torch.allclose(found.features[~gone], truth[~gone], atol=1e-6)


def test_certain_only_without_noise_and_later_steps() -> None:
    task = classifier()
    sent, batch = craft(task, Constant()), pictures(task, [0, 1, 2])
    cases = (({}, True), ({"protocol": FedAvg(epochs=2, lr=0.01)}, False), ({"defense": noise(relative=1e-4)}, False))
    for options, certain in cases:
        found = read(sent, batch, **options)
        assert not isinstance(found, str)
        assert found.certain is certain


def test_a_cohorts_steps_are_those_of_one_client() -> None:
    task = classifier()
    batch = pictures(task, [0, 1, 2, 3, 4, 5, 6, 7])
    cohort = SecureAggregation(cohort=2, client=FedAvg(epochs=1, batch_size=4, lr=0.01))
    found = read(craft(task, Constant()), batch, protocol=cohort)
    assert not isinstance(found, str)
    assert "several local steps" not in found.message
    assert found.classes.tolist() == list(range(8))


def test_weight_decay_is_said() -> None:
    task = classifier()
    found = read(craft(task, Constant()), pictures(task, [0, 1]), protocol=FedAvg(lr=0.01, weight_decay=0.1))
    assert not isinstance(found, str)
    assert "weight decay" in found.message
