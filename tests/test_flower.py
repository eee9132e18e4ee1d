"""Captures of Flower rounds: what was sent, received and trained on, and nothing that breaks the round."""

from __future__ import annotations

import copy
import importlib.util
import logging
import pickle
import stat
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy as by_name
from torch.nn.modules import module as torch_module

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import convolutions
from leakgauge.attacks.recipes import Features
from leakgauge.capture import watching
from leakgauge.cli.captured import plan_of
from leakgauge.clients import FedAvg as LocalFedAvg
from leakgauge.compute import Budget
from leakgauge.defenses import ClientDP, Clip
from leakgauge.face import attack
from leakgauge.flower import CaptureMod, CaptureNumPyClient, CaptureStrategy, GuardMod, seen
from leakgauge.guard import SendingGuard
from leakgauge.models.weights import fingerprint, read_model
from leakgauge.observation import Knowledge
from leakgauge.study.plan import resolve_plan
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.update import Update, UpdateKind, round_folder
from study import own_round

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower" / "app.py"
HOSPITAL = EXAMPLE.parents[1] / "segmentation" / "app.py"


class LocalGrid:
    """Stands in for Flower's grid: messages go straight to the client app."""

    def __init__(self, app: ClientApp, nodes: int, run: dict[str, Any] | None = None) -> None:
        self.app, self.nodes, self.run = app, list(range(1, nodes + 1)), run or {}

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def send_and_receive(self, messages: list[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.app(m, self._context(m.metadata.dst_node_id)) for m in messages]

    def _context(self, node: int) -> Context:
        config = {"partition-id": node - 1}
        return Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config=self.run)


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """What newer Flower processes are told by their supervisor before they may make messages."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1, raising=False)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


X, Y = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0])


def step(module: nn.Module) -> None:
    """One step of somebody's training."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    seen(X, Y)
    nn.functional.cross_entropy(module(X), Y).backward()
    optimiser.step()


def client_app(*mods: Any) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        module = net()
        module.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        step(module)
        metrics = MetricRecord({"num-examples": 4, "loss": 0.5})
        return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=msg)

    return app


def rounds(app: ClientApp, strategy: Any) -> dict[str, torch.Tensor]:
    result = strategy.start(grid=LocalGrid(app, 2), initial_arrays=ArrayRecord(net().state_dict()), num_rounds=1)
    return result.arrays.to_torch_state_dict()


def plain() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0)


