"""Contents, not names: a changed file is never answered by an old result."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from leakgauge.clients import FedSGD, client_update
from leakgauge.data import InMemory
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.study import identity as contents_module
from leakgauge.study.identity import changed
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import Running, run
from leakgauge.task import Batch, DataSpec, Task
from study.plans import document, tiny

MODULE = "def one():\n    from torch import nn\n    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))\n"


def _world(folder: Path, seed: int = 0) -> None:
    """Data, weights, an update and a module that a plan names."""
    generator = torch.Generator().manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    save_file(net.state_dict(), folder / "w.safetensors")
    inputs = torch.rand((30, 3, 8, 8), generator=generator)
    task = Task.of(net, DataSpec((3, 8, 8), 3))
    update = client_update(task, FedSGD(), Batch(inputs[:1], torch.tensor([0])), Draws(seed))
    update.save(folder / "u.safetensors")
    np.savez(folder / "x.npz", x=inputs.numpy(), y=np.arange(30) % 3)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _world(tmp_path)
    (tmp_path / "mine.py").write_text("from other import one\n")
    (tmp_path / "other.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.delitem(sys.modules, "other", raising=False)
    return tmp_path


def plan_of(world: Path, **changes: Any) -> dict[str, Any]:
    raw = {
        "model": {"mine:one": {"weights": str(world / "w.safetensors")}},
        "data": {"source": f"npz:{world / 'x.npz'}", "batches": 1},
        "update": str(world / "u.safetensors"),
        "defenses": ["none"],
        "attacks": ["closed-form"],
        "gallery": 5,
    }
    return tiny(**raw | changes)


def _append(path: Path) -> None:
    path.write_text(path.read_text() + "# another line\n")


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "update": (lambda w: _only(w, "u.safetensors"), "update u.safetensors"),
    "weights": (lambda w: _only(w, "w.safetensors"), "weights w.safetensors"),
    "data": (lambda w: _only(w, "x.npz"), "data"),
    "module": (lambda w: _append(w / "mine.py"), "module mine"),
    "module that it imports": (lambda w: _append(w / "other.py"), "module mine"),
}


def _only(world: Path, name: str) -> None:
    """Another world's file under the same name."""
    there = world / "there"
    there.mkdir()
    _world(there, seed=1)
    shutil.move(there / name, world / name)


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_file_is_named_and_the_old_report_is_not_given(what: str, world: Path) -> None:
    change, named = CHANGES[what]
    run(resolve_plan(plan_of(world)), world / "out").close()
    before = (world / "out" / "audit.sqlite").read_bytes()
    change(world)
    with pytest.raises(InputError, match=f"rest on other contents of .*{named}") as error:
        run(resolve_plan(plan_of(world)), world / "out")
    assert "--anew" in str(error.value)
    assert (world / "out" / "audit.sqlite").read_bytes() == before


@pytest.mark.parametrize(("package", "where"), [("leakgauge", "__version__"), ("torch", "torch")])
def test_another_version_is_named_with_both(
    package: str, where: str, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(resolve_plan(plan_of(world)), world / "out").close()
    real = contents_module.contents

    def older(*arguments: Any) -> dict[str, str]:
        return real(*arguments) | {package: "0.0.1"}

    monkeypatch.setattr("leakgauge.study.plan.contents", older)
    with pytest.raises(InputError, match=rf"contents of {package} \(.+, now 0\.0\.1\)"):
        run(resolve_plan(plan_of(world)), world / "out")


def test_anew_sets_the_old_results_aside_and_measures_the_new_update(world: Path) -> None:
    store = run(resolve_plan(plan_of(world)), world / "out")
    old = [t for t in document(store)["trials"] if not t["control"]]
    store.close()
    before = (world / "out" / "audit.sqlite").read_bytes()
    _only(world, "u.safetensors")
    store = run(resolve_plan(plan_of(world)), world / "out", Running(anew=True))
    new = [t for t in document(store)["trials"] if not t["control"]]
    store.close()
    assert (world / "out" / "before-1" / "audit.sqlite").read_bytes() == before
    assert [t["id"] for t in new] == [t["id"] for t in old]
    assert new[0]["scores"] != old[0]["scores"]


def test_what_changes_while_the_audit_runs_is_said(world: Path) -> None:
    plan, how = resolve_plan(plan_of(world)), Running(on_trial=lambda n, *_: n == 1 and _only(world, "u.safetensors"))
    with pytest.raises(InputError, match=r"update u\.safetensors changed while the audit ran"):
        run(plan, world / "out", how)


def test_a_module_in_a_folder_that_is_no_package_is_followed(world: Path) -> None:
    (world / "room").mkdir()
    (world / "room" / "mine.py").write_text("from other import one\n")
    plan = resolve_plan(plan_of(world, model={"room.mine:one": {"weights": str(world / "w.safetensors")}}))
    before = plan.contents()
    _append(world / "other.py")
    assert changed(before, plan.contents()) == ["module room.mine"]


def test_the_same_contents_elsewhere_are_the_same(world: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("elsewhere")
    shutil.copy(world / "x.npz", other / "x.npz")
    (other / "x.npz").touch()
    plan = plan_of(world)
    moved = plan | {"data": {"source": f"npz:{other / 'x.npz'}", "batches": 1}}
    assert resolve_plan(plan).contents() == resolve_plan(moved).contents()


def test_a_source_in_no_file_is_known_by_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    source = InMemory(inputs=torch.rand(9, 1, 32), labels=torch.arange(9) % 3)
    raw = tiny(data={"source": source, "batches": 2}, model="mlp", attacks=["closed-form"], only=None)
    plan = resolve_plan(raw)
    before = plan.contents()["data"]
    assert plan.contents()["data"] == before
    read = type(plan.source).read

    def shifted(self: Any, indices: Any) -> Batch:
        batch = read(self, indices)
        return Batch(batch.inputs.flip(0) * 0.99, batch.labels)

    monkeypatch.setattr(type(plan.source), "read", shifted)
    assert plan.contents()["data"] != before


def test_another_plan_is_named_by_its_keys(world: Path) -> None:
    run(resolve_plan(plan_of(world)), world / "out").close()
    with pytest.raises(InputError, match=r"of another gallery, seeds"):
        run(resolve_plan(plan_of(world, seeds=[1], gallery=6)), world / "out")
