"""A captured update that its plan does not explain reassures nobody, and the mistake is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakgauge.clients import SGD, Adam, FedAvg, FedSGD, LocalTraining, Protocol, adamw, client_update
from leakgauge.compute import Held
from leakgauge.data import Samples
from leakgauge.data.source import Share, spec
from leakgauge.defenses import Defense, NoDefense, RandomK, TopK, noise
from leakgauge.draws import Draws
from leakgauge.study.explaining.causes import Evidence, explain
from leakgauge.study.explaining.setting import Explained, Fit, Setting
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.records import TensorShare
from leakgauge.study.judging.results import Level
from leakgauge.study.judging.verdict import verdict
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import BLOCK
from leakgauge.update import Update, UpdateHeader, UpdateKind
from study.plans import pictures
from study.trials import LEAKY, trial

SOURCE = Samples(size=16)
SPEC = spec(SOURCE)
SGD_OF_TWO = FedAvg(batch_size=2, lr=0.01)


def normed_cnn() -> nn.Module:
    """BatchNorm, so that the mode matters."""
    conv = nn.Conv2d(3, 8, 3, 2, 1)
    return nn.Sequential(conv, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 8))


def normed_mlp() -> nn.Module:
    hidden = nn.Linear(768, 32)
    return nn.Sequential(nn.Flatten(), hidden, nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 8))


def two_layers() -> nn.Module:
    conv = nn.Conv2d(3, 6, 5, 2, 2)
    return nn.Sequential(
        conv, nn.Sigmoid(), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(384, 16), nn.ReLU(), nn.Linear(16, 8)
    )


NETS = (
    normed_cnn,
    pytest.param(normed_mlp, marks=pytest.mark.slow),
    pytest.param(two_layers, marks=pytest.mark.slow),
)


def made(net: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return net()


def captured(
    net: nn.Module, optimiser: str = "SGD", *, mode: str = "train", clip: float | None = None, **options: float
) -> Update:
    """Two steps of two photos each, in a loop of somebody's own."""
    batch = SOURCE.read([0, 1, 2, 3])
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.train(mode == "train")
    steps = getattr(torch.optim, optimiser)(net.parameters(), **{"lr": 0.01, **options})
    for i in (0, 2):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(net(SPEC.normalise(batch.inputs[i : i + 2])), batch.labels[i : i + 2])
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        steps.step()
    update = Update.between(before, net.state_dict(), example_count=4)
    net.load_state_dict(before)
    return update


def setting(net: nn.Module, protocol: Protocol = SGD_OF_TWO, *, mode: str = "train", first: int = 0) -> Setting:
    batch = SOURCE.read(range(first, first + 4))
    return Setting(Task.of(net, SPEC, mode=mode), protocol, NoDefense(), batch)


def look(account: Setting, update: Update, *, elsewhere: bool = False) -> Explained:
    strangers = SOURCE.others(frozenset(range(4)), Share.PUBLIC, 32, torch.Generator().manual_seed(0))

    def others() -> Iterator[tuple[str, Batch]]:
        if elsewhere:
            yield "start: 0", SOURCE.read(range(4))

    return explain(account, update, Draws(0), Evidence(strangers, others))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(
    ("optimiser", "options", "protocol"),
    [
        ("SGD", {}, SGD_OF_TWO),
        ("SGD", {"momentum": 0.9}, FedAvg(batch_size=2, lr=0.01, momentum=0.9)),
        ("SGD", {"mode": "eval"}, SGD_OF_TWO),
        ("SGD", {"clip": 0.1}, LocalTraining(optimiser=SGD(lr=0.01), batch_size=2, clip=0.1)),
        ("Adam", {"lr": 0.001}, LocalTraining(optimiser=Adam(lr=0.001), batch_size=2)),
        (
            "AdamW",
            {"lr": 0.001, "weight_decay": 0.1},
            LocalTraining(optimiser=adamw(lr=0.001, weight_decay=0.1), batch_size=2),
        ),
    ],
)
def test_the_right_plan_explains_all(
    net: Callable[[], nn.Module], optimiser: str, options: dict, protocol: Protocol
) -> None:
    module = made(net)
    found = look(setting(module, protocol, mode=options.get("mode", "train")), captured(module, optimiser, **options))
    assert found.holds
    assert found.fit.share >= 0.99
    assert not found.causes


