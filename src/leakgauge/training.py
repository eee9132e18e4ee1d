"""Federated training in simulation: who holds which examples, the rounds, and its state on disk."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from leakgauge.clients import FedAvg, Protocol, client_update
from leakgauge.data import InMemory, Source
from leakgauge.defenses import Defense, NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import Checked, positive, refusing, require
from leakgauge.files import replacing
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import fingerprint, finite, weighted_mean
from leakgauge.update import Update, UpdateKind

Hands = tuple[tuple[int, ...], ...]  # indices of the examples of each client


def dirichlet_partition(labels: Int[Tensor, " n"], clients: int, alpha: float, generator: torch.Generator) -> Hands:
    """Deals every example to exactly one client.

    For each class the clients' shares are drawn from Dirichlet(α, …, α), and the examples of that class, in random
    order, are cut at the cumulated shares (Hsu et al., 2019, as federated benchmarks implement it). Small α gives
    each client few classes; α → ∞ gives all the same mix.

    Differs: a client that would get nothing takes one example of the largest, so that everybody can be asked. Raises
    `InputError`: fewer examples than clients, or α that is not positive."""
    require(clients > 0, "clients", f"is {clients}", "give a positive number")
    require(alpha > 0, "alpha", f"is {alpha}", "give a positive number, e.g. 0.5")
    few = f"are {clients} for {len(labels)} examples"
    require(len(labels) >= clients, "clients", few, "give each at least one example")
    shares = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    hands: list[list[int]] = [[] for _ in range(clients)]
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        ends = np.cumsum(shares.dirichlet(np.full(clients, alpha)))[:-1]
        cuts = np.rint(ends * len(members)).astype(int).tolist()
        for hand, part in zip(hands, members.tensor_split(cuts), strict=True):
            hand += part.tolist()
    for hand in hands:
        if not hand:
            hand.append(max(hands, key=len).pop())
    return tuple(tuple(sorted(hand)) for hand in hands)


def stored(batch: Batch, data: DataSpec) -> InMemory:
    """Examples as a source; pictures that bytes hold exactly in a quarter of the memory, other data as floats."""
    raw = ((batch.inputs - data.low) / data.range * 255).round().clamp(0, 255).to(torch.uint8)
    small = InMemory(inputs=raw, labels=batch.labels, count=data.classes, low=data.low, high=data.high, steps=255)
    if torch.equal(small.read(range(len(small))).inputs, batch.inputs):
        return small
    return replace(small, inputs=batch.inputs, steps=0)


def read_stored(source: Source, data: DataSpec, most: int | None = None) -> InMemory:
    """The first `most` examples of a source, or all of them; see `stored`."""
    n = len(source) if most is None else min(most, len(source))
    parts = [stored(source.read(range(i, min(i + 5000, n))), data) for i in range(0, n, 5000)]
    if not all(p.steps for p in parts):
        parts = [replace(p, inputs=p.read(range(len(p))).inputs, steps=0) for p in parts]
    return replace(parts[0], inputs=torch.cat([p.inputs for p in parts]), labels=torch.cat([p.labels for p in parts]))


CHUNK = 500  # test examples in one forward pass


@dataclass(frozen=True)
class RoundResult:
    """What one round gave."""

    number: int  #: from 1
    accuracy: float | None  #: share of the test examples labelled right after it; `None` where it was not evaluated.
    asked: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Training:
    """A finished run. `diverged`: the round after which a parameter was not finite, or `None`."""

    rounds: tuple[RoundResult, ...]
    diverged: int | None

    @property
    def accuracy(self) -> float | None:
        """At the last evaluation; `None` where training diverged."""
        if self.diverged is not None:
            return None
        return next((r.accuracy for r in reversed(self.rounds) if r.accuracy is not None), None)

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        return tuple((r.number, r.accuracy) for r in self.rounds if r.accuracy is not None)


@dataclass(frozen=True, kw_only=True)
class FederatedTraining(Checked):
    """Federated averaging (McMahan et al., 2017) with a defence on every client.

    Each round `per_round` clients, drawn without replacement, train from the broadcast parameters θ by
    `leakgauge.clients.client_update`, the function that audits attack. The server takes the mean u of their updates,
    weighted by example counts, and sets θ ← θ + server_lr·u for deltas, θ ← θ − server_lr·u for gradients. Buffers
    (BatchNorm statistics) are averaged with the same weights.

    All randomness of round r comes from `seed` and r: a run resumed from its checkpoint equals one never stopped."""

    rounds: int = positive(100)
    per_round: int = positive(10)  #: clients asked in each; all of them where there are fewer.
    client: Protocol = field(default_factory=lambda: FedAvg(batch_size=32, lr=0.2, shuffle=True))
    defense: Defense = field(default_factory=NoDefense)
    server_lr: float = positive(1.0)  #: step of the server; 1 is plain averaging of deltas, gradients want less.
    evaluate_every: int = positive(10)  #: rounds between two evaluations; the last round is always evaluated.
    seed: int = 0  #: of the choice of clients and of their draws

    def identity(self, task: Task, train: InMemory, hands: Hands) -> str:
        """What a checkpoint must agree with: settings, examples, who holds what, and the first parameters."""
        dealt = hashlib.sha256(repr(hands).encode()).hexdigest()[:16]
        first = sum(float(p.detach().double().abs().sum()) for p in task.parameters.values())
        data = fingerprint(train.inputs, train.labels)
        return f"{self!r} {task.name} {task.mode.value} {data} {len(hands)} clients {dealt} from {first:.9g}"

    def run(
        self,
        task: Task,
        train: InMemory,
        hands: Hands,
        test: InMemory,
        *,
        checkpoint: Path | None = None,
        on_round: Callable[[RoundResult], None] | None = None,
    ) -> Training:
        """Trains from the parameters of `task`; `checkpoint` is a file that is replaced after each round and resumed
        from. Raises `InputError`: defence, protocol and model do not go together, or the checkpoint is of another run
        or damaged."""
        task = self.defense.on_task(task)
        rounds: list[RoundResult] = []
        identity = self.identity(task, train, hands)
        held = read_checkpoint(checkpoint, identity)
        if held is not None:
            task, rounds = task.with_state(held["state"]), [RoundResult(**r) for r in held["records"]]
        while len(rounds) < self.rounds and all(map(finite, task.parameters.values())):
            began = time.perf_counter()
            task, asked = self.step(task, train, hands, len(rounds))
            number, score = len(rounds) + 1, None
            due = number % self.evaluate_every == 0 or number == self.rounds
            if due and all(map(finite, task.parameters.values())):
                score = accuracy(task, test)
            rounds.append(RoundResult(number, score, asked, time.perf_counter() - began))
            if checkpoint is not None:
                state = {**task.parameters, **task.buffers}
                save_checkpoint(checkpoint, identity, {"state": state, "records": [asdict(r) for r in rounds]})
            if on_round is not None:
                on_round(rounds[-1])
        return Training(tuple(rounds), None if all(map(finite, task.parameters.values())) else len(rounds))

    def step(self, task: Task, train: InMemory, hands: Hands, number: int) -> tuple[Task, tuple[int, ...]]:
        """Round `number` (from 0) of the defended task: the next task, and who was asked."""
        asked = self.asked(len(hands), number)
        updates = [self.update(task, train, hands[c], number * len(hands) + c) for c in asked]
        return aggregate(task, updates, [len(hands[c]) for c in asked], self.server_lr), asked

    def asked(self, clients: int, number: int) -> tuple[int, ...]:
        """Who trains in round `number` (from 0)."""
        order = torch.randperm(clients, generator=Draws(self.seed).generator("clients", number))
        return tuple(order[: self.per_round].tolist())

    def update(self, task: Task, train: InMemory, hand: tuple[int, ...], index: int) -> Update:
        """What one client sends. `task` is the defended one, `index` numbers the client's turn in the run."""
        own = Draws.sample(Draws(self.seed).generator("turn", index))
        batch = train.read(hand)
        buffers = bool(task.buffers)
        return client_update(
            task, self.client, batch, own, defense=self.defense, send_buffers=buffers, task_stage=False
        )


