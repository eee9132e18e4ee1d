"""Whole batches off one layer: all of them where that can be done, never a wrong certificate."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from leakgauge.attacks.exact import Peeling, sums
from leakgauge.batch import Batch, DataSpec
from leakgauge.clients import SGD, FedAvg, FedSGD, LocalTraining, SecureAggregation, client_update
from leakgauge.clients.protocol import example_gradients
from leakgauge.compute import Budget
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    Clip,
    ClipExamples,
    Compose,
    Defense,
    FedCDP,
    NoDefense,
    Quantise,
    TopK,
    noise,
)
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.models.networks import mlp
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.task import Mode, Task
from leakgauge.tensors import Tensors
from leakgauge.update import Update

SPEC = DataSpec((1, 12, 12), 10)
FLOAT64, FLOAT32, FLOAT16, BFLOAT16 = torch.float64, torch.float32, torch.float16, torch.bfloat16


def examples(n: int, dtype: torch.dtype = FLOAT64, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    return Batch(torch.rand((n, *SPEC.shape), generator=g, dtype=FLOAT64).to(dtype), torch.arange(n) % SPEC.classes)


def task(*hidden: int, activation: str = "relu", dtype: torch.dtype = FLOAT64, seed: int = 0) -> Task:
    torch.manual_seed(seed)
    return Task.of(mlp(hidden=hidden or (150,), shape=SPEC.shape, activation=activation).to(dtype), SPEC)


def peeled(t: Task, b: Batch, *, protocol=None, defense=None, wire: torch.dtype | None = None, **options):
    protocol = protocol or FedSGD()
    update = client_update(t, protocol, b, Draws(0), defense=defense)
    if wire is not None:
        update = Update({k: v.to(wire).to(v) for k, v in update.tensors.items()}, update.header)
    knowledge = Knowledge(example_count=len(b), local_training=protocol, defense=defense)
    attack = Peeling(groups=3)
    return attack.reconstruct(Observation(t, update, knowledge), torch.Generator().manual_seed(0), **options)


def psnr(found: Reconstruction, b: Batch) -> torch.Tensor:
    """Of each slot, to the nearest true example."""
    assert found.inputs is not None
    return torch.stack([PSNR()(x.double().expand_as(b.inputs), b.inputs.double()).max() for x in found.inputs])


@pytest.mark.parametrize(("wire", "least"), [(FLOAT64, 200), (FLOAT32, 100), (FLOAT16, 45)])
@pytest.mark.parametrize("hidden", [(150,), (120, 60, 30)], ids=str)
def test_a_whole_batch_with_its_labels(hidden: tuple[int, ...], wire: torch.dtype, least: float) -> None:
    b = examples(12 if wire is not FLOAT16 else 4)
    found = peeled(task(*hidden), b, wire=wire)
    assert found.status is Status.EXACT, found.message
    assert found.certified is not None
    assert bool(found.certified.all())
    assert float(psnr(found, b).min()) > least
    nearest = torch.cdist(found.inputs.double().flatten(1), b.inputs.double().flatten(1)).argmin(1)
    assert sorted(nearest.tolist()) == list(range(len(b)))
    assert torch.equal(found.labels, b.labels[nearest])


@pytest.mark.parametrize("n", [1, 2])
def test_a_bias_that_did_not_move_is_no_error(n: int) -> None:
    """Of one direction none was left to solve for: ``linalg.solve: A must be batches of square matrices``."""
    t, b = task(), examples(n)
    sent = client_update(t, FedSGD(), b, Draws(0))
    name = next(k for k, v in sent.tensors.items() if v.ndim == 1)
    still = Update(sent.tensors | {name: torch.zeros_like(sent.tensors[name])}, sent.header)
    found = Peeling(groups=3).reconstruct(
        Observation(t, still, Knowledge(example_count=n)), torch.Generator().manual_seed(0)
    )
    assert found.status is Status.FAILED


@pytest.mark.parametrize(
    "protocol", [FedAvg(lr=0.1), SecureAggregation(cohort=2), SecureAggregation(cohort=2, client=FedAvg(lr=0.5))]
)
def test_a_delta_of_one_step_and_a_cohort_are_sums_too(protocol) -> None:
    b = examples(8)
    found = peeled(task(), b, protocol=protocol)
    assert found.status is Status.EXACT, found.message
    assert float(psnr(found, b).min()) > 150


def test_known_noise_counts_as_rounding() -> None:
    b = examples(12)
    found = peeled(task(150), b, defense=noise(relative=1e-5))
    assert found.status is Status.EXACT, found.message
    assert float(psnr(found, b).min()) > 45


@pytest.mark.parametrize(
    ("defense", "protocol", "least"),
    [
        (Quantise(levels=4095), FedSGD(), 60),
        (QSGD(levels=2**16), FedSGD(), 60),
        (QSGD(levels=2**20, norm=2.0), FedSGD(), 60),
        (Compose((Quantise(levels=2**20), noise(sigma=1e-9), Clip(norm=0.1))), FedSGD(), 100),
        (noise(sigma=1e-7), SecureAggregation(cohort=2), 80),
        (DPSGD(noise_multiplier=1e-8, norm=10.0), SecureAggregation(cohort=2), 80),
        (Quantise(levels=2**20), SecureAggregation(cohort=2), 80),
    ],
    ids=str,
)
def test_steps_of_a_quantiser_and_noise_of_a_cohort_count_as_rounding(defense, protocol, least: float) -> None:
    """They were unknown: of values rounded to 16 bits, or of a mean with so little noise, nothing was read."""
    b = examples(8, FLOAT32)
    found = peeled(task(dtype=FLOAT32), b, defense=defense, protocol=protocol)
    assert found.status is Status.EXACT, found.message
    assert float(psnr(found, b).min()) > least


@pytest.mark.parametrize(
    ("defense", "protocol", "least"),
    [
        (ClipExamples(norm=0.1), FedSGD(), 100),
        (ClipExamples(norm=0.1), SecureAggregation(cohort=2, client=FedAvg(lr=0.1)), 60),
        (Compose((ClipExamples(norm=0.1), Clip(norm=0.01))), FedSGD(), 100),
        (FedCDP(noise_multiplier=1e-8, norm=0.1), FedSGD(), 80),
        (DPSGD(noise_multiplier=1e-7, norm=0.1), FedSGD(), 80),
    ],
    ids=str,
)
def test_an_example_tells_by_how_much_it_was_clipped(defense, protocol, least: float) -> None:
    """Each has a length of its own, and one of eight was read at the length of most rows."""
    b = examples(8, FLOAT32)
    b.inputs[:4] *= torch.arange(1, 5).view(4, 1, 1, 1) / 5  # of gradients of unlike lengths
    found = peeled(task(dtype=FLOAT32), b, defense=defense, protocol=protocol)
    assert found.status is Status.EXACT, found.message
    assert float(psnr(found, b).min()) > least


def test_of_rows_that_give_one_example_a_single_gradient_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each row one was, under every label: a wide layer took a hundred times as long as unclipped."""
    asked: list[int] = []

    def counting(*args):
        asked.append(len(args[3]))
        return example_gradients(*args)

    monkeypatch.setattr(sums, "example_gradients", counting)
    found = peeled(task(dtype=FLOAT32), examples(4, FLOAT32), defense=ClipExamples(norm=0.1))
    assert found.status is Status.EXACT
    assert sum(asked) < 300  # 179; of every row and label 534


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("defense", "wire"),
    [
        (NoDefense(), BFLOAT16),
        (noise(relative=1e-3), FLOAT32),
        (TopK(keep=0.5), FLOAT32),
        (Quantise(levels=1023), FLOAT32),
        (QSGD(levels=4095), FLOAT32),
        (ClipExamples(norm=0.5), FLOAT32),
        (NoDefense(), FLOAT32),
    ],
    ids=["bfloat16", "noise", "topk", "quantise", "qsgd", "clip-examples", "float32"],
)
def test_no_certificate_is_wrong(defense, wire: torch.dtype, seed: int) -> None:
    # More examples than so few units can tell apart: the peeling stalls in the middle of mixtures.
    b = examples(24, seed=seed)
    found = peeled(task(60, seed=seed), b, defense=defense, wire=wire)
    if found.inputs is not None:
        assert bool((psnr(found, b)[found.certified] > 40).all())
        assert found.status is not Status.EXACT or bool(found.certified.all())


