"""The zoo of honest and crafted models, and the evidence computed from it."""

from __future__ import annotations

import json
import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.inspection import items as inspection  # noqa: E402
from reproduce.inspection import roc as inspection_roc  # noqa: E402
from reproduce.inspection import stealth as inspection_stealth  # noqa: E402
from reproduce.inspection.crafted import KINDS, crafted  # noqa: E402
from reproduce.inspection.judging import Judged, Scenario, judged, read, version  # noqa: E402
from reproduce.inspection.limits import FLOORS, RATE, calibrated, limit, read_limits, round_up  # noqa: E402
from reproduce.inspection.zoo import EVALUATION_ONLY, FAMILIES, STATES_EVALUATION_ONLY, Zoo  # noqa: E402
from reproduce.inspection.zoo_dice import Dice  # noqa: E402
from reproduce.inspection.zoo_formats import SERIES, drawn_format  # noqa: E402
from reproduce.inspection.zoo_states import STATES  # noqa: E402
from reproduce.inspection.zoo_stock import Split, Stock  # noqa: E402

from leakgauge.inspection.rule import Limits  # noqa: E402


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


@pytest.fixture(scope="module")
def stock(cache: Path) -> Stock:
    """Crops of the embedded photos: no data set needed."""
    return Stock.load(None, cache, pictures=64)


def zoo(split: Split, stock: Stock, cache: Path) -> Zoo:
    return Zoo(split=split, stock=stock, cache=cache, bases=2, steps=(2, 3))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def line(statistic: float, kind: str = "honest", index: int = 0, **more: object) -> Judged:
    plain = {
        "scenario": "tensors",
        "split": "evaluation",
        "kind": kind,
        "index": index,
        "family": "mlp",
        "state": "untrained",
        "description": f"{kind} {index}",
        "statistics": {"taps": statistic},
    }
    return Judged(**(plain | more))


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_model_is_its_number(index: int, stock: Stock, cache: Path) -> None:
    own = zoo(Split.CALIBRATION, stock, cache)
    first, again = own.honest(index), own.honest(index)
    assert first.description == again.description
    assert same(first.tensors, again.tensors)
    assert torch.equal(first.batch.inputs, again.batch.inputs)


def test_a_cached_base_is_the_trained_one(stock: Stock, tmp_path: Path) -> None:
    own = zoo(Split.CALIBRATION, stock, tmp_path)
    trained = own.base(0)
    assert len(list(tmp_path.glob("base-*.pt"))) == 1
    assert same(trained.tensors, own.base(0).tensors)


