"""One model in several spellings is attacked as one model; what each said before is in the docstrings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from leakgauge.attacks.labels.strategy import find_classifier
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, Protocol, client_update
from leakgauge.clients.optimisers import Adam
from leakgauge.compute import Budget
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    ClientDP,
    Clip,
    ClipExamples,
    Compose,
    Defense,
    FedCDP,
    GaussianNoise,
    NoDefense,
    Precode,
    Prune,
    Quantise,
    RandomK,
    Soteria,
    TopK,
)
from leakgauge.defenses.carried import Carried
from leakgauge.defenses.dp import Absolute, RelativeToTensorStd
from leakgauge.draws import Draws
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Mode, Task
from leakgauge.tensors import map_tensors, squared_norm
from leakgauge.tracing import LinearLayer, input_layers
from leakgauge.view.normal import look_at

SPEC = DataSpec((3, 6, 6), 4, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
WIDE = 96


class Held(nn.Module):
    """Holds a first layer's parameters and a linear head."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(*(shape or (WIDE, 108))) / 10)
        self.b = nn.Parameter(torch.randn(WIDE) / 10)
        self.head = nn.Linear(WIDE, 4)

    def first(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w, self.b)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(x.flatten(1)).relu())
        return out


class Multiplied(Held):
    def first(self, x: Tensor) -> Tensor:
        return x @ self.w.T + self.b


class Transposed(Held):
    def __init__(self) -> None:
        super().__init__(108, WIDE)

    def first(self, x: Tensor) -> Tensor:
        return torch.addmm(self.b, x, self.w)


class Summed(Held):
    def first(self, x: Tensor) -> Tensor:
        return self.b + torch.einsum("ni,oi->no", x, self.w)


class Own(nn.Module):
    """A linear module of one's own."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(o, i) / i**0.5), nn.Parameter(torch.randn(o) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, weight=self.weight, bias=self.bias)


class Shared(nn.Module):
    """Its parts are called as one may call what a network has beside its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.parts, self.tensors = Own(108, WIDE), nn.ReLU(), Own(WIDE, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.tensors(self.parts(self.shared(x.flatten(1))))
        return out


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


class Shifts(nn.Linear):
    """A linear layer that shifts what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x - 1)


class Picks(nn.Module):
    """The error signal at the layer is a part of a larger tensor's."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x, torch.zeros_like(x)], dim=-1).amax(dim=-1)


class Permuted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 3, 2, 1).flatten(1)


def tail(first: nn.Module) -> tuple[nn.Module, ...]:
    return first, nn.ReLU(), nn.Linear(WIDE, 4)


