"""ROG's rows: settings, scores, and every published number."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.rog import runs as rog_runs  # noqa: E402
from reproduce.rog.ablations import correlation, matched  # noqa: E402
from reproduce.rog.items import attack, defended  # noqa: E402
from reproduce.rog.runs import Client, Named, Sheet, scores  # noqa: E402
from reproduce.rog.settings import COMPRESSED, NOISY, PRECODE, PUBLISHED, SIGNS, SOTERIA  # noqa: E402
from reproduce.rog.signs import SignTanh  # noqa: E402
from reproduce.rows import Row  # noqa: E402

from leakgauge.attacks.matching import LowResolution  # noqa: E402
from leakgauge.attacks.recipes import rog  # noqa: E402
from leakgauge.task import Batch  # noqa: E402
from reproduce import command, item  # noqa: E402

EVERY = (Named(), *COMPRESSED, SIGNS, SOTERIA, PRECODE, *NOISY)


def tiny(**changes) -> Client:
    return replace(Client(size=16, examples=2), **changes)


def test_every_published_number_is_there() -> None:
    items = {name: i for name, i in command.items().items() if name.startswith("rog/")}
    assert {f"rog/figure{n}" for n in range(2, 17)} | {"rog/table1", "rog/table2"} <= set(items)
    cells = {(name, *c.key): c.claimed for name, i in items.items() for c in i.cells}
    assert len(cells) == 10 * 4 + 4 + 4 + 3 + 2 + 3 + 4 + 3
    at = "128 px, batch 16, τ 5, "
    assert cells["rog/figure2", f"{at}none", "Inverting Gradients", "LPIPS"] == 0.717
    assert cells["rog/figure9", f"{at}Fed-CDP, -20 dB", "ROG", "LPIPS, denoised"] == 0.671
    assert cells["rog/table2", "butterfly", "ROGS", "Jaccard"] == 0.579


@pytest.mark.parametrize(
    ("name", "defenses"), [("figure6", COMPRESSED), ("figure7", (SIGNS,)), ("figure9", NOISY[1:])], ids=str
)
def test_settings_are_called_as_the_published_ones(name: str, defenses: tuple[Named, ...]) -> None:
    published = {c.setting for c in command.items()[f"rog/{name}"].cells}
    assert published == {replace(PUBLISHED, steps=5, defense=d).name for d in defenses}


def test_signs_alone_get_the_objective_for_signs() -> None:
    assert [d.name for d in EVERY if isinstance(attack(d).objective, SignTanh)] == ["signs"]


@pytest.mark.parametrize("defense", EVERY, ids=lambda d: d.name)
def test_every_defence_makes_an_update_that_the_attack_takes(defense: Named) -> None:
    client = tiny(defense=defense)
    batch = Batch(torch.rand(2, 3, 16, 16), torch.tensor([1, 2]))
    seen = client.observe(batch, 0)
    assert seen.knowledge.defense == defense.value
    found = matched(LowResolution(), steps=2).reconstruct(seen, torch.Generator().manual_seed(0))
    assert found.inputs is not None
    assert found.inputs.shape == (2, 3, 16, 16)


def test_a_row_scores_pictures_in_the_clients_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rog_runs, "denoised", lambda *_: {})
    truth = torch.rand(3, 3, 16, 16)
    found = scores(truth.roll(1, 0), truth, tmp_path / "data")
    assert set(found) == {"PSNR", "SSIM", "SSIM, windowed", "Jaccard"}
    assert max(found["PSNR"]) < 15
    assert scores(truth, truth, tmp_path / "data")["PSNR"] == [300.0] * 3
    monkeypatch.setattr(Client, "batch", lambda *_given: Batch(truth, torch.arange(3)))
    said: list[str] = []
    sheet = Sheet("figure2", item.Inputs(tmp_path / "data", True, said.append))
    rows = list(sheet.rows(tiny(examples=3), rog(steps=2), seeds=(0, 1)))
    assert {r.metric for r in rows} == set(found)
    assert all(len(r.per_image) == 3 and r.seeds == [0, 1] and r.gradient_evaluations == 2 for r in rows)
    assert len(said) == 2


def test_the_quick_run_is_the_reduced_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def rows(self, client, *given, **also):
        asked.append(client.name)
        return iter(())

    monkeypatch.setattr(Sheet, "rows", rows)
    for quick in (True, False):
        list(defended("figure7", (SIGNS,))(item.Inputs(tmp_path, quick, print)))
    small, large = "64 px, batch 8, τ 1, signs", [f"128 px, batch 16, τ {steps}, signs" for steps in (1, 5)]
    assert asked == [small, small, *large]


def test_what_an_interrupted_run_has_kept_is_not_attacked_again(tmp_path: Path) -> None:
    kept = Row(
        paper="rog", row="figure2", setting=tiny().name, attack="ROG", metric="PSNR", claimed=None, per_image=[[1.0]],
        seeds=[0], gradient_evaluations=1, seconds=1.0,
    )  # fmt: skip
    asked = {(tiny().name, "ROG"): [kept]}
    inputs = item.Inputs(tmp_path / "no data", True, print, lambda *key: asked.get(key, []))
    assert list(Sheet("figure2", inputs).rows(tiny())) == [kept]


def test_correlation_is_per_picture_and_ignores_contrast() -> None:
    x = torch.rand(2, 3, 8, 8)
    assert correlation(0.1 * x - 4, x) == pytest.approx([1, 1], abs=1e-4)
    assert correlation(torch.stack([x[0], -x[1]]), x) == pytest.approx([1, -1], abs=1e-5)
