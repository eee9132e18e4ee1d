"""MKOR's tables on MNIST (2, 6 and 7): LeNet-5 and the "modified" network, random batches of 100."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from leakgauge.attacks.matching import LBFGS, Matching, Normal, Pixels, SquaredL2
from leakgauge.attacks.recipes import inverting_gradients
from leakgauge.clients import FedSGD, client_update
from leakgauge.compute import Budget, Compute
from leakgauge.data import Parquet
from leakgauge.defenses import Defense, NoDefense, Soteria, noise
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Attack, Knowledge, Observation, Reconstruction, Status
from leakgauge.servers.imprint import ClassFishing
from leakgauge.servers.mkor import MKOR, Decoy, LossTreatment, NLLRaw
from leakgauge.servers.server import Honest, Server
from leakgauge.task import Batch, DataSpec, Task
from reproduce.item import Inputs
from reproduce.mkor.batches import random_batches
from reproduce.mkor.identity import IdentityTaps, modified_lenet5
from reproduce.mkor.lenet5 import LeNet5Taps, lenet5
from reproduce.mkor.scoring import Tally, baseline_scores, common_scores, paper_scores, single_scores
from reproduce.rows import Row

DATA = DataSpec((1, 28, 28), 10)
BATCH, BATCHES = 100, 10
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Network:
    """A target and MKOR's taps for it."""

    name: str
    build: Callable[[], torch.nn.Module]
    taps: Callable[[float], object]


NETWORKS = (
    Network("LeNet5", lambda: lenet5(classes=10, channels=1), lambda ratio: LeNet5Taps(noise=ratio)),
    Network("modified", lambda: modified_lenet5(classes=10, channels=1, size=28), lambda _: IdentityTaps()),
)


@dataclass(frozen=True)
class Condition:
    """The defence of a table, by network."""

    item: str
    defense: dict[str, Defense]
    ratio: dict[str, float]
    labels_known: bool


UNDEFENDED = Condition(
    "table2", {n.name: NoDefense() for n in NETWORKS}, {n.name: 0.0 for n in NETWORKS}, labels_known=False
)
RATIOS = {"LeNet5": 1e-2, "modified": 1e-1}
NOISY = Condition("table6", {k: noise(tensor_std=v) for k, v in RATIOS.items()}, RATIOS, labels_known=True)
SOTERIA = Condition(
    "table7", {n.name: Soteria(prune=30.0) for n in NETWORKS}, {n.name: 0.0 for n in NETWORKS}, labels_known=False
)


def observed(
    network: Network,
    server: Server,
    defense: Defense,
    batch: Batch,
    seed: int,
    *,
    labels: bool,
    adapts: bool = True,
    device: str = "cpu",
) -> Observation:
    """One client's update as the server sees it; one that does not adapt is not told the defence."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        honest = Task.of(network.build(), DATA)
    sent = server.broadcast(honest, Draws(seed).generator("server"))
    task = sent.task.to(torch.empty((), device=device))
    batch = Batch(batch.inputs.to(device), batch.labels.to(device))
    update = client_update(task, FedSGD(), batch, Draws(seed), defense=defense)
    knowledge = Knowledge(
        labels=batch.labels if labels else None,
        example_count=len(batch),
        local_training=FedSGD(),
        defense=defense if adapts else None,
        crafting=sent.crafting,
    )
    return Observation(task, update, knowledge)


def attacked(observation: Observation, attack: Attack, seed: int, evaluations: int | None = None) -> Reconstruction:
    """The attack's answer within a budget."""
    budget, device = Budget(gradient_evaluations=evaluations), next(iter(observation.task.parameters.values())).device
    compute = Compute(device=str(device))
    found = attack.reconstruct(observation, Draws(seed).generator("attack"), budget=budget, compute=compute)
    return replace(
        found,
        inputs=None if found.inputs is None else found.inputs.cpu(),
        labels=None if found.labels is None else found.labels.cpu(),
    )


