"""leakgauge beside `breaching` 0.1.2, on the same photo, weights, label and threads: `make bench-peers`.

`python benchmarks/peers.py run …` appends a row after each run to `--out` and leaves out what is there; `page` makes
table and plots of it. Each run is a process of its own, the sides take turns, and seconds are those of the processor,
so that other jobs matter little. Truth is known to this script alone. leakgauge's quality at a time is that of the
point with the lowest objective so far, what an attack stopped there would return; the other side's is the *highest*
PSNR that any candidate has had so far, which favours it.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakgauge.attacks.matching import Adam, Cosine, Matching, Pixels, TotalVariation
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet, Samples, spec
from leakgauge.draws import Draws
from leakgauge.metrics.metric import PSNR
from leakgauge.models import convnet, lenet, resnet18, resnet20
from leakgauge.observation import Knowledge, Observation, Step
from leakgauge.task import Batch, Task

NETWORKS: dict[str, Callable[[Case], nn.Module]] = {
    "lenet": lambda case: lenet(size=case.size),
    "convnet": lambda case: convnet(width=case.width, size=case.size),
    "resnet20": lambda case: resnet20(width=case.width),
    "resnet18": lambda case: resnet18(width=case.width),
}
HELD_OUT = range(7000, 7010)
"""Photos of the table. Settings of either side were chosen on others (6000 and 6001)."""

OURS, THEIRS = "leakgauge", "breaching"


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        kind: `quality` follows the attack to its end; `steps` times `evaluations` plain steps of signed Adam with a
            cosine distance and a total variation, which both have.
        evaluations: steps at most.
        seconds: of the processor, at most.
    """

    kind: str
    network: str
    side: str
    setting: str
    photo: int
    evaluations: int
    seconds: float | None = None
    width: int = 64
    size: int = 32
    batch: int = 1
    restarts: int = 1
    repeat: int = 0
    seed: int = 11


