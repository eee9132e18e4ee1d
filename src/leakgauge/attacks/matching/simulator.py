"""The client as the attacker knows it: simulated updates, and how much of one a candidate batch leaves unexplained."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from leakgauge.batch import DataSpec
from leakgauge.clients import FedSGD, Protocol, cohort_view, raw_update, sent_update
from leakgauge.defenses import AttackerView, Defense, NoDefense, view_of
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, InputError
from leakgauge.observation import Observation
from leakgauge.step.parts import Values
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, inner, map_tensors, squared_norm
from leakgauge.update import Update, UpdateKind
from leakgauge.view.entries import relative_rounding, rounding_norms, surely_sent
from leakgauge.view.front import categories, told_apart

Views = Callable[[Draws], AttackerView]
"""A client's own draws → the view of its mechanism; those who do not know the draws see all alike.

It reads the mean. What a mechanism's view takes from a single update (top-k's support) is there only where all clients
agree on it; elsewhere the view simulates the mechanism, as it does behind noise."""


@dataclass(frozen=True, eq=False)
class Simulator:
    """Runs the very functions that the client ran, on what the attacker knows.

    Where local training is unknown and the update is a delta, the candidate's gradient with its sign
    turned stands for it: right in direction for small local steps, unknown in length (`scale_known`). Stages of the
    batch (MixUp) are run for who knows the client's draws; others treat them as `Hidden`, or as absent."""

    task: Task
    observed: Tensors
    view: AttackerView
    protocol: Protocol
    defense: Defense
    draws: Draws
    scale_known: bool
    views: Views
    draws_known: bool

    @staticmethod
    def of(observation: Observation, like: torch.Tensor, generator: torch.Generator) -> "Simulator":
        """In the dtype and on the device of `like`. Unknown draws are replaced by the attacker's own, but for the
        defence's noise, which is left out. Raises `InputError`: the stated local training makes another kind of update
        than the one observed."""
        knowledge, header = observation.knowledge, observation.update.header
        protocol = knowledge.local_training
        if protocol is not None and protocol.kind is not header.kind:
            problem = f"{protocol} sends a {protocol.kind.value}, the update is a {header.kind.value}"
            raise InputError("knowledge.local_training", problem, "make them agree")
        told, defense = knowledge.draws is not None, knowledge.defense or NoDefense()
        observed = map_tensors(lambda t: t.to(like), observation.update.tensors)
        counted = Update(observed, replace(header, example_count=observation.examples))
        return Simulator(
            task=observation.task.to(like),
            observed=observed,
            view=cohort_view(protocol or FedSGD(), defense, counted, knowledge.draws),
            views=cache(lambda own: view_of(defense, counted, own if told else None)),
            protocol=protocol or FedSGD(),
            defense=defense if told else defense.without_noise(),
            draws=knowledge.draws or Draws.sample(generator),
            scale_known=protocol is not None or header.kind is UpdateKind.GRADIENT,
            draws_known=told,
        )

    def __call__(self, batch: Batch, buffers: Tensors | None = None) -> Tensors:
        """Simulated update as it would look on the wire but for rounding, differentiable in the batch and in
        `buffers`, which stand for the task's own of the same names."""
        return self._sent(batch, buffers, lambda raw, draws: self.views(draws).relax(raw))

    def exact(self, batch: Batch) -> Tensors:
        """Simulated update with its rounding: the observed one at the truth, for who knows all that the client drew."""
        return self._sent(batch, None, lambda raw, draws: self.views(draws)(raw))

    def raw(self, batch: Batch, buffers: Tensors | None = None) -> Tensors:
        """Simulated update before the client's last stage, for objectives that `wants_raw`."""
        return self._sent(batch, buffers, lambda raw, _: raw)

    def _sent(self, batch: Batch, buffers: Tensors | None, last: Callable[[Tensors, Draws], Tensors]) -> Tensors:
        task = self.task if not buffers else replace(self.task, buffers={**self.task.buffers, **buffers})

        def stages(protocol: Protocol, batch: Batch, draws: Draws) -> tuple[Tensors, Tensors]:
            if self.draws_known:
                batch = self.defense.on_batch(batch, draws.generator("batch"))
            raw, after = raw_update(task, protocol, batch, draws, self.defense)
            return last(raw if self.scale_known else map_tensors(torch.neg, raw), draws), after

        return sent_update(self.protocol, batch, self.draws, stages)[0]

    def cost(self, examples: int) -> int:
        """Gradient evaluations of one call."""
        return self.protocol.steps(examples)


