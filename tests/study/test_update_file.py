"""A real update from somebody's own training loop, audited from its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from leakgauge.compute import Compute
from leakgauge.data import Samples
from leakgauge.errors import InputError
from leakgauge.models.weights import fingerprint, read_model
from leakgauge.risk.lint import SENT, UNSENT
from leakgauge.study.deal import Key
from leakgauge.study.explaining.setting import Explained
from leakgauge.study.judging.records import Explanation
from leakgauge.study.lint import lint_plan
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import Running, run
from leakgauge.study.trial import run_trial
from leakgauge.update import Update, UpdateHeader, UpdateKind
from study.plans import document, page_of, tiny


def hospital_net() -> nn.Module:
    """Some team's own model."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 12), nn.ReLU(), nn.BatchNorm1d(12), nn.Linear(12, 8))


@pytest.fixture
def captured(tmp_path: Path) -> dict[str, Any]:
    """One plain training step outside leakgauge, and the plan that audits it."""
    torch.manual_seed(0)
    net = hospital_net().eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    torch.save(before, tmp_path / "round7.pt")
    batch = Samples(size=16, normalise=False).read([3])
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    nn.functional.cross_entropy(net(batch.inputs), batch.labels).backward()
    optimiser.step()
    Update.between(before, net.state_dict(), example_count=1).save(tmp_path / "update.safetensors")
    return tiny(
        model={"study.test_update_file:hospital_net": {"weights": str(tmp_path / "round7.pt")}},
        data={"source": "samples", "size": 16, "start": 3, "batches": 1, "normalise": False},
        clients=[{"fedavg": {"epochs": 1, "lr": 0.1}}],
        defenses=["none"],
        attacks=["closed-form"],
        update=str(tmp_path / "update.safetensors"),
    )


def test_the_photo_comes_back_out_of_the_file(captured: dict[str, Any]) -> None:
    plan = resolve_plan(captured)
    own = [key for key in plan.trials() if not key.control]
    assert len(own) == 1
    result = run_trial(plan, own[0], compute=Compute())
    assert result.record["scenario"]["data"]["names"] == ["rocket.jpg"]
    assert result.record["status"] == "exact"
    assert result.record["scores"]["psnr"][0] > 60
    assert result.record["scores"]["identified"] == [True]
    assert any(key.control for key in plan.trials()), "the file's attack is never shown to have power"


@pytest.mark.parametrize("sends", [True, False])
def test_a_file_shows_whether_running_statistics_came(captured: dict[str, Any], tmp_path: Path, sends: bool) -> None:
    """Nothing is assumed of a captured update: its statistics fail the gate though the plan does not know of them."""
    torch.manual_seed(0)
    net = hospital_net().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    torch.save(before, tmp_path / "round7.pt")
    batch = Samples(size=16, normalise=False).read([3, 4])
    nn.functional.cross_entropy(net(batch.inputs), batch.labels).backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()
    update = Update.between(before, net.state_dict(), example_count=2)
    (update if sends else replace(update, buffers=None)).save(tmp_path / "update.safetensors")
    plan = resolve_plan(captured | {"mode": "train", "data": captured["data"] | {"batch": 2}})
    told = {f.rule for f in lint_plan(plan)} & {SENT, UNSENT}
    assert told == ({SENT} if sends else set())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_4_an_update_survives_its_file_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=g).to(dtype)
        for name, shape in {"z.w": (3, 2), "a.b": (), "m": (0, 4)}.items()
    }
    tensors["strided"] = torch.randn(4, 4, generator=g).to(dtype).t()
    header = UpdateHeader(UpdateKind.DELTA, 7, {"protocol": "FedAvg(epochs=2)"})
    for buffers in (None, {}, {"bn.running_mean": torch.randn(3, generator=g)}):
        Update(tensors, header, buffers).save(tmp_path / "u.safetensors")
        back = Update.load(tmp_path / "u.safetensors")
        assert back.header == header
        assert list(back.tensors) == list(tensors)
        assert all(torch.equal(back.tensors[k], tensors[k]) and back.tensors[k].dtype == dtype for k in tensors)
        assert (back.buffers is None) == (buffers is None)
        assert buffers is None or all(torch.equal(back.buffers[k], buffers[k]) for k in buffers)


def test_between_leaves_frozen_parameters_out() -> None:
    net = hospital_net()
    net[1].weight.requires_grad_(False)
    state = net.state_dict()
    trained = [k for k, p in net.named_parameters() if p.requires_grad]
    update = Update.between(state, {k: v + 1 for k, v in state.items()}, trained=trained)
    assert list(update.tensors) == trained
    assert update.buffers is not None
    assert "1.weight" in update.buffers