def batches_of(source: Parquet, seed: int) -> list[Batch]:
    """Ten disjoint batches of a shuffled test set."""
    generator = torch.Generator().manual_seed(seed)
    return [source.read(part) for part in random_batches(source.labels, BATCH, BATCHES, generator)]


def mkor_rows(source: Parquet, condition: Condition, inputs: Inputs) -> Iterator[Row]:
    """MKOR as published, and under the cross-entropy of a real client; against Soteria also one that adapts."""
    seeds = inputs.seeds(SEEDS[:1] if inputs.quick else SEEDS)
    attacks: list[tuple[str, LossTreatment, bool]] = [
        ("MKOR", NLLRaw(), False),
        ("MKOR, cross-entropy with decoy", Decoy(), False),
    ]
    if condition is SOTERIA:
        attacks.append(("MKOR, unsent features left open", NLLRaw(), True))
    for network in NETWORKS:
        for name, loss, adapts in attacks:
            server = MKOR(taps=network.taps(condition.ratio[network.name]), loss=loss)
            run = partial(crafted_rows, source, network, server, condition, seeds, inputs, name, adapts=adapts)
            yield from inputs.once(network.name, name, run)


def crafted_rows(
    source: Parquet,
    network: Network,
    server: MKOR,
    condition: Condition,
    seeds: Sequence[int],
    inputs: Inputs,
    name: str,
    *,
    item: str = "",
    adapts: bool = False,
) -> Iterator[Row]:
    """A crafted network on ten batches of every seed."""
    item, doubt = item or condition.item, _mkor_doubt(network.name, condition)
    tally = Tally("mkor", item, network.name, name, doubt)
    for seed in seeds:
        for batch in batches_of(source, seed):
            defense, labels = condition.defense[network.name], condition.labels_known
            seen = observed(network, server, defense, batch, seed, labels=labels, adapts=adapts, device=inputs.device)
            found = attacked(seen, seen.knowledge.crafting, seed)
            tally.add(seed, paper_scores(found, batch) | common_scores(found, batch), found)
    inputs.say(f"{item} {network.name} {name}")
    yield from tally.rows(seeds)


def _mkor_doubt(network: str, condition: Condition) -> str:
    if network == "modified" and condition is SOTERIA:
        return "over 30 % of MNIST's features are always 0, so their score's 30th percentile is 0 and nothing is pruned"
    return "a single linear layer on the raw image" if network == "modified" else ""


@dataclass(frozen=True)
class Baseline:
    """An attack on the honest network; MKOR itself is given no labels."""

    name: str
    build: Callable[[int], Attack]
    labels: bool = True


BASELINES = (
    Baseline("Inverting Gradients", lambda steps: inverting_gradients(steps=steps)),
    Baseline("Inverting Gradients, labels counted", lambda steps: inverting_gradients(steps=steps), labels=False),
    Baseline("DLG", lambda steps: _l2(steps)),
)
"""What decides a claim runs first."""


def _l2(steps: int) -> Matching:
    return Matching(
        objective=SquaredL2(),
        canvas=Pixels(first=Normal(), box=False),
        minimiser=LBFGS(steps=steps),
    )


def baseline_rows(source: Parquet, condition: Condition, inputs: Inputs) -> Iterator[Row]:
    """The paper's baselines on the honest network: each attack with the same evaluations.
    Quick: one batch.

    A grey picture and the pictures of other digits stand beside them, scored by the same rules.
    """
    steps, count = (60, 1) if inputs.quick else (300, BATCHES)
    for network in NETWORKS:
        batches = batches_of(source, inputs.seed(0))[:count]
        for one in BASELINES:
            run = partial(_baseline, network, one, batches, condition, steps, inputs)
            yield from inputs.once(network.name, one.name, run)
        for name, pictures in FLOORS.items():
            if not inputs.wants(network.name, name):
                continue
            tally = Tally("mkor", condition.item, network.name, name, "no attack")
            for batch in batches:
                found = pictures(source, batch, inputs.seed(0))
                tally.add(0, baseline_scores(found, batch), found)
            yield from tally.rows((0,))
        yield from inputs.once(
            network.name, "class fishing", partial(_fishing, network, batches, condition, steps, inputs)
        )