@pytest.mark.parametrize("defense", [NoDefense(), Clip(norm=0.01), noise(tensor_std=1.5e-4)], ids=str)
@pytest.mark.parametrize(("activation", "classes", "seed"), [(nn.ReLU, 2, 0), (nn.ReLU, 2, 1), (nn.Tanh, 3, 0)])
def test_a_mixture_at_a_length_that_its_rows_name_is_no_example(activation, classes: int, seed: int, defense) -> None:
    """Examples of one label drove all units in one proportion; their mean at four times the length was certified."""
    data = DataSpec((3, 2, 2), classes)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 20), activation(), nn.Linear(20, classes))
    if activation is nn.ReLU:
        model[1].bias.data += 3  # so that all examples switch all units on
    g = torch.Generator().manual_seed(seed)
    b = Batch(torch.rand(4, *data.shape, generator=g), torch.full((4,), classes - 1))
    found = peeled(Task.of(model, data), b, defense=defense)
    if found.inputs is not None:
        assert bool((psnr(found, b)[found.certified] > 40).all()), found.message
    assert found.silent == 0  # each drives all units


@dataclass(frozen=True)
class Shorter(Defense):
    """A clip of one's own, whose steps nobody wrote down."""

    norm: float

    def on_update(self, update: Tensors, generator: torch.Generator) -> Tensors:
        return Clip(norm=self.norm).on_update(update, generator)


