"""Inputs read off a linear layer: exact where they should be, and silent where they cannot be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from cases import SPEC, batch, task
from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.closed_form.single import CERTAIN, read_one
from leakgauge.attacks.recipes.any_loss import AnyLossRead
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, client_update
from leakgauge.clients.optimisers import Optimiser, OptimiserState
from leakgauge.defenses import Clip, ClipLayers, Compose, Defense, NoDefense, Prune, RandomK, Sign, TopK, noise
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.resolve import resolve_defense
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import Tensors
from leakgauge.tracing import input_layers, linear_layers


def read(t: Task, b: Batch, *, protocol=None, defense=None):
    protocol = protocol or FedSGD()
    update = client_update(t, protocol, b, Draws(0), defense=defense)
    knowledge = Knowledge(example_count=len(b), local_training=protocol, defense=defense)
    return LinearRead().reconstruct(Observation(t, update, knowledge), torch.Generator().manual_seed(0))


def psnr(found, b: Batch) -> float:
    return float(PSNR()(found.inputs.double(), b.inputs.double()))


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 60), (torch.float64, 200)])
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=4, lr=0.1)], ids=["fedsgd", "fedavg"])
def test_one_example_is_exact(dtype: torch.dtype, least: float, protocol) -> None:
    b = batch(1, dtype)
    found = read(task("flat", dtype=dtype), b, protocol=protocol, defense=NoDefense())
    assert found.status is Status.EXACT
    assert psnr(found, b) >= least
    assert found.cost.gradient_evaluations == 0


def test_the_layer_is_found_by_what_reaches_it() -> None:
    class Odd(nn.Module):
        """The classifier is registered first, the input layer last."""

        def __init__(self) -> None:
            super().__init__()
            self.a_classifier = nn.Linear(16, 5)
            self.z_input = nn.Linear(192, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a_classifier(torch.sigmoid(self.z_input(x.flatten(1))))

    torch.manual_seed(0)
    t = Task.of(Odd(), SPEC)
    assert [layer.name for layer in linear_layers(t)] == ["a_classifier", "z_input"]
    assert [layer.name for layer in input_layers(t, torch.Generator())] == ["z_input"]
    assert read(t, batch(1, torch.float32)).status is Status.EXACT


def test_probing_leaves_no_hook_behind() -> None:
    """Known defect (breaching): forward hooks pile up over restarts."""
    t = task("flat")
    for _ in range(3):
        input_layers(t, torch.Generator())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in t.module.modules())


def test_a_layer_behind_a_convolution_is_not_taken_for_one() -> None:
    found = read(task("smooth"), batch(1))
    assert found.status is Status.NOT_APPLICABLE
    assert "no linear layer with bias that reads the input" in found.message


def test_an_inactive_layer_gives_nothing_rather_than_zero_over_zero() -> None:
    """Proposition 3.1's condition is not enough: the unit must be active."""
    t = task("flat")
    dead = t.with_state({"1.bias": torch.full_like(t.parameters["1.bias"], -100.0)})
    found = read(dead, batch(1))
    assert found.status is Status.FAILED
    assert "every row of its gradient is zero" in found.message


def test_one_active_unit_is_enough() -> None:
    t, b = task("flat"), batch(1)
    bias = torch.full_like(t.parameters["1.bias"], -100.0)
    bias[5] = 100.0
    found = read(t.with_state({"1.bias": bias}), b, defense=NoDefense())
    assert found.status is Status.EXACT
    assert psnr(found, b) > 200
    # A single row fits any input: who does not know that nothing was left out cannot be sure.
    unsure = read(t.with_state({"1.bias": bias}), b)
    assert unsure.status is Status.CONVERGED
    assert "may have been left out" in unsure.message
    assert torch.equal(unsure.inputs, found.inputs)


@pytest.mark.parametrize("keep", [0.7, 0.3])
def test_an_unbiased_random_k_is_read_without_its_factors(keep: float) -> None:
    """k is rounded up, so weight and bias of 16 rows are not scaled alike."""
    b = batch(1)
    found = read(task("flat"), b, defense=RandomK(keep=keep, unbiased=True))
    one = found.inputs.double() - b.inputs.double()
    seen = one.abs() < 1e-9
    assert bool(seen.any())
    if found.status is Status.EXACT:
        assert bool(seen.all())
    grey = (found.inputs.double() - 0.5).abs() < 1e-6
    assert bool((seen | grey).all()), "what is shown is right"


@pytest.mark.parametrize("defense", [RandomK(keep=0.5), TopK(keep=0.5), Prune(rate=0.5)], ids=repr)
def test_rows_of_several_examples_are_read_without_what_was_left_out(defense: Defense) -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 5))
    b = Batch(torch.rand(2, 3, 4, 4), torch.tensor([1, 4]))
    found = read(Task.of(net, DataSpec((3, 4, 4), 5)), b, defense=defense)
    near = PSNR()(found.inputs[torch.cdist(b.inputs.flatten(1), found.inputs.flatten(1)).argmin(1)], b.inputs)
    assert float(near.min()) > 60


