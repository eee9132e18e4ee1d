"""Entries of somebody else's: their updates and what they read of them, scored here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from leaderboard.board import EXTERNAL, NONE, Asked, Board, BoardRow
from leaderboard.measure import cells, row_of
from leakgauge.attacks.recipes import Auto
from leakgauge.compute import Compute
from leakgauge.errors import require
from leakgauge.models.weights import read_model
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.study.grammar import read_yaml
from leakgauge.study.judging.records import Role
from leakgauge.study.trial import attempt, run_trial
from leakgauge.update import Update


def external(board: Board, folder: Path) -> BoardRow:
    """An entry of somebody else's: ``entry.yaml`` (scene, name, reported), for each client ``update-0.safetensors`` and
    ``read-0.safetensors`` with its ``inputs`` in the range of the scene's data. Beside what they read (*adapted*)
    stands `auto` without the defence (*naive*). Raises `InputError` for what does not fit the scene."""
    words = read_yaml(folder / "entry.yaml")
    (scene,), named = board.chosen([str(words.get("scene"))]), str(words.get("name"))
    none = board.row(scene, NONE)
    require(none is not None, "scene", "has no row without a defence", "run it first: leakgauge leaderboard run")
    assert none is not None
    plan, trials = scene.undefended, []
    for key in (key for key in plan.trials() if key.attack == 0):
        task, client = plan.broadcast(key).task, plan.clients[0].value
        update = Update.load(folder / f"update-{key.batch}.safetensors")
        update.check(task.parameters)
        given = read_model(folder / f"read-{key.batch}.safetensors", "read")
        fits = "inputs" in given and given["inputs"].shape[1:] == task.data.shape
        require(fits, "read", "does not fit the scene", "give `inputs`, (n, *shape)")
        seen = Observation(task, update, Knowledge(plan.examples(key).batch.labels, plan.data.batch, client))
        ours = attempt(Auto(), seen, torch.Generator().manual_seed(0), plan.budget, Compute())
        for attack, role, read in (
            ("adapted", Role.RECIPE, Reconstruction(given["inputs"].float(), None, Status.CONVERGED, "read by others")),
            ("naive", Role.NAIVE, ours),
        ):
            trial = run_trial(plan, key, compute=Compute(), counts_only=True, lost=read).trial.judged
            knows = tuple(k for k in trial.scenario.knowledge if k != "defense")
            scenario = replace(trial.scenario, defense=named, defended=True, knowledge=knows)
            trials.append(replace(trial, attack=attack, role=role, scenario=scenario))
    by, reported = cells(trials, none.trials), words.get("reported")
    row = row_of(
        scene, named, Asked(None, reported), kind=EXTERNAL, naive=by["naive"], adapted=by["adapted"], power=none.power
    )
    board.keep(row)
    return row
