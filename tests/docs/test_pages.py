"""README and the page *choose*: every example runs, every plan validates, every name that is quoted exists."""

from __future__ import annotations

import json
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from PIL import Image
from safetensors.torch import save_file

import leakgauge
import promises
from docs.pages import ROOT, Block, blocks, difference, run
from docs.test_extend import PAGES as EXTENDING
from leakgauge.clients import client_update
from leakgauge.compute import Compute
from leakgauge.data import Folder
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.observation import Status
from leakgauge.step import losses, parts
from leakgauge.study.plan import resolve_plan
from leakgauge.study.trial import run_trial
from leakgauge.update import Update

FILES = [ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]
PAGES = sorted(p.relative_to(ROOT).as_posix() for p in FILES)
FENCED = re.compile(r"^```.*?^```$", re.S | re.M)
CHOOSE = "docs/how-to/captured.md"

NETWORKS = '''
from torch import nn


class Normalise(nn.Module):
    def forward(self, x):
        return (x - 0.5) / 0.25


def scan_net(*, classes: int) -> nn.Module:
    """As the hospital trains it: its own normalisation, and BatchNorm."""
    return nn.Sequential(
        Normalise(), nn.Conv2d(3, 4, 3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, classes)
    )
'''


@pytest.fixture
def hospital(workplace: Path) -> Path:
    """The files that the plans of the page name."""
    random = np.random.default_rng(0)
    for folder in ("healthy", "ill"):
        (workplace / "x-rays" / folder).mkdir(parents=True)
        for i in range(8):
            picture = Image.fromarray(random.integers(0, 255, (40, 40, 3), dtype=np.uint8))
            picture.save(workplace / "x-rays" / folder / f"{i}.png")
    np.savez(workplace / "ecg.npz", x=random.uniform(-5, 5, (12, 40)).astype(np.float32), y=np.arange(12) % 3)
    (workplace / "hospital").mkdir()
    (workplace / "hospital" / "networks.py").write_text(NETWORKS, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(NETWORKS, names)
    torch.manual_seed(0)
    model = names["scan_net"](classes=2).train()
    save_file(model.state_dict(), workplace / "scan-net.safetensors")

    def train_locally(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
        for x, y in zip(inputs.split(2), labels.split(2), strict=True):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimiser.step()

    batch = Folder(path="x-rays").read(range(6))
    names |= {"model": model, "inputs": batch.inputs, "labels": batch.labels, "train_locally": train_locally}
    for block in blocks(CHOOSE, "python"):
        assert block.mark == "run"
        exec(compile(block.text, str(block), "exec"), names)
    return workplace


@pytest.mark.parametrize("block", [b for page in PAGES if page not in EXTENDING for b in blocks(page, "yaml")], ids=str)
def test_plans_validate(block: Any, hospital: Path) -> None:
    if block.mark == "fragment":
        pytest.skip("a fragment")
    assert resolve_plan(yaml.safe_load(block.text)).trials()


def test_a_captured_update_is_what_the_plan_would_simulate(hospital: Path) -> None:
    plan = resolve_plan(yaml.safe_load(next(b.text for b in blocks(CHOOSE, "yaml") if "update:" in b.text)))
    key = next(k for k in plan.trials() if not k.control)
    batch = plan.source.read(plan.data.indices[0])
    simulated = client_update(plan.broadcast(key).task, plan.clients[0].value, batch, Draws(0)).tensors
    captured = Update.load("round-12.safetensors").tensors
    assert list(simulated) == list(captured)
    for name, tensor in simulated.items():
        torch.testing.assert_close(tensor, captured[name], rtol=1e-4, atol=1e-7)
    record = run_trial(plan, key, compute=Compute()).record
    assert record["status"] == "not_applicable"
    assert record["scenario"]["data"]["batch"] == 6


def test_the_readme_example_runs_and_recovers_the_photo(workplace: Path) -> None:
    (block,) = blocks("README.md", "python")
    assert len([line for line in block.text.splitlines() if line.strip()]) <= 24
    names = run(["README.md"])
    assert float(PSNR()(names["found"].inputs, names["batch"].inputs)) > 28


def test_steps_of_ones_own_run_and_are_read(workplace: Path) -> None:
    names = run(["docs/how-to/steps.md"])
    assert names["found"].status is Status.EXACT
    for name, part in names["patient"].items():
        torch.testing.assert_close(names["found"].parts[name], part, rtol=1e-3, atol=1e-3)
    true = torch.bincount(names["mask"].flatten()) / names["mask"].numel()
    torch.testing.assert_close(names["told"].shares["mask"].float(), true, rtol=0, atol=0.05)
    torch.testing.assert_close(names["read"].parts["scan"].float(), names["scan"]["scan"], rtol=0, atol=0.05)


def test_a_picture_comes_back_out_of_low_rank_factors(workplace: Path) -> None:
    names = run(["docs/tutorials/lora.md"])
    for found in (names["found"], names["from_file"]):
        assert found.status is Status.EXACT
        torch.testing.assert_close(found.parts["scan"], names["scan"]["scan"], rtol=0, atol=1e-5)
    assert not any(".default" in name for name in names["saved"])


def test_the_crafted_model_is_found_and_reads_more(workplace: Path) -> None:
    names = run(["docs/tutorials/received-model.md"])
    assert [names["honest"].level.value, names["found"].level.value] == ["nothing-found", "crafted"]
    assert names["exact"] == [3, 5]


def test_the_first_picture_is_exact_and_the_second_is_blurred(workplace: Path) -> None:
    names = run(["docs/start.md"])
    assert 18 < float(PSNR()(names["found"].inputs, names["batch"].inputs)) < 45


def test_what_is_printed_is_compared_with_what_is_shown() -> None:
    """Words exactly, numbers as near as the page says; blocks without one below print nothing."""
    shown = Block("page", 1, "text", "output within 10 %", "Status.EXACT\ntensor([-1.50]) of 2e-3 float64\n")
    assert not difference("Status.EXACT tensor([-1.60]) of 2.1e-3 float64", shown)
    for printed in ("Status.FAILED tensor([-1.50]) of 2e-3 float64", "", shown.text + "1", shown.text.replace("-", "")):
        assert difference(printed, shown)
    assert difference("2.01", Block("page", 1, "text", "output", "2.0"))
    assert difference("printed", None)
    assert not difference("", None)


def test_blocks_of_outputs_are_those_that_are_compared() -> None:
    """Each stands below a block that runs, or names the example whose it is."""
    for page in PAGES:
        found = blocks(page)
        for above, block in pairwise(found):
            if block.mark.startswith("output") and " of " not in block.mark:
                assert above.mark == "run", str(block)


def test_the_numbers_of_the_first_screen_are_those_of_its_pictures() -> None:
    numbers = json.loads((ROOT / "docs/images/leak.json").read_text(encoding="utf-8"))
    proved = [row["certified"] for row in numbers["resnet18, width 16"]]
    assert (sum(proved), len(proved)) == (6, 8)
    for page in ("README.md", "docs/index.md"):
        assert "Six of eight are certified" in (ROOT / page).read_text(encoding="utf-8")


def test_the_page_of_promises_has_the_hunts_that_are_kept() -> None:
    assert (ROOT / "docs/reference/promises.md").read_text(encoding="utf-8").endswith("\n\n" + promises.hunts())


def test_lines_that_a_flower_app_needs_are_those_of_the_example() -> None:
    app = (ROOT / "examples/flower/app.py").read_text(encoding="utf-8")
    (text,) = [block.text for block in blocks("docs/tutorials/flower.md", "text") if "CaptureMod" in block.text]
    assert all(line in app for line in text.splitlines())


def test_the_page_on_steps_names_every_part_and_loss() -> None:
    named = set(re.findall(r"`(\w+)", (ROOT / "docs/how-to/steps.md").read_text(encoding="utf-8")))
    kinds = {name for name in vars(parts) if name in leakgauge.__all__} - {"DataSpec"}
    own = {name for name, f in vars(losses).items() if getattr(f, "__module__", "") == losses.__name__}
    assert kinds | {name for name in own if name[0] != "_"} <= named


def test_every_quoted_measurement_exists() -> None:
    quoted = set(re.findall(r"\[`(\w+)`\]", (ROOT / "docs/explanation/sharp-edges.md").read_text(encoding="utf-8")))
    measured = (ROOT / "docs/measure.py").read_text(encoding="utf-8")
    assert quoted
    assert all(f"def {name}() -> None:" in measured for name in quoted)


def test_every_test_that_known_defects_names_exists() -> None:
    text = (ROOT / "docs/reference/known-defects.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 10
    for path, name in named:
        assert re.search(rf"^def {name}\b", (ROOT / path).read_text(encoding="utf-8"), re.M), f"{path}::{name}"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)(?:#[^)]*)?\)", text):
            if target != "docs/images/report.png":  # made from a real audit
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_extras_in_the_readme_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"leakgauge\[(\w+)\]", text)) <= set(extras)


def test_the_documentation_stays_within_its_words() -> None:
    """Words of prose and tables; what stands in blocks of code is run, not read."""
    texts = (FENCED.sub("", (ROOT / page).read_text(encoding="utf-8")) for page in PAGES if page != "README.md")
    assert sum(bool(re.search("[A-Za-z]", word)) for text in texts for word in text.split()) <= 22_000