def test_who_knows_the_places_of_a_random_k_reads_no_less() -> None:
    """It took the zeros of entries that were not sent for values: 18 dB where the wire alone gave everything."""
    t, b, defense = task("flat"), batch(1), RandomK(keep=0.6)
    update = client_update(t, FedSGD(), b, Draws(0), defense=defense)
    scores = []
    for draws in (None, Draws(0)):
        known = Knowledge(example_count=1, local_training=FedSGD(), defense=defense, draws=draws)
        scores.append(psnr(LinearRead().reconstruct(Observation(t, update, known), torch.Generator()), b))
    assert scores[1] >= scores[0] > 30


def test_inputs_that_no_row_shows_certify_nothing_where_the_defence_is_unknown() -> None:
    """Soteria zeroes whole columns of the next layer, and of this one where it reads the input."""
    b, t = batch(1), task("flat")
    update = client_update(t, FedSGD(), b, Draws(0))
    thinned = dict(update.tensors)
    thinned["1.weight"] = thinned["1.weight"].clone()
    thinned["1.weight"][:, :40] = 0
    for defense, status in ((None, Status.CONVERGED), (NoDefense(), Status.EXACT)):
        knowledge = Knowledge(example_count=1, local_training=FedSGD(), defense=defense)
        seen = Observation(t, replace(update, tensors=thinned), knowledge)
        assert LinearRead().reconstruct(seen, torch.Generator().manual_seed(0)).status is status


def test_rows_that_one_example_drives_are_read_from_a_batch() -> None:
    """Two units for each of three examples, of which no other example reaches them."""
    b = batch(3)
    z = SPEC.normalise(b.inputs).flatten(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 5)).double()
    with torch.no_grad():
        for unit in range(6):
            own = unit // 2
            direction = z[own] - z[[i for i in range(3) if i != own]].mean(0)
            direction = direction / direction.square().sum()
            scores = z @ direction
            net[1].weight[unit] = direction * (1 + unit)
            threshold = (scores[own] + scores[[i for i in range(3) if i != own]].max()) / 2
            net[1].bias[unit] = -threshold * (1 + unit)
    found = read(Task.of(net, SPEC), b)
    assert found.status is Status.EXACT
    assert float((found.inputs[found.labels.argsort()] - b.inputs[b.labels.argsort()]).abs().max()) < 1e-6
    assert found.paired
    gaps = torch.cdist(found.inputs.flatten(1), b.inputs.flatten(1)).min(0).values
    assert float(gaps.max()) < 1e-6


@pytest.mark.parametrize("classes", [2, 5])
def test_agreeing_rows_of_a_batch_are_no_certificate(classes: int) -> None:
    """Units that the same examples drive in the same proportions agree on a mixture."""
    torch.manual_seed(0)
    spec = DataSpec(SPEC.shape, classes)
    t = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Sigmoid(), nn.Linear(16, classes)).double(), spec)
    b = batch(4)
    found = read(t, Batch(b.inputs, torch.ones(4, dtype=torch.long)))
    assert found.status is not Status.EXACT


def test_mixed_rows_are_not_sold_as_images() -> None:
    found = read(task("flat"), batch(4))
    assert found.status is not Status.EXACT


def test_a_sparse_update_is_read_where_it_was_sent() -> None:
    b = batch(1)
    found = read(task("flat"), b, defense=TopK(keep=0.3))
    assert found.status is Status.CONVERGED
    same = (found.inputs - b.inputs).abs() < 1e-9
    seen = int(found.message.split()[0])
    assert int(same.sum()) == seen
    assert 0.3 < seen / same.numel() < 1


@pytest.mark.parametrize("wire", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=4, lr=0.1)], ids=["fedsgd", "fedavg"])
@pytest.mark.parametrize("defense", [TopK(keep=0.15), Prune(rate=0.7), RandomK(keep=0.3)], ids=repr)
def test_entries_left_out_bound_the_inputs_that_they_hide(wire: torch.dtype, protocol, defense) -> None:
    """The example is between the limits, and only random places leave an input open."""
    for seed in range(4):
        t, b = task("flat", seed=seed), batch(1, seed=seed)
        update = client_update(t, protocol, b, Draws(seed), defense=defense)
        update = replace(update, tensors={name: value.to(wire) for name, value in update.tensors.items()})
        known = Knowledge(example_count=1, local_training=protocol, defense=defense, labels=b.labels)
        observation = Observation(t, update, known)
        found = read_one(observation, input_layers(t, torch.Generator())[0])
        limits = found.limits(t.data)
        if limits is None:
            assert wire is torch.bfloat16 or (wire is torch.float16 and found.error > CERTAIN)
            continue
        low, high = limits
        slack = found.error * t.data.range + 1e-6
        assert bool(((b.inputs >= low - slack) & (b.inputs <= high + slack)).all())
        unseen = ~found.seen.view_as(low)
        assert bool((low == high)[~unseen].all())
        bounded = not isinstance(defense, RandomK) and bool(found.seen.any())
        assert bool(((high - low)[unseen] < t.data.range).any()) == bounded


