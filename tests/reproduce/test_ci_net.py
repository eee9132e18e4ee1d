"""CI-Net's rows: how pictures are scored, filmed and counterfeited."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.ci_net import items as ci_net  # noqa: E402
from reproduce.ci_net import runs as ci_net_runs  # noqa: E402
from reproduce.ci_net.demonstrations import PICTURES, linear, twin  # noqa: E402
from reproduce.ci_net.runs import Attempt, Film, Sheet, Target, best_match  # noqa: E402
from reproduce.comparison import beside  # noqa: E402
from reproduce.item import Inputs  # noqa: E402
from reproduce.metrics import SSIMCropped  # noqa: E402

from leakgauge.attacks.matching import Adam, Matching, Pixels  # noqa: E402
from leakgauge.clients import FedSGD, client_update  # noqa: E402
from leakgauge.draws import Draws  # noqa: E402
from leakgauge.metrics import PSNR, SSIM  # noqa: E402
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status  # noqa: E402  # noqa: E402
from leakgauge.task import Batch, DataSpec, Task  # noqa: E402
from reproduce import command  # noqa: E402


@pytest.fixture
def task() -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Task.of(linear().double(), PICTURES)


def batch(n: int) -> Batch:
    inputs = torch.rand(n, *PICTURES.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return Batch(0.8 * inputs + 0.1, torch.arange(n) % PICTURES.classes)


@pytest.mark.parametrize(("n", "differs"), [(2, False), (3, False), (5, True), (8, True)])
def test_a_twin_has_the_same_update_and_exists_above_the_classes(task: Task, n: int, differs: bool) -> None:
    """Three residual directions for four classes: with more examples than that there is room."""
    truth = batch(n)
    other = twin(task, truth, torch.Generator().manual_seed(2))
    one, two = (client_update(task, FedSGD(), b, Draws(0)).tensors for b in (truth, other))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=1e-9, atol=1e-12)
    assert 0 <= float(other.inputs.min()) <= float(other.inputs.max()) <= 1
    assert torch.equal(other.inputs, truth.inputs) != differs
    if differs:
        assert float((other.inputs - truth.inputs).abs().max()) > 0.05


def test_best_match_lets_many_pictures_share_one_truth() -> None:
    truth = batch(4).inputs
    same = truth[:1].repeat(4, 1, 1, 1)
    assert best_match(PSNR(), same, truth) == [300.0] * 4
    shuffled = truth[[2, 0, 3, 1]]
    assert best_match(SSIMCropped(), shuffled, truth) == pytest.approx([1.0] * 4)
    noise = torch.rand(truth.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    aligned = SSIM()(noise, truth)
    assert all(b >= a - 1e-12 for a, b in zip(aligned.tolist(), best_match(SSIM(), noise, truth), strict=True))


def test_a_film_changes_nothing_and_keeps_its_frames(task: Task) -> None:
    truth = batch(2)
    seen = Observation(task, client_update(task, FedSGD(), truth, Draws(0)), Knowledge(labels=truth.labels))
    film = Film(Pixels(), frozenset({1, 3}))
    found = [
        Matching(canvas=canvas, minimiser=Adam(steps=n, decay=())).reconstruct(seen, torch.Generator().manual_seed(1))
        for canvas, n in ((film, 5), (Pixels(), 5), (Pixels(), 3))
    ]
    assert torch.equal(found[0].inputs, found[1].inputs)
    assert sorted(film.frames) == [1, 3]
    assert torch.allclose(film.frames[3].float(), found[2].inputs, atol=1e-6)


def test_a_row_knows_which_seeds_it_has() -> None:
    sheet = Sheet("table1", Inputs(Path(), True, lambda _: None))
    row = sheet.row("s", "a", "SSIM", [[0.1, 0.2], [0.3, 0.4]], (0, 1), evaluations=7, seconds=2.0)
    assert row.per_image == [[0.1, 0.3], [0.2, 0.4]]
    assert row.record()["measured"]["by_seed"] == [0.15, 0.35]


def test_every_published_number_is_there() -> None:
    items = command.items()
    cells = [c for name, i in items.items() if name.startswith("ci-net/table") for c in i.cells]
    assert len(cells) == 52
    found = {c.key: c.text for c in cells}
    assert found["batch 128", "CI-Net", "PSNR"] == "31.4 ± 0.14"
    assert found["batch 24", "GIAS", "SSIM"] == "0.04 ± 0.02"
    assert found["batch 256", "CI-Net", "PSNR"] == "34.11 ± 0.13"


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "full"])
@pytest.mark.parametrize("name", ["table1", "figure1", "figure2", "figure3", "figure4", "batch16", "parts"])
def test_every_item_runs_and_fills_its_cells(
    name: str, quick: bool, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attacks answer with grey pictures at once: every other line of the measure runs."""

    def grey(attempt: Attempt, seen: Observation, seed: int, milestones: Sequence[int]):
        pictures = torch.full((seen.examples or 1, *seen.task.data.shape), 0.5)
        return Reconstruction(pictures, None, Status.OUT_OF_STEPS, "", 1e-5), dict.fromkeys(milestones, pictures)

    monkeypatch.setattr(Attempt, "run", grey)
    monkeypatch.setattr(
        ci_net_runs,
        "scores",
        lambda pictures, *_: (
            {"SSIM": [0.5] * len(pictures)}
            | dict.fromkeys(("FSIM", "PSNR", "LPIPS", "SSIM, one to one", "PSNR, one to one"), [0.1] * len(pictures))
        ),
    )
    monkeypatch.setattr(Target, "observe", lambda _target, batch, _seed, _device: tiny(batch))
    item = next(item for item in ci_net.ITEMS if item.name == name)
    assert item.measure is not None
    rows = list(item.measure(Inputs(shared / "data", quick, lambda _: None)))
    assert rows
    lines = beside(item, [row.record() for row in rows])
    missing = [x for x in lines if x["published"] != "–" and x["measured"] is None]
    assert {(x["setting"], x["attack"]) for x in missing} <= {("batch 128", "GIAS")}
    stood = [x for x in lines if x["published"] != "–" and x["measured"] is not None]
    assert all("here ResNet-18 of width 16" in x["doubt"] for x in stood)


def tiny(batch: Batch) -> Observation:
    task = Task.of(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)), DataSpec((3, 32, 32), 10))
    return Observation(task, client_update(task, FedSGD(), batch, Draws(0)), Knowledge(labels=batch.labels))
