"""Hidden tensors that layers give away, and the examples behind them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.proof import tried_labels
from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.features.descent import Descent
from leakgauge.attacks.features.fits import nudged
from leakgauge.attacks.features.grids import number_by_number
from leakgauge.attacks.features.inversion import BASIN, EXPLAINED, FeatureInversion, Inverted, Residuals
from leakgauge.attacks.features.null_space import signals_of
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.attacks.features.rounds import runs_of
from leakgauge.attacks.labels.strategy import find_classifier
from leakgauge.attacks.matching.problem import Meter
from leakgauge.attacks.matching.simulator import Explainer
from leakgauge.compute import Budget
from leakgauge.errors import FOREIGN, Checked, positive, said
from leakgauge.observation import Cost, KnownFeatures, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch
from leakgauge.tracing import LinearLayer

READING = 0.6  # of the budget's seconds, what reading and going down may take together
STARTS = 3  # of the inversion, where no budget is named
FIRST = 3  # of them, before systems are solved that take iterations
BOLD = 2  # times the steps and their length, where tensors are known up to a factor and far from the examples alone
TURNS = 150, 150, 300, 600, 1200, 2400  # steps of each run of a round by L-BFGS, in turns
LOUD = 4.0  # what is left of a run over the square of how far its weights are from the broadcast ones, to go on
EXACT = 1e-10  # squared residual below which all but units at zero may explain the update
SMALL = 2**15  # numbers of a hidden tensor: what takes seconds to read is read where smaller ones do not lead on


@ATTACKS.register("features", needs="example_count; a layer with more filters than places × examples")
@dataclass(frozen=True, kw_only=True)
class Features(Checked, SearchingAttack):
    """Reads layers' inputs exactly, goes down from the one that is nearest to the examples, and inverts it.

    A layer with at least as many live filters as output places × examples shows its input: its patches lie in the row
    space of the weight's gradient, and they overlap. The theorem and its conditions: docs/explanation/convolutions.md.
    The example comes from there by linear systems as far as these are determined, and by a feature inversion below.
    Of rounds of several steps each run of the network is inverted by itself (`runs_of`).
    Certified is an example where the simulated update equals the observed one to rounding; the hidden tensors are
    findings of their own, see `Reconstruction.features`.

    Attributes:
        starts: of the inversion, as long as they stall, each with twice the steps of the one before. Without, what the
            budget allows, and `STARTS` where it names none. A run of a round has one.
    """

    inversion: FeatureInversion = field(default_factory=FeatureInversion)
    starts: int | None = positive(None)

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        observation, generator, budget = observation.view, effort.generator, effort.budget
        count, most, seconds = observation.examples, budget.gradient_evaluations, budget.seconds
        if count is None:
            return Reconstruction.not_applicable("needs the number of examples (knows: example_count)")
        if observation.task.stochastic or observation.task.data.is_text:
            return Reconstruction.not_applicable("needs a model that draws nothing, and inputs that are numbers")
        if most is not None:  # the check by simulation has its own
            budget = replace(budget, gradient_evaluations=max(most - count - 1, 1))
        meter = Meter(budget, effort.on_step)
        reading = Meter(Budget(seconds=None if seconds is None else READING * seconds), effort.on_step)
        try:
            hidden = HiddenTensors.of(observation, count)
        except FOREIGN as error:
            return Reconstruction.not_applicable(f"the gradient is no graph: {said(error)}")
        descent = deepest(hidden, reading, generator)
        runs, why = list[Residuals](), ""
        try:
            runs = runs_of(hidden) if descent is None else []
        except FOREIGN as error:
            why = f"; the graph is another one for other numbers of examples ({said(error)})"
        features = known_features(hidden)
        if not runs and not any(read.scaled for read in hidden.reads) and not any(one.certified for one in features):
            failed = [f"no layer's input is certain; {name}: {why}" for name, why in hidden.why.items()]
            nothing = failed[-1] if failed else "no layer multiplies its input with a weight of its own"
            words = "; ".join([nothing, *([described(features, hidden)] if features else [])])
            return replace(Reconstruction.not_applicable(words), features=features)
        if descent is None and not runs:
            return replace(bare(hidden), message=bare(hidden).message + why)
        if (over := meter.over(1)) is not None:
            return replace(bare(hidden), status=over)
        if descent is None:
            return self._of_runs(hidden, runs, meter, generator)
        residuals = Residuals.of(descent)
        tries = itertools.islice(itertools.count(), self.starts or (STARTS if effort.budget == Budget() else None))
        found = Inverted.nothing(residuals.shape)
        if residuals.determined and (numbers := number_by_number(residuals, generator)) is not None:
            found = FeatureInversion.judged(residuals, replace(found, inputs=numbers))
            if float(found.left.max()) < residuals.explained:
                found = replace(found, status=Status.CONVERGED)
        found = self._inverted(residuals, found, itertools.islice(tries, FIRST), meter, generator)
        descent.meter = meter  # the caller may stop what takes iterations
        if found.status is not Status.CONVERGED and descent.further():
            residuals = Residuals.of(descent)
            found = self.inversion.judged(residuals, found) if bool(found.left.isfinite().all()) else found
        if not residuals.determined:
            shown = bare(hidden.read(generator, meter))
            return replace(shown, message=f"{shown.message}; they are fewer numbers than the examples hold")
        for last in (False, True):
            before = meter.spent
            found = self._inverted(residuals, found, tries, meter, generator, last=last)
            if last and meter.spent == before:  # no start was left
                break
            if not bool(found.left.isfinite().any()):
                return replace(bare(hidden), status=found.status, cost=Cost(meter.spent))
            if residuals.differentiable:
                found = self.inversion.finished(residuals, found, meter)
            if found.status is Status.CONVERGED:
                break
        return self._answer(observation, descent, found, meter, generator)

    def _of_runs(
        self, hidden: HiddenTensors, runs: Sequence[Residuals], meter: Meter, generator: torch.Generator
    ) -> Reconstruction:
        """The examples of each run: all near first, then in turns of more and more steps, from another start where one
        shows to be wrong, those at the broadcast weights to the end. Another run is explained where the weights that it
        was not at leave as much."""
        bold = replace(self.inversion, lr=BOLD * self.inversion.lr, steps=BOLD * self.inversion.steps)
        found = [bold.begun(run, meter, generator) for run in runs if meter.over(1) is None]
        if not found:
            return replace(bare(hidden), status=meter.over(1) or Status.TIME_LIMIT)
        for index, steps in enumerate(TURNS):
            turn = replace(bold, steps=steps)
            for k, (run, one) in enumerate(zip(runs, found, strict=False)):
                if float(one.left.max()) < LOUD * run.errors or meter.over(1) is not None:
                    continue
                found[k] = turn.lowered(run, one, meter)
                if index == 1 and float(found[k].left.max()) > BASIN > LOUD * run.errors:
                    other = turn.lowered(run, bold.begun(run, meter, generator), meter)
                    found[k] = found[k].better(other, torch.arange(len(other.left)))
        last = replace(bold, finish=EXPLAINED)
        found = [last.finished(run, one, meter) for run, one in zip(runs, found, strict=False)]
        left, done = ", ".join(f"{float(one.left.max()):.0e}" for one in found), Status.CONVERGED
        words = f"{sum(len(one.left) for one in found)} examples by inversions of each step, which leave {left}"
        return replace(
            bare(hidden),
            inputs=torch.cat([one.inputs.float() for one in found]),
            paired=False,
            status=meter.over(1) or next((s for s in (one.status for one in found) if s is not done), done),
            message=f"{bare(hidden).message}; {words}",
            objective=max(float(one.left.max()) for one in found),
            trace=tuple(meter.trace),
            cost=Cost(meter.spent),
        )

    def _inverted(
        self,
        residuals: Residuals,
        best: Inverted,
        starts: Iterator[int],
        meter: Meter,
        generator: torch.Generator,
        *,
        last: bool = False,
    ) -> Inverted:
        """The best of several starts; where known values hold each example without the others, of those that stall, and
        at `last` of all that are not explained."""
        if not residuals.determined or best.status is Status.CONVERGED or not residuals.differentiable:
            return best
        while float(best.left.max()) >= residuals.explained:
            enough = residuals.explained if last or len(best.parts) == 1 else BASIN
            open_ = (best.left >= enough).nonzero()[:, 0] if best.apart else torch.arange(len(best.left))
            waits = best.apart and not last and bool((best.left < BASIN).any())  # until these are at their end
            index = next(starts, None) if len(open_) and not waits else None
            if index is None or meter.over(1) is not None:
                return replace(best, status=meter.over(1) or Status.OUT_OF_STEPS)
            longer = replace(self.inversion, steps=2**index * self.inversion.steps)
            best = best.better(longer(residuals.only(open_), meter, generator, again=index > 0), open_)
        return replace(best, status=Status.CONVERGED)

    def _answer(
        self, observation: Observation, descent: Descent, found: Inverted, meter: Meter, generator: torch.Generator
    ) -> Reconstruction:
        inputs, hidden = found.inputs.float(), descent.hidden
        labels, spent = labels_of(observation, descent, found.inputs), meter.spent
        if labels is None and (tried := tried_labels(observation, inputs)).labels is not None:
            labels, spent = tried.labels, spent + tried.cost
        explainer = Explainer.of(observation.origin, generator)  # a clip has another length in the view
        certified, left = torch.zeros(len(inputs), dtype=torch.bool), float(found.left.max())
        if labels is not None and found.status is Status.CONVERGED:
            certified = explainer.certified(Batch(inputs, labels), generator)
            if left < EXACT and not bool(certified.any()) and meter.over(1) is None:
                moved = nudged(descent.inside, hidden.gradients, Batch(found.inputs, labels), 30 * left**0.5).float()
                if bool((sure := explainer.certified(Batch(moved, labels), generator)).any()):
                    inputs, certified = moved, sure
        if not bool(certified.all()):  # what layers show is all that is certain
            hidden.read(generator, meter)
        words = f"{bare(hidden).message}; the inversion leaves {left:.0e} of what is known{explainer.why}"
        if not bool(certified.all()) and found.status is Status.OUT_OF_STEPS:
            words += "; ended by the features' starts, not by the budget" if self.starts else "; no budget was named"
        return replace(
            bare(hidden),
            inputs=inputs,
            labels=observation.knowledge.labels if labels is None else labels,
            paired=labels is not None,
            status=Status.EXACT if bool(certified.all()) else found.status,
            message=words,
            objective=left,
            certified=certified,
            trace=tuple(meter.trace),
            cost=Cost(spent + explainer.spent),
        )


def deepest(hidden: HiddenTensors, meter: Meter, generator: torch.Generator) -> Descent | None:
    """The descent from reads to scale (`Descent.of`): first of those tensors that are small, then of all where these do
    not determine the examples. `None` where there is none, or the update is a sum over several steps."""
    found = None
    for most in (SMALL, None):
        before = len(hidden.reads)
        hidden.read(generator, meter, most)
        starts = [one for one in hidden.reads if one.scaled and len(one.maps) == hidden.inside.examples]
        if hidden.passes.factor is None or not starts or (found is not None and len(hidden.reads) == before):
            continue
        found = Descent.of(hidden, starts, meter)
        if starts[0].hidden not in found.state.values:
            found = max(found, Descent.of(hidden, starts[:1], meter), key=lambda one: len(one.state.values))
        if Residuals.of(found).determined:
            break
    if found is not None:
        found.fit()
    return found


def labels_of(
    observation: Observation, descent: Descent, inputs: Float[Tensor, "n *shape"]
) -> Int[Tensor, " n"] | None:
    """The class that each example's signal at the classifier pulls up, by least squares; `None` where nothing tells."""
    hidden, inside = descent.hidden, descent.inside
    head, classifier = inside.layers[-1] if inside.layers else None, find_classifier(observation)
    if not observation.task.of_classes or head is None or not isinstance(classifier, LinearLayer):
        return None
    if classifier.weight != head.weight or head.unfolding.places != 1 or head.weight not in hidden.gradients:
        return None
    with torch.no_grad():
        batch = Batch(inputs, torch.zeros(len(inputs), dtype=torch.long))
        (features,) = inside.run([head.hidden], descent.state.values, batch)
    rows = head.unfolding.rows(head.unfolding.of_hidden(features))
    if len(rows) > rows.shape[2]:
        return None
    return signals_of(rows, hidden.gradients[head.weight].matrix)[:, 0].argmin(1)


def known_features(hidden: HiddenTensors) -> tuple[KnownFeatures, ...]:
    """Findings of their own."""
    return tuple(KnownFeatures(r.layers[0].weight, r.maps, r.error, r.certified) for r in hidden.reads)


def bare(hidden: HiddenTensors) -> Reconstruction:
    """Hidden tensors, no example."""
    features = known_features(hidden)
    return Reconstruction(None, None, Status.CONVERGED, described(features, hidden), features=features)


def described(features: tuple[KnownFeatures, ...], hidden: HiddenTensors) -> str:
    """One clause: whose inputs are known, of how many examples, how exactly."""
    sure = [one for one in features if one.certified] or list(features)
    first, others = sure[0], f" and of {len(sure) - 1} other layers" if len(sure) > 1 else ""
    how = f"{'certified' if first.certified else 'read'} for {len(first.maps)} of {hidden.passes.words}"
    alike = all(read.alike for read in hidden.reads if read.layers[0].weight == first.layer)
    factor = "" if alike else " and one factor of all, as tensors may have been shortened one by one"
    return f"the inputs of {first.layer}{others} are {how}, to {first.error:.0e}{factor}"
