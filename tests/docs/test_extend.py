"""The pages on parts of one's own are true: their files import, their code runs, their plans validate and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from docs.pages import Block, blocks, run
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.draws import Draws
from leakgauge.registry import ATTACKS, CLIENTS, DEFENSES, METRICS, OBJECTIVES
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial

PAGES = ("docs/tutorials/attack.md", "docs/tutorials/defence.md", "docs/tutorials/client.md", "docs/how-to/parts.md")


def listed(language: str) -> list[Block]:
    """Blocks of all the pages, in order."""
    return [block for page in PAGES for block in blocks(page, language)]


@pytest.fixture
def written(workplace: Path) -> Path:
    """The page's files, in place."""
    for block in listed("python"):
        if block.mark.startswith("file: "):
            path = workplace / block.mark.removeprefix("file: ")
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    return workplace


def test_every_block_is_run_or_written() -> None:
    marks = [block.mark for block in listed("python")]
    assert marks
    assert all(mark == "run" or mark.startswith("file: my_package/") for mark in marks)


def test_an_objective_is_a_file_of_about_twenty_lines(written: Path) -> None:
    lines = (written / "my_package" / "relative_l2.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 22


def test_the_blocks_run_in_order_and_the_objective_falls(written: Path) -> None:
    names = run(PAGES)
    found = names["found"]
    assert found.objective < 1e-2 * found.trace[0][1]
    assert float(names["PSNR"]()(found.inputs, names["truth"].inputs)) > 20
    assert 0.9 < float(names["Correlation"]()(found.inputs, names["truth"].inputs)) <= 1
    assert OBJECTIVES["relative-l2"].build is names["RelativeL2"]
    assert names["LocalTraining"](optimiser=names["optimiser"]).linear(4).decay == pytest.approx(-1e-3)
    task, batch, client = names["task"], names["truth"], names["FedProx"](local_steps=1)
    gradient = client_update(task, FedSGD(), batch, Draws(0)).tensors
    for name, sent in client_update(task, client, batch, Draws(0)).tensors.items():
        torch.testing.assert_close(sent, client.linear(1).factor * gradient[name])


@pytest.mark.parametrize("block", listed("yaml"), ids=str)
def test_plans_validate(block: Any, written: Path) -> None:
    assert resolve_plan(yaml.safe_load(block.text)).trials()


def test_a_registered_name_works_once_its_file_is_imported(written: Path) -> None:
    plan = {"attacks": [{"matching": {"objective": "relative-l2"}}], "data": {"size": 16}}
    with pytest.raises(ValueError, match="unknown name 'relative-l2'"):
        resolve_plan(plan)
    __import__("my_package.relative_l2")
    assert resolve_plan(plan).trials()


def test_everything_of_ours_runs(written: Path) -> None:
    plan = resolve_plan(yaml.safe_load(listed("yaml")[-1].text))
    last = {(key.client, key.defense, key.attack): key for key in plan.trials() if not key.control}
    records = [run_trial(plan, key, compute=Compute()).record for key in last.values()]
    assert len(records) == 8
    assert {r["status"] for r in records} == {"converged", "out_of_steps"}
    assert all(r["scores"] is not None for r in records)
    for registry, name in ((ATTACKS, "guess"), (CLIENTS, "fedprox"), (DEFENSES, "withhold")):
        assert registry[name].summary
    assert "correlation" not in {entry.name for entry in METRICS}  # only what is imported registers itself


def test_withheld_tensors_are_simulated_as_sent(written: Path) -> None:
    names: dict[str, Any] = {}
    exec((written / "my_package" / "withhold.py").read_text(encoding="utf-8"), names)
    from leakgauge.defenses import view_of
    from leakgauge.update import Update, UpdateHeader, UpdateKind

    raw = {"a.weight": torch.ones(2), "b.weight": torch.ones(3)}
    defense = names["Withhold"](prefix="a.")
    sent = defense.on_update(raw, torch.Generator())
    view = view_of(defense, Update(sent, UpdateHeader(UpdateKind.GRADIENT)), None)
    assert all(torch.equal(view(raw)[k], sent[k]) for k in raw)