@pytest.mark.parametrize("clip", ["the client's", "a defence's", "one's own"])
def test_a_clip_to_the_length_of_a_mixture_makes_it_no_example(clip: str) -> None:
    """Examples of one label that drive all units in one proportion send their mixture's gradient, only longer."""
    data, n = DataSpec((3, 2, 2), 2), 4
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 2)).double()
    model[1].bias.data += 3  # so that all examples switch all units on
    t, b = Task.of(model, data), Batch(torch.rand(n, *data.shape).double(), torch.ones(n, dtype=torch.long))
    sent = client_update(t, FedSGD(), b, Draws(0)).tensors
    mixture = Batch((sent["1.weight"][:1] / sent["1.bias"][0]).view(1, *data.shape), b.labels[:1])
    alone = client_update(t, FedSGD(), mixture, Draws(0)).tensors
    length, bound = (float(torch.cat([g.flatten() for g in u.values()]).norm()) for u in (sent, alone))
    bound /= n
    by_client = clip == "the client's"
    if by_client:
        bound *= 1 + 1e-6 / length  # which `torch.nn.utils.clip_grad_norm_` adds to the length
    client = LocalTraining(optimiser=SGD(lr=1.0), clip=bound if by_client else None)
    defense = None if by_client else Clip(norm=bound) if clip == "a defence's" else Shorter(bound)
    found = peeled(t, b, protocol=client, defense=defense)
    assert found.inputs is not None
    assert bool((psnr(found, b)[found.certified] > 40).all()), found.message


def test_three_mixtures_with_one_faint_example_prove_no_length() -> None:
    """Saturated examples, each beside the same fourth in all of its rows, agreed on a length: 3 of 4 certified."""
    data, blocks, each = DataSpec((1, 3, 4), 2), 3, 8
    g = torch.Generator().manual_seed(0)
    bright = torch.eye(blocks).repeat_interleave(4, 1)
    x = torch.cat([bright * (0.9 + 0.1 * torch.rand(3, 12, generator=g)), torch.full((1, 12), 0.6)])
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, blocks * each), nn.ReLU(), nn.Linear(blocks * each, 2))
    with torch.no_grad():
        unit = bright.repeat_interleave(each, 0)
        model[1].weight.copy_(unit * (1 + 0.02 * torch.randn(unit.shape, generator=g)))
        model[1].bias.fill_(-2.0)
        model[3].weight.copy_(torch.tensor([[-4.0], [4.0]]).expand(2, blocks * each))
        model.double()
        faint = float(model[3].weight[1] @ model[:3](x[3:].double())[0])
        model[3].bias.copy_(torch.tensor([faint + 0.5, -faint - 0.5]))  # which leaves the fourth a third of the slope
    b = Batch(x.view(4, 1, 3, 4).double(), torch.zeros(4, dtype=torch.long))
    found = peeled(Task.of(model, data), b, defense=Clip(norm=0.05), wire=FLOAT16)
    assert found.inputs is None or bool((psnr(found, b)[found.certified] > 40).all()), found.message


@pytest.mark.parametrize("clip", [0.5, 2.0], ids=["it acts", "it does not"])
def test_a_clip_takes_no_certificate_of_a_batch_that_is_read(clip: float) -> None:
    b, t = examples(6), task()
    whole = client_update(t, FedSGD(), b, Draws(0)).tensors
    bound = clip * float(torch.cat([g.flatten() for g in whole.values()]).norm())
    found = peeled(t, b, protocol=LocalTraining(optimiser=SGD(lr=1.0), clip=bound))
    assert found.status is Status.EXACT


