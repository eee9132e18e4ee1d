"""Training in simulation: the audited clients, the right mean, resumable, and it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from leakgauge.clients import FedAvg, FedSGD, SecureAggregation, client_update
from leakgauge.data import InMemory
from leakgauge.defenses import Clip, ClipExamples, Compose, Defense, NoDefense, Precode, Soteria, TopK, noise
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.training import FederatedTraining, RoundResult, accuracy, aggregate, dirichlet_partition, stored
from leakgauge.update import Update, UpdateHeader, UpdateKind

SHAPE = (1, 6, 6)
DATA = DataSpec(shape=SHAPE, classes=3)


def _examples(n: int, seed: int) -> InMemory:
    """Three classes that differ in where the picture is bright."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=g)
    x = 0.5 * torch.rand(n, *SHAPE, generator=g)
    for i, label in enumerate(y.tolist()):
        x[i, :, 2 * label : 2 * label + 2] += 0.5
    return stored(Batch((x * 255).round() / 255, y), DATA)


def _task(*, norm: bool = False, seed: int = 0) -> Task:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(1, 4, 3, padding=1)]
    layers += [nn.BatchNorm2d(4)] if norm else []
    layers += [nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)]
    return Task.of(nn.Sequential(*layers), DATA, mode=Mode.TRAIN if norm else Mode.EVAL, name="tiny")


TRAIN, TEST = _examples(120, 0), _examples(90, 1)
HANDS = dirichlet_partition(TRAIN.labels, 6, 0.5, torch.Generator().manual_seed(0))
LOCAL = FedAvg(batch_size=16, lr=0.3, shuffle=True)

DEFENSES = [
    NoDefense(),
    TopK(keep=0.1),
    ClipExamples(norm=0.5),
    Compose((Clip(norm=0.1), noise(relative=0.5))),
]


def test_it_learns_and_evaluates_when_asked() -> None:
    seen: list[RoundResult] = []
    done = FederatedTraining(rounds=5, per_round=3, client=LOCAL, evaluate_every=2).run(
        _task(), TRAIN, HANDS, TEST, on_round=seen.append
    )
    assert [n for n, _ in done.curve] == [2, 4, 5]
    assert tuple(seen) == done.rounds
    assert all(len(set(r.asked)) == 3 for r in done.rounds)
    assert done.accuracy is not None
    assert done.accuracy > 0.8 > accuracy(_task(), TEST)