def observed(case: Case, data: Path | None) -> tuple[Observation, Batch]:
    """What both sides are given, and the truth."""
    source = Samples(size=case.size) if data is None else Parquet(path=str(data), size=case.size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        task = Task.of(NETWORKS[case.network](case), spec(source))
    wanted = range(case.photo, case.photo + case.batch)
    batch = source.read([i % len(source) for i in wanted])
    update = client_update(task, FedSGD(), batch, Draws(case.seed))
    knowledge = Knowledge(labels=batch.labels, example_count=case.batch, local_training=FedSGD())
    return Observation(task, update, knowledge), batch


class Watch:
    """(evaluations, seconds of the processor, PSNR) of a run, thinned to some two hundred points."""

    def __init__(self, case: Case, task: Task, truth: Batch) -> None:
        self._case, self._task, self._truth = case, task, truth
        self._overhead = 0.0
        self.began = time.process_time()
        self.count = 0
        self.best = -math.inf
        self.warm: tuple[int, float] | None = None
        self.seen: list[tuple[int, float, float]] = []

    @property
    def seconds(self) -> float:
        """Since the start, without what watching took."""
        return time.process_time() - self.began - self._overhead

    def psnr(self, z: Tensor) -> float:
        """Of normalised pictures, clamped, mean over the batch in its order."""
        return float(PSNR()(self._task.data.denormalise(z).float(), self._truth.inputs).mean())

    def look(self, z: Tensor, *, highest: bool) -> None:
        """Notes a point."""
        now = self.seconds
        began = time.process_time()
        every = 1 if self.count < 100 else 5 if self.count < 1000 else 20
        if self._case.kind == "quality" and self.count % every == 0:
            score = self.psnr(z)
            self.best = max(self.best, score) if highest else score
            self.seen.append((self.count, round(now, 3), round(self.best, 2)))
        self.count += 1
        self._overhead += time.process_time() - began

    def started(self, evaluations: int) -> None:
        """Notes the first point from which steps are timed: those before it warm up."""
        if self.warm is None and evaluations >= 3 * self._case.restarts:
            self.warm = evaluations, self.seconds

    def pace(self, spent: float) -> float:
        """Milliseconds an evaluation since then."""
        count, seconds = self.warm or (0, 0.0)
        return 1000 * (spent - seconds) / max(self.count - count, 1)

    @property
    def late(self) -> bool:
        """Whether its time is up."""
        return self._case.seconds is not None and self.seconds > self._case.seconds


def one(case: Case, data: Path | None) -> dict[str, Any]:
    """Runs a case in this process."""
    Compute().apply()
    seen, truth = observed(case, data)
    run = _ours(case, seen, truth) if case.side == OURS else _theirs(case, seen, truth)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch, picture = run()
    spent = watch.seconds
    row = asdict(case) | {
        "seconds_spent": round(spent, 3),
        "evaluations_spent": watch.count,
        "milliseconds_a_step": round(watch.pace(spent), 3),
        "peak_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024,
        "torch": torch.__version__,
    }
    if case.kind == "steps":
        return row
    first = next(((n, s) for n, s, score in watch.seen if score >= 20), None)
    return row | {"final": round(watch.psnr(picture), 2), "to_20_db": first, "trace": thinned(watch.seen)}


def thinned(points: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """About sixty, closer at the start, and the last."""
    wanted = {round(len(points) ** (i / 60)) for i in range(61)}
    return [p for i, p in enumerate(points, 1) if i in wanted]


def _ours(case: Case, seen: Observation, truth: Batch) -> Callable[[], tuple[Watch, Tensor]]:
    from minimisers import Watched

    def run() -> tuple[Watch, Tensor]:
        generator = torch.Generator().manual_seed(case.photo)
        watch = Watch(case, seen.task, truth)
        budget = Budget(gradient_evaluations=case.evaluations * case.restarts)

        def on_step(step: Step) -> bool:
            watch.started(step.gradient_evaluations)
            return watch.late

        if case.kind == "steps":
            attack = Matching(
                objective=Cosine(),
                prior=TotalVariation(1e-2),
                canvas=Pixels(),
                minimiser=Adam(steps=case.evaluations),
                restarts=case.restarts,
            )
        else:
            auto = Auto(smooth_steps=case.evaluations, rough_steps=case.evaluations)
            attack = auto.choice(seen.task, generator, evaluations=case.evaluations, examples=case.batch)
            minimiser = Watched(attack.minimiser, lambda _: 0.0, 0.0, noted=lambda z: watch.look(z, highest=False))
            attack = replace(attack, minimiser=minimiser)
        found = attack.reconstruct(seen, generator, budget=budget, on_step=on_step)
        watch.count = found.cost.gradient_evaluations
        assert found.inputs is not None
        return watch, seen.task.data.normalise(found.inputs)

    return run


def _theirs(case: Case, seen: Observation, truth: Batch) -> Callable[[], tuple[Watch, Tensor]]:
    from breaching_side import attack, framework

    framework()

    def run() -> tuple[Watch, Tensor]:
        watch = Watch(case, seen.task, truth)

        def look(z: Tensor) -> bool:
            watch.started(watch.count)
            watch.look(z, highest=True)
            return watch.late

        picture = attack(seen, case.setting, case.evaluations, case.photo, look, restarts=case.restarts)()
        return watch, picture

    return run


def rows(path: Path) -> list[dict[str, Any]]:
    """Those written so far."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def same(case: Case, row: dict[str, Any]) -> bool:
    """Whether the row is of this case."""
    return all(row.get(k) == v for k, v in asdict(case).items())


def recorded(case: Case, given: argparse.Namespace) -> dict[str, Any]:
    """The row of a case: the one that is there, or that of a run in a process of its own, appended to `--out`."""
    for row in rows(given.out):
        if same(case, row):
            return row
    command = [given.python, str(Path(__file__)), "one", "--case", json.dumps(asdict(case))]
    command += ["--data", str(given.data)] if given.data else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{case} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    row = json.loads(done.stdout.splitlines()[-1])
    with given.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    return dict(row)


def median(values: list[float]) -> float:
    """Of a list that may be empty."""
    return statistics.median(values) if values else math.nan


QUALITY = ("network", "side", "setting", "evaluations", "seconds")
SHAPE = ("network", "width", "size", "batch", "restarts")


def grouped(found: list[dict[str, Any]], keys: tuple[str, ...]) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
    """Rows that agree in `keys`, with these."""
    for key in sorted({tuple(str(row[k]) for k in keys) for row in found}):
        yield list(key), [row for row in found if tuple(str(row[k]) for k in keys) == key]


def table(found: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown: quality against time and evaluations, then the cost of a step."""
    yield "| network | side | photos | s to 20 dB | evaluations to 20 dB | final dB | s | ms a step | peak MiB |"
    yield "|---" * 9 + "|"
    quality = [row for row in found if row["kind"] == "quality" and row["photo"] in HELD_OUT]
    for (network, side, setting, evaluations, _), runs in grouped(quality, QUALITY):
        first = [row["to_20_db"] or (math.inf, math.inf) for row in runs]
        reached = sum(math.isfinite(n) for n, _ in first)
        seconds, count = (f"{median([f[i] for f in first]):.3g}" for i in (1, 0))
        if 2 * reached <= len(runs):
            seconds = count = f"– ({reached} of {len(runs)})"
        fields = ("final", "seconds_spent", "milliseconds_a_step", "peak_mib")
        rest = " | ".join(f"{median([row[k] for row in runs]):.3g}" for k in fields)
        yield f"| {network} | {side}, {setting}, {evaluations} | {len(runs)} | {seconds} | {count} | {rest} |"
    yield ""
    yield "| network | width | size | batch | restarts | ours, ms a step | theirs | ratio | ours, MiB | theirs |"
    yield "|---" * 10 + "|"
    for shape, runs in grouped([row for row in found if row["kind"] == "steps"], SHAPE):
        ours, theirs, *peaks = (
            median([row[field] for row in runs if row["side"] == side])
            for field in ("milliseconds_a_step", "peak_mib")
            for side in (OURS, THEIRS)
        )
        cost = f"{ours:.3g} | {theirs:.3g} | {theirs / ours:.2f} | {peaks[0]:.0f} | {peaks[1]:.0f}"
        yield f"| {' | '.join(shape)} | {cost} |"


def plot(found: list[dict[str, Any]], folder: Path) -> None:
    """Quality against seconds of the processor, a line a run, a picture a network."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    for network in sorted({r["network"] for r in found if r["kind"] == "quality"}):
        figure = Figure(figsize=(6, 4))
        axes = figure.add_subplot()
        for side, colour in ((OURS, "tab:blue"), (THEIRS, "tab:orange")):
            runs = [r for r in found if r["kind"] == "quality" and r["network"] == network and r["side"] == side]
            for i, run in enumerate(r for r in runs if r["photo"] in HELD_OUT):
                points = [(s, score) for _, s, score in run["trace"] if s > 0]
                axes.plot(*zip(*points, strict=True), color=colour, alpha=0.5, label=None if i else side)
        axes.set_xscale("log")
        axes.set_xlabel("seconds of one core")
        axes.set_ylabel("PSNR, dB")
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        figure.savefig(folder / f"peers-{network}.svg", metadata={"Date": None})


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """What `run` asks for: photo by photo, the sides in turn."""
    for network in given.networks:
        if given.kind == "steps":
            for repeat in range(given.repeats):
                for side in (OURS, THEIRS):
                    yield Case(
                        "steps", network, side, given.setting, HELD_OUT[0], given.evaluations, None, given.width,
                        given.size, given.batch, given.restarts, repeat,
                    )  # fmt: skip
            continue
        for photo in given.photos:
            for side in given.sides:
                evaluations = given.evaluations if side == THEIRS else given.own_evaluations or given.evaluations
                setting = given.setting if side == THEIRS else "auto"
                yield Case(
                    "quality", network, side, setting, photo, evaluations, given.seconds, given.width, given.size
                )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("do", choices=("run", "one", "page"))
    parser.add_argument("--case", help="of `one`, as JSON")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "peers.jsonl")
    parser.add_argument("--page", type=Path, help="page whose table is made anew; plots go beside the results")
    parser.add_argument("--data", type=Path, help="Parquet file of photos; default: the embedded ones")
    parser.add_argument("--python", default=sys.executable, help="of the environment that has breaching")
    parser.add_argument("--kind", choices=("quality", "steps"), default="quality")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=["lenet"])
    parser.add_argument("--sides", nargs="+", choices=(OURS, THEIRS), default=[OURS, THEIRS])
    parser.add_argument("--photos", type=int, nargs="+", default=list(HELD_OUT))
    parser.add_argument("--setting", default="inverting-gradients")
    parser.add_argument("--evaluations", type=int, default=8000)
    parser.add_argument("--own-evaluations", type=int, default=600, help="of leakgauge")
    parser.add_argument("--seconds", type=float)
    for name, value in (("width", 64), ("size", 32), ("batch", 1), ("restarts", 1), ("repeats", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    if given.do == "one":
        print(json.dumps(one(Case(**json.loads(given.case)), given.data)))
        return
    if given.do == "page":
        found = rows(given.out)
        print("\n".join(table(found)))
        plot(found, given.out.parent)
        return
    for case in cases(given):
        print({k: v for k, v in recorded(case, given).items() if k != "trace"}, flush=True)


if __name__ == "__main__":
    main()
