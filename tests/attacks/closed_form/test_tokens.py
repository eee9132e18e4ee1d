"""Tokens off the rows that an update moved: which ones is exact, how often where it is determined, and no false one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from hunt.scenarios import Scenario
from hunt.zoo import Net as Drawn
from leakgauge.attacks.closed_form import TokenRead
from leakgauge.attacks.closed_form.proof import tried_labels
from leakgauge.attacks.closed_form.token_rows import token_table
from leakgauge.clients import FedAvg, FedSGD, LocalTraining, Protocol, SecureAggregation, adamw, client_update
from leakgauge.clients.optimisers import Adam
from leakgauge.defenses import DPSGD, Clip, Compose, Defense, MixUp, NoDefense, Quantise, TopK, laplace, noise
from leakgauge.draws import Draws
from leakgauge.metrics.metric import counts_of
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status, TokenCounts
from leakgauge.task import Batch, DataSpec, Task
from texts import CLASSES, LENGTH, VOCABULARY, Bag, Decoder, Encoder, Frozen, Maxima, Tied, texts

DATA = DataSpec((LENGTH,), CLASSES, low=0, high=VOCABULARY - 1, vocabulary=VOCABULARY, padding=0)
NONE = NoDefense()
Net = Callable[[], nn.Module]


def read(
    net: Net,
    examples: int = 4,
    client: Protocol = FedSGD(),
    defense: Defense = NONE,
    *,
    known: bool = True,
    trained: int = 0,
    labels: bool = True,
    ids: Tensor | None = None,
    mode: str = "eval",
    data: DataSpec = DATA,
) -> tuple[Tensor, Reconstruction]:
    """True texts, and the read of the client's update."""
    torch.manual_seed(0)
    model = net()
    ids = texts(examples) if ids is None else ids
    examples = len(ids)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(trained):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(texts(16, 100 + step)), torch.arange(16) % CLASSES).backward()
        optimiser.step()
    task = Task.of(model, data, mode=mode)
    batch = Batch(ids.float(), torch.arange(examples) % CLASSES)
    update = client_update(task, client, batch, Draws(0), defense=defense)
    knowledge = Knowledge(
        labels=batch.labels if labels else None,
        example_count=examples,
        local_training=client if known else None,
        defense=defense if known else None,
    )
    return ids, TokenRead().reconstruct(Observation(task, update, knowledge), torch.Generator().manual_seed(0))


def bags(ids: Tensor) -> list[list[int]]:
    return sorted(counts_of(ids, VOCABULARY, 0).tolist())


def own(found: Reconstruction) -> TokenCounts:
    assert found.tokens is not None, found.message
    counts = found.tokens.counts.clone()
    counts[:, 0] = 0
    return TokenCounts(counts, found.tokens.counted, found.tokens.whole, found.tokens.order)


ADAMW = LocalTraining(optimiser=adamw(lr=1e-3, weight_decay=0.1), epochs=2, batch_size=2)
CLIENTS: list[Protocol] = [
    FedSGD(),
    FedAvg(lr=0.1, epochs=2, batch_size=2),
    FedAvg(lr=0.1, epochs=3, momentum=0.9, weight_decay=1e-2),
    LocalTraining(optimiser=Adam(lr=1e-3), epochs=2),
    ADAMW,
    SecureAggregation(client=FedAvg(lr=0.1), cohort=2),
]


@pytest.mark.parametrize("client", CLIENTS, ids=repr)
@pytest.mark.parametrize("net", [Encoder, Bag])
def test_the_tokens_of_4_x_32_are_exactly_those_of_the_batch(net: Net, client: Protocol) -> None:
    """Rows that weight decay alone moved are no tokens."""
    ids, found = read(net, client=client)
    tokens = own(found)
    assert found.status is Status.EXACT
    assert tokens.whole
    assert torch.equal(tokens.counts.sum(0) > 0, counts_of(ids, VOCABULARY, 0).sum(0) > 0)


