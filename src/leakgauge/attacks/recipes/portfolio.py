"""Several methods on one observation and one budget: who was tried, what it cost, why it stopped."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from leakgauge.attacks.closed_form.patches import left_of_first
from leakgauge.attacks.effort import Effort
from leakgauge.attacks.exact.peeling import mixes
from leakgauge.attacks.labels.targets import FITS, ErrorSignals, targets_of
from leakgauge.clients import FedSGD, raw_update
from leakgauge.defenses import NoDefense
from leakgauge.defenses.defense import leaves_gradients
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, said
from leakgauge.observation import Attack, Cost, Observation, Reconstruction, Status, Tried
from leakgauge.task import Batch
from leakgauge.tensors import map_tensors
from leakgauge.update import Update, UpdateHeader, UpdateKind

T = TypeVar("T")

INSIDE_FITS = 1e-2  # share that an inversion may leave of what is known inside, to stand where nothing else tells
NEARER = 0.25  # several rows stand that leave less than this share of what a search leaves of the first layers
DONE = (Status.STOPPED, Status.TIME_LIMIT)  # the caller or the clock ends everything, not one method


@dataclass(eq=False)
class Portfolio:
    """One run of several methods: gradient evaluations `spent` so far, the status that `ended` the whole of it, once
    one has, and the observation `seen` by the first method."""

    effort: Effort
    tried: list[Tried] = field(default_factory=list)
    spent: int = 0
    ended: Status | None = None
    seen: Observation | None = None

    def affords(self, evaluations: int) -> bool:
        limit = self.effort.budget.gradient_evaluations
        return limit is None or limit - self.spent >= evaluations

    def run(
        self,
        name: str,
        attack: Attack,
        observation: Observation,
        generator: torch.Generator,
        *,
        share: float = 1.0,
        reserve: int = 0,
        note: bool = True,
    ) -> Reconstruction:
        """Runs one method on a share of what is left of the budget, less a reserve, and notes how it ended."""
        self.seen = self.seen or observation
        raised = False
        left = replace(self.effort, generator=generator).left(self.spent, share=share, reserve=reserve)
        if isinstance(left, Status):
            found = Reconstruction(None, None, left, "the budget allowed no evaluation")
        else:
            try:
                found = left.of(attack, observation)
            except FOREIGN as error:  # the model is anybody's, and no other method ends with this one
                found, raised = Reconstruction(None, None, Status.FAILED, said(error)), True
        found = replace(found, trace=tuple((self.spent + n, value) for n, value in found.trace))
        self.spent += found.cost.gradient_evaluations
        # The end of a share of the seconds ends one method alone.
        if found.status in DONE and (share == 1 or found.status is not Status.TIME_LIMIT):
            self.ended = found.status
        if note or raised:
            self.note(name, found.status, found.message, raised=raised)
        return found

    def asked(self, name: str, question: Callable[[], T], otherwise: T) -> T:
        """The answer to a question about the observation, or `otherwise` where it raises, which is noted."""
        try:
            return question()
        except FOREIGN as error:
            self.note(name, Status.FAILED, said(error), raised=True)
            return otherwise

    def note(self, name: str, status: Status, why: str, *, raised: bool = False) -> None:
        self.tried.append(Tried(name, status, why, raised))

    def answer(self, found: Reconstruction) -> Reconstruction:
        found = replace(found, cost=Cost(self.spent), tried=tuple(self.tried))
        return found if self.seen is None else found.with_view(self.seen)


def remaining(observation: Observation, proved: Batch) -> Observation | None:
    """The observation of the examples that are left once those that are proved are taken out of the mean; `None` where
    the update is no mean over single ones: a defence, several local steps, a network that mixes them or draws."""
    knowledge, task, n = observation.knowledge, observation.task, observation.examples
    gradient = observation.gradient
    if n is None or gradient is None or len(proved) >= n or mixes(task) or not leaves_gradients(knowledge.defense):
        return None
    task = task.to(torch.empty((), dtype=torch.float64))
    batch, k, labels = Batch(proved.inputs.double(), proved.labels), len(proved), knowledge.labels
    theirs, _ = raw_update(task, FedSGD(), batch, Draws(0), NoDefense())
    left = map_tensors(lambda all_, own: (n * all_.double() - k * own) / (n - k), gradient, theirs)
    if labels is not None:
        rest = labels.tolist()
        for label in proved.labels.tolist():
            if label in rest:
                rest.remove(label)
        labels = torch.tensor(rest, dtype=labels.dtype) if len(rest) == n - k else None
    known = replace(knowledge, labels=labels, example_count=n - k, local_training=None)
    return Observation(task, Update(left, UpdateHeader(UpdateKind.GRADIENT, n - k)), known)


def others(found: Reconstruction, read: Reconstruction) -> Reconstruction:
    """What a search of the whole batch found, without the nearest to each example that was read, of its label if there
    is one of that."""
    if found.inputs is None or read.inputs is None:
        return found
    gaps = torch.cdist(read.inputs.flatten(1).double(), found.inputs.flatten(1).to(read.inputs).double())
    paired, classes = _paired(found), [] if found.labels is None else found.labels.tolist()
    left, unread = list(range(len(found.inputs))), list(classes)
    wanted = [None] * len(gaps) if read.labels is None else read.labels.tolist()
    for gap, label in zip(gaps.tolist(), wanted, strict=True):
        alike = [i for i in left if paired and classes[i] == label]
        if left:
            left.remove(min(alike or left, key=gap.__getitem__))
        if label in unread:
            unread.remove(label)
    labels = found.labels
    if labels is not None:
        labels = labels[left] if paired else labels.new_tensor(unread[: len(left)])
    return replace(found, inputs=found.inputs[left], labels=labels, certified=None)


def explaining_more(
    observation: Observation, found: Reconstruction, rows: Reconstruction | None, *, agreed: bool, held: bool
) -> Reconstruction:
    """What a search found, with what was read before in place of the nearest of it, where that leaves less of the
    update under any loss, or, where none can be worked out, less of what the first layers send, or several rows show
    it. Some of a batch stand where a layer further in holds each. Not certified: it may be a mixture."""
    proved = found.status is Status.EXACT or (found.certified is not None and bool(found.certified.any()))
    if rows is None or rows.inputs is None or not len(rows.inputs) or proved:
        return found
    if found.inputs is None:
        return rows
    inputs = torch.cat([rows.inputs, others(found, rows).inputs.to(rows.inputs)])  # type: ignore[union-attr]
    words, labels = f"{len(rows.inputs)} of {len(inputs)} examples as read before the search", None
    if isinstance(signals := ErrorSignals.of(observation), str):
        left, before = (left_of_first(observation, x) for x in (inputs, found.inputs))
        fits = INSIDE_FITS if len(inputs) == 1 else 1.0  # several inputs explain no more of noise than their span holds
        if not agreed and not (left is not None and before is not None and left < min(NEARER * before, fits)):
            return found
    else:
        if not signals.affords(inputs):
            fits = rows.objective is None or rows.objective < INSIDE_FITS
            return rows if fits and len(rows.inputs) == len(inputs) else found
        left, before = signals.left(inputs), signals.left(found.inputs)
        if left >= before and not (held and len(rows.inputs) < len(inputs)):  # the others were found beside another
            return found
        labels = targets_of(signals, inputs) if left < FITS else None
    if left is not None and before is not None:
        words += f": {left:.2g} of the update left for {before:.2g}"
    return replace(
        found,
        inputs=inputs,
        labels=found.labels if labels is None else labels,
        paired=labels is not None,
        certified=torch.zeros(len(inputs), dtype=torch.bool),
        message="; ".join(filter(None, (words, found.message))),
    )


def joined(proved: Reconstruction, rest: Reconstruction, count: int) -> Reconstruction:
    """Proved examples first (those of `certified`, else all of them), then what was found of the others."""
    assert proved.inputs is not None
    assert proved.labels is not None
    sure = torch.ones(len(proved.inputs), dtype=torch.bool) if proved.certified is None else proved.certified
    if rest.inputs is None:
        message = f"{int(sure.sum())} of {count} examples certified; {rest.message or rest.status.value}"
        return replace(proved, status=Status.CONVERGED, message=message, certified=sure)
    own = torch.zeros(len(rest.inputs), dtype=torch.bool) if rest.certified is None else rest.certified
    if rest.status is Status.EXACT:
        own = torch.ones(len(rest.inputs), dtype=torch.bool)
    certified, exact = torch.cat([sure, own]), rest.status is Status.EXACT
    whole = bool(certified.all()) and (exact or len(certified) == count)
    status = Status.EXACT if whole else Status.CONVERGED if exact else rest.status
    message = f"{int(certified.sum())} of {count} examples certified"
    return Reconstruction(
        torch.cat([proved.inputs, rest.inputs.to(proved.inputs)]),
        proved.labels if rest.labels is None else torch.cat([proved.labels, rest.labels.to(proved.labels)]),
        status,
        "; ".join(filter(None, (message, rest.message))),
        rest.objective,
        rest.label_confidence,
        trace=rest.trace,
        paired=_paired(rest),
        certified=certified,
    )


def _paired(found: Reconstruction) -> bool:
    """Whether each example has its own label."""
    own, labels = found.inputs, found.labels
    return found.paired and own is not None and labels is not None and len(labels) == len(own)
