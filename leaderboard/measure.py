"""Rows of a board: defences in their scenes, and what somebody else read, scored again."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import Any

import cloudpickle
import torch

import leakgauge
from leaderboard.board import (
    AUTO,
    NONE,
    PRIOR,
    SEARCH,
    Asked,
    Board,
    BoardCell,
    BoardPrivacy,
    BoardRow,
    Scene,
    own_code,
)
from leakgauge.compute import Compute
from leakgauge.defenses import Defense, layers_of
from leakgauge.errors import FOREIGN, InputError, said
from leakgauge.frontiers.columns import trainer
from leakgauge.frontiers.plan import resolve_frontier
from leakgauge.intervals import proportion_interval
from leakgauge.observation import Reconstruction, Status
from leakgauge.privacy.guarantee import DELTA, USEFUL, NoGuarantee, spent_in_one_update
from leakgauge.privacy.tested import Claim, NoisePath, check_claim
from leakgauge.resolve import resolve_defense
from leakgauge.study.judging.findings import by_strangers
from leakgauge.study.judging.records import Trial
from leakgauge.study.judging.results import Finding, Level, TrialGroup, groups_of
from leakgauge.study.judging.verdict import told
from leakgauge.study.levels import standing
from leakgauge.study.plan import Plan
from leakgauge.study.run import Job
from leakgauge.study.trial import run_trial
from leakgauge.workers import Jobs, LocalPool, LostJob, packed

LONGEST = 3600.0  # seconds of a trial
CANARIES, SIZE = 500, 1000  # of a test of ε
UTILITY = {"clients": 100, "per_round": 10, "rounds": 15, "examples": 20_000, "test_examples": 4000}
"""The training that accuracy is measured in: `leakgauge frontier --quick`'s."""
OnRow = Callable[[BoardRow], None]


def versions() -> dict[str, str]:
    """Of the package, its attacks, and a digest of the sources that attack."""
    root, whole = Path(leakgauge.__file__).parent, hashlib.sha256()
    for path in sorted(p for room in ("attacks", "view") for p in (root / room).rglob("*.py")):
        whole.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    own = {name: str(standing("attacks", name).version) for name in ("auto", "adapted", "naive")}
    package = {"leakgauge": leakgauge.__version__, "torch": str(torch.__version__)}
    return package | {"attacks": whole.hexdigest()[:12]} | own


@dataclass(frozen=True)
class BoardJob:
    """A trial of the plan at that place."""

    place: int
    job: Job


def _begin(ground: tuple[bytes, Compute]) -> Callable[[BoardJob], tuple[int, Trial]]:
    ground[1].apply()
    plans: list[Plan] = cloudpickle.loads(ground[0])

    def run(one: BoardJob) -> tuple[int, Trial]:
        plan, job, began = plans[one.place], one.job, time.process_time()
        trial = run_trial(plan, job.key, compute=ground[1], counts_only=True, lost=job.lost).trial.judged
        spent = round(time.process_time() - began, 2)  # of the processor: machines are shared
        return one.place, replace(trial, cost=replace(trial.cost, seconds=spent))

    return run


def measure(
    board: Board,
    scene: Scene,
    asked: Sequence[Asked],
    workers: int,
    on_row: OnRow,
) -> None:
    """Rows of these defences in a scene, the row without a defence before them where there is none; each is kept once
    all its trials are there, and measured again where code of the user's own is another."""
    if board.row(scene, NONE) is None:
        _run(board, scene, [Asked("none")], [scene.undefended], workers, on_row)
    plans, left = [], []
    for one in asked if board.row(scene, NONE) is not None else ():
        label = resolve_defense(one.defense, "defense").label
        there = board.row(scene, label)
        try:
            plan = scene.plan(one.defense)
        except FOREIGN as error:  # a defence is anybody's
            if there is None:
                why = error.problem if isinstance(error, InputError) else said(error)
                _done(board, row_of(scene, label, one, refused=why), on_row)
            continue
        if there is None or there.code != own_code(plan):
            plans.append(plan)
            left.append(one)
    if plans:
        _run(board, scene, left, plans, workers, on_row)


def _run(
    board: Board, scene: Scene, asked: Sequence[Asked], plans: Sequence[Plan], workers: int, on_row: OnRow
) -> None:
    found = defaultdict[int, list[Trial]](list)
    keys = [[key for key in plan.trials() if not key.control] for plan in plans]

    def keep(answer: tuple[int, Trial]) -> None:
        place, trial = answer
        found[place].append(trial)
        if len(found[place]) == len(keys[place]):
            trials = sorted(found.pop(place), key=lambda one: one.id)
            _done(board, _judged(board, scene, asked[place], plans[place], trials), on_row)

    def note(one: BoardJob, _: LostJob, reason: str) -> None:
        lost = Reconstruction(None, None, Status.FAILED, f"the trial gave no answer: {reason}")
        again.append(replace(one, job=replace(one.job, lost=lost)))

    again: list[BoardJob] = []
    jobs = [BoardJob(place, Job(key)) for place, each in enumerate(keys) for key in each]
    ground = packed(list(plans), "leaderboard"), Compute()
    all_ = Jobs(
        jobs, keep, begin=_begin, ground=ground, kept="rows", on_lost=note, limit=plans[0].keys.budget.trial_seconds
    )
    LocalPool(workers).run_all(all_)
    if again:
        LocalPool(workers).run_all(replace(all_, each=again))


def _done(board: Board, row: BoardRow, on_row: OnRow) -> None:
    board.keep(row)
    on_row(row)


