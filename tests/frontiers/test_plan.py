"""The grammar: what a plan means, and what it refuses in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from docs.pages import blocks
from leakgauge.cli import main
from leakgauge.cli.audit import overlaid, quick
from leakgauge.clients import FedAvg, LocalTraining, SecureAggregation, client_update
from leakgauge.defenses import NoDefense
from leakgauge.errors import InputError
from leakgauge.frontiers import columns
from leakgauge.frontiers.columns import counters_of
from leakgauge.frontiers.plan import resolve_frontier, row_label
from leakgauge.study.grammar import example_text
from leakgauge.task import Task
from leakgauge.update import Update

MLP = {"mlp": {"hidden": [8]}}


def small(**changes: Any) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "model": MLP,
        "data": {"size": 8, "images": 4},
        "client": "fedsgd",
        "attack": "closed-form",
        "gallery": 10,
        "defenses": {"top-k": [{"topk": {"keep": 0.5}}, {"topk": {"keep": 0.1}}]},
    }
    return plan | changes


def test_rows_are_the_undefended_one_and_every_strength_in_order() -> None:
    raw = small(
        defenses={
            "noise": [{"noise": {"relative": 0.1}}, [{"clip": {"norm": 1.0}}, {"noise": {"sigma": 0.1}}]],
            "batch": [{"batch": 2}],
            "steps": [{"client": {"fedavg": {"epochs": 3, "lr": 0.1}}}],
            "aggregation": [{"cohort": 2}],
            "both": [{"defense": {"mixup": {}}, "batch": 4, "train": False}],
        }
    )
    plan = resolve_frontier(raw)
    assert [(r.family, r.strength) for r in plan.rows] == [
        ("undefended", 0),
        ("noise", 0),
        ("noise", 1),
        ("batch", 0),
        ("steps", 0),
        ("aggregation", 0),
        ("both", 0),
    ]
    labels = [row_label(r, plan.undefended) for r in plan.rows]
    assert labels == [
        "none",
        "noise(relative=0.1)",
        "clip(norm=1.0) + noise(sigma=0.1)",
        "a client of 2 examples",
        "fedavg(epochs=3, lr=0.1)",
        "mean over 2 clients",
        "mixup + a client of 4 examples",
    ]
    assert plan.rows[4].client.value == FedAvg(epochs=3, lr=0.1)
    assert plan.rows[2].defended
    assert not plan.rows[5].defended


def test_each_setting_is_attacked_by_both_attackers_only_where_there_is_a_defence() -> None:
    plan = resolve_frontier(small(defenses={"top-k": [{"topk": {"keep": 0.5}}], "aggregation": [{"cohort": 2}]}))
    base, mean = plan.audits.values()
    tried = {
        (base.defenses[k.defense].label, base.attacks[k.attack].label.split("(")[0])
        for k in base.trials()
        if not k.control
    }
    assert tried == {("none", "naive"), ("topk(keep=0.5)", "naive"), ("topk(keep=0.5)", "adapted")}
    assert isinstance(mean.clients[0].value, SecureAggregation)
    assert [len(b) for b in mean.data.indices] == [2, 2], "four images, as in the other rows"
    assert [len(b) for b in base.data.indices] == [1] * 4


def test_aggregation_and_the_attacked_batch_share_the_training() -> None:
    raw = small(defenses={"a": [{"cohort": 2}], "b": [{"batch": 2}], "c": [{"topk": {"keep": 0.1}}]})
    plan = resolve_frontier(raw)
    assert plan.trainings() == {}, "no data to train with"
    assert plan.rows[0].training == plan.rows[1].training == plan.rows[2].training != plan.rows[3].training


def test_the_example_is_a_full_plan_and_quick_cuts_it_down() -> None:
    raw = yaml.safe_load(example_text("frontiers"))
    mechanisms = [f for f, strengths in raw["defenses"].items() if len(strengths) >= 3]
    assert len(mechanisms) >= 6
    cut = quick(raw)
    assert all(len(s) == 2 for s in cut["defenses"].values())
    assert cut["data"]["images"] < raw["data"]["images"]
    assert cut["utility"]["clients"] == raw["utility"]["clients"]
    assert raw == yaml.safe_load(example_text("frontiers")), "the plan itself stays"


def test_overlaid_merges_mappings_and_leaves_the_rest() -> None:
    assert overlaid({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}}) == {"a": {"b": 9, "c": 2}, "d": 3}


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"defences": {}}, "defences", "did you mean 'defenses'"),
    ({"defenses": {}}, "defenses", "name at least one"),
    ({"defenses": {"x": []}}, "defenses.x", "has no strength"),
    ({"defenses": {"undefended": ["none"]}}, "defenses.undefended", "always there"),
    ({"defenses": {"x": [{"topq": {}}]}}, "defenses.x[0]", "topk"),
    ({"defenses": {"x": [{"topk": {"keep": 2}}]}}, "defenses.x[0].topk.keep", "share"),
    ({"defenses": {"x": [{"batch": 0}]}}, "defenses.x[0].batch", "is 0"),
    ({"defenses": {"x": ["none"]}}, "defenses.x[0]", "undefended[0]"),
    ({"defenses": {"x": [{"cohort": 2, "defense": {"soteria": {}}}]}}, "defenses.x[0]", "secure aggregation"),
    ({"defenses": {"x": [{"topk": {"keep": 0.1}}, {"soteria": {"layer": "no"}}]}}, "defenses.x[1]", "no linear layer"),
    ({"defenses": {"x": [{"client": {"secure-aggregation": {"cohort": 2}}}]}}, "defenses.x[0].client", "cohort"),
    ({"utility": {"round": 3}}, "utility.round", "did you mean 'rounds'"),
    ({"budget": {"evaluations": 3}}, "budget.evaluations", "did you mean 'gradient_evaluations'"),
    ({"utility": {"train": "parquet:/no/such", "test": "samples"}}, "utility.train", "no Parquet file"),
    (
        {"utility": {"train": {"source": "samples", "size": 8}, "test": {"source": "samples", "size": 8}}},
        "utility.clients",
        "are 100 for 8 training examples",
    ),
    ({"knows": ["labels"]}, "knows", "defense"),
    ({"attack": "auot"}, "attack", "auto"),
    ({"delta": 0}, "delta", "is 0"),
    ({"model": "resent"}, "model", "did you mean"),
    ({"model": ["lenet", "mlp"]}, "model", "give one"),
]


@pytest.mark.parametrize(("changes", "field", "words"), BAD, ids=[b[1] + "-" + b[2][:8] for b in BAD])
def test_bad_plans_name_the_place_and_the_hint(changes: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_frontier(small(**changes))
    assert error.value.field == field
    assert words in str(error.value)


def test_bad_input_on_the_command_line_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    for text in (": no yaml: [", yaml.safe_dump(small(budgt={})), yaml.safe_dump(small(defenses=3))):
        file.write_text(text)
        result = CliRunner().invoke(main, ["frontier", str(file), "-o", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert len(result.output.strip().splitlines()) == 1
        assert result.output.startswith("leakgauge: ")
    assert not (tmp_path / "out").exists()


def test_bad_options_are_refused_before_anything_runs(tmp_path: Path) -> None:
    file, out = tmp_path / "plan.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(small()))
    for option, value in (("--train", "{source: ["), ("--json", str(tmp_path / "no" / "copy.json"))):
        result = CliRunner().invoke(main, ["frontier", str(file), "-o", str(out), option, value])
        assert result.exit_code == 2, result.exception
        assert result.output.startswith(f"leakgauge: {option}: ")
        assert len(result.output.strip().splitlines()) == 1
    assert not out.exists()


def test_example_is_printed() -> None:
    result = CliRunner().invoke(main, ["frontier", "--example"])
    assert result.exit_code == 0
    assert result.output == example_text("frontiers")


def test_the_plan_in_the_docs_is_one() -> None:
    (block,) = blocks("docs/how-to/frontier.md", "yaml")
    families = {row.family for row in resolve_frontier(yaml.safe_load(block.text)).rows}
    assert {"undefended", "clip and noise", "secure aggregation", "Soteria"} <= families


@pytest.mark.parametrize(
    ("row", "times"),
    [
        ({"batch": 4}, 1),
        ({"client": {"fedavg": {"epochs": 3, "lr": 0.1}}}, 3),
        ({"client": {"fedavg": {"epochs": 3, "batch_size": 1, "lr": 0.1}}, "batch": 2}, 6),
        ({"cohort": 2}, 2),
        ({"cohort": 2, "client": {"fedavg": {"epochs": 3, "lr": 0.1}}}, 6),
    ],
)
def test_every_row_gets_as_many_candidates(row: dict[str, Any], times: int) -> None:
    """A candidate costs a gradient a local step of every client: with one budget for all, 8 epochs got an eighth of the
    search and looked like a defence."""
    plan = resolve_frontier(small(defenses={"row": [row]}, budget={"gradient_evaluations": 50}))
    budgets = [audit.budget.gradient_evaluations for audit in plan.audits.values()]
    assert budgets == [50, 50 * times]


@pytest.mark.parametrize(("epochs", "budget"), [(1, 25), (3, 75), (5, 125), (7, 175)])
def test_candidates_are_as_many_where_the_plans_own_client_takes_several_steps(epochs: int, budget: int) -> None:
    two = {"fedavg": {"epochs": 2, "lr": 0.1}}
    row = {"client": {"fedavg": {"epochs": epochs, "lr": 0.1}}}
    plan = resolve_frontier(small(client=two, defenses={"row": [row]}, budget={"gradient_evaluations": 50}))
    assert list(plan.audits.values())[-1].budget.gradient_evaluations == budget


@pytest.mark.parametrize("first", [{"topk": {"keep": 0.1}}, {"prune": {"rate": 0.9}}])
def test_a_counter_whose_evidence_later_noise_covers_is_told(first: dict[str, Any]) -> None:
    plan = resolve_frontier(small(defenses={"row": [first, [first, {"noise": {"sigma": 1.0}}]]}))
    alone, covered = (counters_of(plan, row)[0] for row in plan.rows[1:])
    assert alone.counter == covered.counter == "support-mask"
    assert not alone.missing
    assert "zeros on the wire" in covered.missing


def test_client_time_is_counted_against_the_plans_own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight epochs beside eight epochs took as long."""
    plan = resolve_frontier(small())
    once, eight = (FedAvg(epochs=epochs, lr=0.1) for epochs in (1, 8))
    clock = iter(range(10_000))

    def update(task: Task, client: LocalTraining, *given: Any, **also: Any) -> Update:
        for _ in range(client.epochs):
            next(clock)
        return client_update(task, client, *given, **also)

    monkeypatch.setattr(columns, "client_update", update)
    monkeypatch.setattr(columns.time, "process_time", lambda: float(next(clock)))
    found = columns.cost_of(plan.attacked_task(), once, eight, NoDefense())
    assert found.seconds.relative == 4.5, "a tick for each epoch, and one for reading the clock"
    assert found.bytes == found.bytes_undefended