class Gated(Held):
    """Half of the first layer's outputs gate the other half."""

    def __init__(self) -> None:
        super().__init__(WIDE, 108)
        self.head = nn.Linear(WIDE // 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        gates, values = self.first(x.flatten(1)).chunk(2, dim=1)
        out: Tensor = self.head(gates.relu() * values)
        return out


def normed() -> nn.Module:
    norm = nn.BatchNorm2d(3)
    norm.running_mean, norm.running_var = torch.tensor([0.1, -0.3, 0.2]), torch.tensor([1.5, 0.6, 2.0])
    return nn.Sequential(norm, nn.Flatten(), *tail(nn.Linear(108, WIDE)))


MODELS = {
    "a function": Held,
    "a product": Multiplied,
    "a transposed weight": Transposed,
    "einsum": Summed,
    "modules of one's own": lambda: nn.Sequential(nn.Flatten(), Own(108, WIDE), nn.ReLU(), Own(WIDE, 4)),
    "a convolution over all": lambda: nn.Sequential(nn.Conv2d(3, WIDE, 6), nn.Flatten(), nn.ReLU(), nn.Linear(WIDE, 4)),
    "a shifted input": lambda: nn.Sequential(Shifted(), nn.Flatten(), *tail(nn.Linear(108, WIDE))),
    "a layer that shifts": lambda: nn.Sequential(nn.Flatten(), *tail(Shifts(108, WIDE))),
    "channels last": lambda: nn.Sequential(Permuted(), *tail(nn.Linear(108, WIDE))),
    "channels last, of one's own": lambda: nn.Sequential(Shifted(), Permuted(), *tail(Own(108, WIDE))),
    "a normalised input": normed,
    "parts of any name": Shared,
    "a kink that picks": lambda: nn.Sequential(nn.Flatten(), Own(108, WIDE), Picks(), nn.Linear(WIDE, 4)),
}


def task(name: str, mode: Mode = Mode.EVAL) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Task.of(MODELS[name](), SPEC, mode=mode)


def seen(where: Task, client: Protocol = FedSGD(), defense: Defense | None = None) -> Observation:
    g = torch.Generator().manual_seed(1)
    batch = Batch(torch.rand((4, 3, 6, 6), generator=g), torch.arange(4))
    sent = client_update(where, client, batch, Draws(3), **({} if defense is None else {"defense": defense}))
    return Observation(where, sent, Knowledge(example_count=4, local_training=client, defense=defense))


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_read_exactly_however_its_model_is_written(name: str) -> None:
    """Nothing but an `nn.Linear` that is given the input itself was read: each of these batches came back blurred, and
    where the classifier is no `nn.Linear` either, not at all."""
    found = Auto().reconstruct(seen(task(name)), torch.Generator().manual_seed(0), budget=Budget(100))
    assert found.status is Status.EXACT
    assert found.inputs is not None
    truth = torch.rand((4, 3, 6, 6), generator=torch.Generator().manual_seed(1))
    assert all(float((found.inputs - x).abs().amax((1, 2, 3)).min()) < 1e-3 for x in truth)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "client", [FedAvg(lr=0.1, epochs=2, batch_size=2), LocalTraining(optimiser=Adam(lr=1e-3), epochs=2)], ids=repr
)
def test_the_plain_model_trains_as_the_other(name: str, client: Protocol) -> None:
    observation = seen(task(name), client)
    plain = observation.view
    assert plain.task is not observation.task
    g = torch.Generator().manual_seed(1)
    batch = Batch(torch.rand((4, 3, 6, 6), generator=g), torch.arange(4))
    again = client_update(plain.task, client, batch, Draws(3)).tensors
    gap = map_tensors(lambda a, b: a - b, again, plain.update.tensors)
    assert float(squared_norm(gap)) < 1e-4 * float(squared_norm(again))


def test_a_classifier_that_is_given_a_shifted_input_is_found_and_searched_behind() -> None:
    """The layer that calls another one in its place was taken for the classifier, and nothing was searched for."""
    net = nn.Sequential(Shifted(), nn.Flatten(), nn.Linear(108, 4))
    plain = seen(Task.of(net, SPEC)).view
    found = find_classifier(plain)
    assert isinstance(found, LinearLayer)
    assert (found.weight, found.bias) == ("2.weight", "2.bias")


class Tied(Held):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1)).relu()
        out: Tensor = self.head(h) + F.linear(h, self.w.T)[:, :4]
        return out


class Mixed(nn.Module):
    """A layer that sees more than the input's numbers one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.head = nn.Linear(108, WIDE), nn.Linear(WIDE, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.one(F.layer_norm(x.flatten(1), (108,))).relu())
        return out


@pytest.mark.parametrize("make", [Tied, Mixed, lambda: nn.Sequential(nn.Flatten(), *tail(nn.Linear(108, WIDE)))])
def test_where_nothing_is_the_same_in_plainer_words_nothing_changes(make: type[nn.Module]) -> None:
    observation = seen(Task.of(make(), SPEC))
    assert observation.view is observation


class Skipping(nn.Module):
    """Runs one of its layers at random."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = Own(108, WIDE), Own(108, WIDE), nn.Linear(WIDE, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.one if bool(torch.rand(()) < 0.5) else self.two
        out: Tensor = self.head(first(x.flatten(1)).relu())
        return out


