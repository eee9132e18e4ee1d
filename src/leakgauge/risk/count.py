"""What one update says about a batch: equations against unknowns, the numerical rank, and what is read whole, hidden
inputs and examples that peeling would read, told from the client's own activations without an attack."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from leakgauge.attacks.exact import Peeling
from leakgauge.attacks.exact.candidates import FACTOR, LOOSE, Shares, shares_of
from leakgauge.attacks.exact.peeling import readable_layer
from leakgauge.attacks.features.inside import Centring, Inside
from leakgauge.errors import FOREIGN, require
from leakgauge.risk.jacobian import DENSE, ModelCount, Rank, count_layers, update_rank
from leakgauge.task import Batch, Task
from leakgauge.tensors import Wire
from leakgauge.view.entries import summed
from leakgauge.view.normal import in_plain_layers

SHARED = 0.5
"""Share of its offsets that a place has in common with its neighbour: below, overlaps do not determine the input."""


@dataclass(frozen=True)
class HiddenInput:
    """One layer and the input that it may give away."""

    weight: str
    filters: int  # rows of its gradient
    places: int  # of one example that the loss reaches
    # examples in a step up to which their inputs come out whole, if all filters are alive; 0 where the overlaps of its
    # places do not determine them.
    largest: int
    room: int  # rows that its gradient can hold
    batched: bool  # whether batch statistics behind it take one row off each step

    def whole(self, parts: Sequence[int]) -> bool:
        """Whether what it is given comes out of a sum of steps, one client's or several', of so many examples each."""
        rows = self.places * sum(parts) - self.batched * len(parts)
        return self.largest > 0 and rows <= self.room

    @property
    def words(self) -> str:
        return f"{self.weight}: {self.filters} filters, {self.places} places, read whole up to batch {self.largest}"


def hidden_inputs(task: Task) -> tuple[HiddenInput, ...]:
    """All layers with several places, in the order in which they run; none where the model cannot be traced.

    An input of p places that reaches k filters comes out of a batch of B where k ≥ p·B (one less where a normalisation
    over the batch stands behind), see docs/explanation/convolutions.md.
    """
    if task.data.is_text or task.stochastic:
        return ()
    try:
        task = in_plain_layers(task)
        layers = Inside.of(task, 2).layers
    except FOREIGN:
        return ()
    found = []
    for layer in (one for one in layers if int(one.used.sum()) > 1):
        places, filters = int(layer.used.sum()), math.prod(layer.product.shape[:2])
        batched, room = layer.centring is Centring.BATCH, min(filters, layer.unfolding.columns - 1)
        shared = layer.unfolding.overlap >= SHARED * layer.unfolding.index.shape[1]
        fits = min(filters + batched, layer.unfolding.columns - 1) // places if places and shared else 0
        found.append(HiddenInput(layer.weight, filters, places, fits, room, batched))
    return tuple(found)


def summary(found: Sequence[HiddenInput], batch: int) -> list[str]:
    """What is printed of a model: the layers that are read at a batch, else the one that comes nearest."""
    if not found:
        return []
    read = [one for one in found if one.largest >= batch]
    if not read:
        best = max(found, key=lambda one: one.largest)
        nearest = f"; nearest {best.words}" if best.largest else ""
        return [f"hidden inputs: no layer gives them away whole at batch {batch}{nearest}"]
    most = max(one.largest for one in read)
    head = f"hidden inputs: {len(read)} layers give them away whole at batch {batch}; none above batch {most}"
    return [head, *(f"  {one.words}" for one in read)]


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What `leakgauge.attacks.exact.Peeling` would do to one batch."""

    examples: int
    units: int
    alone: int  # examples that drive some unit alone, and are read at once
    read: int
    silent: int  # examples whose gradient is below the rounding of the update: nothing can read them
    rounds: int

    @property
    def rate(self) -> float:
        return self.read / self.examples


def replay(task: Task, batch: Batch, generator: torch.Generator, *, wire: torch.dtype | None = None) -> Replay | str:
    """Replays the peeling of one FedSGD update on the activation mask: who drives which unit of the first layer.

    Row i of the layer's gradient is a sum over the examples whose s·δ_ki is not zero. An example is read when a row is
    left to it alone and its share there exceeds the row's rounding; its shares are then taken out of all rows.
    Costs one gradient a unit and example, and the client's own knowledge: `batch` is its own, raw. A text says why
    peeling does not apply. `wire`: format in which the update is sent; that of the model unless given.
    """
    require(len(batch) > 0, "batch", "is empty", "give at least one example")
    sent = Wire.through(next(iter(task.parameters.values())).dtype if wire is None else wire)
    task = in_plain_layers(task)
    tail = readable_layer(task, generator, batch.inputs.new_zeros((), dtype=torch.float64))
    if isinstance(tail, str):
        return tail
    labels = batch.labels if batch.labels.ndim == 1 else batch.labels.argmax(1)
    x = task.data.normalise(batch.inputs.double()).flatten(1)
    reach = max(1.0, float(x.abs().max()))
    return peel_mask(
        shares_of(tail, x, labels, x.new_zeros(len(x)), scale=1 / len(batch), reach=reach, wire=sent), sent
    )


