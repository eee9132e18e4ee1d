"""Audits that are killed, finished, repeated, moved and starved."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch
import yaml
from click.testing import CliRunner
from rich.console import Console
from torch import nn

from leakgauge.cli import main
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Compute
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Cost, Knowledge, Observation, Reconstruction, Status
from leakgauge.study import session
from leakgauge.study.judging.records import read_trial
from leakgauge.study.judging.verdict import verdict
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import ProgressShown, Running, run
from leakgauge.study.store import FILE, Store
from leakgauge.study.trial import informed, run_trial
from leakgauge.task import Batch, DataSpec, Task
from study.plans import document, tiny

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def cli(*arguments: str | Path) -> Done:
    """The same command in this process, which has imported torch and keeps the server that workers are forked from."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    return Done(done.exit_code, done.stdout, done.stderr)


def plan_file(folder: Path, **changes: Any) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(tiny(**changes)))
    return path


def stripped(value: Any) -> Any:
    """Without every ``seconds``, the dollars made of them, and ``created_at``."""
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items() if k not in ("seconds", "created_at", "dollars")}
    return [stripped(v) for v in value] if isinstance(value, list) else value


LONG = ["closed-form", {"inverting-gradients": {"steps": 60}}]
"""Trials that take long enough to be killed in."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished tiny audit, run through the command line."""
    folder = tmp_path_factory.mktemp("finished")
    done = cli("audit", plan_file(folder, attacks=LONG), "-o", folder / "out", "--workers", 2)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def test_an_audit_writes_page_json_and_store(finished: Path) -> None:
    assert {p.name for p in finished.iterdir()} == {
        ".audit.lock",
        "audit.sqlite",
        "lint.json",
        "report.html",
        "report.json",
        "sheet.html",
    }
    report = json.loads((finished / "report.json").read_text(), parse_constant=pytest.fail)
    assert report["schema_version"] == 3
    ids = [trial["id"] for trial in report["trials"]]
    assert ids == sorted(ids)
    assert len(ids) == 18
    closed = [t for t in report["trials"] if t["attack"] == "closed-form" and t["scenario"]["defense"] == "none"]
    assert all(t["status"] == "exact" and t["scores"]["psnr"][0] >= 60 for t in closed)
    assert report["verdict"]["level"] == "exposed"


def test_3_a_finished_audit_does_no_work(finished: Path, tmp_path: Path) -> None:
    before = (finished / FILE).read_bytes(), (finished / "report.json").read_bytes()
    rows = sqlite3.connect(finished / FILE).execute("select id, created_at from trials").fetchall()
    done = cli("audit", plan_file(tmp_path, attacks=LONG), "-o", finished)
    assert done.returncode == 0, done.stderr
    assert sqlite3.connect(finished / FILE).execute("select id, created_at from trials").fetchall() == rows
    assert ((finished / FILE).read_bytes(), (finished / "report.json").read_bytes()) == before


def test_3_the_same_plan_gives_the_same_report_with_any_number_of_workers(finished: Path, tmp_path: Path) -> None:
    done = cli("audit", plan_file(tmp_path, attacks=LONG), "-o", tmp_path / "out", "--workers", 1)
    assert done.returncode == 0, done.stderr
    one, two = (json.loads((f / "report.json").read_text()) for f in (finished, tmp_path / "out"))
    assert json.dumps(stripped(one)) == json.dumps(stripped(two))


def test_3_killed_at_any_moment_and_run_again_the_report_is_the_same(finished: Path, tmp_path: Path) -> None:
    """A process of its own, with workers of its own; `tests/test_chaos.py` kills at many moments and several times."""
    path = plan_file(tmp_path, attacks=LONG)
    command = [sys.executable, "-m", "leakgauge", "audit", path, "-o", tmp_path / "killed", "--workers", "2"]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and stored(tmp_path / "killed") < 1:
        time.sleep(0.02)
    assert process.poll() is None, "it ended before it could be killed"
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.wait()
    # workers must not outlive the audit that was killed
    assert psutil.wait_procs(children, timeout=20)[1] == []
    assert 1 <= stored(tmp_path / "killed") < 18
    again = cli("audit", path, "-o", tmp_path / "killed")
    assert again.returncode == 0, again.stderr
    one, two = (json.loads((f / "report.json").read_text()) for f in (finished, tmp_path / "killed"))
    assert json.dumps(stripped(one)) == json.dumps(stripped(two))


