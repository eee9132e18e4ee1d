"""Items one after the other, on one core, for hours: `python -m reproduce.queue --data FOLDER` (`make reproductions`).

Each runs in a process of its own. An item whose newest run is complete and of this very commit is passed over, and an
interrupted run goes on, so that the same command may be given again after anything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

import click

from reproduce.rows import RESULTS, commit
from reproduce.runs import newest_run

LIST = Path(__file__).parent / "queue.toml"
LOG = RESULTS / "queue.log"


@dataclass(frozen=True)
class Job:
    """One item, in full or quick."""

    item: str
    quick: bool = False

    @property
    def words(self) -> str:
        """As the log names it."""
        return self.item + (" --quick" if self.quick else "")

    def done(self) -> bool:
        """Whether its newest run is complete and of this commit."""
        paper, _, name = self.item.partition("/")
        run = newest_run(paper, name, quick=self.quick)
        if run is None or not run.get("complete", True) or not run["rows"]:
            return False
        return all(row["environment"].get("commit") == commit() for row in run["rows"])

    def run(self, data: Path) -> int:
        """Its exit code."""
        command = [sys.executable, "-m", "leakgauge", "reproduce", self.item, "--data", str(data)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        return subprocess.run([*command, *(["--quick"] if self.quick else [])], env=environment, check=False).returncode


def jobs(path: Path = LIST) -> list[Job]:
    """In the order in which they decide most claims a minute."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Job(**entry) for entry in table["job"]]


def log(words: str) -> None:
    """One line with the time (UTC) and the commit, on the terminal and in `LOG`."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())} {commit()} {words}"
    click.echo(line)
    with LOG.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@click.command()
@click.option("--data", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
def main(data: Path) -> None:
    """Runs the items of `queue.toml` that are not done."""
    RESULTS.mkdir(exist_ok=True)
    for job in jobs():
        if job.done():
            log(f"done {job.words}")
            continue
        log(f"begin {job.words}")
        began = time.perf_counter()
        code = job.run(data)
        log(f"end {job.words}: exit {code}, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
