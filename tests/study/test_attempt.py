"""One bad part is one failed row, and spoils no other."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakgauge.compute import Compute
from leakgauge.defenses import Defense
from leakgauge.errors import InputError
from leakgauge.observation import Cost, Reconstruction, Status
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import Running, run
from leakgauge.study.trial import readable, run_trial
from leakgauge.task import DataSpec
from study.plans import tiny


class Own(Exception):
    """An error class of somebody's own, that cannot be made with one argument."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


RAISED = {
    "memory": MemoryError("too much"),
    "exit": SystemExit(0),
    "own": Own(1, 2),
    "plain": Exception("plain"),
    "stop": StopIteration(),
    # It became `not_applicable`, which no gate fails: an attack that broke on the defence was left out of account.
    "refusal": InputError("mine", "an index is out of range", "no idea"),
}


def answers(data: DataSpec) -> dict[str, Any]:
    """What is no answer."""
    good = Reconstruction(torch.full((1, *data.shape), 0.5), torch.tensor([1]), Status.CONVERGED)
    return {
        "nan cost": replace(good, cost=Cost(1, float("nan"))),
        "endless cost": replace(good, cost=Cost(float("inf"), 1.0)),  # type: ignore[arg-type]
        "another shape": replace(good, inputs=good.inputs[..., 1:]),  # type: ignore[index]
        "no picture": replace(good, inputs=good.inputs[:0]),  # type: ignore[index]
        "not a number": replace(good, inputs=good.inputs * float("nan")),  # type: ignore[operator]
        "complex": replace(good, inputs=good.inputs * (1 + 0j)),  # type: ignore[operator]
        "whole numbers": replace(good, inputs=good.inputs.long()),  # type: ignore[union-attr]
        "no tensor": replace(good, inputs=[0.5]),  # type: ignore[arg-type]
        "label too large": replace(good, labels=torch.tensor([data.classes])),
        "label below zero": replace(good, labels=torch.tensor([-1])),
        "labels with a fraction": replace(good, labels=torch.tensor([0.5])),
        "soft label too large": replace(good, labels=torch.eye(data.classes + 1)[-1:]),
        "confidence": replace(good, label_confidence=float("nan")),
        "trace": replace(good, trace=(("a", "b"),)),  # type: ignore[arg-type]
        "status": replace(good, status="converged"),  # type: ignore[arg-type]
        "nothing": None,
        "infinite": replace(good, inputs=good.inputs / 0),  # type: ignore[operator]
    }


@dataclass(frozen=True)
class Bad:
    """An attack that goes wrong as `how` says."""

    how: str

    def reconstruct(self, observation: Any, generator: torch.Generator, **options: Any) -> Any:
        if self.how in RAISED:
            raise RAISED[self.how]
        return answers(observation.task.data)[self.how]


@dataclass(frozen=True)
class Meddles:
    """Changes all that it can reach, then answers with nothing."""

    def reconstruct(self, observation: Any, generator: torch.Generator, **options: Any) -> Any:
        for tensors in (observation.task.parameters, observation.task.buffers, observation.update.tensors):
            for tensor in tensors.values():
                tensor.data.fill_(7)
        for parameter in observation.task.module.parameters():
            parameter.data.fill_(7)
        observation.task.module.train()
        observation.knowledge.labels.fill_(0)
        observation.knowledge.public_data.fill_(0)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        os.chdir("/")
        raise RuntimeError("meddled")


class MeddlingDefense(Defense):
    """Changes the model that it is asked to defend, and the client's batch."""

    def on_batch(self, batch: Any, *rest: Any) -> Any:
        batch.inputs.zero_()
        raise Own(3, 4)

    def on_task(self, task: Any) -> Any:
        for tensor in task.parameters.values():
            tensor.data.fill_(7)
        return task


@dataclass(frozen=True)
class Ends:
    """Ends its process, or never comes back."""

    how: str

    def reconstruct(self, observation: Any, generator: torch.Generator, **options: Any) -> Any:
        if self.how == "waits":
            time.sleep(3600)
        if self.how != "exits" and not os.path.exists(self.how):
            return Reconstruction(None, None, Status.CONVERGED, "the machine has memory again")
        os._exit(0)


def one(**changes: Any) -> dict[str, Any]:
    """A trial and its control."""
    return tiny(**{"defenses": ["none"], "data": {"source": "samples", "size": 16, "batches": 1}} | changes)