@pytest.mark.parametrize("keep", [0.05, 0.15])
@pytest.mark.parametrize(
    ("then", "protocol"),
    [
        ((Sign(),), FedSGD()),
        ((noise(relative=0.1),), FedSGD()),
        ((Clip(norm=1e-3),), FedAvg(epochs=4, lr=0.1, weight_decay=0.1)),
    ],
    ids=["signs", "noise", "shortened weight decay"],
)
def test_entries_that_were_changed_bound_nothing(then, protocol, keep: float) -> None:
    """Of one row alone (5 % of 16) any input fits, so that it proves nothing."""
    defense = Compose((*then, TopK(keep=keep)))
    t, b = task("flat"), batch(1)
    update = client_update(t, protocol, b, Draws(0), defense=defense)
    observation = Observation(t, update, Knowledge(example_count=1, local_training=protocol, defense=defense))
    assert read_one(observation, input_layers(t, torch.Generator())[0]).limits(t.data) is None


@pytest.mark.parametrize("seed", range(4))
def test_known_decay_behind_top_k_leaves_what_was_sent(seed: int) -> None:
    """Not what was left out: with the decay that may have been larger than what was sent."""
    defense, protocol = TopK(keep=0.3), FedAvg(epochs=4, lr=0.1, weight_decay=0.1)
    t, b = task("flat", seed=seed), batch(1, seed=seed)
    update = client_update(t, protocol, b, Draws(0), defense=defense)
    known = Knowledge(example_count=1, local_training=protocol, defense=defense)
    found = read_one(Observation(t, update, known), input_layers(t, torch.Generator())[0])
    assert bool(found.seen.any())
    off = (t.data.denormalise(found.x.view(b.inputs.shape)) - b.inputs).flatten().abs()
    assert float(off[found.seen].max()) < CERTAIN
    assert found.unseen_below == float("inf")


def test_noise_degrades_the_read_and_takes_its_certificate() -> None:
    b, t = batch(1), task("flat")
    scores = [psnr(read(t, b, defense=noise(relative=r)), b) for r in (1e-4, 1e-2, 1.0)]
    assert scores == sorted(scores, reverse=True)
    assert read(t, b, defense=noise(relative=1e-2)).status is Status.CONVERGED


def test_without_bias_or_count_it_says_so() -> None:
    torch.manual_seed(0)
    unbiased = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(192, 5, bias=False)), SPEC)
    assert read(unbiased, batch(1, torch.float32)).status is Status.NOT_APPLICABLE
    t, b = task("flat"), batch(1)
    update = client_update(t, FedSGD(), b, Draws(0), send_example_count=False)
    found = LinearRead().reconstruct(Observation(t, update, Knowledge()), torch.Generator())
    assert "example_count" in found.message