ROUNDING = 200
"""A simulated update may differ from the observed one by this many units of rounding: sums over the batch and the
network's depth, and the error of what was read."""

SHIFT = 1e-2  # a certified example stands out: moved at random by this share of the range, it explains ten times less

STEP, MOST_VALUES = 1e-6, 256  # what derivatives are taken by; targets that are solved for and may make up for inputs
TURNED, RUN = 4, 1e-4  # roundings of a tensor, and what arithmetic adds in shares of its length, that turn it


@dataclass(eq=False)
class Explainer:
    """Simulates the client in float64. Truth plays no part."""

    simulator: Simulator
    observation: Observation
    tolerance: float  # relative distance that rounding allows
    sent: Tensors | None = None  # entries that were sent, name → bool; `None` for all
    shortened: bool = False  # the update may have been, as the defence is not known
    spent: int = field(default=0)  # gradient evaluations so far
    why: str = field(default="")  # nothing was certified, for the end of a message

    @staticmethod
    def of(observation: Observation, generator: torch.Generator) -> "Explainer":
        """For one observation, in the network's own words; `generator` stands for draws that are not known."""
        observation = observation.origin
        simulator = Simulator.of(observation, torch.empty((), dtype=torch.float64), generator)
        entry, weights = relative_rounding(observation)
        tolerance = max(ROUNDING * entry + 2 * weights, 1e-9)
        unknown = observation.knowledge.defense is None
        return Explainer(simulator, observation, tolerance, surely_sent(observation, tolerance), unknown)

    def left(self, batch: Batch, *, free: bool = False) -> float:
        """‖a·simulated − observed‖ / ‖observed‖, where a is 1, or the best length where it is not known, or `free`."""
        self.spent += self.simulator.cost(len(batch))
        with torch.no_grad():
            made = self.simulator(Batch(batch.inputs.double(), batch.labels))
            return relative_distance(made, self.simulator.observed, free=free or not self.simulator.scale_known)

    def certified(self, batch: Batch, generator: torch.Generator) -> Bool[Tensor, " n"]:
        """Which examples are proved: together they explain the update to its rounding, and each must be what it is.

        Each is told from all others by what layers read of it, and shows in what was sent, number by number. Moved at
        random or shorter, none explains it any more: of two classes, without biases, the length of an example is that
        of the update, which a clip changes. Whole numbers are no labels where the loss takes real ones."""
        count, unlike = len(batch), not self.simulator.task.of_classes and not batch.labels.is_floating_point()
        if unlike or self.tolerance > SHIFT / 10 or not self.left(batch) <= self.tolerance:
            return torch.zeros(count, dtype=torch.bool)
        data, proved = self.simulator.task.data, []
        for index in range(count):
            moved, shorter = batch.inputs.double().clone(), batch.inputs.double().clone()
            step = SHIFT * data.range * torch.randn(moved[index].shape, generator=generator).double()
            beyond = (moved[index] + step < data.low) | (moved[index] + step > data.high)
            moved[index] += torch.where(beyond, -step, step)
            shorter[index] = data.denormalise((1 - SHIFT) * data.normalise(shorter[index : index + 1]))[0]
            others = ((moved, 10), (shorter, 3))  # a clip that hides the length hides it whole
            left = ((self.left(Batch(x, batch.labels), free=self.shortened), margin) for x, margin in others)
            proved.append(all(value > margin * self.tolerance for value, margin in left))
        found = torch.tensor(proved)
        real = any(isinstance(target, Values) for target in self.simulator.task.layout.targets.values())
        if bool(found.any()) and real and self.observation.knowledge.labels is None:
            found = found & self._told_from_mixtures(batch, generator)
        if bool(found.any()):
            normal = data.normalise(batch.inputs.double())
            told = told_apart(self.observation.task, normal)
            told = told if bool(told.all()) else told | told_apart(self.observation.view.task, normal)
            self.why = "; other inputs look the same to this network, so nothing is certified" * (not bool(told.any()))
            found = found & told
        return found & self._every_input_shows(batch) if bool(found.any()) else found

    def _told_from_mixtures(self, batch: Batch, generator: torch.Generator) -> Bool[Tensor, " n"]:
        """Which examples move the update otherwise than the rest and real targets can, which were solved for too:
        mixtures with values of their own may explain what the batch does."""
        inputs, labels = batch.inputs.double(), batch.labels.double()
        if labels.numel() > MOST_VALUES:
            return torch.zeros(len(batch), dtype=torch.bool)
        moved = [Batch(x, labels) for x in motions(inputs, self.simulator.task.data, generator, STEP)]
        units = STEP * torch.eye(labels.numel(), dtype=torch.float64).view(-1, *labels.shape)
        batches = [Batch(inputs, labels), *moved, *(Batch(inputs, labels + unit) for unit in units)]
        self.spent += len(batches) * self.simulator.cost(len(batch))
        with torch.no_grad():
            made = [torch.cat([t.flatten() for t in self.simulator(one).values()]) for one in batches]
        rows = SHIFT / STEP / made[0].norm() * (torch.stack(made[1:], 1) - made[0][:, None])
        others, own = rows.split([len(moved), len(units)], 1)
        left = others - own @ torch.linalg.lstsq(own, others, driver="gelsd").solution
        return stand_out(left, len(batch), 10 * self.tolerance)

    def turned(self, batch: Batch) -> float:
        """How far a simulated tensor is from the observed one at its best length, in shares of what rounding allows, at
        most of all tensors that are known well enough, and of the entries that came. A defence that nobody knows may
        have shortened each tensor by itself."""
        self.spent += self.simulator.cost(len(batch))
        observed, task, client = self.simulator.observed, self.observation.task, self.simulator.protocol
        rounded = rounding_norms(self.observation.update, task.parameters, max(client.steps(len(batch)), 1))
        with torch.no_grad():
            made = self.simulator(Batch(batch.inputs.double(), batch.labels))
        most = 0.0
        for name, seen in observed.items():
            size = float(seen.norm())
            allowed = TURNED * rounded[name] / size + RUN if size else math.inf
            if allowed < SHIFT:
                own = {name: torch.where(seen != 0, made[name], 0.0)}
                most = max(most, relative_distance(own, {name: seen}, free=True) / allowed)
        return most

    def _every_input_shows(self, batch: Batch) -> Bool[Tensor, " n"]:
        """Which examples have each of their inputs in what was sent: of what a sparsifier left out nothing is told."""
        self.spent += self.simulator.cost(len(batch))
        names, heard = list(self.simulator.observed), None
        if self.sent is not None:
            names, heard = list(self.sent), torch.cat([sent.flatten() for sent in self.sent.values()])
        size = float(squared_norm(self.simulator.observed)) ** 0.5

        def made(inputs: Tensor) -> Tensor:
            simulated = self.simulator(Batch(inputs, batch.labels))
            return torch.cat([simulated[name].flatten() for name in names])

        try:
            return every_input_shows(made, heard, batch.inputs, self.simulator.task, self.tolerance * size)
        except FOREIGN:  # a way back that has no derivative may have one in the plainest words
            plain, like = self.observation.view, torch.empty((), dtype=torch.float64)
            if plain is self.observation:
                return torch.zeros(len(batch), dtype=torch.bool)
            simulator = replace(Simulator.of(plain, like, torch.Generator()), draws=self.simulator.draws)
            sent = surely_sent(plain, self.tolerance)
            return replace(self, simulator=simulator, observation=plain, sent=sent)._every_input_shows(batch)