@pytest.mark.parametrize("how", [*RAISED, *answers(DataSpec((1, 1, 1), 2))])
def test_what_an_attack_does_is_a_row(how: str) -> None:
    plan = resolve_plan(one(attacks=[{"study.test_attempt:Bad": {"how": how}}]))
    record = run_trial(plan, plan.trials()[0], compute=Compute()).record
    assert record["status"] == ("non_finite" if how in ("infinite", "not a number") else "failed")
    assert record["scores"] is None
    words = {"infinite": "not finite", "not a number": "not finite", "trace": "ValueError"}.get(how, "cannot be used")
    assert str(RAISED.get(how, words)) in record["message"]


def test_an_attack_that_changes_what_it_is_given_spoils_no_later_trial() -> None:
    knows = ["labels", "public_data", "defense", "local_training", "example_count"]
    plan = resolve_plan(one(attacks=["closed-form", "study.test_attempt:Meddles"], knows=knows))
    honest, meddling = plan.trials()[:2]
    before, folder = run_trial(plan, honest, compute=Compute()).record, os.getcwd()
    assert "meddled" in run_trial(plan, meddling, compute=Compute()).record["message"]
    assert (torch.get_default_dtype(), torch.is_grad_enabled(), os.getcwd()) == (torch.float32, True, folder)
    after = run_trial(plan, honest, compute=Compute()).record
    assert before | {"cost": None} == after | {"cost": None}


def test_a_defence_that_changes_what_it_is_given_spoils_no_later_trial() -> None:
    plan = resolve_plan(one(attacks=["closed-form"], defenses=["none", "study.test_attempt:MeddlingDefense"]))
    honest, meddling = plan.trials()[:2]
    before = run_trial(plan, honest, compute=Compute()).record
    assert "raised Own: 3 and 4" in run_trial(plan, meddling, compute=Compute()).record["message"]
    after = run_trial(plan, honest, compute=Compute()).record
    assert before | {"cost": None} == after | {"cost": None}


@pytest.mark.parametrize(
    ("how", "limit", "said"),
    [
        ("exits", 600, "a worker process died (exit code 0), in 2 tries"),
        pytest.param("waits", 30, "no answer within 30 s, in 2 tries", marks=pytest.mark.slow),
    ],
)
def test_a_trial_without_an_answer_is_a_row_and_the_audit_goes_on(
    how: str, limit: float, said: str, tmp_path: Path
) -> None:
    plan = one(attacks=[{"study.test_attempt:Ends": {"how": how}}, "closed-form"], budget={"trial_seconds": limit})
    store = run(resolve_plan(plan), tmp_path)
    found = {r["attack"]: r for r in list(store.each()) if not r["control"]}
    store.close()
    assert found.pop("closed-form")["status"] == "exact"
    (lost,) = found.values()
    assert (lost["status"], lost["scores"]) == ("died", None)
    assert said in lost["message"]


def test_a_trial_without_an_answer_is_tried_again_by_the_next_run(tmp_path: Path) -> None:
    """It was kept as `died` for good, whatever had killed its process."""
    small = tmp_path / "memory is short"
    small.mkdir()
    raw = one(attacks=[{"study.test_attempt:Ends": {"how": str(small)}}, "closed-form"], name="status: died")
    store = run(resolve_plan(raw), tmp_path / "out")
    before = list(store.each())
    store.close()
    assert sorted(r["status"] for r in before) == ["died", "exact"]
    small.rmdir()
    ran: list[str] = []
    store = run(resolve_plan(raw), tmp_path / "out", Running(on_trial=lambda *told: ran.append(told[2])))
    after = {r["id"]: r for r in list(store.each())}
    assert ran == ["", *(r["id"] for r in before if r["status"] == "died")]
    assert {r["status"] for r in after.values()} == {"converged", "exact"}
    assert all(after[r["id"]] == r for r in before if r["status"] == "exact")
    assert len(store.pictures()) == len(after)
    store.close()


def test_a_client_that_raises_an_input_error_is_a_row() -> None:
    class Refuses(Defense):
        def on_update(self, tensors: Any, generator: torch.Generator) -> Any:
            raise InputError("mine", "does not like this update", "give another")

    plan = resolve_plan(one(attacks=["closed-form"]))
    plan = replace(plan, defenses=(replace(plan.defenses[0], value=Refuses()),))
    record = run_trial(plan, plan.trials()[0], compute=Compute()).record
    assert record["status"] == "failed"
    assert "does not like this update" in record["message"]


def test_a_name_that_is_no_text_is_shown_by_its_bytes() -> None:
    name = os.fsdecode(b"ward-\xff.png")
    assert readable({"names": [name], "n": 1.5}) == {"names": ["ward-\\udcff.png"], "n": 1.5}
