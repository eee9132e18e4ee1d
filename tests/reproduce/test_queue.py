"""The queue: rows of a list, one start after the other, on the device that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.ci_net import runs as ci_net_runs  # noqa: E402
from reproduce.claims import quantity  # noqa: E402
from reproduce.claims.frozen import digest  # noqa: E402
from reproduce.inverting_gradients.runs import LENET, trial  # noqa: E402
from reproduce.item import Inputs, Item, State  # noqa: E402
from reproduce.mkor.mnist import NETWORKS, observed  # noqa: E402
from reproduce.qian_hansen import trials  # noqa: E402
from reproduce.qian_hansen.networks import one_hidden_layer  # noqa: E402
from reproduce.rog.ablations import SMALL  # noqa: E402
from reproduce.runs import listed_runs  # noqa: E402

from leakgauge.attacks.recipes import dlg  # noqa: E402
from leakgauge.defenses import NoDefense  # noqa: E402
from leakgauge.errors import InputError  # noqa: E402
from leakgauge.servers.server import Honest  # noqa: E402
from leakgauge.task import Batch, DataSpec  # noqa: E402
from reproduce import command, queue, rows  # noqa: E402


def row(setting: str, attack: str, inputs: Inputs) -> rows.Row:
    return rows.Row(
        paper="mkor", row="time", setting=setting, attack=attack, metric="seconds", claimed=None,
        per_image=[[1.0], [2.0], [3.0]], seeds=[inputs.seed(0)], gradient_evaluations=0, seconds=0.1,
    )  # fmt: skip


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> queue.Job:
    """An item that also makes what nobody asks for, and keeps no results of this clone."""

    def measure(inputs: Inputs) -> Iterator[rows.Row]:
        assert torch.get_num_threads() == 1
        for setting in ("VGG16", "another"):
            yield from inputs.once(setting, "MKOR", lambda setting=setting: [row(setting, "MKOR", inputs)])
        yield row("VGG16", "a rival", inputs)

    made = Item(paper="mkor", name="time", state=State.REDUCED, note="why", measure=measure)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(rows, "commit", lambda: "abc")
    monkeypatch.setattr(queue, "commit", lambda: "abc")
    monkeypatch.setattr(command, "items", lambda: {"mkor/time": made})
    return next(j for j in queue.jobs() if (j.paper, j.item, j.start) == ("mkor", "time", 0))


def test_a_job_keeps_the_rows_of_its_list_and_no_others(job: queue.Job, tmp_path: Path) -> None:
    assert not job.done()
    job.measure(tmp_path)
    assert job.done()
    (run,) = listed_runs("mkor", "time", 0)
    (kept,) = run["rows"]
    assert (kept["setting"], kept["attack"]) == ("VGG16", "MKOR")
    told = kept["environment"]
    assert (told["list"], told["start"], told["device"], told["commit"]) == (digest("mkor"), 0, "cpu", "abc")
    assert told["cpu"]
    assert told["torch"] == torch.__version__
    assert quantity.judges(kept, "mkor")


def test_what_is_done_is_passed_over_but_not_by_another_commit_or_start(
    job: queue.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.measure(tmp_path)
    again = replace(job, start=1)
    assert not again.done()
    again.measure(tmp_path)
    assert [listed_runs("mkor", "time", start)[0]["rows"][0]["seeds"] for start in (0, 1)] == [[0], [1000]]
    monkeypatch.setattr(queue, "commit", lambda: "def")
    assert not job.done()


def test_an_interrupted_job_goes_on(job: queue.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = command.items()["mkor/time"]
    assert whole.measure is not None
    cut: list[str] = []

    def measure(inputs: Inputs) -> Iterator[rows.Row]:
        for made in whole.measure(inputs):  # type: ignore[misc]
            yield made
            cut.append(made.setting)
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "items", lambda: {"mkor/time": replace(whole, measure=measure)})
    with pytest.raises(KeyboardInterrupt):
        job.measure(tmp_path)
    assert not job.done()
    assert len(listed_runs("mkor", "time", 0)[0]["rows"]) == 1
    monkeypatch.setattr(command, "items", lambda: {"mkor/time": whole})
    job.measure(tmp_path)
    assert job.done()
    assert len(listed_runs("mkor", "time", 0)) == 1


def test_an_item_that_does_not_make_what_a_list_asks_for_is_not_done(
    job: queue.Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = replace(command.items()["mkor/time"], measure=lambda inputs: iter([row("other", "MKOR", inputs)]))
    monkeypatch.setattr(command, "items", lambda: {"mkor/time": nothing})
    with pytest.raises(InputError, match="VGG16"):
        job.measure(tmp_path)
    assert not job.done()


def test_a_plan_runs_nothing_and_a_device_that_is_not_there_is_one_line(job: queue.Job, tmp_path: Path) -> None:
    run = CliRunner().invoke(queue.main, ["--data", str(tmp_path), "--plan"])
    assert run.exit_code == 0
    assert "core hours in all" in run.output
    assert not list(tmp_path.glob("*.json"))
    with pytest.raises(InputError, match="nowhere"):
        replace(job, device="nowhere").measure(tmp_path)


def meta(paper: str, shared: Path) -> Callable[[], object]:
    """The one place of a paper where a client's update is made, on a device that holds no numbers."""
    data = shared / "data"
    if paper == "inverting-gradients":
        task = LENET.task(DataSpec((3, 32, 32), 10), 0, device="meta")
        return lambda: trial(task, Batch(torch.rand(1, 3, 32, 32), torch.tensor([1])), dlg(), 0)
    if paper == "qian-hansen":
        made = trials.Comparison(
            item="i", setting="s", attack="a", run=dlg(), data=DataSpec((4,), 3), device="meta",
            build=lambda: one_hidden_layer(classes=3, shape=(4,), units=2),
            batches=[Batch(torch.rand(1, 4), torch.tensor([1]))],
        )  # fmt: skip
        return lambda: list(made.rows())
    if paper == "mkor":
        batch = Batch(torch.rand(2, 1, 28, 28), torch.tensor([1, 2]))
        return lambda: observed(NETWORKS[0], Honest(), NoDefense(), batch, 0, labels=True, device="meta")
    if paper == "rog":
        return lambda: SMALL.observe(SMALL.batch(data), 0, "meta")
    target = ci_net_runs.Target()
    return lambda: target.observe(target.batch(data), 0, "meta")


PLACES = {
    "inverting-gradients": "reproduce.inverting_gradients.runs",
    "qian-hansen": "reproduce.qian_hansen.trials",
    "mkor": "reproduce.mkor.mnist",
    "rog": "reproduce.rog.runs",
    "ci-net": "reproduce.ci_net.runs",
}


class Reached(Exception):
    """With the devices of the network and of the batch."""


@pytest.mark.parametrize("paper", command.PAPERS)
def test_the_device_reaches_every_papers_client(paper: str, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(task, protocol, batch, *rest, **more):
        raise Reached({str(p.device) for p in (*task.parameters.values(), batch.inputs, batch.labels)})

    monkeypatch.setattr(f"{PLACES[paper]}.client_update", stop)
    with pytest.raises(Reached) as found:
        meta(paper, shared)()
    assert found.value.args == ({"meta"},)


def test_code_of_another_copy_makes_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows would carry the commit of a clone whose code they did not run."""
    monkeypatch.setattr(queue.leakgauge, "__file__", str(tmp_path / "leakgauge" / "__init__.py"))
    ran = CliRunner().invoke(queue.main, ["--data", str(tmp_path)])
    assert ran.exit_code == 2
    assert "PYTHONPATH=src" in ran.output
