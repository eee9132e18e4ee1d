"""The clients of a plan, the controls among them, and the trials: the product of its lists, as `only` keeps it."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from leakgauge.data.source import Share, Source, client_batches, others, share
from leakgauge.draws import Draws
from leakgauge.errors import require
from leakgauge.metrics.likeness import twins
from leakgauge.task import Batch
from leakgauge.tensors import fingerprint

CONTROLS = 5  # clients without a defence that an attack is tried on at least: with fewer, no result shows its power


@dataclass(frozen=True, eq=False)
class Client:
    """The examples of one client, and the `indices` of the source's that no line-up and no public share may hold: its
    own, where they are whole examples of the source."""

    batch: Batch
    names: tuple[str, ...]
    indices: tuple[int, ...]


def client_of(source: Source, indices: Sequence[int]) -> Client:
    return Client(source.read(indices), tuple(source.names(indices)), tuple(indices))


def control_client(source: Source, batches: Sequence[Sequence[int]], number: int) -> Client:
    """The `number`-th client of as many public examples as the plan's clients have, none of which they hold.

    A source too small to lend whole examples makes crops, with labels drawn at random. Where the public share is less
    than all controls need, examples serve in more than one of them.
    """
    held, size = frozenset(i for batch in batches for i in batch), len(batches[0])
    places = range(number * size, (number + 1) * size)
    if hasattr(source, "others"):
        exclude, generator = tuple(batches[number % len(batches)]), Draws(0).generator("control", number)
        inputs = source.others(frozenset(exclude), Share.PUBLIC, size, generator)
        labels = torch.randint(source.classes, (size,), generator=generator)
        return Client(Batch(inputs, labels), tuple(f"public crop {place + 1}" for place in places), exclude)
    lent = share(len(source), held, Share.PUBLIC) or share(len(source), frozenset(batches[0]), Share.PUBLIC)
    return client_of(source, [lent[place % len(lent)] for place in places])


NEAR = 32  # side at which pictures are compared: whether two are the same to the eye is seen at that
AT_A_TIME = 256  # pictures that are compared with all others


def first_holders(clients: Iterable[Batch], *, low: float = 0.0, data_range: float = 1.0) -> list[int]:
    """For each client the first that holds at least half of the same examples: itself where none does.

    The same are equal bits, or pictures that are so to the eye, as neighbouring frames of a film are, one by one: an
    interval over clients takes them for independent, and these are of one person.
    """
    held, small, pictured = list[list[str]](), list[Tensor](), list[str]()
    for batch in clients:
        prints = {fingerprint(example): i for i, example in enumerate(batch.inputs)}
        held.append(list(prints))
        if batch.inputs.ndim == 4:
            pictures = batch.inputs[list(prints.values())].float()
            side = min(NEAR, pictures.shape[2]), min(NEAR, pictures.shape[3])
            small.append(torch.nn.functional.adaptive_avg_pool2d(pictures, side))
            pictured += prints
    near: dict[str, set[str]] = defaultdict(set)
    x = torch.cat(small) if small else torch.empty(0)
    for start in range(0, len(x), AT_A_TIME):  # each picture with each one before it that is the same to the eye
        some, before = x[start : start + AT_A_TIME], x[: start + AT_A_TIME]
        for i, j in twins(some, before, data_range=data_range, low=low).nonzero().tolist():
            if j < start + i:
                near[pictured[start + i]].add(pictured[j])
    known: dict[str, set[int]] = defaultdict(set)
    found: list[int] = []
    for number, names in enumerate(held):
        shared = Counter(other for name in names for other in known[name].union(*(known[n] for n in near[name])))
        alike = {found[other] for other, n in shared.items() if 2 * n >= len(names)}
        first = min(alike, default=number)
        found = [first if holder in alike else holder for holder in found] + [first]
        for name in names:
            known[name].add(number)
    return found


@dataclass(frozen=True, eq=False)
class Dealt:
    """Where the clients' examples come from, and how they are dealt out: consecutive, disjoint batches. `called`: the
    source's name in reports; by default its own."""

    source: Source
    batch: int = 1
    batches: int = 8
    start: int = 0
    called: str = ""
    size: int | None = None
    _holders: dict[bool, list[int]] = field(init=False, repr=False, default_factory=dict)

    @property
    def name(self) -> str:
        return self.called or self.source.name

    @cached_property
    def indices(self) -> list[list[int]]:
        return client_batches(self.source, self.batch, self.batches, self.start)

    def examples(self, number: int, *, control: bool = False) -> Client:
        if control:
            return control_client(self.source, self.indices, number)
        return client_of(self.source, self.indices[number])

    def holder(self, number: int, *, control: bool = False) -> int:
        """Which client it is: the first of its kind that holds half of the same examples or near copies of them, or
        more. What is measured of it again is no further client."""
        if control not in self._holders:
            clients = (self.examples(n, control=control).batch for n in range(CONTROLS if control else self.batches))
            low, high = self.source.low, self.source.high
            self._holders[control] = first_holders(clients, low=low, data_range=high - low)
        return self._holders[control][number]

    def distinct(self, number: int) -> tuple[int, ...]:
        """For each example of a client the first place among all clients' that holds the same one, bit by bit."""
        prints = [fingerprint(x) for indices in self.indices for x in self.source.read(indices).inputs]
        first = {name: place for place, name in reversed(list(enumerate(prints)))}
        return tuple(first[name] for name in prints[number * self.batch : (number + 1) * self.batch])

    def neighbours(self, number: int, most: int, *, control: bool = False) -> tuple[Batch, ...]:
        """Examples of other clients of the same kind, at most so many."""
        before, after = range(number), range(number + 1, CONTROLS if control else len(self.indices))
        chosen = (*before, *after) if control else (*after, *before)
        return tuple(self.examples(n, control=control).batch for n in chosen[:most])

    def lend(self, part: Share, exclude: Sequence[int], size: int, generator: torch.Generator) -> Tensor:
        """Gallery or public examples: the same for all trials on a batch and seed."""
        return _lent(self, part, tuple(exclude), size, generator.initial_seed())


