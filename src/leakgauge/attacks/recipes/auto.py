"""The engine's own choice."""

import math
import time
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.attacks.closed_form import TokenRead
from leakgauge.attacks.closed_form.single import read_one
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.labels.strategy import Unknown
from leakgauge.attacks.matching.adam import Adam, SmearedMasks
from leakgauge.attacks.matching.canvases import Given, Normal, Pixels, Uniform
from leakgauge.attacks.matching.curvature import BoundedLBFGS, GaussNewton
from leakgauge.attacks.matching.engine import Matching
from leakgauge.attacks.matching.parts import JointSoftLabels, Start
from leakgauge.attacks.matching.priors import Balanced, Falling, NoPrior, Proportional, TotalVariation
from leakgauge.attacks.recipes.exact_reads import ExactReads, nearest_read, read_exactly, searched_from, unmixed
from leakgauge.attacks.recipes.features import Features
from leakgauge.attacks.recipes.order_search import OrderSearch, unordered
from leakgauge.attacks.recipes.portfolio import INSIDE_FITS, Portfolio, explaining_more, joined, others, remaining
from leakgauge.clients import FedSGD
from leakgauge.compute import Budget
from leakgauge.defenses.defense import leaves_gradients, mixes_examples
from leakgauge.errors import Checked, positive
from leakgauge.observation import VIEW, Attack, Observation, Reconstruction, Status, Step
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, Task
from leakgauge.tracing import input_layers, is_smooth

LATE = (1.43, 1.11)  # the learning rate of signed Adam falls by ten after .7 and .9 of the steps
SMOOTH, ROUGH = 600, 2400  # evaluations where neither settings nor a budget name any; the first times the examples

INSIDE = 0.6
"""Of what is left of a budget, evaluations and seconds, what the read of hidden tensors and their inversion may spend
before a search; where no layer shows any that is next to nothing."""

NEAR = 1e-3  # most weight of the total variation from a start that was read in closed form
TIMED = 4  # steps that are timed where a budget names seconds alone, to know how many evaluations they allow
GROWTH = 8  # a smooth search takes as many times its steps as there are examples, at most this many times

FEW, MOST_ENTRIES = 192, 2**24
"""Unknowns of a smooth network, and entries of their Jacobian, up to which `GaussNewton` is tried first."""

STARTS, JACOBIANS = 6, 12  # of `GaussNewton`: from how many starts; and the Jacobians that half of a budget is to allow

LEAST = Proportional(prior=TotalVariation(1.0), share=15.0, power=2.0, most=1.5e-2)
"""Least total variation for a network with kinks: 15 · distance², at most 1.5e-2. What noise leaves of the distance
keeps it in force where the slope of the data term, of which a `Balanced` prior is a share, vanishes."""


