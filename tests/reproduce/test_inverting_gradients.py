"""Inverting Gradients' items: published cells, the parts that measure, and what the paper's setting amounts to."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.comparison import beside  # noqa: E402
from reproduce.inverting_gradients import (  # noqa: E402
    demonstrations,
    figures,
    local,
    tables,
)
from reproduce.inverting_gradients import items as inverting_gradients  # noqa: E402
from reproduce.inverting_gradients.figures import crafted, plain  # noqa: E402
from reproduce.inverting_gradients.runs import (  # noqa: E402
    LENET,
    Attempt,
    Network,
    Sheet,
    Trial,
    bounded,
    digits_apart,
    distinct_batches,
    euclidean,
    proposed,
    trial,
)
from reproduce.item import Inputs, State  # noqa: E402
from reproduce.metrics import PSNRShifted  # noqa: E402

from leakgauge.attacks.closed_form import LinearRead  # noqa: E402
from leakgauge.attacks.matching import SquaredL2, TotalVariation  # noqa: E402
from leakgauge.attacks.recipes import Auto  # noqa: E402
from leakgauge.clients import FedAvg, FedSGD, client_update  # noqa: E402
from leakgauge.draws import Draws  # noqa: E402
from leakgauge.errors import InputError  # noqa: E402
from leakgauge.metrics import PSNR  # noqa: E402
from leakgauge.models import convnet, mlp, resnet20  # noqa: E402
from leakgauge.task import Batch, DataSpec, Task  # noqa: E402
from reproduce import command  # noqa: E402

DATA = DataSpec((3, 32, 32), 10, mean=(0.4, 0.5, 0.6), std=(0.25, 0.2, 0.3))
QUIET = Inputs(Path(), True, lambda _: None)


def quiet(shared: Path) -> Inputs:
    return Inputs(shared / "data", True, lambda _: None)


def photos(count: int = 1, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    rough = torch.rand((count, 3, 4, 4), generator=g)
    return Batch(nn.functional.interpolate(rough, (32, 32), mode="bilinear"), torch.arange(count) % 10)


def test_every_published_number_is_there() -> None:
    items = {name: item for name, item in command.items().items() if name.startswith("inverting-gradients/")}
    cells = [cell for item in items.values() for cell in item.cells]
    # Table 1's L-BFGS on LeNet stands in two items, with fewer and with all iterations.
    assert len({(cell.key, cell.claimed) for cell in cells if cell.claimed is not None}) == 8 + 5 + 4 + 10
    found = {cell.key: cell.text for cell in cells}
    assert found["LeNet untrained", "Euclidean + L-BFGS", "PSNR"] == "46.25 ± 12.66"
    assert found["ResNet20-4 trained", "proposed", "PSNR"] == "13.95 ± 3.38"
    assert found["E 5, n 1, B 1", "proposed", "PSNR"] == "25.05 ± 3.28"
    assert found["ResNet-18, width 128", "proposed", "PSNR"] == "22.94 ± 6.83"
    assert found["ResNet-50", "proposed", "PSNR, picture shown"] == "21.36"
    unknown = {"table4", "table5", "figure1", "figure2", "figure3", "figure8", "figures10-20"}
    assert {item.name for item in items.values() if item.state is State.NOT_RUN} == {"imagenet"} | unknown
    assert all(item.needs for item in items.values()), "a full run must say what it takes"


def test_published_settings_are_those_that_the_tables_run() -> None:
    published = {cell.setting for cell in command.items()["inverting-gradients/table2"].cells}
    assert published == {f"E {e}, n {n}, B {b}" for e, n, b, _ in tables.SETTINGS}


def test_batches_have_distinct_labels_and_do_not_overlap() -> None:
    labels = torch.tensor([3, 3, 1, 3, 2, 1, 0, 0, 2, 3])
    assert distinct_batches(labels, 2, 3) == [[0, 2], [3, 4], [5, 6]]
    assert distinct_batches(labels, 1, 2) == [[0], [1]]


def test_attempts_are_what_their_names_say() -> None:
    published, unsigned = proposed(1e-2).attack, proposed(1e-2, signed=False).attack
    assert (published.prior, published.minimiser.steps, published.minimiser.lr) == (TotalVariation(1e-2), 4800, 0.1)
    assert (published.minimiser.signed, unsigned.minimiser.signed) == (True, False)
    assert proposed(0.0, 600).doubt == "600 of 4 800 steps"
    assert proposed(0.0).doubt == ""
    plain_lbfgs, with_box = euclidean(300, 16), bounded(100, 1)
    assert isinstance(plain_lbfgs.attack.objective, SquaredL2)
    assert (plain_lbfgs.attack.restarts, plain_lbfgs.attack.canvas.box) == (16, False)
    assert with_box.dtype is torch.float64
    assert [a.name for a in tables.variants(0.0, 9)] == ["proposed", "total variation 1e-2", "unsigned"]
    assert [a.name for a in tables.variants(1e-2, 9)] == ["proposed", "no total variation", "unsigned"]
    assert isinstance(tables.inverting_by_distance(7).objective, SquaredL2)


def test_digits_by_hand() -> None:
    one, tilted = {"w": torch.tensor([1.0, 0.0])}, {"w": torch.tensor([3.0, 4.0])}
    assert digits_apart(one, tilted) == pytest.approx(-math.log10(1 - 0.6))
    assert digits_apart(one, {"w": torch.tensor([2.0, 0.0])}) == 16


def test_five_steps_at_the_papers_rate_are_the_first_gradient() -> None:
    """Known limit of the paper's claim on local steps: at lr 1e-4 there is only one gradient in the update."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(convnet(width=16), DATA)
    batch = photos()
    gradient = client_update(task, FedSGD(), batch, Draws(0)).tensors

    def gap(rate: float) -> float:
        moved = client_update(task, FedAvg(epochs=5, lr=rate), batch, Draws(0)).tensors
        return 10 ** -digits_apart({k: -v for k, v in moved.items()}, gradient)

    assert gap(1e-4) < 1e-4
    assert gap(1e-2) > 10 * gap(1e-4)
    assert gap(1e-1) > gap(1e-2)