@lru_cache(len(Share))  # trials on a batch and seed stand together
def _lent(dealt: Dealt, part: Share, exclude: tuple[int, ...], size: int, seed: int) -> Tensor:
    return others(dealt.source, exclude, part, size, torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Selection:
    """Keeps the combinations that fit every set given: indices into the plan's lists, `None` for all of a list; and so
    many of the first `batches`."""

    models: frozenset[int] | None = None
    clients: frozenset[int] | None = None
    defenses: frozenset[int] | None = None
    attacks: frozenset[int] | None = None
    batches: int | None = None

    def fits(self, chosen: tuple[int, ...]) -> bool:
        asked = (self.models, self.clients, self.defenses, self.attacks)
        return all(some is None or one in some for some, one in zip(asked, chosen, strict=True))


@dataclass(frozen=True)
class Key:
    """Which trial: indices into the plan's lists. `control` marks one added to show that an attack has power: it has no
    defence, and its batch counts the control's clients."""

    model: int
    client: int
    defense: int
    attack: int
    seed: int
    batch: int
    control: bool = False


def product(
    sizes: tuple[int, ...], rules: Sequence[Selection] | None, seeds: int, batches: int, plain: Set[int]
) -> list[Key]:
    """All trials, those first that are asked for. Raises `InputError` where the rules keep none. `sizes`: numbers of
    models, clients, defences and attacks; `plain`: defences that are none, of simulated clients."""

    def count(chosen: tuple[int, ...]) -> int:
        several = [Selection()] if rules is None else rules
        return min(max((rule.batches or batches for rule in several if rule.fits(chosen)), default=0), batches)

    kept = {chosen: n for chosen in itertools.product(*map(range, sizes)) if (n := count(chosen))}
    require(bool(kept), "only", "keeps no trial", "loosen it")
    keys = [Key(m, c, d, a, s, b) for (m, c, d, a), n in kept.items() for s in range(seeds) for b in range(n)]
    # Trials that share a broadcast, or a batch and what it is compared with, stand together: they are kept.
    keys.sort(key=lambda key: (key.model, key.seed, key.batch))
    # Undefended clients with public examples for each model, client and attack that meet a defence or an update file;
    # none where the plan itself has as many without a defence, or nothing but such.
    shown = {(m, c, a) for (m, c, d, a), n in kept.items() if d in plain and n >= CONTROLS}
    lacking = sorted({(m, c, a) for m, c, d, a in kept if d not in plain} - shown)
    return keys + [Key(m, c, -1, a, 0, b, control=True) for m, c, a in lacking for b in range(CONTROLS)]