@pytest.mark.parametrize("trained", [0, 20])
@pytest.mark.parametrize("examples", [1, 4])
def test_of_pooled_texts_each_is_counted(examples: int, trained: int) -> None:
    ids, found = read(Bag, examples, trained=trained)
    assert own(found).counted
    assert sorted(own(found).counts.tolist()) == bags(ids)


@pytest.mark.parametrize("trained", [0, 20])
@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.1)], ids=repr)
@pytest.mark.parametrize("labels", [True, False])
def test_one_text_through_attention_comes_back_in_order(client: Protocol, trained: int, labels: bool) -> None:
    ids, found = read(Encoder, 1, client, trained=trained, labels=labels)
    order = own(found).order
    assert order is not None
    assert torch.equal(order, ids)


CAUSAL: dict[str, Net] = {"torch's": partial(Encoder, 144, causal=True), "by hand": Decoder}


@pytest.mark.parametrize(
    ("net", "arguments"),
    [
        (CAUSAL["torch's"], {}),
        (CAUSAL["by hand"], {"trained": 20, "labels": False}),
        (CAUSAL["by hand"], {"client": FedAvg(lr=0.1)}),
    ],
    ids=["torch's", "by hand, trained, labels unknown", "by hand, one step"],
)
def test_4_x_32_tokens_through_causal_attention_come_back_in_order(net: Net, arguments: dict[str, object]) -> None:
    """Also behind a key's bias, whose gradient is rounding alone and has few digits."""
    ids, found = read(net, **arguments)  # type: ignore[arg-type]
    assert sorted(own(found).order.tolist()) == sorted(ids.tolist())  # type: ignore[union-attr]
    assert sorted(own(found).counts.tolist()) == bags(ids)


def still(net: Net) -> nn.Module:
    model = net()
    model.words.weight.requires_grad_(False)
    return model


def shared() -> nn.Module:
    model = Decoder()
    model.head = nn.Linear(144, VOCABULARY, bias=False)
    model.head.weight = model.words.weight
    return model


def sure() -> nn.Module:
    """Its answers are so far apart that in float32 the rows of most words get no gradient."""
    model = shared()
    model.words.weight.data *= 30  # type: ignore[operator]
    return model


def alike(kind: str) -> Tensor:
    ids = texts(4)
    if kind == "one text four times":
        return ids[:1].repeat(4, 1)
    if kind == "one twice":
        ids[3] = ids[0]
    if kind == "one begins another":
        ids[0] = torch.where(torch.arange(LENGTH) < 6, ids[1], 0)
    if kind == "one token alone":
        ids[0] = torch.where(torch.arange(LENGTH) < 12, 7, 0)
    if kind == "the same two tokens first":
        ids[:, :2] = torch.tensor([5, 9])
    return ids


KINDS = ["one text four times", "one twice", "one begins another", "one token alone", "the same two tokens first"]


@pytest.mark.parametrize(
    ("kind", "net"), [(k, CAUSAL["by hand"]) for k in KINDS] + [(k, CAUSAL["torch's"]) for k in KINDS[:3]]
)
def test_texts_that_are_alike_are_counted_too(kind: str, net: Net) -> None:
    ids, found = read(net, ids=alike(kind))
    assert sorted(own(found).order.tolist()) == sorted(ids.tolist())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("net", "mode", "words"),
    [
        (partial(Encoder, 144), "eval", "no layer behind the first attention sees a token and those before it alone"),
        (
            partial(Encoder, 96, causal=True),
            "eval",
            "128 tokens enter body.layers.0.self_attn.out_proj; its rank of 96 tells at most 94 apart",
        ),
        (partial(Encoder, 144, causal=True), "train", "the network drops at random what its layers are given"),
        (partial(Decoder, placed=False), "eval", "the inputs of wide do not tell texts apart"),
    ],
    ids=["both ways", "narrow", "dropout", "no places"],
)
def test_several_texts_that_are_not_counted_say_why(net: Net, mode: str, words: str) -> None:
    ids, found = read(net, mode=mode)
    assert own(found).order is None
    assert not own(found).counted
    assert own(found).counts.max() == 1
    assert counts_of(ids, VOCABULARY, 0).sum(0).max() > 1
    assert f"how often is not read: {words}" in found.message