def test_a_trial_is_scored_by_label_and_a_silent_one_as_grey() -> None:
    truth = photos(2)
    swapped = Batch(truth.inputs, torch.tensor([1, 1]))
    made = Trial(truth.inputs.flip(0), swapped, {}, True, 0, 0.0, "")
    assert made.scores(PSNR()) == [300.0, 300.0]
    off = (truth.inputs.flip(0) + 0.02).clamp(0, 1)  # what is exact is scored as that, whatever its label
    assert max(Trial(off, truth, {}, True, 0, 0.0, "").scores(PSNR())) < 30
    task = Network(name="mlp", build=mlp).task(DATA, 0)
    silent = trial(LENET.task(DATA, 0), photos(), LinearRead(), 0)
    assert not silent.answered
    assert torch.equal(silent.pictures, torch.full_like(silent.pictures, 0.5))
    assert trial(task, photos(), LinearRead(), 0).scores(PSNR())[0] > 60


def test_rows_of_a_tiny_run(shared: Path) -> None:
    page = Sheet("table2", quiet(shared), {"PSNR": PSNR(), "shift": PSNRShifted()})
    rows = list(
        page.rows(LENET, proposed(1e-2, 3), [[0, 1], [2, 3]], (0, 1), protocol=FedAvg(epochs=2, batch_size=1, lr=1e-4))
    )
    assert [row.metric for row in rows] == ["PSNR", "shift"]
    assert (len(rows[0].per_image), len(rows[0].per_image[0])) == (4, 2)
    assert rows[0].gradient_evaluations == 3 * 4
    assert rows[0].doubt == "3 of 4 800 steps"
    plain_scores, best = (torch.tensor(row.per_image) for row in rows)
    assert bool((best >= plain_scores).all())
    assert bool(torch.isfinite(plain_scores).all())


def test_an_attack_without_an_answer_is_told_in_the_row(shared: Path) -> None:
    from reproduce.inverting_gradients.runs import Attempt

    page = Sheet("table2", quiet(shared))
    rows = list(page.rows(LENET, Attempt(name="closed form", attack=LinearRead()), [[0]]))
    assert [row.metric for row in rows] == ["PSNR", "SSIM"]
    assert all("no answer in 1 of 1" in row.doubt for row in rows)