def aggregate(task: Task, updates: list[Update], counts: list[int], server_lr: float) -> Task:
    """The server's step: example-weighted mean of the updates, and of the buffers where they were sent."""
    sign = 1.0 if updates[0].header.kind is UpdateKind.DELTA else -1.0
    moved = weighted_mean(counts, [update.tensors for update in updates])
    state = {k: p + sign * server_lr * moved[k] for k, p in task.parameters.items()}
    return task.with_state(state | weighted_mean(counts, [update.buffers or {} for update in updates]))


def accuracy(task: Task, test: InMemory) -> float:
    task = task.in_eval()
    hits = 0
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # for modules that draw even now
        for index in torch.arange(len(test)).split(CHUNK):
            batch = test.read(index.tolist())
            logits = task.logits(task.parameters, task.buffers, batch.inputs)[0]
            hits += int((logits.argmax(1) == batch.labels).sum())
    return hits / len(test)


def save_checkpoint(path: Path, identity: str, state: dict[str, Any]) -> None:
    """Replaces the file at once, so that a run killed while it writes loses nothing. `identity` says whose it is."""
    refuse = refusing("output", f"{path} cannot be written", "free space, then run again", OSError, RuntimeError)
    with refuse, replacing(path) as fresh:
        torch.save({"identity": identity, **state}, fresh)


def read_checkpoint(path: Path | None, identity: str) -> dict[str, Any] | None:
    """What was saved; `None` where there is no file."""
    if path is None or not path.exists():
        return None
    with refusing("checkpoint", f"{path} cannot be read", "remove it to start again"):
        state = torch.load(path, weights_only=True)
    mine = isinstance(state, dict) and state.get("identity") == identity
    other = f"{path} belongs to a run with other settings or data"
    require(mine, "checkpoint", other, "remove it, or give another output")
    return dict(state)