def motions(
    inputs: Float[Tensor, "n *shape"], data: DataSpec, generator: torch.Generator, step: float = SHIFT
) -> list[Float[Tensor, "n *shape"]]:
    """The batch with one example moved by a small step inside the range: each at random, shorter, towards others."""
    found, zero = [], data.denormalise(torch.zeros_like(inputs[:1]).double())
    for k in range(len(inputs)):
        noise = torch.randn(inputs[k].shape, generator=generator).double() * data.range
        goals = torch.cat([zero, inputs[:k].double(), inputs[k + 1 :].double()])
        for way in (noise, *(goals - inputs[k].double())):
            moved = inputs.double().clone()
            inside = (moved[k] + step * way >= data.low) & (moved[k] + step * way <= data.high)
            moved[k] += step * torch.where(inside, way, -way)
            found.append(moved)
    return found


def stand_out(changes: Float[Tensor, "p ways"], count: int, least: float) -> Bool[Tensor, " n"]:
    """Which of so many examples are in no combination of all `motions` that changes less than `least`."""
    _, values, back = torch.linalg.svd(changes, full_matrices=False)
    hidden = back[values < least].square().sum(0).view(count, -1).amax(1)
    found: Tensor = (hidden < 1e-3) & (changes.norm(dim=0).view(count, -1).amin(1) > 0)
    return found