def test_data_need_not_be_images() -> None:
    signal = DataSpec((40,), 3, low=-2.0, high=2.0)
    torch.manual_seed(0)
    t = Task.of(nn.Sequential(nn.Linear(40, 8), nn.Tanh(), nn.Linear(8, 3)).double(), signal)
    x = torch.rand(1, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 4 - 2
    found = read(t, Batch(x, torch.tensor([1])))
    assert found.status is Status.EXACT
    assert torch.allclose(found.inputs, x)


@pytest.mark.parametrize("known", [True, False], ids=["defence known", "defence unknown"])
@pytest.mark.parametrize("spec", ["sign", {"sign": {"scaled": True}}, {"quantise": {"levels": 1}}], ids=str)
def test_rounded_entries_certify_nothing(spec, known: bool) -> None:
    """The signs of an outer product are one, so that one outer product explains them all."""
    b, defense = batch(1, torch.float32), resolve_defense(spec, "defense").value
    t = task("flat", dtype=torch.float32)
    update = client_update(t, FedSGD(), b, Draws(0), defense=defense)
    knowledge = Knowledge(example_count=1, local_training=FedSGD(), defense=defense if known else None)
    found = LinearRead().reconstruct(Observation(t, update, knowledge), torch.Generator())
    assert found.status is Status.CONVERGED
    assert "rounded, which certifies nothing" in found.message
    assert psnr(found, b) < 40


@pytest.mark.parametrize("scaled", [False, True])
def test_noise_beside_signs_certifies_nothing(scaled: bool) -> None:
    """The known deviation of the noise stood for the error of the signs too: a white picture was certified."""
    b, t = batch(1, torch.float32), task("flat", dtype=torch.float32)
    defense = resolve_defense([{"sign": {"scaled": scaled}}, {"noise": {"sigma": 7e-6}}], "defense").value
    update = client_update(t, FedSGD(), b, Draws(0), defense=defense)
    knowledge = Knowledge(example_count=1, local_training=FedSGD(), defense=defense)
    found = LinearRead().reconstruct(Observation(t, update, knowledge), torch.Generator())
    assert found.status is Status.CONVERGED, psnr(found, b)


def test_known_labels_say_how_many_examples_there_are() -> None:
    t, b = task("flat", dtype=torch.float32), batch(1, torch.float32)
    update = client_update(t, FedSGD(), b, Draws(0))
    bare = replace(update, header=replace(update.header, example_count=None))
    found = LinearRead().reconstruct(Observation(t, bare, Knowledge(labels=b.labels)), torch.Generator())
    assert found.status is Status.EXACT


@pytest.mark.parametrize("seed", [1, 2])
def test_layers_further_in_tell_examples_from_mixtures(seed: int) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
    task, batch = Task.of(net, DataSpec(shape=(3, 8, 8), classes=10)), Batch(torch.rand(4, 3, 8, 8), torch.arange(4))
    update = client_update(task, FedSGD(), batch, Draws(1))
    seen = Observation(task, update, Knowledge(example_count=4, local_training=FedSGD()))
    found = LinearRead().reconstruct(seen, torch.Generator().manual_seed(0))
    assert found.certified is not None
    assert bool(found.certified.all())


class Shift(nn.Module):
    """A bias in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.bias


@dataclass(frozen=True)
class Each(Defense):
    """Every tensor to a length of its own."""

    def on_update(self, tensors: Tensors, generator: torch.Generator) -> Tensors:
        return {name: t / t.norm().clamp_min(1e-9) * (1 + k % 3) for k, (name, t) in enumerate(tensors.items())}


@pytest.mark.parametrize("defense", [NoDefense(), Clip(norm=0.01), ClipLayers(norm=0.01), Each()], ids=repr)
@pytest.mark.parametrize("apart", [False, True], ids=["one module", "a bias apart"])
def test_who_is_not_known_may_have_shortened_each_tensor_by_itself(defense: Defense, apart: bool) -> None:
    """A picture at 7 dB was certified, dimmed as the weight was shortened otherwise than the bias."""
    known, data = 0, DataSpec((3, 4, 4), 5)
    first = [nn.Linear(48, 24, bias=False), Shift()] if apart else [nn.Linear(48, 24)]
    for seed in range(6):
        torch.manual_seed(seed)
        t = Task.of(nn.Sequential(nn.Flatten(), *first, nn.Tanh(), nn.Linear(24, 5)), data)
        b = Batch(torch.rand(1, 3, 4, 4), torch.tensor([seed % 5]))
        update = client_update(t, FedSGD(), b, Draws(seed), defense=defense)
        seen = Observation(t, update, Knowledge(example_count=1, local_training=FedSGD()))
        found = LinearRead().reconstruct(seen, torch.Generator().manual_seed(0))
        known += found.status is Status.EXACT
        assert found.status is not Status.EXACT or psnr(found, b) > 45
        least = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), data)
        update = client_update(least, FedSGD(), b, Draws(seed), defense=defense)
        alone = AnyLossRead().reconstruct(replace(seen, task=least, update=update), torch.Generator().manual_seed(0))
        assert alone.status is not Status.EXACT or psnr(alone, b) > 45
    together = isinstance(defense, NoDefense) or (isinstance(defense, Clip) and not apart)
    assert known == 6 if together else known == 0 or isinstance(defense, Clip | ClipLayers)


@dataclass(frozen=True)
class Rescaled(Optimiser):
    """Steps of one length for each tensor, as LARS takes them."""

    lr: float = 0.1

    def step(self, gradient: Tensors, parameters: Tensors, state: OptimiserState) -> tuple[Tensors, OptimiserState]:
        moved = {k: p - self.lr * gradient[k] / gradient[k].norm().clamp_min(1e-9) for k, p in parameters.items()}
        return moved, replace(state, steps=state.steps + 1)


def test_an_optimiser_of_ones_own_may_take_a_step_of_its_own_for_each_tensor() -> None:
    for seed in range(4):
        torch.manual_seed(seed)
        t = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(48, 24), nn.Tanh(), nn.Linear(24, 5)), DataSpec((3, 4, 4), 5))
        b = Batch(torch.rand(1, 3, 4, 4), torch.tensor([seed]))
        found = read(t, b, protocol=LocalTraining(optimiser=Rescaled()), defense=NoDefense())
        assert found.status is not Status.EXACT
