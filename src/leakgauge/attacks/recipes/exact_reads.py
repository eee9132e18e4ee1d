"""What is read before it is searched for: every exact method, cheapest first."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from leakgauge.attacks.closed_form import LinearRead, PatchRead, RankOneRead, RowDifferences
from leakgauge.attacks.closed_form.patches import left_of_first
from leakgauge.attacks.closed_form.proof import tried_labels
from leakgauge.attacks.exact import Peeling
from leakgauge.attacks.exact.candidates import ROWS_OF_ONE
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.attacks.recipes.any_loss import AnyLossRead
from leakgauge.attacks.recipes.portfolio import INSIDE_FITS, Portfolio, others
from leakgauge.attacks.recipes.row_space import SpanFit, SpanRead
from leakgauge.clients import FedSGD
from leakgauge.defenses.defense import mixes_examples
from leakgauge.defenses.dp import only_scales
from leakgauge.defenses.steps import EntryMask
from leakgauge.observation import Attack, Observation, Reconstruction, Status
from leakgauge.task import Batch


def _one_round(observation: Observation) -> int:
    """Most evaluations of a round of peeling: every unit's row is a candidate, a batch of them an evaluation."""
    units = max((t.shape[0] for t in observation.update.tensors.values() if t.ndim == 1), default=0)
    return min(units, ROWS_OF_ONE) if observation.examples == 1 else -(-units // max(observation.examples or 1, 1))


@dataclass(frozen=True)
class Method:
    """One exact method, as registered."""

    name: str
    attack: Attack
    share: float = 1.0  # most it may spend of what is left of a budget
    # evaluations by which it may go beyond a limit that it is given
    reserve: Callable[[Observation], int] = lambda _: 0
    searches: bool = False  # whether it spends what it is given, so that it leaves a search's part


EXACT = (
    Method("rank-one", RankOneRead()),
    Method("patches", PatchRead(), searches=True),
    Method("span-fit", SpanFit(), share=0.6),
    Method("peeling", Peeling(), share=0.9, reserve=_one_round, searches=True),
    Method("any-loss", AnyLossRead()),
    Method("span-read", SpanRead(), share=0.9, searches=True),
)
"""After the closed form, cheapest first."""

AGREEING = LinearRead(agreement=1e-5, rows=3)
"""Of two examples all ratios lie on a line, where two rows meet by chance, but hardly three so near."""

BINNED = RowDifferences(plausible=True)  # of what falls into one bin a mixture lies in the range, and is of one sign
SINGLE = 5  # single examples of a read are tried beside a search for a part in so many of its evaluations, at most
NEARER = 0.5  # a read is a start where it leaves less than this share of what a grey batch leaves unexplained

TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class ExactReads:
    """What the exact methods came to."""

    # examples that are certified, with labels; with status `EXACT` all of them. Where no simulation can certify any
    # (the model draws at random, or the order of the client's steps is unknown), those that `AGREEING` rows show.
    proved: Reconstruction | None = None
    start: Reconstruction | None = None  # all examples, paired with labels, but not certified
    # those that explain most of the update, near enough to start from or not; none behind noise, of which a read
    # explains more than a search does
    rival: Reconstruction | None = None
    # share of the update's length that the start leaves unexplained, five times, at most 1; `None` where the layer that
    # was read says it better
    doubt: float | None = None
    # some examples without labels, not certified, none of them near one of `proved`: the answer where no search can go
    # on without labels
    unlabelled: Reconstruction | None = None
    agreed: bool = False  # `unlabelled` is what several rows show each
    held: bool = False  # a layer further in holds each of `unlabelled`
    whole: bool = False  # `proved` holds all examples, so that nothing is left to search for

    @property
    def best(self) -> Reconstruction | None:
        """What stands where nothing can be compared or searched for."""
        return self.start or self.unlabelled or self.rival

    def ended(self, status: Status) -> Reconstruction:
        if self.start is not None:
            return self.start
        return Reconstruction(None, None, status) if self.best is None else replace(self.best, status=status)


def read_exactly(portfolio: Portfolio, observation: Observation, generator: torch.Generator) -> ExactReads:
    """Tries every exact method; ends with the first that proves an example."""
    count, starts = observation.examples, list[Reconstruction]()
    unlabelled, fitted, guessed = None, None, False
    one = found = portfolio.run("closed-form", LinearRead(), observation, generator)
    draws = generator.clone_state()  # a search starts from the same, whichever of the others are tried
    searching = (portfolio.effort.budget.gradient_evaluations or 0) // 3  # a search's, whatever is read before
    for method in (None, *EXACT):
        if method is not None:
            reserve = max(method.reserve(observation), searching * method.searches)
            found = portfolio.run(method.name, method.attack, observation, draws, share=method.share, reserve=reserve)
        if found.status is Status.EXACT:
            return ExactReads(found)
        if (sure := _proved(found)) is not None:
            rows = fitted or unlabelled
            rest = None if rows is None else others(rows, sure)
            return ExactReads(sure, rival=next(iter(starts), None), unlabelled=rest, held=fitted is not None)
        if count == 1 and found is one:
            continue
        paired = found.labels is not None and found.paired
        if found.inputs is not None and not paired:
            fitted = found if method is not None and method.name == "span-fit" else fitted
            if unlabelled is None or guessed:  # signals that a gradient shows need no right labels, their proof does
                unlabelled, guessed = replace(found, labels=None), method is not None and method.name == "patches"
        elif found.inputs is not None and len(found.inputs) == count:
            starts.append(found)
        if portfolio.ended:
            break
    if count == 1 and one.inputs is not None:
        single = ExactReads(start=one)
        if one.labels is None or observation.defended.support is not None:
            return single  # nothing can be compared: where entries were left out a read has anything
        near = portfolio.asked("nearest", lambda: nearest_read(portfolio, observation, [one], draws), single)
        return ExactReads(start=near.start)  # its own layer says how far to trust it
    # They cost no evaluation, so that a run which has ended keeps them too.
    asked = partial(_agreed, portfolio, observation, fitted, one, draws)
    agreed = portfolio.asked("rows that agree", asked, ExactReads())
    if agreed.proved is not None:
        status = portfolio.ended or agreed.proved.status
        return replace(agreed, proved=replace(agreed.proved, status=status))
    rows = agreed.unlabelled
    if rows is not None and (agreed.agreed or agreed.held or _size(rows) > _size(unlabelled)):
        unlabelled = rows
    near = portfolio.asked("nearest", lambda: nearest_read(portfolio, observation, starts, draws), ExactReads())
    return replace(near, unlabelled=unlabelled, agreed=agreed.agreed, held=agreed.held)


def _agreed(
    portfolio: Portfolio,
    observation: Observation,
    fitted: Reconstruction | None,
    corners: Reconstruction,
    generator: torch.Generator,
) -> ExactReads:
    """Examples of a batch that rows agree on or a layer further in takes (`fitted`), not certified; empty where there
    are none, or others may be in them: with two outputs rows agree on mixtures. Some of them are kept where the others
    are searched for beside them, or beside `corners` of the rows, where the closed form has all examples."""
    count = observation.examples
    if not only_scales(observation.knowledge.defense, EntryMask) or count == 1 or observation.task.outputs <= 2:
        return ExactReads()
    alone = observation.task.stochastic or observation.gradient is None
    name, found = "bins", BINNED.read(observation, generator)
    if found.inputs is None:
        rows = AGREEING.read(observation, generator)
        near = fitted if fitted and _size(fitted) >= _size(rows) else rows
        name, found = "rows that agree", near if alone else rows
        if found.inputs is None or not (alone or _size(found) == count):
            if alone or near.inputs is None:
                return ExactReads()
            return ExactReads(unlabelled=replace(near, labels=None), held=near is fitted)
    if found is not fitted:
        portfolio.note(name, Status.CONVERGED, found.message)
    if _size(found) < _size(corners) == count:
        rest = others(replace(corners, labels=None), replace(found, labels=None))
        both = [one.inputs.to(found.inputs) for one in (found, rest) if one.inputs is not None]
        found = replace(found, inputs=torch.cat(both), message=corners.message)
    if found.labels is None:
        return ExactReads(unlabelled=found, agreed=True)
    size = _size(found)
    one = replace(found, labels=found.labels[:size], certified=torch.zeros(size, dtype=torch.bool))
    return ExactReads(one, whole=size == count)


def _size(found: Reconstruction | None) -> int:
    return 0 if found is None or found.inputs is None else len(found.inputs)


def unmixed(read: ExactReads, observation: Observation) -> ExactReads:
    """A read without what may be mixtures of the client's examples, behind a defence that mixes them. A mixture of two
    examples of a class is certified, so proved are those whose label no other has: who was mixed with itself."""
    knowledge, proved = observation.knowledge, read.proved
    if not mixes_examples(knowledge.defense) or observation.examples == 1:
        return read
    if proved is None or proved.inputs is None:
        bare = read.best and replace(read.best, labels=None, certified=None, message="may be mixtures")
        if bare is not None and (read.unlabelled is None or _size(bare) > _size(read.unlabelled)):
            return ExactReads(unlabelled=bare)
        return ExactReads(unlabelled=read.unlabelled, agreed=read.agreed)
    mixed = replace(proved, labels=None, status=Status.CONVERGED, certified=None, message="may be mixtures")
    if proved.labels is None:
        return ExactReads(unlabelled=mixed, agreed=True)
    holders = (proved.labels if knowledge.labels is None else knowledge.labels).tolist()
    alone = torch.tensor([holders.count(label) == 1 for label in proved.labels.tolist()])
    if not bool(alone.any()):
        return ExactReads(unlabelled=mixed, agreed=True)
    status = proved.status if bool(alone.all()) else Status.CONVERGED
    sure = torch.ones(int(alone.sum()), dtype=torch.bool)
    inputs, labels = proved.inputs[alone], proved.labels[alone]
    return ExactReads(replace(proved, inputs=inputs, labels=labels, certified=sure, status=status))


def _proved(found: Reconstruction) -> Reconstruction | None:
    """The certified examples of a read, where there are some."""
    sure = found.certified
    if sure is None or not bool(sure.any()) or found.inputs is None or found.labels is None:
        return None
    return replace(found, inputs=found.inputs[sure], labels=found.labels[sure], certified=sure[sure])


def _drawn(observation: Observation) -> bool:
    return observation.task.stochastic and observation.knowledge.draws is None


def unexplained(observation: Observation, explainer: Explainer, *batches: Batch) -> list[float]:
    """Share of the update that each batch leaves unexplained, all measured alike: by simulating the client, or where
    the network draws at random, so that draws of one batch are as far apart, by what its first layers were given."""
    if _drawn(observation):
        shares = [left_of_first(observation, batch.inputs) for batch in batches]
        told = [share for share in shares if share is not None]
        if len(told) == len(batches) and min(told) < INSIDE_FITS:  # noise would be explained as well
            return told
    return [explainer.left(batch) for batch in batches]


def nearest_read(
    portfolio: Portfolio, observation: Observation, starts: list[Reconstruction], generator: torch.Generator
) -> ExactReads:
    """The read that explains most, if it explains much more than a grey batch of the same labels."""
    if not starts:
        return ExactReads()
    explainer = Explainer.of(observation, generator)
    price = 2 * len(starts) * explainer.simulator.cost(observation.examples or 1)
    if not (_drawn(observation) or portfolio.affords(price)):
        return ExactReads(rival=starts[0])
    scores, data = list[tuple[float, float, int]](), observation.task.data
    for index, found in enumerate(starts):
        assert found.inputs is not None
        assert found.labels is not None
        inputs = found.inputs.clamp(data.low, data.high)
        grey: Tensor = torch.full_like(inputs, (data.low + data.high) / 2)
        left, bare = unexplained(observation, explainer, *(Batch(x, found.labels) for x in (inputs, grey)))
        scores.append((left, left / max(bare, TINY), index))
    portfolio.spent += explainer.spent
    left, share, index = min(scores)
    if share >= NEARER:
        return ExactReads(rival=starts[index] if observation.defended.noise_scale is None else None)
    return ExactReads(start=starts[index], doubt=min(5 * left, 1.0))


def searched_from(
    start: Reconstruction, search: Attack, portfolio: Portfolio, observation: Observation, generator: torch.Generator
) -> Reconstruction:
    """What a search finds, or the read where that explains more of the update; not of one example where a defence left
    entries out: there the start says between which values each input lies, see `OuterProductRead.limits`."""
    if observation.defended.support is not None and observation.examples == 1:
        return portfolio.run("matching", search, observation, generator)
    draws = generator.clone_state()
    count, limit = observation.examples or 1, portfolio.effort.budget.gradient_evaluations
    each = (observation.knowledge.local_training or FedSGD()).steps(count)
    single = count if limit is None else min(count, max(limit - portfolio.spent, 0) // (SINGLE * each))
    price = (2 + single * (count > 1)) * each
    found = portfolio.run("matching", search, observation, generator, reserve=price)
    return portfolio.asked("nearer", lambda: _nearer(start, found, portfolio, observation, draws), found)


def _nearer(
    start: Reconstruction, found: Reconstruction, portfolio: Portfolio, observation: Observation, draws: torch.Generator
) -> Reconstruction:
    """Whichever of a read and what was found from it explains more."""
    known, data = observation.knowledge.labels, observation.task.data
    own, other = (known if one.labels is None else one.labels for one in (start, found))
    if own is None and start.inputs is not None:
        tried = tried_labels(observation, start.inputs)
        own, start = tried.labels, replace(start, labels=tried.labels)
        portfolio.spent += tried.cost
    if found.inputs is None and own is None:
        return start
    if start.inputs is None or own is None or (found.inputs is not None and other is None):
        return found
    read = start.inputs.clamp(data.low, data.high)
    if found.inputs is None or other is None:
        status = Status.CONVERGED if found.status is Status.FAILED else found.status  # a read stands all the same
        return replace(found, inputs=read, labels=start.labels, status=status)
    explainer = Explainer.of(observation, draws)
    left, after = unexplained(observation, explainer, Batch(read, own), Batch(found.inputs, other))
    if left >= after and not _drawn(observation):  # draws of one batch are as far apart as a single example puts it
        each = explainer.simulator.cost(len(found.inputs))
        found = _with_single_reads(
            Batch(read, own),
            Batch(found.inputs, other),
            after,
            found,
            explainer,
            affords=lambda: portfolio.affords(explainer.spent + each),
        )
    portfolio.spent += explainer.spent
    if left >= after:
        return found
    words = f"what was read before the search leaves less of the update: {left:.2g} for {after:.2g}"
    return replace(found, inputs=read, labels=start.labels, message=words)


def _with_single_reads(
    read: Batch,
    searched: Batch,
    after: float,
    found: Reconstruction,
    explainer: Explainer,
    *,
    affords: Callable[[], bool],
) -> Reconstruction:
    """What a search found, with single examples that were read in place of the nearest of it, of its label if there is
    one of that, where each leaves less of the update: of a read some examples may be right and others mixtures. Ends
    where nothing more can be simulated."""
    inputs, taken = searched.inputs.clone(), set[int]()
    if len(inputs) == 1 or not math.isfinite(after):
        return found
    gaps = torch.cdist(read.inputs.flatten(1).to(inputs), inputs.flatten(1))
    for gap, label, one in zip(gaps, read.labels, read.inputs, strict=True):
        if not affords():
            break
        free = [k for k in range(len(inputs)) if k not in taken]
        place = min([k for k in free if searched.labels[k] == label] or free, key=gap.tolist().__getitem__)
        trial = inputs.clone()
        trial[place] = one
        if (left := explainer.left(Batch(trial, searched.labels))) < after:
            inputs, after = trial, left
            taken.add(place)
    words = f"{len(taken)} of {len(inputs)} examples as read before the search, which leave {after:.2g} of the update"
    return replace(found, inputs=inputs, message=words) if taken else found
