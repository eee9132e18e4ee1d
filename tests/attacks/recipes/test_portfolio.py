"""What `auto` tries, what it keeps, and what it says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.closed_form.proof import tried_labels
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.attacks.recipes import Auto
from leakgauge.attacks.recipes.portfolio import others, remaining
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, Protocol, SecureAggregation, client_update
from leakgauge.compute import Budget
from leakgauge.data import Samples
from leakgauge.defenses import Defense, MixUp, TopK, noise
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR, assign
from leakgauge.models import lenet, mlp
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction, Status, Tried
from leakgauge.task import Batch, DataSpec, Task

PHOTOS = Samples(size=16)
RAW = DataSpec((3, 16, 16), PHOTOS.classes)


def observe(
    module: nn.Module, n: int, *, labels: bool = True, defense: Defense | None = None, first: int = 0
) -> tuple[Observation, Batch]:
    task, photos = Task.of(module, RAW), PHOTOS.read(range(8))
    mirrored = Batch(photos.inputs.flip(3), photos.labels)
    batch = Batch.join([photos, mirrored]).take(torch.arange(first, first + n))
    update = client_update(task, FedSGD(), batch, Draws(0), defense=defense)
    return Observation(task, update, Knowledge(batch.labels if labels else None, n, FedSGD(), defense=defense)), batch


def dense(units: int, activation: str = "relu", *, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return mlp(classes=PHOTOS.classes, shape=RAW.shape, hidden=(units,), activation=activation, bias=bias)


def run(attack: Attack, observation: Observation, evaluations: int | None = None) -> Reconstruction:
    return attack.reconstruct(
        observation, torch.Generator().manual_seed(0), budget=Budget(gradient_evaluations=evaluations)
    )


def scores(found: Reconstruction, batch: Batch) -> torch.Tensor:
    assert found.inputs is not None
    mates = assign(found.inputs, batch.inputs, labels_hat=found.labels if found.paired else None, labels=batch.labels)
    return PSNR()(mates.take(found.inputs), batch.inputs)


@pytest.mark.parametrize("labels", [True, False], ids=["labels known", "labels read"])
@pytest.mark.parametrize(
    ("module", "n", "method"),
    [
        (dense(256), 3, "closed-form"),
        (dense(256), 8, "peeling"),
        (dense(64, "sigmoid"), 3, "span-fit"),
        (dense(16, bias=False), 1, "rank-one"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_a_whole_batch_is_read_exactly_where_one_of_the_methods_can(
    module: nn.Module, n: int, method: str, labels: bool
) -> None:
    """It threw away what the closed form read of a batch, and searched to 20 to 30 dB."""
    observation, batch = observe(module, n, labels=labels)
    found = run(Auto(), observation)
    assert found.status is Status.EXACT
    assert float(scores(found, batch).min()) > 80
    assert found.labels is not None
    assert found.labels.sort().values.tolist() == batch.labels.sort().values.tolist()
    last = found.tried[-1]
    assert isinstance(last, Tried)
    assert (last.name, last.status) == (method, Status.EXACT)
    assert all(one.why for one in found.tried[:-1])


def test_rows_that_all_examples_drive_hide_none() -> None:
    """A norm behind the layer leaves no row to one example; from the pixels the search ended at 20 dB."""
    torch.manual_seed(0)
    first = (nn.Flatten(), nn.Linear(768, 64), nn.LayerNorm(64), nn.ReLU())
    observation, batch = observe(nn.Sequential(*first, nn.Linear(64, PHOTOS.classes)), 2, labels=False)
    found = run(Auto(), observation, 400)
    assert found.status is Status.EXACT, found.message
    assert float(scores(found, batch).min()) > 60


def test_a_read_that_explains_more_than_the_search_is_the_answer() -> None:
    torch.manual_seed(1)
    first = (nn.Flatten(), nn.Linear(768, 64), nn.LayerNorm(64), nn.ReLU())
    observation, _ = observe(nn.Sequential(*first, nn.Linear(64, PHOTOS.classes)), 4, labels=False)
    generator, reader = torch.Generator().manual_seed(0), Explainer.of(observation, torch.Generator().manual_seed(0))
    read = LinearRead().reconstruct(observation, generator)
    assert read.inputs is not None
    assert read.labels is not None
    found = run(Auto(rough_steps=1), observation, 60)
    assert found.inputs is not None
    assert found.labels is not None
    left = reader.left(Batch(read.inputs.clamp(0, 1), read.labels))
    assert reader.left(Batch(found.inputs, found.labels)) <= left * (1 + 1e-6)


def test_what_is_proved_is_kept_and_the_rest_is_searched_for() -> None:
    observation, batch = observe(dense(32), 8)
    found = run(Auto(rough_steps=20), observation, 150)
    assert found.certified is not None
    sure = int(found.certified.sum())
    assert 0 < sure < 8
    assert found.status is not Status.EXACT
    assert found.inputs is not None
    assert len(found.inputs) == 8
    values = scores(found, batch)
    assert int((values > 80).sum()) >= sure
    assert f"{sure} of 8 examples certified" in found.message
    assert any(one.name == "matching, of the rest" for one in found.tried)


def test_taking_proved_examples_out_leaves_the_update_of_the_others() -> None:
    observation, batch = observe(dense(64, "sigmoid"), 4)
    left = remaining(observation, batch.take(torch.tensor([0, 2])))
    assert left is not None
    others = batch.take(torch.tensor([1, 3]))
    own = client_update(left.task, FedSGD(), Batch(others.inputs.double(), others.labels), Draws(0))
    for name, value in own.tensors.items():
        assert torch.allclose(left.update.tensors[name], value, atol=1e-6 * float(value.abs().max()) + 1e-9)
    assert left.knowledge.labels is not None
    assert left.knowledge.labels.sort().values.tolist() == others.labels.sort().values.tolist()


@pytest.mark.parametrize(
    "client",
    [
        FedAvg(lr=0.1),
        FedAvg(lr=0.1, momentum=0.9, nesterov=True),
        SecureAggregation(cohort=2, client=FedAvg(lr=0.1, momentum=0.5, nesterov=True)),
    ],
    ids=str,
)
def test_a_step_of_any_length_is_left_without_the_proved_examples(client: Protocol) -> None:
    """Nesterov's momentum lengthens the first step, which was not counted; a cohort's step was not taken apart."""
    observation, batch = observe(dense(64, "sigmoid"), 4)
    sent = client_update(observation.task, client, batch, Draws(0))
    left = remaining(
        Observation(observation.task, sent, replace(observation.knowledge, local_training=client)),
        batch.take(torch.tensor([0, 2])),
    )
    assert left is not None
    others = batch.take(torch.tensor([1, 3]))
    own = client_update(left.task, FedSGD(), Batch(others.inputs.double(), others.labels), Draws(0))
    assert all(torch.allclose(left.update.tensors[k], v, atol=1e-5) for k, v in own.tensors.items())
    clipped = replace(observation.knowledge, local_training=LocalTraining(clip=0.1))
    assert remaining(Observation(observation.task, sent, clipped), batch.take(torch.tensor([0]))) is None


def test_behind_a_defence_nothing_is_taken_out_and_nothing_proved() -> None:
    for defense in (noise(relative=0.01), TopK(keep=0.3)):
        observation, batch = observe(dense(64), 3, defense=defense)
        assert remaining(observation, batch.take(torch.tensor([0]))) is None
        found = run(Auto(), observation, 40)
        assert found.status is not Status.EXACT
        assert found.certified is None or not bool(found.certified.any())


def test_one_example_that_mixup_had_nothing_to_mix_with_is_read() -> None:
    """It was searched for, as if it were a mixture."""
    observation, batch = observe(dense(256), 1, defense=MixUp())
    found = run(Auto(), observation)
    assert found.status is Status.EXACT
    assert float(scores(found, batch).min()) > 80


@pytest.mark.parametrize("labels", [True, False], ids=["labels known", "labels read"])
def test_who_was_mixed_with_itself_is_read_and_the_others_are_searched_for(labels: bool) -> None:
    """About one example of every batch. Behind any defence the examples beside a proved one were not looked for."""
    observation, batch = observe(dense(256), 3, labels=labels, defense=MixUp())
    assert bool((torch.randperm(3, generator=Draws(0).generator("batch")) == torch.arange(3)).any())
    found = run(Auto(rough_steps=60), observation, 120)
    assert found.certified is not None
    assert found.certified.tolist() == [True, False, False]
    values = scores(found, batch).sort().values
    assert float(values[-1]) > 80
    assert float(values[0]) > float(PSNR()(torch.full_like(batch.inputs, 0.5), batch.inputs).min()) + 1


def test_mixtures_of_one_class_are_not_taken_for_examples() -> None:
    observation, batch = observe(dense(256), 4, defense=MixUp())
    same = Batch(batch.inputs, torch.ones_like(batch.labels))
    update = client_update(observation.task, FedSGD(), same, Draws(1), defense=MixUp())
    known = replace(observation.knowledge, labels=same.labels)
    for knowledge in (known, replace(known, labels=None)):
        found = run(Auto(rough_steps=5), Observation(observation.task, update, knowledge), 100)
        assert found.certified is None or not found.certified.any()


def test_of_a_search_of_all_the_nearest_to_each_proved_example_is_left_out() -> None:
    x, labels = torch.arange(4.0).view(4, 1, 1, 1), torch.tensor([0, 1, 1, 2])
    proved = Reconstruction(x[1:3] + 0.1, torch.tensor([1, 2]), Status.CONVERGED)
    left = others(Reconstruction(x, labels, Status.CONVERGED), proved)
    assert left.inputs is not None
    assert left.inputs.flatten().tolist() == [0.0, 2.0]
    assert left.labels is not None
    assert left.labels.tolist() == [0, 1]
    unpaired = others(Reconstruction(x, labels.flip(0), Status.CONVERGED, paired=False), proved)
    assert unpaired.inputs is not None
    assert unpaired.inputs.flatten().tolist() == [0.0, 3.0]
    assert unpaired.labels is not None
    assert unpaired.labels.tolist() == [1, 0]


@pytest.mark.parametrize("evaluations", [1, 3, 20, 60])
def test_one_budget_pays_for_all_methods(evaluations: int) -> None:
    for module, n in ((dense(64, "sigmoid"), 3), (dense(24), 6), (dense(16, bias=False), 1)):
        found = run(Auto(), observe(module, n)[0], evaluations)
        assert found.cost.gradient_evaluations <= evaluations
        assert found.tried


def test_whoever_stops_it_stops_all_methods() -> None:
    observation, _ = observe(dense(64, "sigmoid"), 3)
    found = Auto().reconstruct(observation, torch.Generator().manual_seed(0), on_step=lambda _: True)
    assert found.status is Status.STOPPED
    assert found.cost.gradient_evaluations <= 20


def test_a_mixture_of_examples_is_never_certified() -> None:
    """Rows may agree on a mixture, which explains nothing."""
    observation, batch = observe(dense(256), 2)
    mixed = batch.inputs.mean(0, keepdim=True)
    explainer = Explainer.of(observation, torch.Generator())
    for inputs in (mixed.expand(2, -1, -1, -1), torch.cat([batch.inputs[:1], mixed])):
        assert not bool(explainer.certified(Batch(inputs, batch.labels), torch.Generator()).any())
    assert bool(explainer.certified(batch, torch.Generator()).all())
    assert not bool(explainer.certified(Batch(batch.inputs, batch.labels.flip(0)), torch.Generator()).any())


def test_an_example_that_the_update_does_not_show_is_not_certified() -> None:
    """A dead unit explains everything."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(768, 4), nn.ReLU(), nn.Linear(4, PHOTOS.classes))
    with torch.no_grad():
        module[1].bias.fill_(-100.0)
    observation, batch = observe(module, 2)
    explainer = Explainer.of(observation, torch.Generator())
    other = PHOTOS.read(range(4, 6)).inputs
    assert explainer.left(Batch(other, batch.labels)) < 1e-6
    assert not bool(explainer.certified(Batch(other, batch.labels), torch.Generator()).any())