def peel_mask(shares: Shares, wire: Wire) -> Replay:
    """The replay on every example's share of every row's bias entry, with errors as the attack has them.

    A row is off by its rounding, and by what the examples that were taken out of it carry: the error of their share,
    and their own, which is that of the best row that they were read from.
    """
    examples, units = shares.value.shape
    size, active = shares.value.abs(), shares.value != 0
    terms = active.sum(0).clamp_min(1)
    rounding = 3 * summed(wire, terms, size.sum(0)) + wire.errors(shares.value.sum(0))
    carried = torch.zeros_like(rounding)
    left = torch.ones(examples, dtype=torch.bool, device=size.device)
    alone = rounds = 0
    silent = ~(active & (size > FACTOR * rounding)).any(1)
    while True:
        driving = active & left[:, None]
        off = (rounding.square() + carried).sqrt() + shares.error
        heard = driving & (driving.sum(0) == 1) & (LOOSE * size > FACTOR * off)
        fresh = heard.any(1)
        if not bool(fresh.any()):
            break
        doubt = torch.where(heard, off / size.clamp_min(torch.finfo(size.dtype).tiny), torch.inf).amin(1)[fresh]
        carried = carried + (shares.error[fresh].square() + (doubt[:, None] * size[fresh]).square()).sum(0)
        left &= ~fresh
        rounds += 1
        alone = alone or int(fresh.sum())
    read = examples - int(left.sum())
    return Replay(
        examples=examples, units=units, alone=alone, read=read, silent=int((silent & left).sum()), rounds=rounds
    )


@dataclass(frozen=True)
class Count:
    """All that is counted of a model and a batch: equations against unknowns, the numerical rank at the given examples,
    what peeling reads or why it does not apply, and layers that give their inputs away.

    `rank`: `None` where its matrix is too large.
    """

    model: str
    batch: int
    soft_labels: bool
    counted: ModelCount
    rank: Rank | None
    replay: Replay | str
    hidden: tuple[HiddenInput, ...] = ()

    @staticmethod
    def of(task: Task, batch: Batch, generator: torch.Generator, *, soft_labels: bool = False) -> "Count":
        counted = count_layers(task, len(batch), soft_labels=soft_labels)
        rank = update_rank(task, batch, generator, soft_labels=soft_labels)
        read = replay(task, batch, generator)
        return Count(task.name, len(batch), soft_labels, counted, rank, read, hidden_inputs(task))

    @property
    def labels(self) -> str:
        return "soft, unknown" if self.soft_labels else "known"

    def to_json(self) -> dict[str, object]:
        counted, rank, read = self.counted, self.rank, self.replay
        exact = {"why": read} if isinstance(read, str) else asdict(read)
        return {
            "model": self.model,
            "batch": self.batch,
            "labels": self.labels,
            "corrected": {
                "enough": counted.bound == counted.unknowns,
                "highest_rank": counted.bound,
                "unknowns": counted.unknowns,
            },
            "rank": None if rank is None else asdict(rank),
            "layers": [asdict(layer) for layer in counted.layers],
            "equations": counted.equations,
            "unknowns": counted.unknowns,
            "exact_reads": {"applies": not isinstance(read, str)} | exact,
            "hidden_inputs": [asdict(one) for one in self.hidden],
            "follows": self.follows,
        }

    @property
    def lines(self) -> list[str]:
        """The ranks, the exact reads and the layers that give their inputs away, a line each."""
        rank, read = self.rank, self.replay
        said = [f"highest rank by counting: {self.counted.bound} of {self.counted.unknowns}"]
        if rank is None:
            said.append(f"numerical rank: not counted above {DENSE // 10**6} million equations × unknowns")
        else:
            faint = "" if rank.conditioning is None else f" (faintest {rank.conditioning:.1e} of the strongest)"
            said.append(f"numerical rank: {rank.rank} of {rank.unknowns}{faint}")
        if isinstance(read, str):
            said.append(f"exact reads by peeling: do not apply ({read})")
        else:
            at = "examples at these weights and examples"
            said.append(f"exact reads by peeling: {read.read} of {read.examples} {at}, {read.alone} of them at once")
            if 0 < read.examples - read.read <= Peeling().directions:
                said.append("  (a search for sparse directions may read the few others)")
        return said + summary(self.hidden, self.batch)

    @property
    def follows(self) -> str:
        """One sentence on what the numbers mean for the client."""
        rank, unknowns, bound = self.rank, self.counted.unknowns, self.counted.bound
        examples = "the example" if self.batch == 1 else f"the {self.batch} examples"
        if rank is None and bound == unknowns:
            return f"Open: by counting the update may fix {examples}; whether it does is not known, so audit it."
        if rank is not None and rank.rank == unknowns:
            return (
                f"The update fixes {examples} to first order (rank {unknowns} of {unknowns}): no other batch near "
                "by gives the same update, so only noise, values that are not sent, or a hard search keep the data."
            )
        words, why, told = f"at least {unknowns - bound}", ", as the count says", ""
        if rank is not None:
            words, told = f"{unknowns - rank.rank}", f" it tells {rank.rank} directions, and"
            if rank.rank < bound:
                why = ", more than the count says: equations repeat each other, or units are silent at this point"
        return (
            f"The update leaves {words} of {unknowns} directions open to first order{why}: {examples} cannot be "
            f"had from it exactly without prior knowledge, but{told} a picture may be recognised from it."
        )
