"""The matching engine: find a batch whose simulated update is the observed one.

Every optimisation attack is this loop with other parts: labels → canvas → objective + prior →
minimiser → polish. The parts are values; the engine holds nothing of its own but the order.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.labels import CountsFromLastLayer, LabelGuess, LabelStrategy
from leakgauge.attacks.labels.shares import SoughtTargets
from leakgauge.attacks.labels.strategy import Unknown
from leakgauge.attacks.matching.adam import SmearedMasks
from leakgauge.attacks.matching.canvases import Given, Pixels
from leakgauge.attacks.matching.curvature import BoundedLBFGS
from leakgauge.attacks.matching.parts import (
    Canvas,
    Cosine,
    Hidden,
    JointSoftLabels,
    Minimiser,
    Objective,
    Polish,
    Prior,
    buffers_in,
)
from leakgauge.attacks.matching.priors import Balanced, NoPrior, Pull, Scheduled
from leakgauge.attacks.matching.problem import Meter, Minimum, Problem
from leakgauge.attacks.matching.simulator import Simulator
from leakgauge.compute import Compute, available, gigabytes, needed
from leakgauge.errors import Checked, positive
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import Tensors, squared_norm

PASSES = 20  # tensors of one layer's size that a step holds at most: values, their gradients, and those of both


def fitted(problem: Problem, task: Task, examples: int, *, batched: bool, compute: Compute) -> Problem | str:
    """The problem, with restarts in chunks that fit into `Compute.memory`; or why not even one fits. A step's memory is
    found with tensors that have no data, not where a bound, every weight at every place of every example, fits."""
    allowed = available(compute.device) if compute.memory is None else compute.memory
    together = min(problem.restarts, problem.chunk or problem.restarts) if batched else 1
    weights = sum(p.numel() * p.element_size() for p in task.parameters.values())
    first, entries = task.data.shape[0], math.prod(task.data.shape)
    bound = PASSES * weights * max(first, entries // first) * examples * problem.cost
    while bound * together > allowed:
        start = {name: value[:together] for name, value in problem.start.items()}
        need = needed(lambda empty: problem.step({k: empty(v) for k, v in start.items()}))  # noqa: B023 - at once
        if need is None or need <= allowed:
            break
        if together == 1:
            return (
                f"memory: a step of the search takes {gigabytes(need)} and {gigabytes(allowed)} are to be had; "
                "give more (--memory), fewer workers, or fewer examples in a batch"
            )
        # Of what a step takes, the weights' share is not the restarts': half of them may not be half of it.
        together = max(1, together // 2)
    return replace(problem, chunk=together) if together < problem.restarts and batched else problem


ORDINARY = 1e-12, 1e12  # largest entries of an update that float32 is enough for, where attacks do not ask for more


@ATTACKS.register("matching", needs="example_count, and what its parts need")
@dataclass(frozen=True, kw_only=True)
class Matching(Checked, SearchingAttack):
    """An attack by matching updates.

    Attributes:
        hidden: unknown draws of the client's encoding that are optimised with the examples, in the order in which
            the client encodes.
        labels: how labels are found where `Knowledge.labels` does not give them.
        restarts: independent starts; the one with the lowest data term is the answer. Truth plays no part.
        masks: what stands for the derivative of a ReLU's mask, for minimisers of first order; see `SmearedMasks`.
        counters: build in the named counter to each defence that the attacker knows (`leakgauge list defenses`).
            Without, a known defence is simulated and no more; for the naive reading see `Naive`.
    """

    objective: Objective = field(default_factory=Cosine)
    prior: Prior = field(default_factory=NoPrior)
    canvas: Canvas = field(default_factory=Pixels)
    minimiser: Minimiser = field(default_factory=BoundedLBFGS)
    labels: LabelStrategy | JointSoftLabels = field(default_factory=CountsFromLastLayer)
    polish: tuple[Polish, ...] = ()
    hidden: tuple[Hidden, ...] = ()
    restarts: int = positive(1)
    masks: SmearedMasks | None = None
    counters: bool = True

    def resumed(self, inputs: Float[Tensor, "n *shape"]) -> "Matching":
        """The same attack from these raw examples, once; unchanged where the canvas is not of pixels."""
        if not isinstance(self.canvas, Pixels):
            return self
        return replace(self, canvas=replace(self.canvas, first=Given(inputs)), restarts=1)

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        if self.counters and observation.knowledge.defense is not None:
            from leakgauge.attacks.adaptive.counter import built_in  # counters are made of the engine's parts

            adapted, unanswered = built_in(self, observation)
            found = effort.of(adapted, observation)
            return replace(found, message="; ".join(filter(None, (found.message, unanswered))))
        meter, compute, generator = Meter(effort.budget, effort.on_step), effort.compute, effort.generator
        sent = observation.update.tensors
        labels, confidence = self._labels(observation, generator)
        if isinstance(labels, Unknown):
            return Reconstruction.not_applicable(labels.message)
        examples = len(labels) if isinstance(labels, Tensor) else observation.examples
        if examples is None:
            return Reconstruction.not_applicable("needs the number of examples (knows: example_count)")
        parts: tuple[Prior | Canvas | Polish, ...] = (self.prior, self.canvas, *self.polish)
        for part in parts:
            if why := part.refuses(observation.task.data):
                return Reconstruction.not_applicable(why)
        largest = max((float(t.detach().abs().max()) for t in sent.values() if t.numel()), default=1.0)
        extreme = largest > 0 and not ORDINARY[0] < largest < ORDINARY[1]  # squares vanish or overflow in float32
        like = compute.like(torch.float64 if extreme else self.minimiser.dtype)
        simulator = Simulator.of(observation, like, generator)
        if not (simulator.scale_known or self.objective.scale_free):
            return Reconstruction.not_applicable(
                f"{type(self.objective).__name__} needs the length of the update, hence local_training; cosine does not"
            )
        problem = self._problem(simulator, labels, examples, meter, effort)
        fits = fitted(problem, simulator.task, examples, batched=self.minimiser.batched, compute=compute)
        if isinstance(fits, str):
            return Reconstruction(None, None, Status.FAILED, fits)
        return self._answer(simulator.task.data, self._minimise(fits), labels, confidence, meter)

    def _labels(
        self, observation: Observation, generator: torch.Generator
    ) -> tuple[Tensor | SoughtTargets | Unknown | None, float | None]:
        """Labels (`None`: joint) or what is missing, and their confidence (`None`: given)."""
        layout, count = observation.task.layout, observation.examples
        if observation.knowledge.labels is not None:
            return observation.knowledge.labels, None
        if not layout.targets and count is not None:
            return torch.zeros(count, dtype=torch.long), None
        if not layout.of_classes and (sought := SoughtTargets.of(observation, generator)) is not None:
            whole = None if sought.taken(observation.task) else sought.soft(sought.start(generator), settled=True)
            return sought if whole is None else whole, None
        if isinstance(self.labels, JointSoftLabels):
            return None, None
        guess = self.labels.infer(observation, generator)
        if isinstance(guess, LabelGuess):
            return guess.labels, guess.confidence
        sought = SoughtTargets.of(observation, generator)
        return guess if sought is None or not sought.taken(observation.task) else sought, None

    def _problem(
        self, simulator: Simulator, labels: Tensor | SoughtTargets | None, examples: int, meter: Meter, effort: Effort
    ) -> Problem:
        task, observed, data = simulator.task, simulator.observed, simulator.task.data
        simulate = simulator.raw if self.objective.wants_raw(simulator.view) else simulator
        like, size = next(iter(observed.values())), squared_norm(observed).sqrt()
        prior, pull = self.prior, None
        if isinstance(prior, Balanced):
            pull, prior = Pull(lambda v: self.prior(self.canvas.decode(v, data)), prior.share), prior.prior
        schedule = prior.at if isinstance(prior, Scheduled) else None
        known = labels.to(like.device) if isinstance(labels, Tensor) else None

        def first() -> Tensors:
            start = self.canvas.start(examples, data, effort.generator)
            for part in self.hidden:
                start |= part.start(examples, data, effort.generator)
            if isinstance(labels, SoughtTargets):
                start |= labels.start(effort.generator)
            elif isinstance(self.labels, JointSoftLabels) and labels is None:
                start["label_logits"] = self.labels.start(examples, data.classes, effort.generator)
            return start

        def guess(variables: Tensors) -> Tensor:
            if isinstance(labels, SoughtTargets):
                return labels.soft(variables)
            if known is not None:
                return known
            return pad(variables["label_logits"].softmax(1), (0, task.outputs - data.classes))

        def simulated(z: Tensor, variables: Tensors) -> Tensors:
            batch = Batch(data.denormalise(z), guess(variables))
            for part in self.hidden:
                batch = part.encode(batch, variables)
            with nullcontext() if self.masks is None else self.masks.active():
                return simulate(batch, buffers_in(variables))

        def residual(variables: Tensors) -> Tensor:
            made = simulated(self.canvas.decode(variables, data), variables)
            return torch.cat([(made[name] - sent).flatten() for name, sent in observed.items()]) / size

        def loss(variables: Tensors) -> tuple[Tensor, Tensor]:
            z = self.canvas.decode(variables, data)
            term = self.objective(simulated(z, variables), observed, simulator.view)
            # A balanced prior pulls beside the objective, see `Problem.pull`.
            penalty = self.prior(z) if pull is None else z.new_zeros(())
            for part in self.hidden:
                penalty = penalty + part.penalty(variables)
            return term + penalty, term

        starts = [first() for _ in range(self.restarts)]
        return Problem(
            loss,
            start={k: torch.stack([s[k] for s in starts]).to(like) for k in starts[0]},
            bounds={k: (low.to(like), high.to(like)) for k, (low, high) in self.canvas.bounds(data).items()},
            meter=meter,
            cost=simulator.cost(examples),
            chunk=effort.compute.chunk,
            schedule=schedule,
            pull=pull,
            residual=residual,
        )

    def _minimise(self, problem: Problem) -> Minimum:
        if self.minimiser.batched or problem.restarts == 1:
            return self.minimiser.minimise(problem)
        minima: list[Minimum] = []
        for index in range(problem.restarts):
            minima.append(self.minimiser.minimise(problem.one(index)))
            if minima[-1].status in (Status.STOPPED, Status.TIME_LIMIT):
                break
        found = [m for m in minima if m.variables]
        if not found:
            return minima[-1]
        ends = [m.status for m in minima if m.status is not Status.NON_FINITE]
        return Minimum(
            {k: torch.cat([m.variables[k] for m in found]) for k in found[0].variables},
            torch.cat([m.total for m in found]),
            torch.cat([m.data for m in found]),
            ends[-1] if ends else Status.NON_FINITE,
        )

    def _answer(
        self,
        data: DataSpec,
        minimum: Minimum,
        labels: Tensor | SoughtTargets | None,
        confidence: float | None,
        meter: Meter,
    ) -> Reconstruction:
        cost = Cost(meter.spent)
        if not minimum.variables:
            return Reconstruction(None, None, minimum.status, "the budget allowed no evaluation", cost=cost)
        if minimum.status is Status.NON_FINITE:
            message = "the objective was not finite in any restart"
            return Reconstruction(None, None, Status.NON_FINITE, message, cost=cost)
        winner = int(torch.where(torch.isfinite(minimum.data), minimum.data, torch.inf).argmin())
        variables = {k: v[winner] for k, v in minimum.variables.items()}
        inputs = data.denormalise(self.canvas.decode(variables, data)).detach()
        if isinstance(labels, SoughtTargets):
            labels = labels.soft(variables, settled=True)
        elif labels is None:
            probabilities = variables["label_logits"].softmax(1)
            labels, confidence = probabilities.argmax(1), float(probabilities.amax(1).mean())
        for polish in self.polish:
            inputs = polish(inputs, labels)
        return Reconstruction(
            inputs.cpu(),
            labels.detach().cpu(),
            minimum.status,
            objective=float(minimum.data[winner]),
            label_confidence=confidence,
            cost=cost,
            trace=tuple(meter.trace),
            restarts=tuple(minimum.data.tolist()) if minimum.data.numel() > 1 else (),
        )