@pytest.mark.parametrize("known", [True, False])
def test_labels_of_known_examples_are_solved_for(known: bool) -> None:
    torch.manual_seed(0)
    observation, batch = observe(lenet(classes=PHOTOS.classes, size=16), 6, labels=known)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    found = tried_labels(observation, batch.inputs[order])
    assert found.labels is not None
    assert found.labels.tolist() == batch.labels[order].tolist()


class Logarithm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.log()


def test_labels_that_no_layer_counts_are_searched_for() -> None:
    """Of several local steps behind noise nothing reads them; a search was "not applicable" then."""
    torch.manual_seed(0)
    behind = nn.Linear(32, PHOTOS.classes), nn.Softmax(1), Logarithm()
    module = nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.Tanh(), *behind)
    client = FedAvg(lr=0.1, epochs=2)
    observation, _ = observe(module, 2, labels=False)
    sent = client_update(observation.task, client, PHOTOS.read(range(2)), Draws(0), defense=noise(sigma=1e-6))
    known = replace(observation.knowledge, local_training=client, defense=noise(sigma=1e-6))
    found = run(Auto(smooth_steps=5), Observation(observation.task, sent, known), 60)
    assert found.inputs is not None
    assert found.labels is not None
    assert "matching" in [one.name for one in found.tried if one.status is not Status.NOT_APPLICABLE]