@pytest.mark.usefixtures("identity")
def test_client_and_server_capture_the_same_update(tmp_path: Path) -> None:
    trained = rounds(client_app(CaptureMod(tmp_path)), CaptureStrategy(plain(), tmp_path))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == [f"round-1-node-{n}{side}" for n in (1, 2) for side in ("", "-server")]
    before = net()
    sent = before.state_dict()
    for name in names:
        update = Update.load(tmp_path / name / "update.safetensors")
        assert update.header.kind is UpdateKind.DELTA
        assert update.header.example_count == 4
        assert update.header.protocol["round"] == "1"
        assert update.header.protocol["reply.loss"] == "0.5"
        assert update.header.protocol["weights"] == fingerprint(sent)
        weights = read_model(tmp_path / name / "weights.safetensors", "weights")
        assert all(torch.equal(weights[k], v) for k, v in sent.items())
        assert set(update.tensors) == {k for k, _ in before.named_parameters()}
        # Both clients hold the same data, so the mean is what each of them sent.
        assert all(torch.allclose(weights[k] + update.tensors[k], trained[k], atol=1e-6) for k in update.tensors)
        assert update.buffers is not None
        assert set(update.buffers) == {k for k, _ in before.named_buffers()}
    with np.load(tmp_path / "round-1-node-1" / "examples.npz") as kept:
        assert np.array_equal(kept["x"], X.numpy())
        assert np.array_equal(kept["y"], Y.numpy())
    assert not (tmp_path / "round-1-node-1-server" / "examples.npz").exists()


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("first", ["arrays", "control"])
def test_control_variates_are_not_taken_for_the_parameters(
    tmp_path: Path, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    """They have the parameters' names, and the last record won: SCAFFOLD's were captured as weights and update."""
    before, after = net(), net()
    step(after)

    def message(module: nn.Module) -> RecordDict:
        zeros = {k: torch.zeros_like(v) for k, v in module.state_dict().items()}
        both = {"arrays": ArrayRecord(module.state_dict()), "control": ArrayRecord(zeros)}
        return RecordDict({first: both.pop(first), **both})

    received = Message(message(before), dst_node_id=1, message_type="train")
    CaptureMod(tmp_path)(
        received, LocalGrid(ClientApp(), 1)._context(1), lambda msg, _: Message(message(after), reply_to=msg)
    )
    (folder,) = tmp_path.iterdir()
    weights = read_model(folder / "weights.safetensors", "weights")
    update = Update.load(folder / "update.safetensors")
    assert all(torch.equal(weights[k], v) for k, v in before.state_dict().items())
    assert all(torch.equal(update.tensors[k], v - weights[k]) for k, v in after.named_parameters())
    assert "arrays 'control' have the parameters' names" in caplog.text


@pytest.mark.usefixtures("identity")
def test_captures_are_for_their_owner_alone(tmp_path: Path) -> None:
    rounds(client_app(CaptureMod(tmp_path / "new")), plain())
    for path in (tmp_path / "new").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize("round_", ["../../x", "/etc", "a\x00b", "x" * 5000, ".."])
def test_a_round_named_by_somebody_else_stays_in_the_folder(round_: str) -> None:
    """Flower's round is a text that the server sends; an update's header is whoever's wrote it."""
    name = round_folder(round_, "../7")
    assert Path("captures").joinpath(name).resolve().parent == Path("captures").resolve()
    assert name.startswith("round-")
    assert len(name) <= 200


@pytest.mark.usefixtures("identity")
def test_two_mods_bracket_a_defence(tmp_path: Path) -> None:
    def clip(msg: Message, context: Context, call_next: Any) -> Message:
        before = msg.content["arrays"].to_torch_state_dict()
        reply = call_next(msg, context)
        after = reply.content["arrays"].to_torch_state_dict()
        half = {k: before[k] + (after[k] - before[k]) / 2 if v.is_floating_point() else v for k, v in after.items()}
        reply.content["arrays"] = ArrayRecord(half)
        return reply

    rounds(client_app(CaptureMod(tmp_path, side="wire"), clip, CaptureMod(tmp_path, side="raw")), plain())
    wire, raw = (Update.load(tmp_path / f"round-1-node-1-{s}" / "update.safetensors") for s in ("wire", "raw"))
    assert all(torch.allclose(2 * wire.tensors[k], v, atol=1e-6) for k, v in raw.tensors.items())


@pytest.mark.usefixtures("identity")
def test_a_capture_that_fails_leaves_the_round_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    expected = rounds(client_app(), plain())
    with caplog.at_level(logging.WARNING):
        trained = rounds(client_app(CaptureMod(file)), CaptureStrategy(plain(), file))
    assert all(torch.equal(trained[k], v) for k, v in expected.items())
    assert caplog.text.count("no capture of") == 4


class ArrayClient:
    """A `NumPyClient` by its methods."""

    def get_properties(self, config: dict[str, Any]) -> dict[str, Any]:
        return {"mine": 1}

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        module = net()
        state = {k: torch.from_numpy(p) for k, p in zip(module.state_dict(), parameters, strict=True)}
        module.load_state_dict(state)
        step(module)
        return [v.numpy() for v in module.state_dict().values()], 4, {"loss": 0.5}


def test_arrays_without_names_are_captured_in_the_order_of_the_state_dict(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = [v.numpy() for v in net().state_dict().values()]
    client = CaptureNumPyClient(ArrayClient(), tmp_path, list(net().state_dict()), node="a")
    reply = client.fit(sent, {"server_round": 3})
    assert client.get_properties({}) == {"mine": 1}
    update = Update.load(tmp_path / "round-3-node-a" / "update.safetensors")
    after = dict(zip(net().state_dict(), reply[0], strict=True))
    before = net().state_dict()
    assert all(torch.equal(v, torch.from_numpy(after[k]) - before[k]) for k, v in update.tensors.items())
    wrong = CaptureNumPyClient(ArrayClient(), tmp_path / "no", ["one"])
    assert wrong.fit(sent, {})[1] == 4
    assert "for 1 names" in caplog.text


def noisy_app(sigma: float, *mods: Any) -> ClientApp:
    """A client that clips to 1 and adds noise, and keeps its running statistics at home."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        module, before = net(), msg.content["arrays"].to_torch_state_dict()
        module.load_state_dict(before)
        step(module)
        kept = {k: v for k, v in module.state_dict().items() if k in dict(module.named_parameters())}
        moved = Clip(norm=1.0).on_update({k: v - before[k] for k, v in kept.items()}, None)
        sent = {k: before[k] + v + sigma * torch.randn(v.shape) for k, v in moved.items()}
        metrics = MetricRecord({"num-examples": 4})
        return Message(RecordDict({"arrays": ArrayRecord(sent), "metrics": metrics}), reply_to=msg)

    return app


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(("sigma", "sent"), [(0.5, True), (0.0, False)])
def test_an_update_without_the_stated_defence_does_not_leave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sigma: float, sent: bool
) -> None:
    torch.manual_seed(0)
    guard = GuardMod(SendingGuard(ClientDP(norm=1.0, noise_multiplier=0.5)))
    app = noisy_app(sigma, guard, CaptureMod(tmp_path))
    grid = LocalGrid(app, 1)
    content = RecordDict({"arrays": ArrayRecord(net().state_dict()), "config": ConfigRecord({"server-round": 1})})
    (reply,) = grid.send_and_receive([Message(content, dst_node_id=1, message_type="train")])
    assert reply.has_error() is not sent
    if not sent:
        assert "noise of standard deviation 0.5 is not in every tensor" in reply.error.reason
        assert "is not sent" in caplog.text


def imported(path: Path, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(folder)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return imported(EXAMPLE, "flower_example_app", tmp_path, monkeypatch)


SGD_ROUND = {"fedavg": {"batch_size": 2, "lr": 0.01}}
ADAM_ROUND = {"local-training": {"optimiser": {"adam": {"lr": 0.001}}, "epochs": 2, "batch_size": 1}}


@pytest.mark.usefixtures("identity")
@pytest.mark.parametrize(
    ("changes", "client"),
    [({}, SGD_ROUND), ({"optimizer": "adam", "epochs": 2, "examples": 1, "batch-size": 1, "lr": 0.001}, ADAM_ROUND)],
)
def test_the_examples_rounds_are_explained_by_the_plan_of_one_command(
    example: ModuleType, tmp_path: Path, changes: dict[str, Any], client: Any
) -> None:
    assert EXAMPLE.read_text().count("of leakgauge") == 3
    settings = tomllib.loads((EXAMPLE.parent / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    run = {**settings, **changes, "captures": str(tmp_path / "captures")}
    initial = ArrayRecord(example.Net().state_dict())
    strategy = CaptureStrategy(plain(), tmp_path / "captures")
    strategy.start(grid=LocalGrid(example.app, 2, run), initial_arrays=initial, num_rounds=2)
    for round_, node in ((1, 1), (1, 2), (2, 1), (2, 2)):
        folder = tmp_path / "captures" / f"round-{round_}-node-{node}"
        server = Update.load(folder.with_name(f"{folder.name}-server") / "update.safetensors")
        asked = plan_of([folder], model="flower_example_app:Net", client=client, mode="train", data=None)
        plan = resolve_plan(asked)
        sent = plan.captured()
        assert all(torch.equal(sent.tensors[k], v) for k, v in server.tensors.items())
        found = plan.explained()
        assert found.holds
        assert found.fit.share > 0.999
        assert len(plan.source) == 2 * int(run["examples"])
        seen_by_server = plan_of(
            [folder.with_name(f"{folder.name}-server")],
            model="flower_example_app:Net",
            client=client,
            mode="train",
            data=None,
        )
        assert seen_by_server["data"] == asked["data"]


@pytest.mark.usefixtures("identity")
def test_a_segmentation_clients_round_is_explained_by_what_its_capture_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MONAI's 3D U-Net: masks were not heard, and no capture of them could be read."""
    pytest.importorskip("monai")
    module = imported(HOSPITAL, "segmentation_app", tmp_path, monkeypatch)
    settings = tomllib.loads((HOSPITAL.parent / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    torch.manual_seed(0)
    grid = LocalGrid(module.app, 2, {**settings, "captures": str(tmp_path)})
    initial = ArrayRecord(module.net().state_dict())
    CaptureStrategy(plain(), tmp_path).start(grid=grid, initial_arrays=initial, num_rounds=1)
    folder = tmp_path / "round-1-node-2-server"
    plan = resolve_plan(plan_of([folder], model="segmentation_app:task", client=ADAM_ROUND, mode="train", data=None))
    assert plan.explained().fit.share > 0.999
    assert plan.source.names([0, 2]) == ["example 1 of the round", "another round's 2"]
    own = module.patients(2, 2)
    assert torch.equal(plan.source.read([0, 1]).labels, own["mask"])


@pytest.mark.usefixtures("identity")
def test_two_shuffled_epochs_are_explained_whole(tmp_path: Path) -> None:
    """As a quickstart trains: a shuffling loader, BatchNorm, Adam. Its own rounds explain half of each other."""
    app = ClientApp(mods=[CaptureMod(tmp_path, examples=True)])

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        module = own_round.batched()
        module.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        inputs, labels = (part[16 * (context.node_id - 1) :][:16] for part in own_round.photos(32))
        own_round.train(module.train(), "adam", inputs, labels, seed=context.node_id)
        metrics = MetricRecord({"num-examples": len(inputs)})
        return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=msg)

    torch.manual_seed(3)
    initial = ArrayRecord(own_round.batched().state_dict())
    CaptureStrategy(plain(), tmp_path).start(grid=LocalGrid(app, 2), initial_arrays=initial, num_rounds=1)
    client = {"local-training": {"optimiser": {"adam": {"lr": 0.002}}, "epochs": 2, "batch_size": 8, "shuffle": True}}
    for side in ("", "-server"):
        folder = tmp_path / f"round-1-node-1{side}"
        asked = plan_of([folder], model="study.own_round:batched", client=client, mode="train", data=None)
        found = resolve_plan(asked).explained()
        assert found.holds, found.sentence
        assert found.fit.share > 0.99


@pytest.mark.usefixtures("identity")
def test_the_first_examples_of_a_captured_round_are_read(tmp_path: Path) -> None:
    """Two steps with momentum in train mode, read off what the server received: every pair of an example and a step, to
    1e-4, and from there the examples of the first."""
    local = LocalFedAvg(batch_size=2, lr=0.3, momentum=0.9)
    app, (inputs, labels) = ClientApp(), convolutions.made(4)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        module = convolutions.Block(72).train()
        module.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        sgd = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
        for rows in (slice(0, 2), slice(2, 4)):
            sgd.zero_grad()
            by_name(module(inputs[rows]), labels[rows]).backward()
            sgd.step()
        arrays = ArrayRecord(module.state_dict())
        metrics = MetricRecord({"num-examples": 4})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)

    torch.manual_seed(1)
    module = convolutions.Block(72)
    initial = ArrayRecord(module.state_dict())
    CaptureStrategy(plain(), tmp_path).start(grid=LocalGrid(app, 2), initial_arrays=initial, num_rounds=1)
    update = Update.load(tmp_path / "round-1-node-1-server" / "update.safetensors")
    task = Task.of(module, DataSpec(tuple(inputs.shape[1:]), 4), mode="train")
    budget, knows = Budget(gradient_evaluations=800), Knowledge(example_count=4, local_training=local)
    found = attack(task, update, using=Features(), knows=knows, budget=budget)
    (read,) = [one for one in found.features if one.layer == "second.weight"]
    truth = convolutions.given(module, Batch(inputs, labels), "train", "second", local)
    ours, theirs = (t.flatten(1) / t.flatten(1).norm(dim=1, keepdim=True) for t in (read.maps, truth))
    assert read.certified
    assert float(torch.cdist(theirs, ours).amin(1).max()) < 1e-4
    gaps = torch.cdist(found.inputs.flatten(1), inputs.flatten(1)) / inputs[0].numel() ** 0.5
    assert set(gaps.argmin(1).tolist()) == {0, 1}  # of the first step: the second one's network is far from this one
    assert float(gaps.amin(1).max()) < 0.05


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
functional = nn.functional


class OwnLoss(nn.Module):
    """Somebody's loss module, called with the scores of a model."""

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return by_name(scores, labels)


def loop(module: nn.Module, loss: Loss = by_name, *, amp: bool = False) -> None:
    """Somebody's training with accumulation, clipping and two optimisers, and validation."""
    heads = [torch.optim.SGD(module[1].parameters(), lr=0.1), torch.optim.Adam(module[3].parameters())]
    scaler = torch.amp.GradScaler("cpu", enabled=amp)
    for x, y in zip(X.split(2), Y.split(2), strict=True):
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            scaler.scale(loss(module(x), y) / 2).backward()
    for optimiser in heads:
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimiser)
    with torch.no_grad():
        functional.cross_entropy(module(X), Y)


HEARD: dict[str, Loss] = {
    "imported by name": by_name,
    "function": lambda scores, y: functional.cross_entropy(scores, target=y),
    "module": nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.ones(3)),
    "two functions": lambda scores, y: functional.nll_loss(functional.log_softmax(scores, 1), y),
    "two modules": lambda scores, y: nn.NLLLoss()(nn.LogSoftmax(1)(scores), y),
    "module of one's own": OwnLoss(),
}


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("loss", HEARD.values(), ids=HEARD)
def test_minibatches_of_a_loop_are_heard_without_a_line_in_it(
    loss: Loss, amp: bool, caplog: pytest.LogCaptureFixture
) -> None:
    expected, module, again = net(), net(), net()
    loop(expected, loss, amp=amp)
    with watching(listen=True) as outer, watching(listen=True) as inner:
        loop(module, loss, amp=amp)
    loop(again, loss, amp=amp)  # nobody listens any more
    for examples in (outer, inner):
        assert torch.equal(torch.cat(examples.inputs), X)
        assert torch.equal(torch.cat(examples.labels), Y)
    for trained in (module, again):
        assert all(torch.equal(a, b) for a, b in zip(expected.parameters(), trained.parameters(), strict=True))
    assert not caplog.text


