"""The run that the lists of claims ask for: `python -m reproduce.queue --data FOLDER` (`make reproductions`).

Every item runs in a process of its own, with the rows that claims read and no others, cheap items first. What has ended
under the same list, commit, start and device is passed over, and what was interrupted goes on, so that the same command
may be given again after anything. `--plan` says what it will take and runs nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

import leakgauge
from leakgauge.errors import InputError
from reproduce.claims.frozen import asked, claims_of, digest
from reproduce.claims.screen import PAPERS
from reproduce.claims.verdict import STARTS
from reproduce.rows import RESULTS, commit
from reproduce.runs import Run, listed_runs

LOG = RESULTS / "queue.log"


@dataclass(frozen=True)
class Job:
    """One item of one start.

    Attributes:
        hours: core hours, as the list has them.
        decides: claims that read the item, headline claims first.
    """

    paper: str
    item: str
    start: int
    device: str
    hours: float
    how: str
    decides: tuple[str, ...]

    @property
    def words(self) -> str:
        """As the log names it."""
        return f"{self.paper}/{self.item}, start {self.start}"

    @property
    def circumstances(self) -> dict[str, object]:
        """What a row carries beside its machine."""
        return {"list": digest(self.paper), "commit": commit(), "start": self.start, "device": self.device}

    def done(self) -> bool:
        """Whether a run under these circumstances has ended."""
        return any(
            run.get("complete") and run["circumstances"] == self.circumstances
            for run in listed_runs(self.paper, self.item, self.start)
        )

    def measure(self, data: Path) -> None:
        """Runs the item here and keeps its rows.

        Raises:
            InputError: the device cannot be used.
        """
        from reproduce.command import items
        from reproduce.item import Inputs

        item = items()[f"{self.paper}/{self.item}"]
        assert item.measure is not None
        run = Run.listed(self.paper, self.item, self.start, self.circumstances)
        wanted = asked(self.paper)[self.item]
        inputs = Inputs(data, False, click.echo, run.of, run.keep, self.start, self.device, wanted)
        inputs.compute().apply()
        made = [row for row in item.measure(inputs) if inputs.wants(row.setting, row.attack)]
        run.add(made)
        missing = wanted - {(row["setting"], row["attack"]) for row in run.records}
        if missing:
            raise InputError("list", f"{self.words} made no row of {sorted(missing)}", "mend the list or the item")
        run.finish()


def jobs(starts: tuple[int, ...] = STARTS, device: str = "cpu") -> list[Job]:
    """The first start before the second, and what takes least time first."""
    found = []
    for start in starts:
        for paper in PAPERS:
            claims = sorted(claims_of(paper).claims, key=lambda claim: not claim.headline)
            for item, cost in claims_of(paper).cost.items():
                decides = tuple(claim.id for claim in claims if item in {row.item for row in claim.rows})
                found.append(Job(paper, item, start, device, cost.hours, cost.how, decides))
    return sorted(found, key=lambda job: (job.start, job.hours, job.paper, job.item))


def plan(found: list[Job]) -> Iterator[str]:
    """One line an item with its core hours and the claims that it decides, and their sum."""
    spent = 0.0
    for job in found:
        spent += job.hours
        state = "done" if job.done() else "due"
        yield f"{spent:6.2f} h  {job.hours:4.2f} h  {state:4}  {job.words}: {job.how}; decides {', '.join(job.decides)}"
    left = sum(job.hours for job in found if not job.done())
    yield f"{spent:.1f} core hours in all, {left:.1f} of them due"


def log(words: str) -> None:
    """One line with the time (UTC) and the commit, on the terminal and in `LOG`."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())} {commit()} {words}"
    click.echo(line)
    with LOG.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def apart(job: Job, data: Path) -> int:
    """Runs a job in a process of its own; its exit code."""
    command = [sys.executable, "-m", "reproduce.queue", "--data", str(data), "--device", job.device]
    command += ["--start", str(job.start), "--item", f"{job.paper}/{job.item}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.run(command, env=environment, check=False).returncode


@click.command()
@click.option("--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
@click.option(
    "--start", "starts", type=click.Choice([str(s) for s in STARTS]), multiple=True, help="Both, if not given."
)
@click.option("--device", default="cpu", show_default=True, help="A torch device; it reaches every item.")
@click.option("--item", default="", help="Run PAPER/ITEM alone, in this process.")
@click.option("--plan", "planning", is_flag=True, help="Say what it will take, and run nothing.")
def main(data: Path, starts: tuple[str, ...], device: str, item: str, planning: bool) -> None:
    """Runs what the lists of claims ask for and is not done."""
    code = Path(leakgauge.__file__).parent
    if not code.is_relative_to(RESULTS.parents[1]):  # rows would carry this clone's commit
        raise click.UsageError(f"leakgauge is imported from {code}, not from this clone: set PYTHONPATH=src")
    RESULTS.mkdir(exist_ok=True)
    found = [job for job in jobs(tuple(map(int, starts)) or STARTS, device) if item in ("", f"{job.paper}/{job.item}")]
    if planning:
        click.echo("\n".join(plan(found)))
        return
    for job in found:
        if job.done():
            log(f"done {job.words}")
        elif item:
            job.measure(data)
        else:
            log(f"begin {job.words}")
            began = time.perf_counter()
            code = apart(job, data)
            log(f"end {job.words}: exit {code}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
