"""One attack on one client's batch, scored by the sum of absolute errors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from leakgauge.attacks.matching import Matching
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR, assign
from leakgauge.observation import Attack, Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task
from reproduce.film import Film
from reproduce.metrics import L1
from reproduce.rows import Row

CURVE = "L1 over the search"


@dataclass(frozen=True)
class Score:
    """What one run of an attack came to, by example: the paper's sum of absolute errors, and PSNR.

    Attributes:
        curve: the error averaged over the search, by example; empty where it was not watched.
    """

    l1: list[float]
    psnr: list[float]
    evaluations: int
    seconds: float
    curve: list[float] = field(default_factory=list)


def network(build: Callable[[], nn.Module], data: DataSpec, seed: int) -> Task:
    """In float64, weights from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Task.of(build().double(), data)


def double(batch: Batch) -> Batch:
    """The same examples in float64, so that the update is not rounded."""
    return Batch(batch.inputs.double(), batch.labels)


def watched(attack: Attack, steps: int) -> tuple[Attack, Film]:
    """A matching attack of one start that keeps its pictures at the first and at every twentieth part of `steps`.

    Raises:
        TypeError: the attack does not match.
    """
    if not isinstance(attack, Matching):
        raise TypeError(f"{type(attack).__name__} has no canvas to watch")
    film = Film(attack.canvas, frozenset({1, *range(steps // 20, steps + 1, steps // 20)}))
    return replace(attack, canvas=film), film


def over_the_search(film: Film, batch: Batch) -> list[float]:
    """The sum of absolute errors of each example, averaged over the evaluations at which a film keeps pictures.

    Where the search has ended its last picture stands; what is not finite counts as a grey picture, as does a search
    that showed nothing. Divided by the evaluations, this is the area under the curve that the paper plots.
    """
    shown, found = torch.full_like(batch.inputs, 0.5), []
    for step in sorted(film.at):
        shown = film.frames.get(step, shown).to(batch.inputs)
        whole = shown.flatten(1).isfinite().all(1).view(-1, *[1] * (shown.ndim - 1))
        seen = torch.where(whole, shown, 0.5).clamp(0, 1)
        found.append(L1()(assign(seen, batch.inputs).take(seen), batch.inputs))
    return torch.stack(found).mean(0).tolist()


def score(
    task: Task,
    batch: Batch,
    attack: Attack,
    seed: int,
    budget: int | None = None,
    *,
    device: str = "cpu",
    watch: int = 0,
) -> Score:
    """Labels unknown, the number of examples and the protocol known. An attack without an answer scores grey.

    Args:
        watch: evaluations over which the error is averaged; 0 for none.
    """
    film = None
    if watch:
        attack, film = watched(attack, watch)
    told, batch = batch, Batch(batch.inputs.to(device), batch.labels.to(device))
    update = client_update(task, FedSGD(), batch, Draws(0))
    seen = Observation(task, update, Knowledge(example_count=len(batch), local_training=FedSGD()))
    started = time.perf_counter()
    found = attack.reconstruct(
        seen,
        Draws(seed).generator("attack"),
        budget=Budget(gradient_evaluations=budget),
        compute=Compute(device=device),
    )
    batch = told
    seconds = time.perf_counter() - started
    guess = torch.full_like(batch.inputs, 0.5) if found.inputs is None else found.inputs.to(batch.inputs)
    taken = assign(guess, batch.inputs).take(guess)
    l1, psnr = L1()(taken, batch.inputs).tolist(), PSNR(data_range=task.data.range)(taken, batch.inputs).tolist()
    curve = [] if film is None else over_the_search(film, batch)
    return Score(l1, psnr, found.cost.gradient_evaluations, seconds, curve)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One line of a table: a network, an attack, and whose name it stands under.

    Attributes:
        watch: evaluations over which the error is averaged as well; 0 for none.
    """

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
    watch: int = 0
    device: str = "cpu"

    def rows(self) -> Iterator[Row]:
        """Seeds are seeds of weights and of the attack's start together."""
        cost, seconds = 0, 0.0
        tables: dict[str, list[list[float]]] = {
            metric: [[] for batch in self.batches for _ in range(len(batch))]
            for metric in ("L1", "PSNR", *([CURVE] if self.watch else []))
        }
        for seed in self.seeds:
            task, at = network(self.build, self.data, seed), 0
            task = task.to(torch.empty((), dtype=torch.float64, device=self.device))
            for batch in self.batches:
                got = score(task, double(batch), self.run, seed, self.budget, device=self.device, watch=self.watch)
                cost, seconds = cost + got.evaluations, seconds + got.seconds
                for place, (l1, psnr) in enumerate(zip(got.l1, got.psnr, strict=True)):
                    tables["L1"][at].append(l1)
                    tables["PSNR"][at].append(psnr)
                    if self.watch:
                        tables[CURVE][at].append(got.curve[place])
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