def test_a_folder_of_pictures_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "a.png").touch()
    done = cli("audit", plan_file(tmp_path), "-o", tmp_path / "scans")
    assert (done.returncode, done.stdout) == (2, "")
    assert "scans holds no results, but a.png; give a new or empty folder" in one_line(done.stderr)
    assert [p.name for p in (tmp_path / "scans").iterdir()] == ["a.png"]


def test_the_findings_are_in_their_file_when_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(session, "print_rules", lambda *given: seen.append(Path(given[2]).is_file()))
    done = cli("audit", plan_file(tmp_path, attacks=["closed-form"]), "-o", tmp_path / "out", "--workers", "1")
    assert (done.returncode, seen) == (0, [True])
    assert "report:" in done.stdout


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    clock = 0.0
    shown = ProgressShown(Console(file=io.StringIO()), now=lambda: clock)
    told = shown.stage("trials")
    for done in range(4, 41):  # four were done before
        told(done, 40, "")
        clock += 10.0
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert lines[:3] == ["4 of 40 trials", "7 of 40 trials, 6 min left", "10 of 40 trials, 5 min left"]
    assert len(lines) == 12
    slow = shown.stage("attacks")
    for done in range(3):  # too few to tell from
        slow(done, 9, "")
        clock += 60.0
    assert capsys.readouterr().err.splitlines() == ["0 of 9 attacks", "1 of 9 attacks", "2 of 9 attacks"]


def stored(folder: Path) -> int:
    """Trials in a store that another process writes."""
    if not (folder / FILE).exists():
        return 0
    try:
        return int(sqlite3.connect(folder / FILE, timeout=5).execute("select count(*) from trials").fetchone()[0])
    except sqlite3.OperationalError:  # its tables are not there yet
        return 0


def test_an_output_folder_of_another_audit_is_refused(finished: Path, tmp_path: Path) -> None:
    before = (finished / FILE).read_bytes()
    done = cli("audit", plan_file(tmp_path, name="other"), "-o", finished)
    assert done.returncode == 2
    assert one_line(done.stderr).startswith("leakgauge: output:")
    assert "belongs to the audit 'tiny', of another " in done.stderr
    assert "lint" not in done.stdout, "it named the lint.json of the other audit"
    assert (finished / FILE).read_bytes() == before