def test_of_models_that_draw_those_are_rewritten_that_call_the_same_layers_each_time() -> None:
    net = nn.Sequential(nn.Flatten(), Own(108, WIDE), nn.ReLU(), nn.Dropout(0.3), nn.Linear(WIDE, 4))
    assert look_at(Task.of(net, SPEC, mode=Mode.TRAIN)).form is not None
    assert look_at(Task.of(Skipping(), SPEC, mode=Mode.TRAIN)).form is None


@pytest.mark.parametrize(
    "defense", [Clip(norm=0.1), Prune(rate=0.5), Compose((Prune(rate=0.3), Clip(norm=0.1)))], ids=repr
)
def test_behind_a_defence_that_goes_by_no_names_too(defense: Defense) -> None:
    where = task("a transposed weight")
    batch = Batch(torch.rand((1, 3, 6, 6), generator=torch.Generator().manual_seed(1)), torch.tensor([2]))
    sent = client_update(where, FedSGD(), batch, Draws(3), defense=defense)
    known = Knowledge(example_count=1, local_training=FedSGD(), defense=defense)
    found = Auto().reconstruct(Observation(where, sent, known), torch.Generator().manual_seed(0), budget=Budget(100))
    assert found.status is Status.EXACT


class Halves(Held):
    """A first layer in two modules, each with half of the units."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(108, WIDE // 2), nn.Linear(108, WIDE // 2)
        del self.w, self.b

    def first(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.two(x)], 1)


@pytest.mark.parametrize(
    ("defense", "carried"),
    [
        (GaussianNoise(scale=Absolute(1e-9)), True),
        (Clip(norm=0.1), True),
        (GaussianNoise(scale=RelativeToTensorStd(1e-6)), True),
        (Quantise(levels=1023), False),
        (RandomK(keep=0.3, unbiased=True), False),
        (TopK(keep=0.5), True),
    ],
    ids=repr,
)
def test_a_layer_in_two_is_one_behind_what_no_tensor_decides(defense: Defense, carried: bool) -> None:
    """A grid of a half, or its factor, is not that of the whole; of two deviations of noise the larger is one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        where = Task.of(Halves(), SPEC)
    observation = seen(where, defense=defense)
    assert (observation.view is not observation) == carried


class Weighed(Held):
    """A first layer whose weight is computed from one that has other entries."""

    def __init__(self) -> None:
        super().__init__()
        self.held = nn.Linear(108, WIDE)
        del self.w, self.b

    def first(self, x: Tensor) -> Tensor:
        return F.linear(x, self.held.weight @ self.turn, self.held.bias)

    turn = torch.eye(108) + torch.randn(108, 108, generator=torch.Generator().manual_seed(5)) / 108


NOISY = GaussianNoise(scale=Absolute(1e-4))


@pytest.mark.parametrize(
    "defense",
    [
        NOISY,
        Compose((Clip(norm=0.1), NOISY)),
        Compose((ClipExamples(norm=0.1), NOISY)),
        DPSGD(noise_multiplier=4e-3, norm=0.1),
        ClientDP(noise_multiplier=1e-3, norm=0.1),
        FedCDP(noise_multiplier=4e-3, norm=0.1),
    ],
    ids=repr,
)
def test_noise_behind_a_clip_is_carried_over_at_its_size(defense: Defense) -> None:
    """Noise alone was carried over to a weight that is computed, noise behind a clip was not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        where = Task.of(Weighed(), SPEC)
    batch = Batch(torch.rand((4, 3, 6, 6), generator=torch.Generator().manual_seed(1)), torch.arange(4))
    drawn = list[Tensor]()
    for seed in range(8):
        sent = client_update(where, FedSGD(), batch, Draws(seed), defense=defense)
        known = Knowledge(example_count=4, local_training=FedSGD(), defense=defense)
        view = Observation(where, sent, known).view
        assert view.task is not where
        (name,) = (n for n, t in view.update.tensors.items() if t.shape == (WIDE, 108))
        drawn.append(view.update.tensors[name])
    assert view.defended.noise_scale is not None
    measured, told = torch.stack(drawn).std(0), float(view.defended.noise_scale[name].max())
    assert 0.5 * float(measured.max()) < told < 1.5 * float(measured.max())


class Parted(Held):
    """A first layer whose weight is that of two modules side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(54, WIDE), nn.Linear(54, WIDE)
        del self.w, self.b

    def first(self, x: Tensor) -> Tensor:
        return F.linear(x, torch.cat([self.one.weight, self.two.weight], 1), self.one.bias + self.two.bias)