@ATTACKS.register("auto", needs="example_count")
@dataclass(frozen=True, kw_only=True)
class Auto(Checked, SearchingAttack):
    """All that applies, cheapest first: what proves itself is kept, the rest is searched for.

    First the exact reads, in the order of `exact_reads.EXACT`; what is left of the update beside certified examples is
    attacked in the same way. Then hidden tensors are read and inverted (`Features`), with `INSIDE` of the budget. Else
    a matching attack by cosine that suits network and budget, from what was read where that is near. Smooth networks
    (`is_smooth` measures it): bounded L-BFGS in float64 from a uniform start, with a smoothed total variation that
    falls (`falling_variation`); of few numbers `GaussNewton` first. Others: signed Adam with lr 0.1 from N(0, 1), a
    total variation that keeps a fifth of the pull (`Balanced`) and slopes for the masks of ReLUs (`SmearedMasks`); from
    a start that was read with lr 0.03 and a total variation of at most 1e-3. Labels are counted from the last layer,
    other targets searched for beside the inputs. Of texts the tokens are read (`TokenRead`), no more. How it compares
    with the recipes is in docs/reference/minimisers.md. Known failure: runs of signed Adam are a decibel or two apart.

    Attributes:
        restarts: independent starts; the lowest distance is kept. One from a read start, where all would be the same.
        smooth_steps: most evaluations of one restart, times the examples (up to `GROWTH`). Without, what the budget
            allows, and `SMOOTH` of them where it names none.
        rough_steps: most evaluations of one restart. Without, what the budget allows, and `ROUGH` where it names none.
    """

    restarts: int = positive(1)
    smooth_steps: int | None = positive(None)
    rough_steps: int | None = positive(None)

    def choice(
        self,
        task: Task,
        generator: torch.Generator,
        first: Start | None = None,
        *,
        doubt: float = 1.0,
        evaluations: int | None = None,
        examples: int = 1,
    ) -> Matching:
        """The matching attack for a task, with so many `evaluations` for each restart. A start `first` that is better
        than a uniform one runs once; `doubt` says how much a prior may change it, from 0 (there is none) to 1."""
        far, penalised = first is None, task.data.is_image and bool(doubt)
        if is_smooth(task, generator):
            most = self._most(self.smooth_steps, SMOOTH, evaluations, min(examples, GROWTH))
            steps = most if evaluations is None else max(min(most, evaluations), 1)
            found = Matching(
                prior=falling_variation(max(steps // examples, 1), near=None if far else doubt),
                canvas=Pixels(first=first or Uniform()),
                minimiser=BoundedLBFGS(steps=most),
            )
        else:
            steps = self._most(self.rough_steps, ROUGH, evaluations, 1)
            found = Matching(
                # Near the truth a heavy prior leads away from it before the distance has fallen.
                prior=Balanced(prior=LEAST) if far else TotalVariation(NEAR * doubt),
                canvas=Pixels(first=first or Normal()),
                minimiser=Adam(steps=steps, lr=0.1 if far else 0.03, decay=LATE),
                masks=SmearedMasks() if far else None,
            )
        return replace(found, prior=found.prior if penalised else NoPrior(), restarts=self.restarts if far else 1)

    @staticmethod
    def _most(asked: int | None, otherwise: int, evaluations: int | None, factor: int) -> int:
        """Steps of a search: as asked, else what the budget allows, else so many."""
        return max(evaluations, 1) if asked is None and evaluations is not None else (asked or otherwise) * factor

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """What proves itself, and the search for the rest; `tried` says what was tried and why it stopped."""
        portfolio, generator = Portfolio(effort), effort.generator
        if observation.task.data.is_text:
            return portfolio.answer(portfolio.run("tokens", TokenRead(), observation, generator))
        read = unmixed(read_exactly(portfolio, observation, generator), observation)
        if read.proved is not None and (read.whole or read.proved.status is Status.EXACT):
            return portfolio.answer(read.proved)
        if read.proved is not None:
            return portfolio.answer(self._with_the_rest(portfolio, observation, read, generator))
        if portfolio.ended:
            return portfolio.answer(read.ended(portfolio.ended))
        known = portfolio.run("features", Features(), observation, generator.clone_state(), share=INSIDE)
        if mixes_examples(observation.knowledge.defense) and observation.examples != 1 and known.inputs is not None:
            status = Status.CONVERGED if known.status is Status.EXACT else known.status
            known = replace(known, certified=None, status=status)  # mixtures explain an update as well
        shown, labelled = known.inputs is not None, known.labels is not None
        whole = known.inputs is not None and len(known.inputs) == observation.examples
        # of a round, whose targets no step tells
        fits = shown and not labelled and observation.factor is None
        fits = fits and known.objective is not None and known.objective < INSIDE_FITS
        if fits and whole:
            return portfolio.answer(known)
        explained = shown and labelled and known.status in (Status.EXACT, Status.CONVERGED)
        if explained and (
            known.status is Status.EXACT
            or effort.budget == Budget()  # a search may better what an inversion explains, but not with kinks
            or not is_smooth(observation.task, generator.clone_state())
        ):
            return portfolio.answer(known)
        if portfolio.ended:
            known = replace(known, status=portfolio.ended)
            return portfolio.answer(known if read.best is None else read.ended(portfolio.ended))
        if explained:
            read = replace(read, start=known, doubt=0.0)
        elif whole and read.start is None and not labelled and known.objective is not None:
            read = replace(read, start=known, doubt=min(5 * known.objective, 1.0))  # targets are searched for beside it
        elif shown and read.start is None and labelled and known.paired:
            near = portfolio.asked(
                "nearest", lambda: nearest_read(portfolio, observation, [known], generator), ExactReads()
            )
            read = replace(read, start=near.start, doubt=near.doubt, rival=read.rival or near.rival)
        found = self._search(portfolio, observation, read, generator)
        rows = read.unlabelled or (known if shown else None)
        agreed = read.agreed or (fits and rows is known)
        best = partial(explaining_more, observation, found, rows, agreed=agreed, held=read.held)
        answer = portfolio.asked("rows", best, found)
        answer = read.ended(answer.status) if answer.inputs is None and read.best is not None else answer
        return portfolio.answer(replace(answer, features=known.features))

    def _with_the_rest(
        self, portfolio: Portfolio, observation: Observation, read: ExactReads, generator: torch.Generator
    ) -> Reconstruction:
        """Takes what is certified out of the update, attacks the rest, and keeps what else was read of it."""
        proved = read.proved
        assert proved is not None
        assert proved.inputs is not None
        assert proved.labels is not None
        count, left = observation.examples or 0, None
        batch = Batch(proved.inputs, proved.labels)
        if proved.certified is None or bool(proved.certified.any()):
            left = portfolio.asked("the rest of the update", lambda: remaining(observation, batch), None)
        if portfolio.ended:
            rest = Reconstruction(None, None, portfolio.ended)
        elif left is None:  # they cannot be taken out: all are searched for
            rest = others(self._search(portfolio, observation, ExactReads(rival=read.rival), generator), proved)
        else:
            rest = portfolio.run("auto, of the rest", self, left, generator, note=False)
            more = partial(explaining_more, left, rest, read.unlabelled, agreed=False, held=read.held)
            rest = portfolio.asked("rows", more, rest)
            portfolio.tried += [replace(one, name=f"{one.name}, of the rest") for one in rest.tried if one.name != VIEW]
        return joined(proved, rest, count)

    def _search(
        self, portfolio: Portfolio, observation: Observation, read: ExactReads, generator: torch.Generator
    ) -> Reconstruction:
        """The matching attack, from what was read where that is near."""
        search = Search(self)
        if read.start is not None and read.start.inputs is not None:
            # So near, 1 − cosine has no digits left in float32, and the prior alone would lead away.
            portfolio.effort = replace(portfolio.effort, compute=replace(portfolio.effort.compute, dtype=torch.float64))
            inputs = read.start.inputs
            search = Search(self, Given(inputs), 1.0 if read.doubt is None else read.doubt)
            if read.doubt is None:
                near = portfolio.asked("near", lambda: read_start(observation, inputs, generator), None)
                search = search if near is None else Search(self, *near)
            else:  # its examples are in an order of their own
                observation = replace(observation, knowledge=replace(observation.knowledge, labels=read.start.labels))
        elif unordered(observation):
            found = portfolio.run("order-search", OrderSearch(attack=search), observation, generator)
            if found.status is not Status.FAILED:
                return found
        if (rival := read.start or read.rival) is None:
            return portfolio.run("matching", search, observation, generator)
        return searched_from(rival, search, portfolio, observation, generator)


@dataclass(frozen=True, eq=False)
class Search(SearchingAttack):
    """The matching attack of an `Auto` (see `Auto.choice`) for the observation and the budget that it is given; it goes
    on from raw examples that an earlier part of the same search left."""

    auto: Auto
    first: Start | None = None
    doubt: float = 1.0
    earlier: Float[Tensor, "n *shape"] | None = None

    def resumed(self, inputs: Float[Tensor, "n *shape"]) -> "Search":
        return replace(self, earlier=inputs)

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        attack, budget, spent = self.chosen(observation, effort), effort.budget, 0
        name = "smooth_steps" if isinstance(attack.minimiser, BoundedLBFGS) else "rough_steps"
        asked = getattr(self.auto, name) is not None
        if budget.gradient_evaluations is None and budget.seconds is not None and not asked:
            found, pace = _timed(attack, observation, effort)
            spent = found.cost.gradient_evaluations
            left = effort.left(spent)
            if pace is None:
                return found
            affords = 0 if isinstance(left, Status) else int((left.budget.seconds or 0.0) / pace)
            if isinstance(left, Status) or affords < spent:
                return replace(found, status=Status.TIME_LIMIT)
            effort = replace(left, budget=replace(left.budget, gradient_evaluations=affords))
            attack = self.chosen(observation, effort)
        if (newton := _by_jacobian(attack, observation, effort)) is not None:
            spent += newton.cost.gradient_evaluations
            left = effort.left(newton.cost.gradient_evaluations)
            if newton.status in (Status.CONVERGED, Status.STOPPED) or isinstance(left, Status):
                return newton
            effort = left
        found = effort.of(attack, observation)
        found = replace(found, cost=replace(found.cost, gradient_evaluations=spent + found.cost.gradient_evaluations))
        if newton is not None and (newton.objective or 0.0) < 2 * (found.objective or 0.0):  # 1 − cosine is half of it
            found = replace(newton, status=found.status, cost=found.cost)
        if found.status is not Status.OUT_OF_STEPS:
            return found
        words = f"ended by auto's {name}, not by the budget" if asked else "no budget was named"
        return replace(found, message="; ".join(filter(None, (found.message, words))))

    def chosen(self, observation: Observation, effort: Effort) -> Matching:
        auto, task, generator = self.auto, observation.task, effort.generator
        evaluations = affordable(observation, effort.budget, auto.restarts if self.first is None else 1)
        attack = auto.choice(
            task, generator, self.first, doubt=self.doubt, evaluations=evaluations, examples=observation.examples or 1
        )
        if observation.knowledge.labels is None and task.of_classes:
            guess = CountsFromLastLayer().infer(observation, generator.clone_state())
            attack = replace(attack, labels=JointSoftLabels()) if isinstance(guess, Unknown) else attack
        return attack if self.earlier is None else attack.resumed(self.earlier)


def _timed(attack: Attack, observation: Observation, effort: Effort) -> tuple[Reconstruction, float | None]:
    """A few steps of a search and an evaluation's seconds, the first step left out; `None` where it ended before."""
    marks, stopped = list[tuple[int, float]](), False

    def on_step(step: Step) -> bool:
        nonlocal stopped
        marks.append((step.gradient_evaluations, time.perf_counter()))
        stopped = effort.on_step is not None and bool(effort.on_step(step))
        return stopped or len(marks) > TIMED

    found = replace(effort, generator=effort.generator.clone_state(), on_step=on_step).of(attack, observation)
    if stopped or len(marks) <= TIMED:
        return found, None
    (first, began), (last, ended) = marks[0], marks[-1]
    return found, max(ended - began, 1e-9) / (last - first)


def _by_jacobian(attack: Matching, observation: Observation, effort: Effort) -> Reconstruction | None:
    """What half of the budget finds on a smooth network with few numbers to search for: a Jacobian is cheap there."""
    task, count, known = observation.task, observation.examples or 0, observation.knowledge
    targets = task.layout.sought(count) if not task.layout.of_classes and count else {}
    unknown = count * math.prod(task.data.shape) + sum(map(math.prod, targets.values()))
    entries = sum(p.numel() for p in task.parameters.values())
    plain = leaves_gradients(known.defense) and (known.local_training is not None or observation.gradient is not None)
    smooth = isinstance(attack.minimiser, BoundedLBFGS) and not task.stochastic
    fits = 0 < unknown <= min(FEW, entries) and unknown * entries <= MOST_ENTRIES
    half = effort.left(0, share=0.5)
    if not (smooth and plain and fits and attack.canvas == Pixels(first=Uniform())) or isinstance(half, Status):
        return None
    most = half.budget.gradient_evaluations
    if most is not None and most < JACOBIANS * unknown:
        return None
    return half.of(replace(attack, minimiser=GaussNewton(), prior=NoPrior(), restarts=STARTS), observation)


def read_start(
    observation: Observation, inputs: Float[Tensor, "1 *shape"], generator: torch.Generator
) -> tuple[Given, float]:
    """The closed form's read of one example as a start, and how much a prior may change it, from 0 to 1: five times the
    unexplained share of the layer's gradient, an estimate of the noise's power, of which rounded entries say nothing.
    Inputs that were not seen (top-k) are the prior's, within what `OuterProductRead.limits` says."""
    observation = observation.view
    layers = input_layers(observation.task, generator, observation.update.tensors)
    read = read_one(observation, next(layer for layer in layers if layer.bias is not None))
    unseen = 1 - float(read.seen.double().mean())
    doubt = 1.0 if read.rounded else min(max(5 * read.unexplained, unseen), 1.0)
    return Given(inputs, read.limits(observation.task.data)), doubt


def falling_variation(steps: int, *, near: float | None = None) -> Falling:
    """Smoothed total variation that couples the colours, for a smooth network and a cosine data term, from 3e-2 down.

    It ends at 1e-3 · (150 / steps)², `steps` counted for each example, because a short run needs the prior to its
    end; between 1e-7 and 3e-2. It is never below a hundredth of the relative misfit √(2·data), so that noise, whether
    known or not, is not explained by the image.

    Where the start is near, with a doubt from 0 to 1, it starts at `NEAR` · doubt, and is never above.
    """
    first = 3e-2 if near is None else max(NEAR * near, 1e-12)
    last = min(max(1e-3 * (150 / steps) ** 2, 1e-7), first)
    return Falling(prior=TotalVariation(first, smoothing=1e-6, coupled=True), to=last / first, misfit=1e-2 / first)


def affordable(observation: Observation, budget: Budget, restarts: int) -> int | None:
    """Evaluations of one restart that a budget allows; a candidate costs as many as the client took steps."""
    if budget.gradient_evaluations is None:
        return None
    protocol = observation.knowledge.local_training or FedSGD()
    return budget.gradient_evaluations // (restarts * max(protocol.steps(observation.examples or 1), 1))
