"""One attack on one client's batch, scored by the sum of absolute errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR, assign
from leakgauge.observation import Attack, Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task
from reproduce.metrics import L1
from reproduce.rows import Row


@dataclass(frozen=True)
class Score:
    """What one run of an attack came to, by example: the paper's sum of absolute errors, and PSNR."""

    l1: list[float]
    psnr: list[float]
    evaluations: int
    seconds: float


def network(build: Callable[[], nn.Module], data: DataSpec, seed: int) -> Task:
    """In float64, weights from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Task.of(build().double(), data)


def double(batch: Batch) -> Batch:
    """The same examples in float64, so that the update is not rounded."""
    return Batch(batch.inputs.double(), batch.labels)


def score(task: Task, batch: Batch, attack: Attack, seed: int, budget: int | None = None) -> Score:
    """Labels unknown, the number of examples and the protocol known. An attack without an answer scores grey."""
    update = client_update(task, FedSGD(), batch, Draws(0))
    seen = Observation(task, update, Knowledge(example_count=len(batch), local_training=FedSGD()))
    started = time.perf_counter()
    found = attack.reconstruct(seen, Draws(seed).generator("attack"), budget=Budget(gradient_evaluations=budget))
    seconds = time.perf_counter() - started
    guess = torch.full_like(batch.inputs, 0.5) if found.inputs is None else found.inputs.to(batch.inputs)
    taken = assign(guess, batch.inputs).take(guess)
    l1, psnr = L1()(taken, batch.inputs).tolist(), PSNR(data_range=task.data.range)(taken, batch.inputs).tolist()
    return Score(l1, psnr, found.cost.gradient_evaluations, seconds)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One line of a table: a network, an attack, and whose name it stands under."""

    item: str
    setting: str
    attack: str
    run: Attack
    build: Callable[[], nn.Module]
    data: DataSpec
    batches: Sequence[Batch]
    seeds: Sequence[int] = (0,)
    budget: int | None = None
    doubt: str = ""

    def rows(self) -> Iterator[Row]:
        """Seeds are seeds of weights and of the attack's start together."""
        cost, seconds = 0, 0.0
        tables: dict[str, list[list[float]]] = {
            metric: [[] for batch in self.batches for _ in range(len(batch))] for metric in ("L1", "PSNR")
        }
        for seed in self.seeds:
            task, at = network(self.build, self.data, seed), 0
            for batch in self.batches:
                got = score(task, double(batch), self.run, seed, self.budget)
                cost, seconds = cost + got.evaluations, seconds + got.seconds
                for l1, psnr in zip(got.l1, got.psnr, strict=True):
                    tables["L1"][at].append(l1)
                    tables["PSNR"][at].append(psnr)
                    at += 1
        runs = len(self.seeds) * len(self.batches)
        for metric, table in tables.items():
            yield Row(
                paper="qian-hansen",
                row=self.item,
                setting=self.setting,
                attack=self.attack,
                metric=metric,
                claimed=None,
                per_image=table,
                seeds=list(self.seeds),
                gradient_evaluations=cost // runs,
                seconds=seconds / runs,
                doubt=self.doubt,
            )