def test_a_bound_of_each_layer_is_not_carried_over_to_a_tensor_made_of_two() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        where = Task.of(Parted(), SPEC)
    known = FedCDP(noise_multiplier=1e-6, norm=0.1)
    whole, parted = seen(where, defense=NOISY).view, seen(where, defense=known).view
    assert (WIDE, 108) in {tuple(t.shape) for t in whole.task.parameters.values()}
    assert not isinstance(parted.knowledge.defense, Carried)


class Turned(Held):
    """What reads the input is one less it."""

    def first(self, x: Tensor) -> Tensor:
        return F.linear(1 - x, self.w, self.b)


@pytest.mark.parametrize("defense", [TopK(keep=0.5), RandomK(keep=0.7), Prune(rate=0.3)], ids=repr)
@pytest.mark.parametrize("make", [Halves, Turned])
def test_entries_that_are_made_of_sent_ones_alone_are_known(make: type[Held], defense: Defense) -> None:
    """Where tensors are no copies, masks were not carried over."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        where = Task.of(make(), SPEC)
    bare, masked = (seen(where, defense=one).view for one in (None, defense))
    assert masked.task is not where
    support = masked.defended.support
    assert support is not None
    kept = torch.cat([support[name].flatten() for name in bare.update.tensors])
    assert 0.1 < float(kept.double().mean()) < 0.9
    for name, true in bare.update.tensors.items():
        whole, sent = support[name], masked.update.tensors[name]
        torch.testing.assert_close(sent[whole], true[whole], rtol=1e-5, atol=1e-7)
        assert not bool(sent[~whole].any())


class Sharpened(Held):
    """A first layer in other words, and logits in another scale than their layer's."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(x.flatten(1)).relu()) / 2
        return out

    def first(self, x: Tensor) -> Tensor:
        return x @ self.w.T + self.b


@pytest.mark.parametrize(
    ("client", "defense"),
    [
        (FedSGD(), GaussianNoise(scale=RelativeToTensorStd(1e-6))),
        (FedSGD(), QSGD(levels=32767)),
        (FedSGD(), Compose((Clip(norm=0.01), QSGD(levels=255)))),
        (FedSGD(), TopK(keep=0.5)),
    ],
    ids=repr,
)
def test_a_layer_that_is_not_the_same_keeps_no_other_one_from_its_plain_words(
    client: Protocol, defense: Defense
) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        observation = seen(Task.of(Sharpened(), SPEC), client, defense)
    assert observation.view is not observation
    (first,) = input_layers(observation.view.task, torch.Generator())
    assert first.bias is not None
    seen_there = observation.view.update.tensors
    assert torch.equal(seen_there[first.weight], observation.update.tensors["w"])
    assert torch.equal(seen_there[first.bias], observation.update.tensors["b"])


