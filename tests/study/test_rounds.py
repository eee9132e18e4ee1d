"""Several captured rounds in one audit: one verdict, examples and clients counted once, no false independence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner
from torch import nn

from leakgauge.capture import Recorder, RoundExamples
from leakgauge.cli import main
from leakgauge.cli.captured import plan_of
from leakgauge.data import Samples
from leakgauge.data.arrays import captured
from leakgauge.errors import InputError
from leakgauge.study.deal import Key
from leakgauge.study.explaining.rounds import clients_of
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.records import Data
from leakgauge.study.judging.results import Level
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.update import UPDATE, Update
from study.trials import LEAKY, trial

PHOTOS = Samples(size=8, normalise=False)
POWER = [replace(row, control=True) for row in LEAKY]


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 12), nn.ReLU(), nn.Linear(12, 8))


def record(folder: Path, rounds: Sequence[tuple[str, list[int]]]) -> list[Path]:
    """Rounds of one federation: each begins where the last one ended."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module = net()
    kept = []
    for number, (node, indices) in enumerate(rounds):
        batch, before = PHOTOS.read(indices), {k: v.clone() for k, v in module.state_dict().items()}
        examples = RoundExamples()
        examples.add(batch.inputs, batch.labels)
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(batch.inputs), batch.labels).backward()
        optimiser.step()
        recorder, count = Recorder(folder=folder), len(indices)
        name = {"round_": str(number + 1), "node": node, "count": count}
        kept.append(recorder.keep(before, module.state_dict(), **name, examples=examples))  # type: ignore[arg-type]
    return kept


def planned(folders: list[Path]) -> dict[str, Any]:
    client = {"fedavg": {"lr": 0.1}}
    plan = plan_of(folders, model="study.test_rounds:net", client=client, mode="eval", data=None)
    return plan | {"attacks": ["closed-form"], "gallery": 4}