def row_of(scene: Scene, label: str, asked: Asked, **found: Any) -> BoardRow:
    own = {"defense": asked.defense, "reported": asked.reported, "versions": versions()}
    return BoardRow(scene=scene.name, digest=scene.digest, label=label, **{**own, **found})


def _judged(board: Board, scene: Scene, asked: Asked, plan: Plan, trials: Sequence[Trial]) -> BoardRow:
    seconds = round(sum(trial.cost.seconds for trial in trials) / plan.data.batches, 2)
    if asked.defense == "none":
        by = cells(trials, trials)
        _done(board, _prior(scene, trials), lambda _: None)
        own = {"kind": NONE, "naive": by[AUTO], "adapted": by[AUTO], "power": by[SEARCH], "trials": tuple(trials)}
        return row_of(scene, NONE, asked, seconds=seconds, **own)
    none = board.row(scene, NONE)
    assert none is not None
    named, by = plan.defenses[0], {first.split("(")[0]: cell for first, cell in cells(trials, none.trials).items()}
    return row_of(
        scene,
        named.label,
        asked,
        naive=by["naive"],
        adapted=by["adapted"],
        power=none.power,
        privacy=privacy_of(named.value, plan),
        seconds=seconds,
        code=own_code(plan),
    )


def cells(trials: Sequence[Trial], undefended: Sequence[Trial]) -> dict[str, BoardCell]:
    """Attack → what it came to, judged beside the search alone on the same clients without a defence."""
    groups, found = groups_of(trials), {}
    searched = [trial for trial in undefended if trial.attack == SEARCH]
    for group in groups:
        controls = groups_of([replace(trial, attack=group.attack, control=True) for trial in searched])
        found[group.attack] = cell_of(told(group, [group, *controls, *(g for g in groups if g is not group)]), group)
    return found


def cell_of(found: Finding, group: TrialGroup) -> BoardCell:
    """A count stands where something came back, or by a search with power."""
    seen, total = found.identified, found.clients * group.scenario.data.batch
    leaked = found.level in (Level.EXPOSED, Level.PARTIAL)
    powerless = "the search has no power here undefended" if not found.power.shown else ""
    if found.level is Level.NOT_APPLICABLE or seen is None:
        powerless = f"no attack gave a result: {group.trials[0].message or group.trials[0].status}"
    return BoardCell(
        count=0 if seen is None else seen.count,
        n=total if seen is None else seen.n,
        low=0.0 if seen is None else seen.low,
        high=1.0 if seen is None else seen.high,
        recovered=found.recovered or 0,
        certified=found.certified,
        psnr=None if found.psnr is None else found.psnr.mean,
        highest=None if found.psnr is None else found.psnr.highest,
        stands=leaked or not powerless,
        said="" if leaked else powerless,
        flags=tuple(flag.kind for flag in found.flags),
        reasons=tuple(flag.sentence for flag in found.flags),
        level=found.level.value,
    )


def _prior(scene: Scene, trials: Sequence[Trial]) -> BoardRow:
    """What reads of other clients' updates show of a client, or the mean public picture: whichever identifies more."""
    group = next(g for g in groups_of(trials) if g.attack == AUTO)
    means = [t.controls.mean_image for t in group.trials]
    own, n = sum(mean.identified for mean in means), len(group.trials) * group.scenario.data.batch
    hits, tried = by_strangers(group)
    if tried and hits / tried >= own / n:
        own, n = hits, tried
    psnr = [value for other in group.others for value in other.psnr]
    ends = proportion_interval(own, n)
    middle = round(fmean(psnr), 3) if psnr else None
    cell = BoardCell(own, n, ends.low or 0.0, 1.0 if ends.high is None else ends.high, 0, 0, middle, middle, True)
    return row_of(scene, PRIOR, Asked("none"), kind=PRIOR, naive=cell, adapted=cell)


def privacy_of(defense: Defense, plan: Plan) -> BoardPrivacy:
    """What the code of a defence states of one update, and what canaries through it refute."""
    task, examples = plan.broadcast(plan.trials()[0]).task, plan.data.batch
    stated = spent_in_one_update(defense, [plan.clients[0].value], examples, len(layers_of(task.parameters)))
    if isinstance(stated, NoGuarantee):
        return BoardPrivacy(reason=stated.reason)
    epsilon = stated.epsilon(DELTA)
    if epsilon >= USEFUL:
        return BoardPrivacy(unit=stated.unit.value, reason=f"beyond use (over {USEFUL:g})")
    told = BoardPrivacy(float(f"{epsilon:.4g}"), stated.unit.value)
    try:
        path = NoisePath.of_defense(defense, examples)
        claim, generator = Claim.of_noise(path.noise_multiplier, DELTA), torch.Generator().manual_seed(0)
        tested = check_claim(path, claim, clip=path.clip, generator=generator, canaries=CANARIES, size=SIZE)
    except InputError as error:
        return replace(told, outcome=f"not tested: {error.problem}")
    return replace(told, refuted=float(f"{tested.epsilon:.4g}"), outcome=tested.outcome.value)


def accuracy_lost(defense: Any, train: Any, test: Any) -> float | None:
    """Points of test accuracy that the small ConvNet loses by a defence; `None` where a training diverged,
    or came to no more without it than the same answer for all."""
    utility = UTILITY | {"train": train, "test": test}
    plan = resolve_frontier({"data": {"images": 1}, "defenses": {"row": [defense]}, "utility": utility})
    run = trainer(plan, Path(mkdtemp(prefix="leakgauge-")))
    without, behind = (run(row.training) for row in plan.rows)
    learned = without.low is not None and without.constant is not None and without.low > without.constant
    if not learned or without.value is None or behind.value is None:
        return None
    return round(100 * (without.value - behind.value), 2)