def test_between_takes_statistics_for_buffers() -> None:
    net = hospital_net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.train()(torch.rand(4, 3, 16, 16))
    update = Update.between(before, net.state_dict())
    assert set(update.tensors) == {k for k, _ in net.named_parameters()}
    assert set(update.buffers) == {k for k, _ in net.named_buffers()}
    assert all(float(v.abs().sum()) == 0 for v in update.tensors.values())


@pytest.mark.parametrize(
    ("change", "count", "said"),
    [
        (lambda s: {f"module.{k}": v for k, v in s.items()}, None, "do not share"),
        (lambda s: {k: v.flatten()[:1] for k, v in s.items()}, None, "another shape"),
        (lambda s: s, 0, "example_count: is 0"),
        (lambda s: s, -1, "example_count: is -1"),
    ],
)
def test_between_takes_two_states_of_one_model_alone(change: Any, count: int | None, said: str) -> None:
    """A wrapper's prefix on one side gave an update without tensors."""
    state = hospital_net().state_dict()
    with pytest.raises(InputError, match=said):
        Update.between(state, change(state), example_count=count)


def test_an_update_without_the_weights_of_its_round_is_refused(captured: dict[str, Any], tmp_path: Path) -> None:
    net = {"mlp": {"hidden": [8]}}
    made = resolve_plan(tiny(model=net, data=captured["data"])).broadcast(Key(0, 0, 0, 0, 0, 0)).task
    Update(made.parameters, UpdateHeader(UpdateKind.DELTA, 1)).save(tmp_path / "mlp.safetensors")
    with pytest.raises(InputError, match=r"model: names no weights, .*; add weights: a file"):
        resolve_plan(captured | {"model": net, "update": str(tmp_path / "mlp.safetensors")})


def test_an_audit_says_first_how_much_of_the_update_its_plan_explains(captured: dict[str, Any], tmp_path: Path) -> None:
    right = resolve_plan(captured).explained()
    assert right.holds
    assert right.fit.share > 0.99
    wrong = captured | {"data": captured["data"] | {"normalise": True}, "gate": {"identified": {"max": 0.5}}}
    seen: list[Explained] = []
    store = run(resolve_plan(wrong), tmp_path / "out", Running(on_explained=seen.append))
    report = document(store)
    assert [e.causes[0].key for e in seen] == ["data.normalise"]
    assert TypeAdapter(Explanation).validate_python(report["verdict"]["explained"]) == seen[0].record
    assert report["verdict"]["level"] != "not_recovered"
    assert report["verdict"]["gate"]["passed"] is False
    assert "The plan does not explain the captured update" in page_of(store)
    assert [r["explained"] is not None for r in report["trials"] if not r["control"]] == [True]


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, which alone trains."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.base = nn.Linear(768, 8).requires_grad_(False)
        self.down = nn.Linear(768, 2, bias=False)
        self.up = nn.Linear(2, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("travels", ["all", "adapter"])
def test_what_travels_of_an_adapted_model_is_what_is_audited(
    captured: dict[str, Any], tmp_path: Path, travels: str
) -> None:
    net = Adapted()
    names = [k for k in net.state_dict() if travels == "all" or not k.startswith("base")]
    before = {k: net.state_dict()[k].clone() for k in names}
    torch.save(before, tmp_path / "adapter.pt")
    batch = Samples(size=16, normalise=False).read([3])
    optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    nn.functional.cross_entropy(net(batch.inputs), batch.labels).backward()
    optimiser.step()
    path = tmp_path / "adapter.safetensors"
    Update.between(before, {k: net.state_dict()[k] for k in names}, example_count=1).save(path)
    model = {"study.test_update_file:Adapted": {"weights": str(tmp_path / "adapter.pt")}}
    plan = resolve_plan(captured | {"model": model, "update": str(path)})
    assert list(plan.captured().tensors) == ["down.weight", "up.weight"]
    found = plan.explained()
    assert found.fit.share > 0.999
    moved = Update.load(path)
    tensors = moved.tensors | {"base.bias": torch.ones(8)}
    Update(tensors, moved.header).save(path)
    with pytest.raises(InputError, match=r"update: changes base.bias, which the model freezes"):
        resolve_plan(captured | {"model": model, "update": str(path)})


def test_weights_that_are_not_those_of_the_capture_are_named(captured: dict[str, Any], tmp_path: Path) -> None:
    net = hospital_net()
    torch.save(net.state_dict(), tmp_path / "other.pt")
    update = Update.load(captured["update"])
    header = UpdateHeader(
        update.header.kind, 1, {"weights": fingerprint(read_model(tmp_path / "round7.pt", "weights"))}
    )
    Update(update.tensors, header).save(captured["update"])
    model = {"study.test_update_file:hospital_net": {"weights": str(tmp_path / "other.pt")}}
    found = resolve_plan(captured | {"model": model}).explained()
    assert not found.holds
    assert found.causes[0].change == "they are not those that the capture recorded"