def test_five_rounds_of_one_client_are_one_audit_and_one_client(tmp_path: Path) -> None:
    folders = record(tmp_path, [*(("7", [i % 2]) for i in range(5)), ("8", [4]), ("9", [5])])
    mine = folders[:5]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(planned(mine)))
    words = ["audit", str(tmp_path / "plan.yaml"), "-o", str(tmp_path / "out"), "--workers", "1"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    for folder in mine:
        assert f"The plan explains 100.0 % of {folder.name}" in " ".join(done.output.split())
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    own = [t for t in report["trials"] if not t["control"]]
    assert [t["explained"]["round"] for t in own] == [folder.name for folder in mine]
    assert all(t["explained"]["holds"] and t["status"] == "exact" for t in own)
    (finding,) = (f for f in report["verdict"]["findings"] if not f["control"])
    assert (finding["clients"], finding["images"], finding["recovered"]) == (1, 2, 2)
    assert "5 rounds of 1 client, each image counted once; round-" in finding["sentence"]
    assert report["decision"]["origin"]["words"].startswith("Captured: 5 real updates of 1 client, round-1-node-7, ")


def test_examples_of_other_rounds_do_not_stand_for_those_that_were_not_kept(tmp_path: Path) -> None:
    """A loop that drops its last minibatch reports more examples than it trains on: other rounds' took their places,
    and counted as this client's that were not recovered."""
    mine, _ = record(tmp_path, [("7", [0]), ("8", [4])])
    update = Update.load(mine / UPDATE)
    replace(update, header=replace(update.header, example_count=2)).save(mine / UPDATE)
    with pytest.raises(InputError, match="2 examples, and 1 of them were kept"):
        planned([mine])


def test_the_command_says_that_the_network_saw_raw_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakgauge.study.session.run_audit", lambda *_, **__: None)
    (folder,) = record(tmp_path, [("7", [0])])
    words = ["captured", str(folder), "--model", "study.test_rounds:net", "--no-normalise"]
    assert CliRunner().invoke(main, [*words, "--data", "samples"]).exit_code == 0
    assert yaml.safe_load((folder / "plan.yaml").read_text())["data"]["normalise"] is False
    without = CliRunner().invoke(main, words)
    assert (without.exit_code, "is given without --data" in without.stderr) == (2, True)


def test_the_client_of_a_round_is_its_node_whatever_it_trained_on(tmp_path: Path) -> None:
    folders = record(tmp_path, [("7", [0]), ("7", [1]), ("8", [2]), ("9", [2]), ("7", [3])])
    plan = resolve_plan(planned(folders))
    assert [plan.client(Key(0, 0, 0, 0, 0, i)) for i in range(5)] == [0, 0, 2, 2, 0]
    assert plan.data.distinct(3) == (2,)


@pytest.mark.parametrize(
    ("nodes", "holders", "clients"),
    [
        (["a", "b", "c"], [0, 1, 2], [0, 1, 2]),
        (["a", "b", "a"], [0, 1, 2], [0, 1, 0]),
        (["a", "b", "c"], [0, 1, 0], [0, 1, 0]),
        (["a", "b", "b"], [0, 1, 0], [0, 0, 0]),  # the third is of the second's node and has the first's examples
        (["", "", ""], [0, 1, 2], [0, 0, 0]),
        (["a", "b", ""], [0, 1, 2], [0, 0, 0]),
    ],
)
def test_rounds_are_of_one_client_unless_they_are_known_not_to_be(
    nodes: list[str], holders: list[int], clients: list[int]
) -> None:
    assert clients_of(nodes, holders) == clients


def of_a_round(number: int, client: int, **changes: Any) -> Any:
    row = trial(number, 11.0, defense="topk")
    data: Data = replace(row.scenario.data, index=client, round=f"round-{number}", examples=(0,), **changes)
    return replace(row, scenario=replace(row.scenario, data=data))


def test_five_rounds_of_one_client_are_never_five_clients() -> None:
    """As five clients that nothing came back from they would be "not recovered" and pass this gate."""
    gate = GateConfig.model_validate({"identified": {"max": 0.5}})
    as_five = verdict([*(of_a_round(i, i) for i in range(5)), *POWER], gate)
    as_one = verdict([*(of_a_round(i, 0) for i in range(5)), *POWER], gate)
    levels = [next(f.level for f in v.findings if f.scenario.defense == "topk") for v in (as_five, as_one)]
    assert levels == [Level.NOT_RECOVERED, Level.INCONCLUSIVE]
    assert as_five.gate.passed is True
    assert as_one.gate.passed is False


def test_an_example_that_one_round_gave_away_is_given_away() -> None:
    rows = [of_a_round(i, 0) for i in range(5)]
    found = rows[3].scores
    rows[3] = replace(rows[3], scores=replace(found, identified=(True,), recovered=(True,), psnr=(30.0,)))
    judged = verdict([*rows, *POWER], None)
    row = next(f for f in judged.findings if f.scenario.defense == "topk")
    assert (row.level, row.images, row.recovered) == (Level.EXPOSED, 1, 1)
    assert "round-3 gave most (1 identified, highest PSNR 30.0 dB)" in row.sentence


def test_rounds_that_do_not_fit_together_are_one_line(tmp_path: Path) -> None:
    folders = record(tmp_path, [("7", [0]), ("7", [1, 2])])
    with pytest.raises(InputError, match="have rounds of 1 and 2 examples; audit rounds of one size together"):
        planned(folders)
    one = planned(folders[:1])
    with pytest.raises(InputError, match=r"update\[1\]: '.*' holds no update.safetensors"):
        resolve_plan(one | {"update": [str(folders[0]), str(tmp_path)]})
    with pytest.raises(InputError, match="names no round, or one of them twice"):
        resolve_plan(one | {"update": [str(folders[0])] * 2})
    with pytest.raises(InputError, match=r"data\.batches: has 1 entries, and there are 2 captured rounds"):
        resolve_plan(one | {"update": [str(f) for f in folders]})


def test_examples_of_rounds_stand_in_their_order_and_others_differ(tmp_path: Path) -> None:
    folders = record(tmp_path, [("7", [0]), ("7", [0]), ("8", [3])])
    source = captured(path=str(folders[0]), rounds=(str(folders[1]),))
    assert source.labels.tolist() == [0, 0, 3]
    assert source.names([0, 1, 2]) == [
        "example 1 of round-1-node-7",
        "example 1 of round-2-node-7",
        "another round's 2",
    ]