def test_a_folder_with_another_file_of_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / FILE).write_text("my notes, thank you " * 100)
    done = cli("audit", plan_file(tmp_path), "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "is not an audit" in one_line(done.stderr)


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    path = plan_file(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        full = cli("audit", path, "-o", tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert full.returncode == 2, full.stderr
    assert one_line(full.stderr).startswith("leakgauge: output:")
    assert "free space" in full.stderr
    kept = stored(tmp_path / "out")
    assert kept > 0
    again = cli("audit", path, "-o", tmp_path / "out")
    assert again.returncode == 0, again.stderr
    assert stored(tmp_path / "out") == 18


def test_a_full_database_is_one_line(tmp_path: Path) -> None:
    plan = resolve_plan(tiny())
    store = run(plan, tmp_path)
    record = next(iter(store.each()))
    store.close()
    small = Store(tmp_path)
    small.key = store.key
    from sqlalchemy import event

    event.listen(small._base.engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count=1"))
    with pytest.raises(InputError, match="full"):
        small.add("z", record | {"padding": "x" * 10**6})
    small.close()
    reopened = Store.open(tmp_path)
    assert len(reopened.finished()) == 18
    reopened.close()


def test_counts_only_never_writes_an_image(tmp_path: Path) -> None:
    done = cli("audit", plan_file(tmp_path), "-o", tmp_path / "out", "--counts-only")
    assert done.returncode == 0, done.stderr
    assert sqlite3.connect(tmp_path / "out" / FILE).execute("select count(*) from pictures").fetchone() == (0,)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "data:image/png" not in page
    assert "data:image/png" not in (tmp_path / "out" / "report.json").read_text()
    for found in (tmp_path / "out").rglob("*"):
        assert b"\x89PNG" not in found.read_bytes()


def test_a_folder_with_images_cannot_become_counts_only(finished: Path, tmp_path: Path) -> None:
    done = cli("audit", plan_file(tmp_path, attacks=LONG), "-o", finished, "--counts-only")
    assert done.returncode == 2
    assert "--counts-only" in one_line(done.stderr)


def test_gate_is_an_exit_code_with_reasons(tmp_path: Path) -> None:
    path = plan_file(tmp_path, gate={"identified": {"max": 0.05}}, attacks=["closed-form"])
    assert cli("audit", path, "-o", tmp_path / "out").returncode == 0
    broken = cli("gate", tmp_path / "out")
    assert broken.returncode == 1
    assert "2 of 2 images" in broken.stdout


def test_gate_without_a_gate_and_without_an_audit(finished: Path, tmp_path: Path) -> None:
    assert "the plan has none" in one_line(cli("gate", finished).stderr)
    nothing = cli("gate", tmp_path)
    assert nothing.returncode == 2
    assert "holds no audit" in one_line(nothing.stderr)


def test_an_unfinished_audit_does_not_pass_its_gate(tmp_path: Path) -> None:
    plan = plan_file(
        tmp_path,
        data={"source": "samples", "size": 16, "batch": 1, "batches": 5},
        defenses=[{"noise": {"relative": 1e4}}],
        attacks=["auto"],
        budget={"gradient_evaluations": 300},
        gate={"identified": {"max": 0.9}, "label_f1": {"max": 1.0}},
    )
    cli("audit", plan, "-o", tmp_path, "--workers", "1")
    passed = cli("gate", tmp_path)
    assert passed.stdout.startswith("gate passed\nNo objection found within 90 % singled out"), passed.stdout
    assert passed.returncode == 0
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("delete from pictures where trial like '%b001'")
    connection.execute("delete from trials where id like '%b001'")
    connection.commit()
    unfinished = cli("gate", tmp_path)
    assert unfinished.returncode == 1
    assert "2 trials have not run" in unfinished.stdout
    assert cli("report", tmp_path).returncode == 0
    assert "No objection" not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["audit", "none.yaml"], "plan none.yaml: cannot be read"),
        (["audit", "--worker", "2"], "No such option"),
        (["list", "attack"], "attack"),
        (["frobnicate"], "frobnicate"),
        (["report", "nowhere"], "holds no audit"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli(*arguments)
    assert done.returncode == 2
    assert text in one_line(done.stderr)


def test_help_and_version_and_example_exit_0() -> None:
    for arguments in (["--help"], ["--version"], ["audit", "--help"], ["audit", "--example"], ["list", "attacks"]):
        done = cli(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def one_line(text: str) -> str:
    """The only line on standard error beside the progress."""
    lines = [line for line in text.splitlines() if line.strip() and not line.endswith(" trials")]
    assert len(lines) == 1, text
    return lines[0]


def test_importing_the_package_imports_no_extra_and_nothing_of_the_command_line() -> None:
    code = (
        "import sys, leakgauge; "
        "heavy = {'click', 'rich', 'pydantic', 'sqlalchemy', 'jinja2', 'matplotlib', 'yaml', 'opacus', 'flwr', 'ray', "
        "'torchmetrics', 'torchvision', 'pyarrow', 'datasets'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stdout.strip() == "[]"


def test_an_attack_that_raises_is_a_row(tmp_path: Path) -> None:
    """Known defects: a well-defended client crashing the audit; a report section lost behind a broad except."""
    plan = resolve_plan(tiny(attacks=["study.broken:Raises"], only=None))
    store = run(plan, tmp_path)
    report = document(store)
    store.close()
    assert {t["status"] for t in report["trials"]} == {"failed"}
    assert all("RuntimeError: no luck" in t["message"] for t in report["trials"])
    assert report["verdict"]["level"] == "inconclusive"


def test_a_defence_that_raises_is_a_row_and_others_go_on(tmp_path: Path) -> None:
    plan = resolve_plan(tiny(attacks=["closed-form"], defenses=["none", "study.broken:RaisingDefense"], only=None))
    store = run(plan, tmp_path)
    trials = document(store)["trials"]
    store.close()
    failed = [t for t in trials if t["status"] == "failed"]
    assert {t["scenario"]["defense"] for t in failed} == {"study.broken:RaisingDefense"}
    assert all(t["message"] == "the client or its defence raised ValueError: my defence broke" for t in failed)
    assert any(t["status"] == "exact" for t in trials)


def test_a_gate_may_be_added_to_a_finished_audit(tmp_path: Path) -> None:
    plain = tiny(attacks=["closed-form"], only=None)
    store = run(resolve_plan(plain), tmp_path)
    before = list(store.each())
    store.close()
    ran: list[tuple[int, int, str]] = []
    gated = resolve_plan(plain | {"gate": {"identified": {"max": 0.01}}})
    store = run(gated, tmp_path, Running(on_trial=lambda *told: ran.append(told)))
    after = document(store)
    assert list(store.each()) == before
    store.close()
    assert ran == [(len(before), len(before), "")], "no trial was run again"
    assert after["verdict"]["gate"]["passed"] is False


def test_a_client_that_diverges_is_a_row() -> None:
    clients = [{"fedavg": {"lr": 1e30, "epochs": 5}}]
    plan = resolve_plan(tiny(clients=clients, attacks=["closed-form"], defenses=["none"]))
    record = run_trial(plan, plan.trials()[0], compute=Compute()).record
    assert record["status"] == "failed"
    assert "diverged" in record["message"]


def test_a_folder_begun_without_images_stays_without(tmp_path: Path) -> None:
    plan = resolve_plan(tiny(attacks=["closed-form"], defenses=["none"]))
    run(plan, tmp_path, Running(counts_only=True)).close()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("delete from trials where id like '%b001'")
    connection.commit()
    connection.close()
    store = run(plan, tmp_path)
    assert len(store.finished()) == 2
    assert not store.pictures()
    store.close()


@pytest.mark.parametrize("activation", ["sigmoid", "relu"])
def test_a_match_of_an_update_without_image_information_is_said_to_be_none(activation: str) -> None:
    """Every search ends at a distance of zero there, whatever its pictures."""
    model = {"resnet20": {"width": 4, "activation": activation}}
    data = {"source": "samples", "size": 16, "batch": 2, "batches": 1}
    plan = resolve_plan(
        tiny(model=model, data=data, attacks=["auto"], defenses=["none"], budget={"gradient_evaluations": 2})
    )
    key = next(key for key in plan.trials() if not key.control)
    record = run_trial(plan, key, compute=Compute()).record
    assert record["cost"]["gradient_evaluations"] == 2, "the question is not the attack's"
    assert ("no image information" in record["blind"]) == (activation == "sigmoid")
    sentence = verdict([read_trial(record)], None).findings[0].sentence
    assert ("The update carries no image information" in sentence) == (activation == "sigmoid")


def test_a_model_that_cannot_be_asked_in_double_precision_keeps_its_answer() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(12, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1).float() @ self.weight

    data = DataSpec((3, 2, 2), 3)
    task, b = Task.of(Single(), data), Batch(torch.rand(1, 3, 2, 2), torch.tensor([1]))
    seen = Observation(task, client_update(task, FedSGD(), b, Draws(0)), Knowledge(labels=b.labels))
    found = Reconstruction(b.inputs, b.labels, Status.OUT_OF_STEPS, "as it went", cost=Cost(3))
    assert informed(found, lambda: seen, torch.Generator()) is found