def test_the_proposition_holds_for_active_units_and_fails_for_inactive_ones(shared: Path) -> None:
    rows = {
        (row.attack, row.metric): torch.tensor(row.per_image) for row in demonstrations.proposition31(quiet(shared))
    }
    assert bool((rows["row of an active unit", "PSNR"] > 200).all())
    assert bool((rows["row of an inactive unit", "|∂L/∂output| of that unit"] > 1e-3).all())
    assert bool((rows["row of an inactive unit", "PSNR"] < 25).all())
    assert bool((rows["row of a unit active for both", "PSNR"] < 60).all())
    # Every unit meets the proposition's condition, and nothing can be read: the counterexample.
    assert bool((rows["best row of any unit", "least |∂L/∂output| of a unit"] > 0).all())
    assert bool((rows["best row of any unit", "PSNR"] < 25).all())


def test_the_trained_resnet_18_of_table_3_is_one(shared: Path) -> None:
    """The rows of Table 1's ResNet-20 stood there under its name."""
    network = tables.trained_resnet18(shared / "weights" / "resnet18-32-cifar10.safetensors")
    module = network.task(DATA, 0).module
    blocks = [m for m in module.modules() if type(m).__name__ == "Block"]
    assert len(blocks) == 8, "two blocks in each of four stages"
    assert network.name == "ResNet-18 trained"


def test_circular_padding_makes_a_shifted_picture_the_same_to_a_pooling_network() -> None:
    def small() -> nn.Module:
        convolutions = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(4, 10))

    gaps = []
    for build in (lambda: demonstrations.circular(small), small):
        task = Network(name="small", build=build).task(DATA, 0, torch.float64)
        one = photos()
        updates = [
            client_update(task, FedSGD(), Batch(x.double(), one.labels), Draws(0)).tensors
            for x in (one.inputs, one.inputs.roll((5, 3), (2, 3)))
        ]
        gaps.append(digits_apart(*updates))
    assert gaps[0] > 12
    assert gaps[1] < 8


def test_identity_convolutions_read_a_picture_through_strides(shared: Path) -> None:
    page = Sheet("figure7", quiet(shared))
    for stride in (1, 2):
        network = Network(name="plain", build=lambda stride=stride: plain(stride))
        assert crafted(page, network, [0])[0].scores(PSNR())[0] > 60


QUICKEST = ("table1-lenet", "proposition31")
"""Items that a test may run in full width; the others take up to half a minute each and are marked slow."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(item.name, marks=() if item.name in QUICKEST else pytest.mark.slow)
        for item in inverting_gradients.ITEMS
        if item.measure is not None
    ],
)
def test_every_item_runs_and_fills_its_cells(name: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With attacks of one or two steps: the numbers mean nothing, but every line of the measure has run."""
    item = next(item for item in inverting_gradients.ITEMS if item.name == name)

    def quickly(tv: float, steps: int = 4800, **options: Any) -> Attempt:
        return proposed(tv, min(steps, 1), **options)

    def few(build: Callable[[int, int], Attempt]) -> Callable[[int, int], Attempt]:
        return lambda steps, restarts: build(min(steps, 1), min(restarts, 2))

    for module in (tables, figures, local, demonstrations):
        monkeypatch.setattr(module, "proposed", quickly)
    monkeypatch.setattr(tables, "euclidean", few(euclidean))
    monkeypatch.setattr(tables, "bounded", few(bounded))
    monkeypatch.setattr(tables, "inverting_by_distance", lambda _: proposed(1e-2, 1).attack)
    monkeypatch.setattr(local, "Auto", lambda **_: Auto(smooth_steps=1))
    monkeypatch.setattr(demonstrations, "trained", lambda *_: (resnet20(width=4), 0.1))
    try:
        rows = list(item.measure(quiet(shared)))
    except InputError as error:
        if "packaged weights" in str(error):
            pytest.skip("the trained weights are not packaged")
        raise
    lines = beside(item, [row.record() for row in rows])
    measured = {(x["setting"], x["attack"], x["metric"]) for x in lines if x["measured"] is not None}
    assert len(measured) == len(rows), "two rows under one name"
    if name.startswith("table") and name != "table2-lr":
        assert {cell.key for cell in item.cells} <= measured