def _baseline(
    network: Network,
    one: Baseline,
    batches: Sequence[Batch],
    condition: Condition,
    steps: int,
    inputs: Inputs,
) -> Iterator[Row]:
    tally = Tally("mkor", condition.item, network.name, one.name)
    statuses = set()
    for batch in batches:
        seen = observed(
            network,
            Honest(),
            condition.defense[network.name],
            batch,
            inputs.seed(0),
            labels=one.labels,
            adapts=False,
            device=inputs.device,
        )
        found = attacked(seen, one.build(steps), inputs.seed(0), steps)
        tally.add(0, baseline_scores(found, batch), found)
        statuses.add(found.status.name.lower().replace("_", " "))
    spent = " to ".join(str(n) for n in sorted({min(tally.evaluations), max(tally.evaluations)}))
    ended = ", ".join(sorted(statuses))
    given = "given" if one.labels else "counted"
    tally.doubt = f"{len(batches)} of 10 batches, {spent} evaluations ({ended}), labels {given}, honest network"
    inputs.say(f"{condition.item} {network.name} {one.name}: {spent} evaluations, {ended}")
    yield from tally.rows((0,))


def _fishing(
    network: Network, batches: Sequence[Batch], condition: Condition, steps: int, inputs: Inputs
) -> Iterator[Row]:
    tally = Tally("mkor", condition.item, network.name, "class fishing")
    try:
        for batch in batches:
            found, image = fished(network, condition.defense[network.name], batch, steps, inputs)
            tally.add(0, single_scores(found, image), found)
    except InputError as error:
        inputs.say(f"{condition.item} {network.name} class fishing not run: {error}")
        return
    tally.doubt = f"{len(batches)} of 10 batches, one image of each"
    yield from tally.rows((0,))


def grey(source: Parquet, batch: Batch, seed: int) -> Reconstruction:
    """Mid-grey pictures with the batch's labels."""
    del source, seed
    return Reconstruction(torch.full_like(batch.inputs, 0.5), batch.labels, Status.CONVERGED)


def strangers(source: Parquet, batch: Batch, seed: int) -> Reconstruction:
    """For each image another digit of its class, none of them in a batch that is attacked."""
    outside = torch.tensor(sorted(set(range(len(source))) - set(_attacked(source, seed))))
    labels = source.labels[outside]
    places = {label: iter(outside[labels == label].tolist()) for label in range(DATA.classes)}
    chosen = [next(places[int(label)]) for label in batch.labels]
    return Reconstruction(source.read(chosen).inputs, batch.labels, Status.CONVERGED)


def _attacked(source: Parquet, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [i for part in random_batches(source.labels, BATCH, BATCHES, generator) for i in part]


FLOORS: dict[str, Callable[[Parquet, Batch, int], Reconstruction]] = {
    "grey picture": grey,
    "another picture of the class": strangers,
}


def fished(
    network: Network, defense: Defense, batch: Batch, steps: int, inputs: Inputs
) -> tuple[Reconstruction, torch.Tensor]:
    """Class fishing for the rarest class of the batch, cut to one example of it, and that example."""
    counts = torch.bincount(batch.labels, minlength=DATA.classes)
    target = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
    mine = (batch.labels == target).nonzero().flatten()
    keep = torch.ones(len(batch), dtype=torch.bool)
    keep[mine[1:]] = False
    alone = batch.take(keep.nonzero().flatten())
    seed, server = inputs.seed(0), ClassFishing(target=target)
    seen = observed(network, server, defense, alone, seed, labels=False, device=inputs.device)
    return attacked(seen, seen.knowledge.crafting, seed, steps), batch.inputs[mine[:1]]


def table(condition: Condition) -> Callable[[Inputs], Iterator[Row]]:
    """The measurement of one table."""

    def measure(inputs: Inputs) -> Iterator[Row]:
        source = Parquet(path=str(inputs.data / "mnist-test.parquet"), channels=1)
        yield from mkor_rows(source, condition, inputs)
        yield from baseline_rows(source, condition, inputs)

    return measure