@pytest.mark.parametrize("clips", [(), (Clip(norm=0.01),)], ids=repr)
def test_noise_has_the_scale_of_the_tensor_that_it_lies_on(clips: tuple[Defense, ...]) -> None:
    """Tensors of the head are half as large in plain words, so that a gradient there is twice the one that was sent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        noisy = Compose((*clips, GaussianNoise(scale=Absolute(1e-3))))
        observation = seen(Task.of(Sharpened(), SPEC), FedSGD(), noisy)
    scale = observation.view.defended.noise_scale
    assert observation.view is not observation
    assert scale is not None
    assert sorted(round(float(value) / 1e-3, 3) for value in scale.values()) == [1.0, 1.0, 2.0, 2.0]


def test_a_defence_that_goes_by_modules_is_attacked_as_it_is() -> None:
    observation = seen(task("a function"), defense=Soteria())
    assert observation.view is observation


def test_a_layer_whose_outputs_part_is_one_layer() -> None:
    """Each part alone was rebuilt, without the parameters of the other: the view was refused."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        gated = Task.of(Gated(), SPEC)
    plain = seen(gated).view
    assert plain.task is not gated
    assert plain.task.parameters["w.weight"].shape == (WIDE, 108)


class Inner(nn.Module):
    """Weights that no parameter's gradient is the gradient of, behind a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(32, 4)
        self.w = nn.Parameter(torch.randn(32, 64) / 8)
        self.scale = nn.Parameter(torch.rand(32, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        upper, lower = (self.scale * self.w).chunk(2)
        h = self.conv(x).relu().flatten(1)
        out: Tensor = self.head(torch.cat([h @ upper.T, h @ lower.T], 1).relu())
        return out


def test_weights_further_in_are_parameters_too() -> None:
    """Layers that read the input and the last one alone were looked for."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        observation = seen(Task.of(Inner(), SPEC))
    plain = observation.view.task
    g = torch.Generator().manual_seed(1)
    batch = Batch(torch.rand((4, 3, 6, 6), generator=g), torch.arange(4))
    again = client_update(plain, FedSGD(), batch, Draws(3)).tensors
    assert [again[name].shape for name in ("w", "w_1")] == [(64, 16), (64, 16)]
    torch.testing.assert_close(observation.view.update.tensors, again, rtol=1e-3, atol=1e-6)


PENALISED: dict[str, Callable[[], Task]] = {
    "a bottleneck": lambda: Precode(size=16).on_task(task("a function")),
    "a bottleneck that reads the input": lambda: Precode(size=16, layer="2").on_task(task("a shifted input")),
    "the first layer": lambda: replace(task("modules of one's own"), penalties=(("1", lambda z: z.square().mean()),)),
}


@pytest.mark.parametrize("name", PENALISED)
def test_a_penalty_is_on_the_same_numbers_in_other_words(name: str) -> None:
    """No network was looked at whose loss has a penalty."""
    penalised = PENALISED[name]()
    plain = seen(penalised).view
    assert plain.task is not penalised
    g = torch.Generator().manual_seed(1)
    batch = Batch(torch.rand((4, 3, 6, 6), generator=g), torch.arange(4))
    again = client_update(plain.task, FedSGD(), batch, Draws(3)).tensors
    gap = map_tensors(lambda a, b: a - b, again, plain.update.tensors)
    assert float(squared_norm(gap)) < 1e-8 * float(squared_norm(again))


class OneOwner(nn.Module):
    """Two layers whose parameters one module holds."""

    def __init__(self) -> None:
        super().__init__()
        one, head = nn.Linear(108, WIDE), nn.Linear(WIDE, 4)
        self.w, self.b, self.v, self.c = one.weight, one.bias, head.weight, head.bias

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) @ self.w.T + self.b).relu() @ self.v.T + self.c


def test_a_clip_of_layers_carries_over_where_they_are_the_same_layers() -> None:
    """It goes by the names of tensors, but asks only which belong together."""
    defense = FedCDP(noise_multiplier=1e-6, norm=0.1)
    observation = seen(Task.of(nn.Sequential(nn.Flatten(), *tail(Own(108, WIDE))), SPEC), defense=defense)
    assert observation.view is not observation
    observation = seen(Task.of(OneOwner(), SPEC), defense=defense)
    assert observation.view is observation


TEXT = DataSpec((12,), 4, vocabulary=200)


