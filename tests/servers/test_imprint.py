"""Bins of brightness: exact for whoever is alone in one, and nothing claimed for the others."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from cases import SPEC, task
from leakgauge.clients import FedAvg, FedSGD, Protocol, SecureAggregation, client_update
from leakgauge.defenses import ClipExamples, Defense, NoDefense, noise
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.servers import Broadcast, Change
from leakgauge.servers.imprint import Imprint, ImprintBlock
from leakgauge.task import Batch, DataSpec, Mode, Task

MEAN, STD = 0.45, 0.1


def mlp(*hidden: int, activation: type[nn.Module] = nn.ReLU, dtype: torch.dtype = torch.float64) -> Task:
    sizes = [192, *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), activation()]
        net = nn.Sequential(*layers, nn.Linear(sizes[-1], 5)).to(dtype)
    return Task.of(net, SPEC)


def photos(n: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
    """Noise images whose brightness is N(MEAN, STD)."""
    g = torch.Generator().manual_seed(seed)
    level = MEAN + STD * torch.randn((n, 1, 1, 1), generator=g, dtype=torch.float64)
    texture = 0.3 * (torch.rand((n, *SPEC.shape), generator=g, dtype=torch.float64) - 0.5)
    return Batch((level + texture).clamp(0, 1).to(dtype), torch.randint(SPEC.classes, (n,), generator=g))


def cast(server, t: Task, seed: int = 0) -> Broadcast:
    return server.broadcast(t, torch.Generator().manual_seed(seed))


def read(sent: Broadcast, b: Batch, protocol: Protocol | None = None, defense: Defense | None = None) -> Reconstruction:
    protocol = protocol or FedSGD()
    update = client_update(sent.task, protocol, b, Draws(0), defense=defense)
    known = Knowledge(labels=b.labels, example_count=len(b), local_training=protocol, defense=defense or NoDefense())
    assert sent.crafting is not None
    return sent.crafting.reconstruct(Observation(sent.task, update, known), torch.Generator().manual_seed(0))


def best(found: Reconstruction, b: Batch) -> Tensor:
    """For each true example the PSNR of the reconstruction nearest to it."""
    assert found.inputs is not None
    pairs = [PSNR()(found.inputs.double(), x.double().expand_as(found.inputs)) for x in b.inputs]
    return torch.stack(pairs).amax(1)


def alone(b: Batch, sent: Broadcast) -> Tensor:
    """Which examples share no bin, from the truth: as many rows answer whoever falls into one."""
    first = next(m for m in sent.task.module.modules() if isinstance(m, nn.Linear))
    name = next(n for n, m in sent.task.module.named_modules() if m is first)
    weight, bias = (sent.task.parameters[f"{name}.{part}"].double() for part in ("weight", "bias"))
    crafted = torch.cosine_similarity(weight, weight[:1], dim=1) > 0.999
    answers = sent.task.data.normalise(b.inputs.double()).flatten(1) @ weight.T + bias
    bin_of = (answers[:, crafted] > 0).sum(1)
    return (bin_of[:, None] == bin_of).sum(1) == 1


SERVERS_HERE = {
    "classifier-next": lambda: cast(Imprint(mean=MEAN, std=STD), mlp(128)),
    "deep": lambda: cast(Imprint(mean=MEAN, std=STD, bins=100), mlp(128, 16)),
    "block": lambda: cast(ImprintBlock(mean=MEAN, std=STD, bins=128), task("smooth")),
    "block-normed": lambda: cast(ImprintBlock(mean=MEAN, std=STD, bins=128), task("normed", Mode.TRAIN)),
    "block-dropout": lambda: cast(ImprintBlock(mean=MEAN, std=STD, bins=128), task("dropped", Mode.TRAIN)),
    "prior": lambda: cast(Imprint(), mlp(128)),
}


@pytest.mark.parametrize("n", [8, 32])
@pytest.mark.parametrize("case", SERVERS_HERE)
def test_examples_alone_in_their_bin_are_exact_and_others_are_not(case: str, n: int) -> None:
    sent, shared = SERVERS_HERE[case](), 0
    for seed in range(3):
        b = photos(n, seed)
        single, scores = alone(b, sent), best(read(sent, b), b)
        assert bool((scores[single] > 100).all())
        assert bool((scores[~single] < 100).all())  # one of two may outweigh the other, never wholly
        shared += int((~single).sum())
    assert shared > 0 or n == 8  # the second half of the test must have had something to look at


@pytest.mark.parametrize("protocol", [FedAvg(lr=0.1), FedAvg(lr=0.5, momentum=0.9)], ids=repr)
@pytest.mark.parametrize("case", ["classifier-next", "block"])
def test_one_local_step_is_as_exact_as_a_gradient(case: str, protocol: Protocol) -> None:
    sent, b = SERVERS_HERE[case](), photos(8, 2)
    assert bool(alone(b, sent).all())
    found = read(sent, b, protocol)
    assert found.status is Status.EXACT
    assert bool((best(found, b) > 100).all())


def test_several_local_steps_are_read_as_approximate() -> None:
    sent, b = SERVERS_HERE["classifier-next"](), photos(8, 2)
    found = read(sent, b, FedAvg(lr=0.1, epochs=3))
    assert found.status is Status.CONVERGED
    assert "approximate" in found.message
    assert not bool((best(found, b) > 100).all())


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(lr=0.001)], ids=repr)
@pytest.mark.parametrize(
    "server", [Imprint(mean=MEAN, std=STD), ImprintBlock(mean=MEAN, std=STD)], ids=["mlp", "block"]
)
def test_float32_is_enough_for_a_gradient_and_for_a_small_step(server, protocol: Protocol) -> None:
    """A delta is rounded as the parameter that it moved."""
    sent, b = cast(server, mlp(128, dtype=torch.float32)), photos(8, 2, torch.float32)
    found = read(sent, b, protocol)
    assert found.status is Status.EXACT
    assert bool((best(found, b) > 60).all())


def test_a_certificate_is_given_only_where_no_bin_is_shared() -> None:
    sent = SERVERS_HERE["classifier-next"]()
    seen = set()
    for seed in range(12):
        b = photos(12, seed)
        certain = read(sent, b).status is Status.EXACT
        assert certain is bool(alone(b, sent).all())
        seen.add(certain)
    assert seen == {True, False}


def test_a_shared_bin_of_equal_labels_is_no_certificate() -> None:
    """A convex mixture lies in the range and in its bin: only the count tells."""
    sent, b = SERVERS_HERE["classifier-next"](), photos(1)
    twin = Batch(torch.stack([b.inputs[0], b.inputs[0].flip(2)]), torch.tensor([1, 1]))
    assert not bool(alone(twin, sent).any())
    found = read(sent, twin)
    assert found.status is Status.CONVERGED
    assert "1 of 128 slots driven by 2 examples" in found.message
    assert bool((best(found, twin) < 60).all())


def test_a_cohort_is_only_a_larger_batch() -> None:
    sent, b = SERVERS_HERE["block"](), photos(8, 2)
    assert bool((best(read(sent, b, SecureAggregation(cohort=4)), b) > 100).all())


def test_clipping_each_example_does_not_hide_it() -> None:
    sent, b = SERVERS_HERE["block"](), photos(8, 2)
    found = read(sent, b, defense=ClipExamples(norm=0.01))
    assert found.status is Status.CONVERGED  # a defence is known: no certificate
    assert bool((best(found, b) > 100).all())


def test_noise_degrades_the_read_and_never_passes_for_exact() -> None:
    sent, b = SERVERS_HERE["classifier-next"](), photos(8, 2)
    scores = []
    for relative in (1e-6, 1e-3, 1.0):
        found = read(sent, b, defense=noise(relative=relative))
        assert found.status is Status.CONVERGED
        scores.append(float(best(found, b).mean()))
    assert scores == sorted(scores, reverse=True)
    update = client_update(sent.task, FedSGD(), b, Draws(0), defense=noise(relative=1e-3))
    assert sent.crafting is not None
    unaware = sent.crafting.reconstruct(
        Observation(sent.task, update, Knowledge(labels=b.labels, defense=NoDefense())),
        torch.Generator().manual_seed(0),
    )
    assert unaware.status is Status.CONVERGED


@pytest.mark.parametrize(("n", "bins"), [(8, 64), (32, 128), (64, 100)])
def test_the_expected_number_is_that_of_a_simulation(n: int, bins: int) -> None:
    """Balls thrown by the normal prior itself, so that the quantiles are tested along with the formula."""
    edges = Imprint(mean=MEAN, std=STD).thresholds(SPEC, bins)
    g = torch.Generator().manual_seed(0)
    thrown = torch.bucketize(MEAN + STD * torch.randn((4000, n), generator=g, dtype=torch.float64), edges)
    counts = torch.zeros(4000, bins + 1).scatter_add_(1, thrown, torch.ones(4000, n))
    singles = (counts == 1).sum(1).double()
    assert int(counts[:, 0].sum()) == 0  # nobody below the lowest threshold
    assert abs(float(singles.mean()) - n * (1 - 1 / bins) ** (n - 1)) < 4 * float(singles.std()) / 4000**0.5


def test_the_block_carries_the_honest_model_and_moves_its_input_little() -> None:
    t = task("normed", Mode.TRAIN)
    sent = cast(ImprintBlock(bins=32, gain=0.1), t)
    assert sent.crafting is not None
    assert sent.changes == (Change.ARCHITECTURE,)
    assert sent.task.mode is t.mode
    assert sent.task.data == t.data
    for name, value in {**t.parameters, **t.buffers}.items():
        carried = sent.task.parameters.get(f"model.{name}", sent.task.buffers.get(f"model.{name}"))
        assert carried is not None
        assert torch.equal(carried, value)
    x = SPEC.normalise(photos(16).inputs).flatten(1)
    p = sent.task.parameters
    moved = (x @ p["first.weight"].T + p["first.bias"]).relu() @ p["back.weight"].T
    assert 0 < float(moved.abs().max()) < 0.2


@pytest.mark.parametrize(
    ("t", "field", "problem"),
    [
        (lambda: task("smooth"), "model", "no linear layer with bias that reads the input"),
        (lambda: task("dropped"), "model", "no ReLU"),
        (lambda: mlp(32, activation=nn.LeakyReLU), "model", "no ReLU"),
        (lambda: mlp(32, activation=nn.Identity), "model", "no ReLU"),
        (lambda: mlp(), "model", "no ReLU"),
        (lambda: mlp(8), "bins", "8 rows"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(t, field: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        cast(Imprint(bins=9), t())
    assert caught.value.field == field


@pytest.mark.parametrize("bad", [{"bins": 1}, {"std": 0.0}, {"gain": -1.0}])
@pytest.mark.parametrize("server", [Imprint, ImprintBlock])
def test_bad_fields_are_named(server, bad: dict) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        server(**bad)


def test_data_need_not_be_images() -> None:
    signal = DataSpec((40,), 3, low=-2.0, high=2.0)
    torch.manual_seed(0)
    t = Task.of(nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 3)).double(), signal)
    x = torch.rand(4, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    x += torch.tensor([-0.8, -0.2, 0.3, 0.9], dtype=torch.float64)[:, None]
    sent, b = cast(Imprint(), t), Batch(x, torch.tensor([0, 1, 2, 1]))
    found = read(sent, b)
    assert found.status is Status.EXACT
    assert found.inputs is not None
    assert float(torch.cdist(found.inputs, x).amin(0).max()) < 1e-8


def test_labels_are_read_where_they_are_not_given() -> None:
    sent, b = SERVERS_HERE["classifier-next"](), photos(4, 2)
    update = client_update(sent.task, FedSGD(), b, Draws(0))
    assert sent.crafting is not None
    found = sent.crafting.reconstruct(
        Observation(sent.task, update, Knowledge(defense=NoDefense())), torch.Generator().manual_seed(0)
    )
    assert found.labels is not None
    assert not found.paired
    assert sorted(found.labels.tolist()) == sorted(b.labels.tolist())


def test_thresholds_ascend_whatever_the_prior() -> None:
    for server in (Imprint(), Imprint(std=5.0), Imprint(mean=-9.0), Imprint(mean=9.0, std=0.01)):
        edges = server.thresholds(SPEC, 64)
        assert bool((edges[1:] > edges[:-1]).all())
        assert float(edges[0]) < SPEC.low


def test_without_an_empty_bin_nothing_shows_that_the_update_is_untouched() -> None:
    b = photos(2)
    b = Batch(torch.stack([0.3 * b.inputs[0], 0.7 + 0.3 * b.inputs[1]]), b.labels)
    for bins, status in ((2, Status.CONVERGED), (3, Status.EXACT)):
        found = read(cast(Imprint(bins=bins), mlp(128)), b)
        assert found.status is status
        assert bool((best(found, b) > 100).all())


def test_any_weight_decay_takes_the_certificate() -> None:
    sent, b = SERVERS_HERE["block"](), photos(8, 2)
    found = read(sent, b, FedAvg(lr=0.1, weight_decay=1e-14))
    assert found.status is Status.CONVERGED
    assert bool((best(found, b) > 100).all())