class OneHot(Decoder):
    """Tokens reach a linear layer as one-hot vectors."""

    def __init__(self) -> None:
        super().__init__()
        table, self.words = self.words, nn.Linear(VOCABULARY, 144, bias=False)
        self.words.weight = nn.Parameter(table.weight.detach().T.clone())

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(nn.functional.one_hot(ids, VOCABULARY).to(self.words.weight))


@pytest.mark.parametrize(
    ("net", "examples"),
    [(partial(still, Decoder), 2), (partial(still, Encoder), 1), (shared, 2), (shared, 1), (OneHot, 2), (OneHot, 1)],
    ids=["frozen", "frozen, one text", "tied", "tied, one text", "one-hot", "one-hot, one text"],
)
def test_texts_are_read_without_rows_of_an_embedding(net: Net, examples: int) -> None:
    ids, found = read(net, examples)
    assert found.status is Status.EXACT
    assert sorted(own(found).order.tolist()) == sorted(ids.tolist())  # type: ignore[union-attr]


class Referenced(Encoder):
    """Scores beside those of a class whose own is zero: no layer gives its labels away by itself."""

    def forward(self, ids: Tensor) -> Tensor:
        return nn.functional.pad(super().forward(ids)[:, 1:], (1, 0))


def test_where_no_layer_names_the_label_the_text_that_is_read_does() -> None:
    ids, found = read(Referenced, 1, labels=False)
    assert found.status is Status.EXACT
    assert found.labels is not None
    assert (own(found).order.tolist(), found.labels.tolist()) == (ids.tolist(), [0])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "net", [Encoder, Bag, partial(still, Encoder), OneHot], ids=["rows", "pooled", "frozen", "hot"]
)
def test_a_lone_text_that_has_nothing_to_be_mixed_with_is_read_as_without_the_defence(net: Net) -> None:
    (ids, plain), (_, found) = read(net, 1), read(net, 1, defense=MixUp())
    assert (found.status, found.message) == (plain.status, plain.message)
    assert torch.equal(own(found).counts, own(plain).counts)
    assert set(own(found).counts[0].nonzero().flatten().tolist()) >= set(ids.flatten().tolist())
    assert read(net, 4, defense=MixUp())[1].message == "the defence trains on other texts than the client holds"