def test_listening_costs_a_step_a_few_calls_however_deep_the_network() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), *(nn.ReLU() for _ in range(50)))
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call" and "capture" in Path(frame.f_code.co_filename).parts

    with watching(listen=True) as examples:
        sys.setprofile(count)
        functional.cross_entropy(module(X), Y).backward()
        optimiser.step()
        sys.setprofile(None)
    assert len(examples.inputs) == 1
    assert calls <= 10


def test_a_listener_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    """Another thread's training, a forward pass that fails, a model that is copied and saved in the round."""
    before = torch._C._nn.cross_entropy_loss, dict(torch_module._global_forward_pre_hooks)
    module = net()

    def fails(*_: object) -> None:
        raise ValueError("on purpose")

    with watching(listen=True) as examples:
        thread = threading.Thread(target=loop, args=(net(),))
        thread.start()
        thread.join()
        assert not examples.inputs
        handle = module[3].register_forward_pre_hook(fails)
        with pytest.raises(ValueError, match="on purpose"):
            module(X)
        handle.remove()
        loop(module)
        pickle.dumps(copy.deepcopy(module))
    assert torch.equal(torch.cat(examples.inputs), X)
    assert "1 of 3 calls" in caplog.text
    assert before == (torch._C._nn.cross_entropy_loss, dict(torch_module._global_forward_pre_hooks))
    assert not any(m._forward_hooks for m in module.modules())


def test_what_a_listener_cannot_hear_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with watching(listen=True) as examples:
        module = net()
        nn.functional.mse_loss(module(X), torch.zeros(4, 3))
        nn.functional.cross_entropy(module(X), torch.full((4, 3), 1 / 3))  # soft labels
        nn.functional.cross_entropy(torch.zeros(4, 3), Y)  # of no module
        scores = module(X)
        (-scores.log_softmax(1)[range(4), Y].mean()).backward()  # arithmetic of one's own
    assert not examples.inputs
    assert "3 of 3 calls" in caplog.text
