"""The short way in does what the parts do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import save_file

import leakgauge as lg
from leakgauge.cli import main
from leakgauge.inspection.verdict import CheckLevel

DATA = lg.DataSpec((3, 8, 8), 4)


def task() -> lg.Task:
    torch.manual_seed(0)
    return lg.Task.of(lg.models.mlp(shape=DATA.shape, hidden=(16,), classes=4), DATA)


def test_attack_is_the_attack_on_what_the_header_says() -> None:
    one, batch = task(), lg.Batch(torch.rand(1, 3, 8, 8), torch.tensor([2]))
    update = lg.clients.client_update(one, lg.clients.FedSGD(), batch, lg.Draws(seed=1))
    found = lg.attack(one, update)
    assert found.status is lg.Status.EXACT
    assert lg.metrics.PSNR()(found.inputs, batch.inputs).item() > 100
    again = lg.attack(one, update, using=lg.attacks.closed_form.LinearRead(), seed=3)
    torch.testing.assert_close(again.inputs, found.inputs)


def test_attack_uses_what_it_is_given_and_nothing_else() -> None:
    one, batch = task(), lg.Batch(torch.rand(1, 3, 8, 8), torch.tensor([2]))
    client = lg.clients.FedAvg(lr=0.1)
    update = lg.clients.client_update(one, client, batch, lg.Draws(seed=1))
    found = lg.attack(one, update, using=lg.attacks.recipes.inverting_gradients())
    assert found.status is lg.Status.NOT_APPLICABLE
    known = lg.Knowledge(local_training=client)
    assert lg.attack(one, update, knows=known, budget=lg.Budget(gradient_evaluations=5)).inputs is not None


def test_inspect_takes_tensors_or_a_file_and_finds_what_is_crafted(tmp_path: Path) -> None:
    one = task()
    honest = lg.inspect(one.module.state_dict())
    assert honest.level is CheckLevel.NOTHING_FOUND
    save_file(one.module.state_dict(), tmp_path / "m.safetensors")
    assert lg.inspect(tmp_path / "m.safetensors").fingerprint == honest.fingerprint
    sent = lg.servers.Imprint().broadcast(one, torch.Generator().manual_seed(0))
    state = {name: sent.task.parameters[name] for name in one.module.state_dict()}
    found = lg.inspect(state, model=one.module, data=DATA, previous=one.module.state_dict())
    assert found.level is CheckLevel.CRAFTED
    assert "previous" in found.given


def test_inspect_names_the_tensor_that_does_not_fit() -> None:
    state = task().module.state_dict()
    name = next(iter(state))
    with pytest.raises(lg.InputError, match=name):
        lg.inspect(state, previous={**state, name: torch.zeros(3)})


def own(**changes: Any) -> dict[str, Any]:
    """A small audit of tensors and a module."""
    inputs = torch.rand(60, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    given = {"model": task().module, "data": (inputs, torch.arange(60) % 4), "batches": 2, "gallery": 10}
    return given | {"attacks": [lg.attacks.closed_form.LinearRead()], "gate": {"identified": {"max": 0.5}}} | changes


def test_an_audit_is_typed_saved_and_shown(tmp_path: Path) -> None:
    audit = lg.audit(**own(defenses=[lg.defenses.NoDefense(), lg.defenses.noise(relative=10.0)]))
    exposed, held = (f for f in audit.findings if not f.control)
    assert (exposed.level.value, exposed.recovered, exposed.scenario.defense) == ("exposed", 2, "none")
    assert held.identified is None or held.identified.count < 2
    assert audit.verdict.level is exposed.level
    assert audit.passed is False
    kept = audit.save(tmp_path / "kept")
    report = CliRunner().invoke(main, ["gate", str(kept)])
    assert (report.exit_code, report.output.splitlines()[-1]) == (1, "gate failed")
    with pytest.raises(lg.InputError, match="holds audit"):
        audit.save(kept)
    page = audit._repr_html_()
    assert re.search("exposed +2/2", page)
    assert "reconstructed in 1 of 2 settings" in page


def test_the_call_and_the_plan_are_the_same_audit(tmp_path: Path) -> None:
    """What the command line has finished, the call takes up without work, and the other way round."""
    plan = {
        "model": {"mlp": {"hidden": [6]}},
        "data": {"source": "samples", "batch": 1, "batches": 2},
        "clients": [{"fedavg": {"lr": 0.05}}],
        "attacks": ["closed-form"],
        "budget": {"gradient_evaluations": 5},
        "mode": "train",
        "gallery": 8,
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    done = CliRunner().invoke(
        main, ["audit", str(tmp_path / "plan.yaml"), "-o", str(tmp_path / "out"), "--workers", "1"]
    )
    assert done.exit_code == 0, done.output
    ran: list[tuple[int, int]] = []
    audit = lg.audit(
        {"mlp": {"hidden": [6]}},
        "samples",
        batches=2,
        clients=[{"fedavg": {"lr": 0.05}}],
        attacks=("closed-form",),
        budget=lg.Budget(gradient_evaluations=5),
        mode=lg.Mode.TRAIN,
        gallery=8,
        folder=tmp_path / "out",
        on_trial=lambda done, total, _: ran.append((done, total)),
    )
    assert ran == [(2, 2)]
    assert len(audit.findings) == 1


def test_a_wrong_argument_is_named() -> None:
    for changes, words in (
        ({"atacks": []}, "did you mean 'attacks'"),
        ({"clients": [lg.defenses.NoDefense()]}, r"clients\[0\]"),
        ({"data": (torch.full((4, 3, 8, 8), 7.0), torch.zeros(4, dtype=torch.long))}, "set low and high"),
    ):
        with pytest.raises(lg.InputError, match=words):
            lg.audit(**own(**changes))
    with pytest.raises(lg.InputError, match="did you mean 'topk'"):
        lg.frontier(task().module, own()["data"], {"x": [{"topq": {"keep": 0.1}}]})


def test_an_audit_from_python_lints_as_the_command_does(tmp_path: Path) -> None:
    words = {"clients": [{"fedavg": {"lr": 0.05}}], "defenses": [{"noise": {"sigma": 0.1}}], "attacks": ["closed-form"]}
    plan = {"model": {"mlp": {"hidden": [6]}}, "data": {"source": "samples", "batch": 1, "batches": 1}, **words}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    done = CliRunner().invoke(main, ["lint", str(tmp_path / "plan.yaml"), "--json", str(tmp_path / "lint.json")])
    assert done.exit_code in (0, 1)
    found = lg.audit({"mlp": {"hidden": [6]}}, "samples", batches=1, folder=tmp_path / "out", **words)
    findings = [json.loads((folder / "lint.json").read_text())["findings"] for folder in (tmp_path, tmp_path / "out")]
    assert findings[0] == findings[1]
    assert {f.rule for f in found.lint} >= {"exact-count", "batch-of-one", "no-guarantee"}
    assert found.lint == lg.audit({"mlp": {"hidden": [6]}}, "samples", batches=1, folder=tmp_path / "out", **words).lint
    assert (found.save(tmp_path / "kept") / "lint.json").is_file()


def test_tensors_of_other_types_are_read_as_what_they_mean() -> None:
    x, y = torch.randint(256, (4, 3, 4, 4), dtype=torch.uint8), torch.tensor([0, 1, 2, 1], dtype=torch.int32)
    source = lg.data.InMemory(inputs=x, labels=y, high=255.0)
    read = source.read([1, 3])
    assert (read.inputs.dtype, read.labels.dtype, source.classes) == (torch.float32, torch.int64, 3)
    assert torch.equal(read.inputs, x[[1, 3]].float())
    for labels in (y.float(), torch.nn.functional.one_hot(y.long())):
        with pytest.raises(lg.InputError, match="labels: are torch"):
            lg.data.InMemory(inputs=x, labels=labels, high=255.0)