@pytest.mark.parametrize("defense", DEFENSES, ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("client", [FedSGD(), LOCAL], ids=["fedsgd", "fedavg"])
def test_a_client_in_simulation_sends_what_the_audited_client_sends(client, defense) -> None:
    training = FederatedTraining(client=client, defense=defense, seed=5)
    task, hand = _task(), HANDS[2]
    ours = training.update(task, TRAIN, hand, 17)
    draws = Draws.sample(Draws(5).generator("turn", 17))
    theirs = client_update(task, client, TRAIN.read(hand), draws, defense=defense)
    assert ours.header == theirs.header
    assert all(torch.equal(ours.tensors[k], theirs.tensors[k]) for k in task.parameters)


def test_a_defence_that_changes_the_network_does_so_once() -> None:
    training = FederatedTraining(rounds=3, per_round=2, client=LOCAL, defense=Precode(size=4))
    done = training.run(_task(), TRAIN, HANDS, TEST)
    assert done.accuracy is not None
    task = training.defense.on_task(_task())
    after, _ = training.step(task, TRAIN, HANDS, 0)
    assert list(after.parameters) == list(task.parameters)
    assert all(not torch.equal(after.parameters[k], p) for k, p in task.parameters.items() if "bottleneck" in k)


def _update(kind: UpdateKind, value: float, task: Task) -> Update:
    return Update({k: torch.full_like(p, value) for k, p in task.parameters.items()}, UpdateHeader(kind))


@pytest.mark.parametrize(("kind", "sign"), [(UpdateKind.DELTA, 1), (UpdateKind.GRADIENT, -1)])
def test_the_server_takes_the_mean_by_example_count(kind: UpdateKind, sign: int) -> None:
    task = _task()
    after = aggregate(task, [_update(kind, 1.0, task), _update(kind, 4.0, task)], [1, 2], server_lr=0.5)
    for k, p in task.parameters.items():
        torch.testing.assert_close(after.parameters[k], p + sign * 0.5 * 3.0)


def test_one_round_equals_secure_aggregation_over_the_same_clients() -> None:
    """Aggregation in the audit and in the simulation are the same mean."""
    task, hands = _task(), (tuple(range(10)), tuple(range(10, 16)))
    after, asked = FederatedTraining(per_round=2, client=FedSGD()).step(task, TRAIN, hands, 0)
    order = [hands[c] for c in asked]
    everyone = TRAIN.read([i for hand in order for i in hand])
    protocol = SecureAggregation(cohort=2, sizes=tuple(len(h) for h in order))
    update = client_update(task, protocol, everyone, Draws(0))
    for k, p in task.parameters.items():
        torch.testing.assert_close(after.parameters[k], p - update.tensors[k])


@pytest.mark.parametrize("defense", [NoDefense(), noise(sigma=0.1)], ids=repr)
def test_a_group_that_aggregates_among_itself_can_be_a_client(defense: Defense) -> None:
    training = FederatedTraining(per_round=2, client=SecureAggregation(cohort=2), defense=defense)
    after, _ = training.step(_task(), TRAIN, (tuple(range(10)), tuple(range(10, 16))), 0)
    assert all(bool(p.isfinite().all()) for p in after.parameters.values())


def test_a_group_with_masks_fitted_to_its_data_is_refused() -> None:
    training = FederatedTraining(per_round=1, client=SecureAggregation(cohort=2), defense=Soteria())
    with pytest.raises(InputError, match="fits a mask to each client's data"):
        training.step(_task(), TRAIN, (tuple(range(10)),), 0)


def test_buffers_are_averaged_where_the_network_has_them() -> None:
    task = _task(norm=True)
    training = FederatedTraining(per_round=3, client=LOCAL)
    after, asked = training.step(task, TRAIN, HANDS, 0)
    sent = [training.update(task, TRAIN, HANDS[c], c).buffers for c in asked]
    weights = torch.tensor([float(len(HANDS[c])) for c in asked])
    name = next(k for k in task.buffers if k.endswith("running_mean"))
    expected = sum(w * b[name] for w, b in zip(weights / weights.sum(), sent, strict=True) if b is not None)
    torch.testing.assert_close(after.buffers[name], expected)
    assert not torch.equal(after.buffers[name], task.buffers[name])


class _Killed(Exception):
    pass


@pytest.mark.parametrize("defense", [NoDefense(), DEFENSES[3]], ids=["none", "noise"])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path, defense) -> None:
    training = FederatedTraining(rounds=4, per_round=2, client=LOCAL, defense=defense, evaluate_every=1)
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    expected = training.run(_task(norm=True), TRAIN, HANDS, TEST, checkpoint=whole)

    def kill(r: RoundResult) -> None:
        if r.number in (2, 3):
            raise _Killed

    for _ in range(2):
        with pytest.raises(_Killed):
            training.run(_task(norm=True), TRAIN, HANDS, TEST, checkpoint=parts, on_round=kill)
    found = training.run(_task(norm=True), TRAIN, HANDS, TEST, checkpoint=parts)
    assert [(r.number, r.accuracy, r.asked) for r in found.rounds] == [
        (r.number, r.accuracy, r.asked) for r in expected.rounds
    ]
    a, b = (torch.load(p, weights_only=True)["state"] for p in (whole, parts))
    assert all(torch.equal(a[k], b[k]) for k in a)
    again = training.run(_task(norm=True), TRAIN, HANDS, TEST, checkpoint=parts, on_round=kill)
    assert again == found, "a finished run does no work"


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Other settings, another partition, other weights, and other pictures with the same labels."""
    training, file = FederatedTraining(rounds=1, per_round=2, client=LOCAL), tmp_path / "run.pt"
    training.run(_task(), TRAIN, HANDS, TEST, checkpoint=file)
    others = dirichlet_partition(TRAIN.labels, 6, 0.5, torch.Generator().manual_seed(1))
    flipped = replace(TRAIN, inputs=TRAIN.inputs.flip(0))
    for changed, task, train, hands in (
        (replace(training, server_lr=0.5), _task(), TRAIN, HANDS),
        (training, _task(), TRAIN, others),
        (training, _task(seed=1), TRAIN, HANDS),
        (training, _task(), flipped, HANDS),
    ):
        with pytest.raises(InputError, match="other settings"):
            changed.run(task, train, hands, TEST, checkpoint=file)
    file.write_bytes(b"torn")
    with pytest.raises(InputError, match="cannot be read"):
        training.run(_task(), TRAIN, HANDS, TEST, checkpoint=file)


def test_training_that_diverges_says_so_and_has_no_accuracy() -> None:
    training = FederatedTraining(rounds=6, per_round=2, client=FedSGD(), server_lr=3e38, evaluate_every=1)
    done = training.run(_task(), TRAIN, HANDS, TEST)
    assert done.diverged == len(done.rounds) < 6
    assert done.accuracy is None


def test_examples_as_bytes_are_exact_and_others_stay_floats() -> None:
    assert TRAIN.inputs.dtype is torch.uint8
    x = torch.rand(5, *SHAPE)
    floats = stored(Batch(x, torch.zeros(5, dtype=torch.int64)), DATA)
    assert torch.equal(floats.read(range(5)).inputs, x)
    assert torch.equal(floats.read([3, 1]).inputs, x[[3, 1]])
