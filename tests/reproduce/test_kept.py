"""What the kept results must show, read from the files that the docs are made of."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.runs import latest_run  # noqa: E402

MINIMISERS = ROOT / "benchmarks" / "results" / "minimisers.jsonl"


def row(paper: str, item: str, setting: str, attack: str, metric: str) -> dict[str, Any]:
    found = [
        r for r in latest_run(paper, item) if (r["setting"], r["attack"], r["metric"]) == (setting, attack, metric)
    ]
    assert len(found) == 1, f"{len(found)} rows"
    return found[0]


def mean(*key: str) -> float:
    return float(row(*key)["measured"]["mean"])


def test_squared_distance_and_a_quasi_newton_search_recover_untrained_lenet() -> None:
    found = row("inverting-gradients", "table1-lbfgs", "LeNet untrained", "Euclidean + L-BFGS", "PSNR")
    assert len(found["per_image"]) == 3
    assert "best of 16" in found["doubt"]
    assert found["measured"]["mean"] >= 40
    assert mean("inverting-gradients", "table1-lenet", "LeNet untrained", "Euclidean + L-BFGS-B", "PSNR") >= 40


@pytest.mark.parametrize("item", ["table2", "table2-lr"])
def test_the_five_fedavg_settings_are_in_the_papers_order_or_overlap(item: str) -> None:
    found = {r["setting"]: r["measured"] for r in latest_run("inverting-gradients", item) if r["metric"] == "PSNR"}
    order = [found[s] for s in ("E 5, n 1, B 1", "E 1, n 4, B 2", "E 5, n 8, B 8", "E 1, n 8, B 8", "E 1, n 8, B 2")]
    for better, worse in pairwise(order):
        assert better["mean"] >= worse["mean"] or better["high"] >= worse["low"]


def test_one_convolution_turns_at_twelve_filters() -> None:
    for filters in (11, 12):
        l1 = mean("qian-hansen", "table6f", f"{filters} filter{'s' if filters > 1 else ''}", "Qian & Hansen", "L1")
        assert (l1 <= 1.0) == (filters == 12)


def test_eight_units_for_a_batch_of_eight_drop_fivefold() -> None:
    seven, eight = (mean("qian-hansen", "figure5a", f"{n} units", "row space (ours)", "L1") for n in (7, 8))
    assert seven >= 5 * eight


def test_the_orthogonality_prior_beats_none_over_five_seeds() -> None:
    without, with_it = (
        row("qian-hansen", "figure4", f"orthogonality {name}", "Qian & Hansen", "L1")["measured"]["by_seed"]
        for name in ("none", "1e-5, constant")
    )
    assert len(without) == len(with_it) == 5
    assert statistics.fmean(with_it) < statistics.fmean(without)


def test_ci_net_reduced_and_at_sixteen_pictures() -> None:
    narrow = "ResNet-18 of width 16, batch 4"
    after = {n: row("ci-net", "table1", narrow, f"CI-Net, {n} steps", "SSIM, one to one") for n in (600, 2000)}
    assert len(after[600]["seeds"]) == 3
    assert after[600]["measured"]["mean"] >= 0.65
    assert after[2000]["measured"]["mean"] > after[600]["measured"]["mean"]
    assert mean("ci-net", "batch16", "ResNet-18 of width 64, batch 16", "CI-Net, 2000 steps", "SSIM") >= 0.9


@pytest.fixture(scope="module")
def searches() -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in MINIMISERS.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found[record["network"], record["attack"]].append(record)
    return found


PUBLISHED = {
    "lenet": ("inverting-gradients", "dlg"),
    "mlp": ("inverting-gradients", "dlg"),
    "convnet-16": ("inverting-gradients", "inverting-gradients-tv-1e-4"),
    "resnet20-16": ("inverting-gradients", "inverting-gradients-no-tv"),
}
"""Recipes, and Inverting Gradients with the weight that the paper has for the network."""


@pytest.mark.parametrize("network", PUBLISHED)
def test_auto_is_at_least_as_good_as_the_best_published_recipe(network: str, searches: dict) -> None:
    ours, *theirs = (
        {(r["image"], r["seed"], r["budget"]): r["final"] for r in searches[network, name]}
        for name in ("auto", *PUBLISHED[network])
    )
    assert len(ours) >= 30
    for rival in theirs:
        assert rival.keys() >= ours.keys(), "not at equal evaluations"
        assert statistics.median(ours.values()) >= statistics.median(rival.values())


def test_every_search_has_ten_images_and_three_seeds(searches: dict) -> None:
    for key, runs in searches.items():
        assert len({(r["image"], r["seed"]) for r in runs}) >= 30, key


@pytest.mark.parametrize(("quality", "seconds"), [("20", 3.0), ("26", 8.0)])
def test_auto_on_lenet_is_there_within_seconds(quality: str, seconds: float, searches: dict) -> None:
    reached = [r["reached"].get(quality, [0, float("inf")])[1] for r in searches["lenet", "auto"]]
    assert statistics.median(reached) <= seconds
