"""Parts of a training step of one's own through audit, plan and captured update."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import leakgauge as lg
from docs.pages import ROOT
from hunt.targets import Causal
from leakgauge.capture import Recorder, RoundExamples
from leakgauge.clients import FedAvg, FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.data import Parts
from leakgauge.observation import Reconstruction, Status
from leakgauge.step import losses
from leakgauge.study.evaluate import Truth, checked, evaluate_parts
from leakgauge.study.grammar import read_yaml
from leakgauge.study.judging.records import PartScores, Trial
from leakgauge.study.judging.results import groups_of
from leakgauge.study.judging.verdict import told
from leakgauge.study.lint import lint_plan
from leakgauge.study.plan import Plan, resolve_plan
from leakgauge.study.trial import run_trial
from leakgauge.task import Batch
from leakgauge.update import UpdateKind

SCENE = ROOT / "examples" / "stay"
SHORT: dict[str, Any] = {"attacks": ["auto"], "budget": {"gradient_evaluations": 20}}


@pytest.fixture
def stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCENE))
    monkeypatch.chdir(tmp_path)
    import stay as module  # type: ignore[import-not-found]

    np.savez("patients.npz", **{name: values.numpy() for name, values in module.patients().items()})
    return module


def test_a_plan_of_words_and_one_of_objects_are_one(stay: Any) -> None:
    plan = read_yaml(SCENE / "stay.yaml") | {"defenses": ["none"]}
    words = resolve_plan(plan)
    given = {"source": Parts(values=stay.patients()), "batches": 2}
    objects = resolve_plan(plan | {"model": stay.task(), "data": given})
    one, two = (run_trial(p, p.trials()[0], compute=Compute()).record for p in (words, objects))
    assert one["status"] == "exact"
    assert one["parts"] == two["parts"]
    assert [(p["name"], p["kind"], p["measure"]) for p in one["parts"]] == [
        ("scan", "picture", "error"),
        ("numbers", "numbers", "error"),
        ("ward", "categories", "equal"),
        ("days", "values", "error"),
    ]
    scan, numbers, ward, days = (p["values"][0] for p in one["parts"])
    assert ward == 1
    assert max(scan, numbers, days) < 1e-3


def test_a_captured_update_is_explained_only_by_its_own_targets(stay: Any, tmp_path: Path) -> None:
    task, everyone = stay.task(), stay.patients()
    client = FedAvg(epochs=2, lr=1e-3)
    mine = {name: values[:2] for name, values in everyone.items()}
    client_update(task, client, mine, lg.Draws(0)).save(tmp_path / "u.safetensors")
    other = everyone | {"days": everyone["days"].flip(0)}
    shares = []
    for values in (everyone, other):
        source = {"source": Parts(values=values), "batch": 2, "batches": 1}
        plan = {"model": task, "data": source, "clients": [client], "update": str(tmp_path / "u.safetensors")}
        explained = resolve_plan(plan | SHORT).explained()
        shares.append(explained.fit.share)
    assert shares[0] > 0.999
    assert shares[1] < 0.9


def scored(stay: Any, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> dict[str, PartScores]:
    """Of a reading that is the truth but for a change."""
    task, values = stay.task(), stay.patients()
    batch, others = (task.layout.batch({k: v[rows] for k, v in values.items()}) for rows in (slice(2), slice(2, None)))
    read = task.layout.batch(change({k: v[:2].clone() for k, v in values.items()}))
    truth = Truth(batch, others.inputs[:20], others.inputs[20:], (), torch.tensor([1.0]))
    found = Reconstruction(read.inputs, read.labels, Status.CONVERGED)
    scores = evaluate_parts(found, truth, task, others, labels_known=False).parts
    return {part.name: part for part in scores}


def test_each_part_is_scored_in_its_own_units(stay: Any) -> None:
    def change(values: dict[str, Tensor]) -> dict[str, Tensor]:
        values["numbers"][:, 0] = (values["numbers"][:, 0] + 10) % 100
        values["ward"][0] = (values["ward"][0] + 1) % 5
        values["days"] = (values["days"] + 3).clamp_max(33)
        return values

    found = scored(stay, change)
    assert found["scan"].values == (0.0, 0.0)
    assert sorted(found["ward"].values) == [0.0, 1.0]
    assert found["days"].values == pytest.approx((0.1, 0.1), abs=1e-5)
    assert all(0 < g < 1 for part in found.values() for g in part.guess)
    left, guessed = found["scan"].missed
    assert left == 0 < guessed


def flags(trials: list[Trial]) -> list[str]:
    groups = groups_of(trials)
    (row,) = [told(group, groups) for group in groups if not group.control]
    return [flag.kind for flag in row.flags]


def test_targets_without_a_limit_and_parts_that_were_read_are_flagged(stay: Any) -> None:
    """Nothing of a stay that noise hides is calm: no limit is known for days."""
    data = {"source": Parts(values=stay.patients()), "batches": 2}
    noise = [{"noise": {"relative": 30.0}}]
    plan = resolve_plan({"model": stay.task(), "data": data, "defenses": noise} | SHORT)
    trials = [run_trial(plan, key, compute=Compute()).trial for key in plan.trials()]
    assert "TargetsUnjudged" in flags(trials)
    read = PartScores("scan", "picture", "error", (0.0,), (0.3,))
    assert "PartRead" in flags([replace(t, parts=(read,)) for t in trials])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "lenet"}, "is no training step, and the data are parts of one"),
        ({"mode": "train"}, "mode: is train, the model's training step is in eval"),
        ({"data": {"source": "parts:nothing.npz"}}, "cannot read 'nothing.npz'"),
    ],
)
def test_what_does_not_fit_is_one_line(stay: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(lg.InputError, match=words):
        resolve_plan(read_yaml(SCENE / "stay.yaml") | change)


def test_an_attack_may_answer_with_real_targets_and_with_no_others(stay: Any) -> None:
    task = stay.task()
    inputs = torch.zeros(1, *task.data.shape)
    assert checked(Reconstruction(inputs, torch.tensor([7.5]), Status.CONVERGED), task).status is Status.CONVERGED
    assert checked(Reconstruction(inputs, torch.tensor([torch.nan]), Status.CONVERGED), task).status is Status.FAILED
    classes = lg.Task.of(lg.models.lenet(classes=5, size=16), lg.DataSpec((3, 16, 16), 5))
    picture = Batch(torch.zeros(1, 3, 16, 16), torch.tensor([7.5]))
    assert checked(Reconstruction(picture.inputs, picture.labels, Status.CONVERGED), classes).status is Status.FAILED


def segmentation() -> lg.Task:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 1))
    parts = {"scan": lg.Image((1, 6, 6)), "mask": lg.Mask(2, (6, 6))}
    return lg.Task.of_step(net, lambda m, b: losses.places(m(b["scan"]), b["mask"]), parts)


def causal() -> lg.Task:
    torch.manual_seed(0)
    net = Causal(40, 24, 7, tied=True, norm=True)
    return lg.Task.of_step(net, lambda m, b: losses.next_token(m(b["text"]), b["text"]), {"text": lg.Text(7, 40)})


def plan_of(task: lg.Task) -> Plan:
    values = task.layout.made_up(12, torch.Generator().manual_seed(1))
    return resolve_plan({"model": task, "data": {"source": Parts(values=values), "batches": 1}} | SHORT)


def test_the_lint_of_masks_looks_for_no_clients_of_one_class() -> None:
    """It raised: classes of pixels are no class of an example."""
    assert all(found.rule != "one-class-clients" for found in lint_plan(plan_of(segmentation())))


def test_texts_that_are_their_own_targets_are_read_and_scored() -> None:
    """An audit, unlike `lg.attack`, did not know that nothing is taught beside; and no text of a step had a score."""
    plan = plan_of(causal())
    record = run_trial(plan, plan.trials()[0], compute=Compute()).record
    assert record["status"] == "exact"
    assert record["tokens"]["in_place"] == 1
    assert record["scores"]["recovered"] == record["scores"]["exact"] == [True]
    assert record["parts"][0]["values"] == [1.0]


def test_a_captured_round_of_texts_and_classes_is_scored_as_texts(tmp_path: Path) -> None:
    """Its tokens were taken for numbers: what was read of them had no score, and of its class neither."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.EmbeddingBag(40, 16), torch.nn.Linear(16, 3))
    parts = {"text": lg.Text(7, 40), "kind": lg.Classes(3)}
    task = lg.Task.of_step(net, lambda m, b: torch.nn.functional.cross_entropy(m(b["text"]), b["kind"]), parts)
    values = task.layout.made_up(8, torch.Generator().manual_seed(1))
    update = client_update(task, FedSGD(), {name: part[:1] for name, part in values.items()}, lg.Draws(0))
    for node, rows in (("own", slice(1)), ("other", slice(1, None))):
        examples = RoundExamples()
        examples.add(values["text"][rows], values["kind"][rows])
        recorder, known = Recorder(folder=tmp_path, sends=UpdateKind.GRADIENT), {"round_": "1", "node": node}
        recorder.keep(task.parameters, update.tensors, count=len(examples.places), examples=examples, **known)
    data = {"source": f"capture:{tmp_path}/round-1-node-own", "batches": 1}
    kept = f"{tmp_path}/round-1-node-own/update.safetensors"
    plan = resolve_plan({"model": task, "data": data, "clients": ["fedsgd"], "update": kept} | SHORT)
    record = run_trial(plan, plan.trials()[0], compute=Compute()).record
    assert record["tokens"]["exact_set"]
    assert [part["values"] for part in record["parts"]] == [[None], [1.0]]