def half(part: str) -> tuple[Setting, Update]:
    """A classifier's bias that was left out is half a percent of the update, and all that labels are counted from."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Linear(32, 8))
    account = setting(made(lambda: net), FedSGD(), mode="eval")
    sent = client_update(account.task, FedSGD(), account.batch, Draws(0))
    assert look(account, sent).holds
    return account, replace(sent, tensors=sent.tensors | {part: torch.zeros_like(sent.tensors[part])})


def thinned(net: Callable[[], nn.Module]) -> tuple[Setting, Update]:
    """Half of a LeNet's entries: 98.5 % explained, and a read of 19.6 dB where who knows of it has 22.5."""
    account = setting(made(net), FedSGD())
    return account, client_update(account.task, FedSGD(), account.batch, Draws(0), defense=TopK(keep=0.6))


def unnormalised(net: Callable[[], nn.Module]) -> tuple[Setting, Update]:
    account = setting(made(net))
    raw = replace(SPEC, mean=(0.0,), std=(1.0,))
    return replace(account, task=replace(account.task, data=raw)), captured(made(net))


def a_delta_for_a_gradient(net: Callable[[], nn.Module]) -> tuple[Setting, Update]:
    return setting(made(net), FedSGD()), Update(captured(made(net)).tensors, UpdateHeader(UpdateKind.GRADIENT, 4))


def weights_after_training(net: Callable[[], nn.Module]) -> tuple[Setting, Update]:
    update, account = captured(made(net)), setting(made(net))
    after = {k: v + update.tensors[k] for k, v in account.task.parameters.items()}
    return replace(account, task=account.task.with_state(after)), update