class Reader(nn.Module):
    """Attention over looked-up rows."""

    def __init__(self, rows: int = 200) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, 16)
        self.body, self.head = nn.TransformerEncoderLayer(16, 2, 16, dropout=0.0, batch_first=True), nn.Linear(16, 4)

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.words.weight)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.rows(ids)).mean(1))
        return out


class Indexed(Reader):
    def rows(self, ids: Tensor) -> Tensor:
        return self.words.weight[ids]


class Selected(Reader):
    def rows(self, ids: Tensor) -> Tensor:
        return self.words.weight.index_select(0, ids.flatten()).view(*ids.shape, -1)


class OneHot(Reader):
    def rows(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, 200).to(self.words.weight) @ self.words.weight


class Reserved(Reader):
    def __init__(self) -> None:
        super().__init__(204)

    def rows(self, ids: Tensor) -> Tensor:
        out: Tensor = self.words(ids + 4)
        return out


class PlacesFirst(Reader):
    def rows(self, ids: Tensor) -> Tensor:
        out: Tensor = self.words(ids.t()).transpose(0, 1)
        return out


class Begun(Reader):
    """Adds a first token of its own, in a row of its own or in one that texts may hold too."""

    def __init__(self, first: int) -> None:
        super().__init__(201)
        self.begin = first

    def rows(self, ids: Tensor) -> Tensor:
        out: Tensor = self.words(torch.cat([torch.full_like(ids[:, :1], self.begin), ids], 1))
        return out


READERS = {
    "a function": Reader,
    "an index": Indexed,
    "a selection": Selected,
    "one-hot": OneHot,
    "rows kept for others": Reserved,
    "places first": PlacesFirst,
    "a row that every text moves": lambda: Begun(200),
    "a word that every text moves": lambda: Begun(7),
}


@pytest.mark.parametrize("name", READERS)
def test_tokens_are_read_however_their_rows_are_looked_up(name: str) -> None:
    """Of several texts nothing was read of any of these, although the rows that moved name their tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        where = Task.of(READERS[name](), TEXT)
    ids = torch.randint(8, 200, (3, 12), generator=torch.Generator().manual_seed(1))
    sent = client_update(where, FedSGD(), Batch(ids.float(), torch.arange(3)), Draws(3))
    known = Knowledge(example_count=3, local_training=FedSGD(), defense=NoDefense())
    found = Auto().reconstruct(Observation(where, sent, known), torch.Generator().manual_seed(0), budget=Budget(100))
    assert found.status is Status.EXACT
    assert found.tokens is not None
    assert set(found.tokens.counts.sum(0).nonzero().flatten().tolist()) == set(ids.flatten().tolist())
    assert found.tokens.whole is (name != "a word that every text moves")  # there nothing tells whether texts hold it


class Pooled(nn.Module):
    """Convolutions, the mean over places, and a head in some words."""

    def __init__(self, head: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.front, self.head = nn.Conv2d(3, 12, 3), head
        self.w, self.b = nn.Parameter(torch.randn(12, 4) / 4), nn.Parameter(torch.randn(4) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.front(x).relu().mean((2, 3)), self.w, self.b)


POOLED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "transposed": lambda h, w, b: h @ w + b,
    "entry by entry": lambda h, w, b: (h[:, :, None] * w).sum(1) + b,
    "doubled": lambda h, w, b: F.linear(h, 2 * w.T, b),
}


@pytest.mark.parametrize("name", POOLED)
def test_a_head_behind_a_mean_is_one_in_whatever_words(name: str) -> None:
    """The update tells its gradient by the mean alone, not by all the places; no classifier was found."""
    task = Task.of(Pooled(POOLED[name]), SPEC)
    batch = Batch(torch.rand(2, *SPEC.shape, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 3]))
    update = client_update(task, FedSGD(), batch, Draws(0))
    view = Observation(task, update, Knowledge(None, 2, FedSGD())).view
    found = find_classifier(view)
    assert isinstance(found, LinearLayer)
    assert view.task.parameters[found.weight].shape == (4, 12)