class Factors(nn.Module):
    """A frozen layer with trained factors of low rank beside it."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, width) / width**0.5)
        self.up = nn.Parameter(0.02 * torch.randn(width, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


def adapted(rank: int) -> nn.Module:
    """Words and places frozen; query, key and value in factors."""
    model = Decoder(64)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.query, model.key, model.value = (Factors(64, rank) for _ in range(3))  # type: ignore[assignment]
    model.head.requires_grad_(True)
    return model


@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.05)], ids=repr)
@pytest.mark.parametrize("rank", [8, 16])
def test_factors_that_share_an_input_show_a_text_together(rank: int, client: Protocol) -> None:
    """None of them could alone: 20 tokens are more than 8 directions, or than 16."""
    ids = texts(1)[:, :20] + 1
    whole = DataSpec((20,), CLASSES, low=0, high=VOCABULARY - 1, vocabulary=VOCABULARY)
    _, found = read(lambda: adapted(rank), client=client, ids=ids % VOCABULARY, data=whole)
    assert found.status is Status.EXACT
    assert torch.equal(own(found).order, ids % VOCABULARY)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rank", "length", "shown"), [(8, 7, True), (16, 15, True), (16, 20, False)])
def test_the_first_step_of_factors_shows_fewer_tokens_than_each_has_rows(rank: int, length: int, shown: bool) -> None:
    """The second factor is zero there: only its own gradient tells, and of what the first one makes of the tokens."""

    def begun() -> nn.Module:
        model = adapted(rank)
        for part in (model.query, model.key, model.value):
            nn.init.zeros_(part.up)  # type: ignore[union-attr, arg-type]
        return model

    ids = 1 + torch.randperm(VOCABULARY - 1, generator=torch.Generator().manual_seed(3))[None, :length]
    whole = DataSpec((length,), CLASSES, low=0, high=VOCABULARY - 1, vocabulary=VOCABULARY)
    _, found = read(begun, ids=ids, data=whole)
    if shown:
        assert found.status is Status.EXACT
        assert torch.equal(own(found).order, ids)  # type: ignore[arg-type]
    else:
        assert "20 tokens enter query; its rank of 16 tells at most 15 apart; it takes rank 22 or more" in found.message


@pytest.mark.parametrize("count", [1, 2])
def test_the_reason_says_how_many_tokens_and_which_rank_would_do_and_either_does(count: int) -> None:
    """Three factors of one input: 24 directions, which must not all be taken."""

    def with_(rank: int, length: int) -> tuple[Tensor, Reconstruction]:
        ids = 1 + torch.randperm(VOCABULARY - 1, generator=torch.Generator().manual_seed(3))[: count * length]
        whole = DataSpec((length,), CLASSES, low=0, high=VOCABULARY - 1, vocabulary=VOCABULARY)
        return read(lambda: adapted(rank), ids=ids.view(count, -1), data=whole)

    _, refused = with_(8, 24 // count)
    assert refused.status is Status.NOT_APPLICABLE
    assert (
        "24 tokens enter query; 3 weights of rank 8 tell at most 22 apart; it takes rank 9 or more" in refused.message
    )
    for rank, length in ((9, 24 // count), (8, 22 // count)):
        ids, found = with_(rank, length)
        assert found.status is Status.EXACT
        assert sorted(own(found).order.tolist()) == sorted(ids.view(count, -1).tolist())  # type: ignore[union-attr]


def test_no_rank_is_named_where_inputs_have_no_more_directions() -> None:
    assert read(lambda: adapted(8), 4)[1].message.endswith("3 weights of rank 8 tell at most 22 apart")


def test_a_word_once_and_twice_are_not_told_apart_without_places() -> None:
    """The mean over "a" and over "a a" is the same, and so is the update."""

    def unplaced() -> nn.Module:
        model = Encoder(144, causal=True)
        model.places.requires_grad_(False).weight.zero_()
        return model

    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    ids[0, :3], ids[1, :2] = 7, 32
    _, found = read(unplaced, ids=ids)
    assert own(found).order is None
    assert not own(found).counted


@pytest.mark.parametrize("examples", [1, 2])
def test_places_that_change_nothing_are_not_read_as_padding(examples: int) -> None:
    """With few words each of them moves its row somewhere; the update says nothing of the last one."""
    ids = 1 + torch.arange(examples * LENGTH).view(examples, LENGTH) * 5 % 11
    few = DataSpec((LENGTH,), CLASSES, low=0, high=12, vocabulary=13, padding=0)
    _, found = read(partial(Decoder, seen=LENGTH - 1), ids=ids, data=few)
    assert own(found).order is None
    assert not own(found).counted


def test_a_layer_as_wide_as_the_text_shows_no_places() -> None:
    ids, found = read(lambda: Encoder(16), 1)
    assert own(found).order is None
    assert torch.equal(own(found).counts[0] > 0, counts_of(ids, VOCABULARY, 0)[0] > 0)


def test_where_maxima_are_picked_nothing_is_said_of_other_tokens() -> None:
    ids, found = read(Maxima)
    true, seen = counts_of(ids, VOCABULARY, None).sum(0) > 0, found.tokens
    assert seen is not None
    assert not seen.whole
    assert "others may" in found.message
    assert not bool(((seen.counts[0] > 0) & ~true).any())
    assert int((seen.counts[0] > 0).sum()) < int(true.sum())


@pytest.mark.parametrize(
    ("net", "arguments", "words"),
    [
        (Encoder, {"defense": Compose((noise(relative=1e-6), Quantise(levels=127)))}, "noise of unknown strength"),
        (Encoder, {"defense": DPSGD(norm=1.0, noise_multiplier=0.01), "client": FedAvg(epochs=2)}, "noise of unknown"),
        (Encoder, {"defense": noise(relative=1e-6), "known": False}, "every row of the embedding moved"),
        (Encoder, {"client": ADAMW, "known": False}, "every row of the embedding moved"),
        (Tied, {}, "an output layer shares"),
        (Tied, {"defense": TopK(keep=0.05)}, "an output layer shares"),
        (Tied, {"defense": noise(relative=0.1)}, "an output layer shares"),
        (Frozen, {}, "needs a trained embedding"),
    ],
    ids=[
        "rounded noise",
        "noisy steps",
        "unknown noise",
        "unknown decay",
        "tied",
        "tied, few entries",
        "tied behind noise",
        "frozen",
    ],
)
def test_what_every_row_moves_for_is_not_guessed_from(net: Net, arguments: dict[str, object], words: str) -> None:
    _, found = read(net, **arguments)  # type: ignore[arg-type]
    assert found.status is Status.NOT_APPLICABLE
    assert found.tokens is None
    assert words in found.message


@pytest.mark.parametrize("client", [FedSGD(), FedAvg(lr=0.1, epochs=2), ADAMW])
def test_rows_that_only_rounding_moves_name_no_tokens(client: Protocol) -> None:
    """Each row stands in two sums of all rows, whose difference is the row that was asked for."""
    for seed in range(8):
        scenario = Scenario(Drawn("texts", table="asked of two servers"), client, examples=1 + seed % 4, seed=seed)
        _, task, update, knowledge = scenario.observed()
        found = TokenRead().reconstruct(Observation(task, update, knowledge), torch.Generator().manual_seed(0))
        assert not (found.tokens and found.tokens.whole)
        named = set(found.tokens.counts.sum(0).nonzero().flatten().tolist()) if found.tokens else set()
        assert named <= set(scenario.batch.inputs.flatten().long().tolist())
        assert named or client is ADAMW  # whose steps are as long for rounding as for tokens


def test_a_span_names_tokens_where_rows_of_a_table_do_not() -> None:
    """None that does not occur, and no more than may."""
    ids, found = read(sure, examples=3)
    named = set(own(found).counts[0].nonzero().flatten().tolist())
    assert found.status is Status.CONVERGED
    assert not own(found).whole
    assert len(named) > 30
    assert named <= set(ids.flatten().tolist())
    assert "these may occur" in found.message


@pytest.mark.parametrize(
    ("defense", "client", "share"),
    [
        (noise(relative=1e-8), FedSGD(), 1.0),
        (noise(relative=1e-2), FedSGD(), 1.0),
        (noise(relative=0.1), FedSGD(), 0.5),
        (laplace(relative=1e-6), FedSGD(), 1.0),
        (laplace(relative=1e-2), FedSGD(), 1.0),
        (noise(relative=1e-2), ADAMW, 1.0),
        (DPSGD(norm=1.0, noise_multiplier=1e-4), FedSGD(), 1.0),
        (Compose((noise(relative=0.1), TopK(keep=0.1))), FedSGD(), 0.5),
        (Quantise(levels=7), FedSGD(), 1.0),
    ],
    ids=repr,
)
def test_noise_and_rounding_hide_what_is_below_them_and_no_more(
    defense: Defense, client: Protocol, share: float
) -> None:
    ids, found = read(Encoder, client=client, defense=defense)
    true, seen = counts_of(ids, VOCABULARY, 0).sum(0) > 0, own(found).counts[0] > 0
    assert not bool((seen & ~true).any())
    assert int(seen.sum()) >= share * int(true.sum())
    assert not own(found).whole
    proved = isinstance(defense, Quantise)  # which leaves zeros as they are
    assert found.status is (Status.EXACT if proved else Status.CONVERGED)


def test_a_penalty_inside_adam_may_cover_tokens_and_makes_none() -> None:
    """Its first steps are signs, which a penalty larger than the gradient decides."""
    ids, found = read(Encoder, client=LocalTraining(optimiser=Adam(lr=1e-3, weight_decay=0.1), epochs=2))
    true, seen = counts_of(ids, VOCABULARY, 0).sum(0) > 0, own(found).counts[0] > 0
    assert not own(found).whole
    assert not bool((seen & ~true).any())
    assert 0 < int(seen.sum()) < int(true.sum())


def test_what_a_defence_leaves_out_is_not_said_to_be_absent() -> None:
    ids, found = read(Encoder, defense=TopK(keep=0.002))
    true, seen = counts_of(ids, VOCABULARY, 0).sum(0) > 0, own(found).counts[0] > 0
    assert not own(found).whole
    assert not bool((seen & ~true).any())
    assert int(seen.sum()) < int(true.sum())
    assert own(read(Bag, defense=Clip(norm=1e-3))[1]).counted
    assert read(Encoder, known=False)[1].status is Status.CONVERGED  # an unknown defence may have moved rows


class Few(Bag):
    """A network that cannot be traced, as that takes more examples."""

    def forward(self, ids: Tensor) -> Tensor:
        if len(ids) > 3:
            raise MemoryError("at most 3 texts")
        found: Tensor = super().forward(ids)
        return found


def test_a_network_that_cannot_be_followed_shows_the_rows_that_its_tokens_move() -> None:
    task, ids = Task.of(Few(), DATA), texts(1)
    update = client_update(task, FedSGD(), Batch(ids, torch.zeros(1, dtype=torch.long)), Draws(0))
    found = TokenRead().reconstruct(Observation(task, update, Knowledge(example_count=1)), torch.Generator())
    assert torch.equal(own(found).counts.sum(0) > 0, counts_of(ids, VOCABULARY, 0).sum(0) > 0)


class Fewer(Few):
    """And no row is its tokens' alone."""

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = super().forward(ids) + next(self.parameters()).mean()
        return found