DECAYING = LocalTraining(optimiser=SGD(lr=0.01, momentum=0.9, weight_decay=0.002), batch_size=2)
Made = Callable[[Callable[[], nn.Module]], tuple[Setting, Update]]
WRONG: dict[str, tuple[Made, str, str]] = {
    "other weights": (lambda n: (setting(made(n, 2)), captured(made(n))), "model.weights", ""),
    "mode": (lambda n: (setting(made(n), mode="eval"), captured(made(n))), "mode", "train"),
    "rate": (lambda n: (setting(made(n), FedAvg(batch_size=2, lr=1.0)), captured(made(n))), "clients[0].lr", "set"),
    "normalisation": (unnormalised, "data.normalise", ""),
    "optimiser": (lambda n: (setting(made(n)), captured(made(n), "Adam", lr=0.001)), "clients[0].optimiser", "Adam"),
    "pictures": (lambda n: (setting(made(n), first=4), captured(made(n))), "data", ""),
    "kind": (a_delta_for_a_gradient, "update", "it is a delta"),
    "weights after training": (weights_after_training, "model.weights", "these are the weights after training"),
}
SLIGHT: dict[str, tuple[Made, str, str]] = {
    # A forgotten weight decay of 5e-4 left .02 % of the length unexplained and was accepted; of an MLP's batch of 32
    # that is read exactly no example was.
    "decay": (
        lambda n: (setting(made(n)), captured(made(n), weight_decay=5e-4)),
        "clients[0].weight_decay",
        "0.0005, ",
    ),
    "another decay": (
        lambda n: (setting(made(n), DECAYING), captured(made(n), weight_decay=5e-4, momentum=0.9)),
        "clients[0].weight_decay",
        "0.0005, ",
    ),
    "nearly the rate": (
        lambda n: (setting(made(n)), captured(made(n), lr=0.0098)),
        "clients[0].lr",
        "set lr: 0.0098",
    ),
    "entries left out": (thinned, "defenses", "{topk: {keep: 0.6"),
    "a bias left out": (lambda _: half("3.bias"), "update", "3.bias moved"),
    "another bias left out": (lambda _: half("1.bias"), "update", "1.bias moved"),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_seen_and_named(net: Callable[[], nn.Module], wrong: str) -> None:
    account, key, words = WRONG[wrong]
    found = look(*account(net))
    assert not found.holds
    assert (found.causes[0].key, found.causes[0].change.startswith(words)) == (key, True)
    assert f"First look at {key}: " in found.sentence


@pytest.mark.parametrize("wrong", SLIGHT)
def test_a_mistake_that_hardly_changes_the_update_is_seen(wrong: str) -> None:
    account, key, words = SLIGHT[wrong]
    found = look(*account(normed_cnn))
    assert found.fit.share > 0.95
    assert not found.holds
    assert (found.causes[0].key, found.causes[0].change.startswith(words)) == (key, True)


def test_what_rounding_leaves_is_not_held_against_the_plan() -> None:
    """Weights that travel in half precision, and a client that computes in bfloat16."""
    account, lr = setting(made(normed_cnn), FedAvg(lr=0.01)), 0.01
    net = made(normed_cnn).train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(net(SPEC.normalise(account.batch.inputs)), account.batch.labels)
    coarse = torch.autograd.grad(loss, list(net.parameters()))
    header, own = UpdateHeader(UpdateKind.DELTA, 4), account.task.parameters
    mixed = Update({k: -lr * g.float() for k, g in zip(own, coarse, strict=True)}, header)
    fine = client_update(account.task, account.protocol, account.batch, Draws(0)).tensors
    halved = Update({k: (own[k] + v).half().float() - own[k] for k, v in fine.items()}, header)
    for update, words in ((mixed, "more than the rounding of what was sent"), (halved, "captured).")):
        found = look(account, update)
        assert found.holds
        assert words in found.sentence


def test_weights_of_one_that_half_precision_did_not_move_are_not_held_against_the_plan() -> None:
    """A short step of BatchNorm's weights is less than the distance from 1 to the next number: they came back as ones,
    which fit every type, and were called frozen."""
    account = setting(made(normed_cnn), FedAvg(lr=0.001))
    own = account.task.parameters
    fine = client_update(account.task, account.protocol, account.batch, Draws(0)).tensors
    halved = {k: (own[k] + v).half().float() - own[k] for k, v in fine.items()}
    still = [k for k, v in halved.items() if bool((own[k] == 1).all()) and not bool(v.any())]
    assert still
    rounded = account.rounded(Update(halved, UpdateHeader(UpdateKind.DELTA, 4)))
    assert all(float((fine[k] - halved[k]).norm()) <= rounded[k] for k in still)


def test_the_rounding_of_weights_is_seen_where_their_difference_was_rounded_again() -> None:
    """after − before is exact but for weights that are smaller than their own move: a few in every large layer."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 32))
    account = setting(made(lambda: net), FedAvg(lr=0.1), mode="eval")
    own, g = account.task.parameters, torch.Generator().manual_seed(0)
    moved = {k: (v + 1e-3 * torch.randn(v.shape, generator=g)).half().float() for k, v in own.items()}
    delta = {k: moved[k] - own[k] for k in own}
    assert any(bool((own[k] + delta[k] != moved[k]).any()) for k in own)
    rounded = account.rounded(Update(delta, UpdateHeader(UpdateKind.DELTA, 4)))
    assert all(rounded[k] > 2**-12 * float(moved[k].norm()) for k in own)


def test_the_rounds_own_pictures_are_found_elsewhere_in_the_source() -> None:
    found = look(*WRONG["pictures"][0](normed_cnn), elsewhere=True)
    assert found.causes[0].change == "start: 0"
    assert found.causes[0].share is not None
    assert found.causes[0].share > 0.99


@pytest.mark.parametrize(
    "defense", [noise(relative=1.0), TopK(keep=0.05), RandomK(keep=0.1), noise(relative=3.0)], ids=repr
)
def test_what_is_drawn_is_not_held_against_the_plan(defense: Defense) -> None:
    account = replace(setting(made(normed_cnn)), defense=defense)
    sent = client_update(account.task, SGD_OF_TWO, account.batch, Draws(5), defense=defense)
    wrong = replace(account, task=setting(made(normed_cnn, 2)).task)
    assert explain(account, sent, Draws(0), Evidence(causes=False)).holds
    assert not explain(wrong, sent, Draws(0), Evidence(causes=False)).holds


@pytest.mark.parametrize("strength", [0.1, 0.2, 1.0])
def test_an_update_with_less_noise_than_the_plan_says_is_not_explained(strength: float) -> None:
    """The attacker would be told to expect noise that is not there, and would look weak."""
    account = replace(setting(made(normed_cnn)), defense=noise(relative=strength))
    for seed in range(3):
        sent = client_update(account.task, SGD_OF_TWO, account.batch, Draws(5 + seed), defense=account.defense)
        assert explain(account, sent, Draws(0), Evidence(causes=False)).holds
    found = explain(account, captured(made(normed_cnn)), Draws(0), Evidence(causes=False))
    assert found.fit.share > 0.99
    assert not found.holds
    assert "holds less noise" in found.sentence


def test_noise_that_hides_every_plan_concludes_nothing() -> None:
    account = replace(setting(made(normed_cnn)), defense=noise(relative=1000.0))
    sent = client_update(account.task, SGD_OF_TWO, account.batch, Draws(5), defense=account.defense)
    found = look(account, sent)
    assert not found.holds
    assert "no plan could be told from another" in found.sentence


def test_two_updates_are_compared_a_block_at_a_time() -> None:
    """As over all entries in float64 together, and without copies of either: both may fill half of the memory."""
    g = torch.Generator().manual_seed(0)
    a, b, mean = ({"w": torch.randn(3 * BLOCK + 7, generator=g), "b": torch.ones(3)} for _ in range(3))
    with Held() as held:
        plain, less = Fit.between(a, b), Fit.between(a, b, mean)
    assert held.peak < 7 * 8 * BLOCK
    whole = [torch.cat([t["w"], t["b"]]).double() for t in (a, b, mean)]
    for found, (x, y) in ((plain, whole[:2]), (less, (whole[0] - whole[2], whole[1] - whole[2]))):
        assert found.cosine == pytest.approx(float(x @ y / x.norm() / y.norm()), rel=1e-9)
        assert found.norm == pytest.approx(float(x.norm() / y.norm()), rel=1e-9)


def test_an_explanation_holds_few_updates_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ten rounds that it simulates at most a few are there together."""
    monkeypatch.setattr("leakgauge.study.explaining.setting.BLOCK", 1 << 12)
    module = nn.Sequential(nn.Flatten(), nn.Linear(768, 2000), nn.ReLU(), nn.Linear(2000, SPEC.classes))
    account = setting(module, FedSGD(), mode="eval")
    update = client_update(account.task, FedSGD(), account.batch, Draws(3))
    size = sum(t.nbytes for t in update.tensors.values())
    with Held() as held:
        found = explain(account, update, Draws(0), Evidence(SOURCE.read(range(4, 8)).inputs, causes=False))
    assert found.fit.share == pytest.approx(1)
    assert held.peak < 5 * size


def test_a_share_is_the_cosine_shortened_by_unequal_norms() -> None:
    one = {"a": torch.tensor([3.0, 4.0])}
    assert Fit.between(one, one).share == pytest.approx(1)
    assert Fit.between({"a": 100 * one["a"]}, one).share == pytest.approx(0.01)
    assert Fit.between({"a": one["a"] / 4}, one).share == pytest.approx(0.25)
    assert Fit.between({"a": -one["a"]}, one).share == pytest.approx(-1)
    assert Fit.between({"a": one["a"] * float("nan")}, one).share == 0
    assert Fit.between({"a": one["a"] * 0}, one).share == 0


@pytest.mark.parametrize("share", [1.0, 0.35])
def test_what_is_not_explained_is_inconclusive_and_fails_its_gate(share: float) -> None:
    """Twenty pictures that no attack came near to, with controls that show power: a passed gate but for the plan."""
    one = TensorShare("w", 1.0, share, 1.0)
    told = Explained(Fit(share, 1.0), (1.0, 1.0), recognisable=True, tensors=(one,))
    rows = [replace(trial(i, 11.0, defense="topk"), explained=told.record) for i in range(20)]
    found = verdict([*rows, *LEAKY], GateConfig.model_validate({"identified": {"max": 0.2}}))
    level = next(f.level for f in found.findings if f.scenario.defense == "topk")
    assert level is (Level.NOT_RECOVERED if share == 1.0 else Level.INCONCLUSIVE)
    assert any("The plan explains 35.0 %" in r.text for r in found.gate.reasons) == (share < 1)
    assert found.explained == told.record


SPEC_ = DataSpec((3, 16, 16), 4)


class Pooled(nn.Module):
    """Its features hardly depend on the picture, as those of a deep network that was not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, 2, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(3 + 0.1 * torch.relu(self.conv(x)).mean((2, 3)))
        return out


@pytest.mark.parametrize("right", [True, False])
def test_other_pictures_do_not_explain_a_captured_update(right: bool) -> None:
    """Any pictures with the round's labels explained 99.9 % of the update of a ConvNet on CIFAR-10, so a plan with
    wrong ones was believed, and the attack's true reads were held against the wrong originals: "not recovered"."""
    torch.manual_seed(0)
    task, labels = Task.of(Pooled(), SPEC_), torch.tensor([0, 1])
    sent = client_update(task, FedSGD(), Batch(pictures(2, 0), labels), Draws(0))
    account = Setting(task, FedSGD(), NoDefense(), Batch(pictures(2, 0 if right else 7), labels))
    found = explain(account, sent, Draws(1), Evidence(pictures(32, 3), causes=False))
    assert found.fit.share > 0.95
    assert found.holds == right
    assert ("other pictures with the same labels explain as much" in found.sentence) != right