@pytest.mark.parametrize("dtype", [FLOAT64, FLOAT32])
def test_the_last_ones_come_off_sparse_directions(dtype: torch.dtype) -> None:
    # Centred inputs, so that no unit is one example's.
    data = DataSpec(SPEC.shape, SPEC.classes, mean=(0.5,), std=(0.5,))
    torch.manual_seed(0)
    t = Task.of(mlp(hidden=(60,), shape=SPEC.shape).to(dtype), data)
    b = examples(10, dtype, seed=0)
    update = client_update(t, FedSGD(), b, Draws(0))
    observation = Observation(t, update, Knowledge(example_count=10))
    alone = Peeling(directions=0).reconstruct(observation, torch.Generator().manual_seed(0))
    assert alone.status is not Status.EXACT
    found = Peeling().reconstruct(observation, torch.Generator().manual_seed(0))
    assert found.status is Status.EXACT, found.message
    assert float(psnr(found, b).min()) > (90 if dtype is FLOAT32 else 200)
    nearest = torch.cdist(found.inputs.double().flatten(1), b.inputs.double().flatten(1)).argmin(1)
    assert sorted(nearest.tolist()) == list(range(10))
    assert torch.equal(found.labels, b.labels[nearest])


def test_a_search_that_ends_too_early_says_how_far_it_came() -> None:
    data = DataSpec(SPEC.shape, SPEC.classes, mean=(0.5,), std=(0.5,))
    torch.manual_seed(0)
    t = Task.of(mlp(hidden=(60,), shape=SPEC.shape).double(), data)
    update = client_update(t, FedSGD(), examples(20), Draws(0))
    attack = Peeling(groups=1)
    found = attack.reconstruct(Observation(t, update, Knowledge(example_count=20)), torch.Generator())
    assert found.status is Status.FAILED
    assert "20 left" in found.message


def test_what_cannot_be_peeled_says_why() -> None:
    b = examples(8)
    assert peeled(task(activation="sigmoid"), b).status is Status.FAILED
    several = peeled(task(), b, protocol=FedAvg(batch_size=4, lr=0.1))
    assert several.status is Status.NOT_APPLICABLE
    assert "local steps" in several.message
    around = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(200, 10))
    assert "no linear layer" in peeled(Task.of(around.double(), SPEC), b).message
    normed = nn.Sequential(nn.Flatten(), nn.Linear(144, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 10))
    assert "BatchNorm" in peeled(Task.of(normed.double(), SPEC, mode=Mode.TRAIN), b).message
    update = client_update(task(), FedSGD(), b, Draws(0), send_example_count=False)
    assert "number" in Peeling().reconstruct(Observation(task(), update, Knowledge()), torch.Generator()).message


def test_what_no_unit_sees_is_silent() -> None:
    """A black picture drives no unit whose bias is negative: the other seven are the whole update."""
    t, b = task(), examples(8)
    dark = t.with_state({"1.bias": -t.parameters["1.bias"].abs()})
    b.inputs[3] = 0
    found = peeled(dark, b)
    assert found.inputs is not None
    assert (found.status, found.silent, len(found.inputs)) == (Status.CONVERGED, 1, 7)
    assert float(psnr(found, b).min()) > 200
    hidden = peeled(dark, b, defense=noise(relative=1e-6))
    assert hidden.silent == 0


def test_a_budget_ends_it() -> None:
    found = peeled(task(40), examples(24), budget=Budget(gradient_evaluations=1))
    assert found.status in (Status.OUT_OF_BUDGET, Status.FAILED)


@pytest.mark.parametrize("wire", [FLOAT64, FLOAT32], ids=str)
def test_a_clipped_update_is_read_at_the_length_that_its_rows_name(wire: torch.dtype) -> None:
    """Clipping stopped the read, and an audit of it was calm; it changes no direction."""
    b = examples(12)
    found = peeled(task(), b, defense=Clip(norm=0.01), wire=wire)
    assert found.status is Status.EXACT, found.message
    assert float(psnr(found, b).min()) > 90


def test_no_length_is_named_where_no_row_holds_one_example() -> None:
    found = peeled(task(activation="sigmoid"), examples(6), defense=Clip(norm=0.01))
    assert found.inputs is None
    assert found.certified is None or not bool(found.certified.any())