PROBES = 6  # random directions in which an input is asked for what it moves

ALONE = 10 ** (-45 / 20)
"""Root mean square error of a proved example in shares of the range: what one input may be off by, alone, is more."""


def every_input_shows(
    made: Callable[[Tensor], Tensor],
    heard: Bool[Tensor, " p"] | None,
    inputs: Float[Tensor, "n *shape"],
    task: Task,
    least: float,
) -> Bool[Tensor, " n"]:
    """Which examples have no input that, wrong by what `ALONE` allows it, moves what was heard of them by less than
    `least`. Of d inputs one alone may be off by √d times as much as all. Categories and tokens, which have no slope,
    are not judged."""
    x, draw = inputs.detach().double().requires_grad_(), torch.Generator().manual_seed(0)
    flat, still = made(x), categories(task).view(x.shape[1:]).to(x.device)
    if not flat.requires_grad:
        return still.all().expand(len(x)).cpu()
    most = whole = torch.zeros_like(x)
    for _ in range(PROBES):
        way = torch.randn(flat.shape, generator=draw, dtype=torch.float64).to(flat)
        ways = (way,) if heard is None else (way, way * heard.to(way))
        all_, *others = (torch.autograd.grad(flat @ w, x, retain_graph=True)[0] for w in ways)
        at = others[0] if others else all_
        most, whole = torch.maximum(most, at.abs()), torch.maximum(whole, all_.abs())
    alone = min(ALONE * x[0].numel() ** 0.5, 1.0) * task.data.range
    margin = 1 if heard is None else 10  # what was left out may hide more
    shows: Tensor = ((alone * most > margin * least) | ((whole == 0) & still)).flatten(1).all(1).cpu()
    return shows


def relative_distance(made: Tensors, seen: Tensors, *, free: bool) -> float:
    """‖a·made − seen‖ / ‖seen‖ over the tensors of `seen`, where a is 1, or the best length where it is `free`."""
    made, tiny = {k: made[k] for k in seen}, torch.finfo(torch.float64).tiny
    length = inner(made, seen) / squared_norm(made).clamp_min(tiny) if free else 1.0
    left = squared_norm({k: length * made[k] - seen[k] for k in seen})
    return float((left / squared_norm(seen).clamp_min(tiny)).sqrt())