def test_a_network_that_shows_neither_is_no_error() -> None:
    task = Task.of(Fewer(), DATA)
    update = client_update(task, FedSGD(), Batch(texts(1), torch.zeros(1, dtype=torch.long)), Draws(0))
    found = TokenRead().reconstruct(Observation(task, update, Knowledge(example_count=1)), torch.Generator())
    assert found.status is Status.NOT_APPLICABLE
    assert "could not be followed (MemoryError: at most 3 texts)" in found.message


@pytest.mark.parametrize(("vocabulary", "padding"), [(2, None), (3, None), (3, 0), (4, 0), (5, 4), (9, None)])
def test_the_table_of_few_words_is_found(vocabulary: int, padding: int | None) -> None:
    data = DataSpec((4,), CLASSES, high=vocabulary - 1.0, vocabulary=vocabulary, padding=padding)
    torch.manual_seed(0)
    table = token_table(Task.of(Words(vocabulary), data))
    assert table is not None
    assert (table.weight, table.axis, table.offset) == ("table.weight", 0, 0)


def test_the_table_behind_a_mean_that_is_taken_off_is_found() -> None:
    torch.manual_seed(0)
    data = DataSpec((4,), CLASSES, high=VOCABULARY - 1.0, vocabulary=VOCABULARY)
    table = token_table(Task.of(Words(VOCABULARY, centred=True), data))
    assert table is not None
    assert table.weight == "table.weight"


class Words(nn.Module):
    def __init__(self, words: int, *, centred: bool = False) -> None:
        super().__init__()
        self.table, self.head, self.centred = nn.Embedding(words, 6), nn.Linear(6, CLASSES), centred

    def forward(self, x: Tensor) -> Tensor:
        rows = self.table(x.long())
        rows = rows - rows.mean(1, keepdim=True) if self.centred else rows
        out: Tensor = self.head(rows.tanh().mean(1))
        return out


def test_a_class_without_weights_keeps_no_label_from_being_told() -> None:
    """Its signals move nothing: their share of the update was rounding over the smallest number there is."""
    scenario = Scenario(Drawn("decoder", head="a reference class"), examples=2, seed=6)
    _, task, update, knows = scenario.observed()
    named = tried_labels(Observation(task, update, knows), scenario.batch.inputs)
    assert named.labels is not None
    assert named.labels.tolist() == scenario.batch.labels.tolist()
    assert (named.confidence or 0) > 0.99