def test_a_volume_is_shown_by_its_middle_planes() -> None:
    """Of one that is no cube too, and with a measure of its structure."""
    torch.manual_seed(0)
    sides = (11, 12, 14)
    net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(sides), 8), nn.Tanh(), nn.Linear(8, 1))
    parts = {"scan": lg.Volume((1, *sides)), "age": lg.Values()}
    task = lg.Task.of_step(net, lambda m, b: nn.functional.mse_loss(m(b["scan"])[:, 0], b["age"]), parts)
    scans = torch.rand(8, 1, *sides)
    given = {"source": Parts(values={"scan": scans, "age": torch.rand(8)}), "batches": 1, "batch": 1}
    plan = resolve_plan(SHORT | {"model": task, "data": given, "defenses": ["none"]})
    result = run_trial(plan, plan.trials()[0], compute=Compute())
    assert result.record["scenario"]["data"]["kind"] == "volume"
    assert result.record["scores"]["ssim"] == pytest.approx([1.0], abs=1e-3)
    shown = result.pictures[0]
    made, true = (np.asarray(Image.open(io.BytesIO(one))) for one in (shown.reconstruction, shown.original))
    assert true.shape == (14, 3 * 14)
    scan = next(scan[0] for scan in scans if abs(scan[0, 5, 0, 0] * 255 - int(true[0, 0])) < 0.6)
    for index, plane in enumerate((scan[5], scan[:, 6], scan[:, :, 7])):
        own = true[: plane.shape[0], 14 * index : 14 * index + plane.shape[1]]
        assert np.abs(own - 255 * plane.numpy()).max() < 0.51
    assert np.abs(made.astype(int) - true).max() <= 1