def test_splits_share_nothing(stock: Stock, cache: Path) -> None:
    one, two = zoo(Split.CALIBRATION, stock, cache), zoo(Split.EVALUATION, stock, cache)
    assert [one.honest(i).description for i in (0, 1)] != [two.honest(i).description for i in (0, 1)]
    assert not set(EVALUATION_ONLY) & set(one.families)
    assert set(EVALUATION_ONLY) < set(two.families)
    assert not set(STATES_EVALUATION_ONLY) & set(one.states)
    assert set(STATES_EVALUATION_ONLY) < set(two.states)
    pictures = torch.arange(64)
    halves = [set(pictures[split.value - 1 :: 2].tolist()) for split in Split]
    assert not halves[0] & halves[1]
    shelves = [stock.colour.half(split).pictures for split in Split]
    assert not any(torch.equal(a, b) for a in shelves[0] for b in shelves[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_answers_its_task(family: str, stock: Stock, cache: Path) -> None:
    own, dice = zoo(Split.EVALUATION, stock, cache), Dice(torch.Generator().manual_seed(3))
    data = drawn_format(dice, family, largest=32)
    with dice.torch_seeded():
        module = FAMILIES[family](dice, data)
    model = own.wrap(module, data, dice, "honest", family, "untrained", "")
    assert (len(data.shape) == 2) == (family in SERIES)
    loss, _ = model.task(model.task.parameters, model.task.buffers, model.batch, torch.Generator().manual_seed(0))
    assert math.isfinite(float(loss))
    assert int(model.batch.labels.max()) < data.classes


@pytest.mark.parametrize("state", STATES)
def test_every_state_changes_the_model_and_keeps_its_shapes(state: str, stock: Stock, cache: Path) -> None:
    own, dice = zoo(Split.EVALUATION, stock, cache), Dice(torch.Generator().manual_seed(1))
    base = own.base(0, "plain")
    before = {k: v.clone() for k, v in base.tensors.items()}
    STATES[state](base.module, own.school(base.task.data), dice)
    after = base.tensors
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    assert same(before, after) == (state == "as-is")


@pytest.mark.parametrize("kind", KINDS)
def test_every_crafted_model_differs_from_its_host(kind: str, stock: Stock, cache: Path) -> None:
    own = zoo(Split.EVALUATION, stock, cache)
    model, host, broadcast = crafted(own, kind, 0)
    assert model.kind == kind
    assert not same({k: v.float() for k, v in model.tensors.items()}, {k: v.float() for k, v in host.tensors.items()})
    assert same(model.tensors, {**broadcast.task.parameters, **broadcast.task.buffers})
    again = crafted(own, kind, 0)[0]
    assert same(model.tensors, again.tensors)


def test_limits_hold_their_rate_on_a_known_tail() -> None:
    """Draws from a Pareto law: the share of fresh ones above the limit is near or below what was asked."""
    asked, over = 1 / 2000, []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        values = (torch.rand(400, generator=generator, dtype=torch.float64) ** -0.2).tolist()
        over.append(limit(values, share=asked) ** -5.0)
    assert sorted(over)[20] <= asked
    assert limit([1.0] * 50, share=asked) == pytest.approx(1.25)
    assert limit([0.0] * 50, share=asked, floor=2.0) == 2.0
    assert limit([*[0.0] * 49, 4.0], share=asked, floor=2.0) == 5.0


def test_limits_come_from_honest_models_alone() -> None:
    honest = [line(0.1 * i, index=i) for i in range(30)]
    kept = Limits(limits={"taps": 9.0, "replaced-previous": 0.25}, made_by="", models=0)
    odd = [line(1e6, kind, 99) for kind in ("lookalike", "imprint")]
    plain, mixed = (calibrated(lines, kept, "test") for lines in (honest, honest + odd))
    assert plain == mixed
    assert plain.models == 30
    assert plain.limits["replaced-previous"] == 0.25
    assert plain.limits["taps"] == round_up(limit([0.1 * i for i in range(30)], share=RATE, floor=FLOORS["taps"]))
    assert plain.limits["taps"] >= 2.9 * 1.25


def test_area_and_threshold_agree_with_counting() -> None:
    honest, own = [0.0, 1.0, 1.0, 2.0], [1.0, 2.0, 3.0]
    pairs = [(c > h) + 0.5 * (c == h) for c in own for h in honest]
    assert inspection_roc.area(own, honest) == pytest.approx(sum(pairs) / len(pairs))
    scores = [float(i) for i in range(200)]
    cut = inspection_roc.threshold(scores, 0.01)
    assert sum(s > cut for s in scores) == 2
    points = inspection_roc.curve(own, honest)
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (1.0, 1.0)
    steps = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(points))
    assert steps == pytest.approx(inspection_roc.area(own, honest))


def test_a_record_counts_alarms_misses_and_failures() -> None:
    limits = Limits(limits={"taps": 2.0}, made_by="", models=1)
    honest = [line(v, index=i) for i, v in enumerate((0.0, 1.0, 2.0, 3.0))] + [line(9.0, "lookalike")]
    own = [line(v, "imprint", i, failed={"copies": "KeyError: x"}) for i, v in enumerate((1.9, 2.0, 50.0))]
    found = inspection_roc.record(honest, {"imprint": own}, limits, Scenario.TENSORS)
    assert (found["honest"]["hits"], found["honest"]["of"]) == (2, 4)
    assert (found["lookalike"]["hits"], found["lookalike"]["of"]) == (1, 1)
    assert found["kinds"]["imprint"]["true_positives"]["hits"] == 2
    assert found["kinds"]["imprint"]["at_allowed"]["hits"] == 1
    assert [miss["index"] for miss in found["kinds"]["imprint"]["misses"]] == [0]
    assert found["failed_rules"] == {"copies": 3}
    json.dumps(found, allow_nan=False)


def test_lines_of_other_rules_are_judged_again(stock: Stock, tmp_path: Path) -> None:
    own, file = zoo(Split.CALIBRATION, stock, tmp_path), tmp_path / "judged.jsonl"
    ((_, first),) = judged(own, "honest", [0], Scenario.TENSORS, file)
    assert isinstance(first, Judged)
    assert first.version == version()
    assert [line for _, line in judged(own, "honest", [0], Scenario.TENSORS, file)] == [first]
    assert len(file.read_text().splitlines()) == 1
    with file.open("a") as out:
        out.write('{"torn')
    assert len(read(file)) == 1
    file.write_text(file.read_text().replace(version(), "0" * 12))
    assert not read(file)


def test_a_round_trip(stock: Stock, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calibrate, evaluate and draw on a dozen models; the second evaluation judges nothing again."""
    del stock
    limits, results, picture = tmp_path / "limits.json", tmp_path / "results", tmp_path / "roc.png"
    words = ["--cache", str(cache), "--pictures", "64", "--bases", "2", "--steps", "4", "--limits", str(limits)]
    words += ["--results", str(results), "--picture", str(picture), "--scenario", "tensors"]
    inspection.main(["calibrate", "--honest", "12", *words])
    assert read_limits(limits).models + ("lookalike" in (cache / "judged.jsonl").read_text()) >= 11
    asked = ["evaluate", "--honest", "10", "--crafted", "2", *words, "--kinds", "imprint", "trap-weights"]
    inspection.main(asked)
    size = (cache / "judged.jsonl").stat().st_size
    inspection.main([*asked, "--results", str(tmp_path / "again")])
    assert (cache / "judged.jsonl").stat().st_size == size
    found = inspection_roc.newest(Scenario.TENSORS, results)
    assert found is not None
    assert found["honest"]["of"] >= 9
    assert set(found["kinds"]) == {"imprint", "trap-weights"}
    inspection.main(["curve", *words])
    assert picture.stat().st_size > 1000
    assert "| honest |" in capsys.readouterr().out


def test_a_level_is_detected_where_a_rule_reaches_its_limit() -> None:
    level = inspection_stealth.LEVELS[0]
    numbers = dict.fromkeys(("psnr", "ssim", "psnr_grey", "ssim_grey", "share", "changed"), 0.5)
    runs = [(level, 0, seed, numbers | {"statistics": {"copies": v, "taps": 0.0}}) for seed, v in enumerate((1.0, 2.0))]
    row = inspection_stealth.record([*runs, (level, 0, 2, {"refused": "too narrow"})], {"copies": 2.0})["levels"][0]
    assert (row["of"], row["refused"], row["detected"], row["detected_without_copies"]) == (2, 1, 1, 0)
    assert row["rules"] == ["copies"]
