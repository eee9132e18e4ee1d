"""What an attack receives and what it gives back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.clients.protocol import GradientSum
from leakgauge.clients.protocol import Protocol as ClientProtocol
from leakgauge.compute import Budget, Compute
from leakgauge.defenses import AttackerView, steps_of, view_of
from leakgauge.defenses.carried import Carried, keeps_together
from leakgauge.defenses.defense import Defense
from leakgauge.defenses.steps import Noise, by_tensor, commutes
from leakgauge.draws import Draws
from leakgauge.task import Task
from leakgauge.tensors import Tensors, map_tensors, narrowed
from leakgauge.update import Update, UpdateKind
from leakgauge.view.normal import NormalForm, Obstacle, look_at, looked


class Status(Enum):
    """How a run ended. Only the first group carries a result."""

    EXACT = "exact"  # closed form, certified by its own check
    CONVERGED = "converged"
    OUT_OF_STEPS = "out_of_steps"  # the recipe's own number of steps
    OUT_OF_BUDGET = "out_of_budget"  # the caller's budget
    TIME_LIMIT = "time_limit"
    STOPPED = "stopped"  # by the caller's callback
    NON_FINITE = "non_finite"
    NOT_APPLICABLE = "not_applicable"  # the attack lacks something, and says what
    FAILED = "failed"
    DIED = "died"  # its process ended, or took longer than a trial may

    @property
    def has_result(self) -> bool:
        return self not in (Status.NON_FINITE, Status.NOT_APPLICABLE, Status.FAILED, Status.DIED)


@dataclass(frozen=True)
class Cost:
    """Gradient evaluations (see `Budget`) and wall-clock seconds."""

    gradient_evaluations: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Step:
    """Progress of a run: step number, objective of the best restart, evaluations so far."""

    index: int
    objective: float
    gradient_evaluations: int


VIEW = "the view in plain layers"  # name in `tried` of what looks for a network's layers before any method reads them
OnStep = Callable[[Step], bool]  # called as a run goes on; an answer of True stops it with its best so far


@dataclass(frozen=True)
class Tried:
    """One method that an attack of several tried, in the order in which it did."""

    name: str  #: of the method, as ``leakgauge list attacks`` has it
    status: Status  #: how it ended
    why: str = ""  #: one clause: what it found, what it lacked, or why it stopped
    raised: bool = False  #: it ended by an error, so that nothing is known of what it would have found
    opaque: bool = False  #: it did not understand the network, so that what other methods do not find says nothing


@dataclass(frozen=True, eq=False)
class TokenCounts:
    """Which tokens a client's texts hold."""

    #: how often each token occurs: a row a text, in no order, or one row for all texts together
    counts: Int[Tensor, "k vocabulary"]
    counted: bool  #: whether these are the counts; else a token that occurs has 1, however often it does.
    whole: bool  #: whether no other token occurs
    #: the tokens of each text in their places, a row of `counts` each; `None` where these were not read.
    order: Int[Tensor, "k length"] | None = None


@dataclass(frozen=True, eq=False)
class KnownFeatures:
    """What a layer of the model was given, read from the update: a finding, whether or not a picture comes of it."""

    layer: str  #: name of the weight that reads them
    #: one an example, and of several steps one a step, then up to a factor each; pixels or places last. All up to one
    #: factor where it is not known that client and defence shortened all tensors alike.
    maps: Float[Tensor, "k c pixels"]
    error: float
    certified: bool  #: whether an equation that the read has not used agrees


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Images in the data's raw range, one a slot, and what is known of how they were found."""

    inputs: Float[Tensor, "n *shape"] | None  #: `None` when the attack has no answer, or one in `tokens` alone
    labels: Int[Tensor, " n"] | None  #: one a slot, or a multiset of the batch's (`paired` false); `None` when unknown.
    status: Status
    message: str = ""
    objective: float | None = None  #: final value of the data term, lower is better; `None` for closed forms.
    label_confidence: float | None = None  #: 0 to 1, the method's own; `None` when labels were given.
    cost: Cost = Cost()
    #: (gradient evaluations, objective) as the run went on
    trace: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    paired: bool = True  #: whether label i belongs to example i
    #: which examples the attack proved by its own check, one a slot; `None` where it certifies nothing example by
    #: example (`EXACT` certifies all).
    certified: Bool[Tensor, " n"] | None = None
    silent: int = 0  #: examples of the batch that are shown to be in no entry of the update beyond its rounding
    tried: tuple[Tried, ...] = ()
    blind: str = ""  #: a sentence where the update was found to say nothing of its images; empty else.
    restarts: tuple[float, ...] = ()  #: final data term of each restart of a search that had several
    tokens: TokenCounts | None = None  #: of texts, what was read of them; `EXACT` proves that every token in it occurs.
    features: tuple[KnownFeatures, ...] = ()
    #: what was read by the names of `Task.of_step`, in raw numbers; targets where they belong to the examples.
    parts: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    #: of targets of which only this is read, how much of the batch is of each class, by name
    shares: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    shares_off: Mapping[str, float] = field(default_factory=dict)  #: by how much any of `shares` may be off

    def __post_init__(self) -> None:
        if self.inputs is not None and self.certified is not None and len(self.inputs) != len(self.certified):
            counts = f"{len(self.certified)} for {len(self.inputs)} inputs"
            raise ValueError(f"certified: an attack says it of each input; {counts}")

    def in_parts(self, task: Task) -> "Reconstruction":
        read = self.inputs if self.tokens is None else self.tokens.order
        labels, named = self.labels, {} if read is None else task.layout.raw_inputs(read)
        told = labels is not None and self.paired and (self.inputs is None or len(labels) == len(self.inputs))
        if labels is not None and told and (task.of_classes or labels.ndim > 1 or labels.is_floating_point()):
            named |= task.layout.raw_targets(labels)
        return replace(self, parts=named)

    def after(self, evaluations: int) -> "Reconstruction":
        """With so many gradient evaluations before it."""
        cost = replace(self.cost, gradient_evaluations=evaluations + self.cost.gradient_evaluations)
        return replace(self, cost=cost, trace=tuple((evaluations + n, value) for n, value in self.trace))

    def with_view(self, observation: "Observation", *more: Tried) -> "Reconstruction":
        """With what the view did not understand in `tried`, and `more`."""
        return replace(self, tried=tuple(dict.fromkeys((*self.tried, *observation.not_understood, *more))))

    @staticmethod
    def not_applicable(message: str) -> "Reconstruction":
        """No answer, because the observation lacks what `message` names."""
        return Reconstruction(None, None, Status.NOT_APPLICABLE, message)


@runtime_checkable
class Attack(Protocol):
    """Anything that turns an observation into a reconstruction.

    Guaranteed: the same arguments give the same output, on which nothing else acts; only bad ones raise.
    """

    def reconstruct(
        self,
        observation: "Observation",
        generator: torch.Generator,
        *,
        budget: Budget = ...,
        compute: Compute = ...,
        on_step: OnStep | None = None,
    ) -> Reconstruction: ...


class Known(Enum):
    """What a plan may let an attacker know: the fields of `Knowledge` but `crafting`, which a server brings along."""

    LABELS = "labels"
    EXAMPLE_COUNT = "example_count"
    LOCAL_TRAINING = "local_training"
    BUFFERS = "buffers"
    DEFENSE = "defense"
    DRAWS = "draws"
    PUBLIC_DATA = "public_data"


@dataclass(frozen=True, eq=False)
class Knowledge:
    """One field per thing an attacker may know; `None` is unknown. No field hides another."""

    labels: Int[Tensor, " n"] | None = None  #: the batch's labels, in the client's order
    example_count: int | None = None
    #: the client's protocol with its hyper-parameters (never labels or order)
    local_training: ClientProtocol | None = None
    buffers: Tensors | None = None  #: the client's buffers after local training, e.g. BatchNorm statistics.
    defense: Defense | None = None
    draws: Draws | None = None  #: the client's random choices, order of batches included. No real server has them.
    public_data: Float[Tensor, "m *shape"] | None = None  #: examples from the attacker's own collection, raw
    crafting: Attack | None = None  #: the attack that a dishonest server prepared, when the attacker is that server


@dataclass(frozen=True, eq=False)
class Observation:
    """Task, update and knowledge. It never holds the client's data."""

    task: Task
    update: Update
    knowledge: Knowledge

    def __post_init__(self) -> None:
        self.update.check(self.task.parameters)
        if not self.task.layout.targets and self.examples is not None and self.knowledge.labels is None:
            taught = torch.zeros(self.examples, dtype=torch.long)  # nothing beside the inputs
            object.__setattr__(self, "knowledge", replace(self.knowledge, labels=taught))

    @property
    def linear(self) -> GradientSum | None:
        """The update as a sum of gradients, as far as the client is known; `None` where it is none."""
        client, examples = self.knowledge.local_training, self.examples
        told = None if client is None or examples is None else client.linear(examples)
        gradient = self.update.header.kind is UpdateKind.GRADIENT
        return GradientSum((1.0,), (examples or 0,)) if told is None and gradient else told

    @property
    def factor(self) -> float | None:
        """What the update is times the one mean gradient at the broadcast parameters: 1 of a gradient, −lr of a step of
        SGD that was not clipped; `None` where it is another sum, or nobody knows."""
        told = self.linear
        return None if told is None or told.decay else told.factor

    @property
    def gradient(self) -> Tensors | None:
        """That one gradient, in float64."""
        factor = self.factor
        return None if factor is None else map_tensors(lambda t: t.double() / factor, self.update.tensors)

    @property
    def defended(self) -> AttackerView:
        """What is known of how a defence changed the update; empty where nothing is."""
        known = self.knowledge
        return AttackerView() if known.defense is None else view_of(known.defense, self.update, known.draws)

    @property
    def rescaled(self) -> bool:
        """Whether the client's optimiser scales entries of one tensor unlike, so that their ratios show nothing."""
        client = self.knowledge.local_training
        return client is not None and client.rescales_entries

    @cached_property
    def view(self) -> "Observation":
        """The same in the plainest words: the network in the linear layers, convolutions and tables that it comes to,
        however it is spelt, and the update in theirs (`leakgauge.view.normal`). Every reader of layers reads this.

        Inputs and labels mean the same in both. What it cannot carry over (a defence that goes by names or places,
        several steps of a layer that is computed from others) leaves the observation as it is.
        """
        return self._viewed[0]

    @property
    def not_understood(self) -> tuple[Tried, ...]:
        """What keeps the view from showing all of the network. It costs nothing: empty where nobody asked for it."""
        found = () if (look := looked(self.task)) is None else (*look.obstacles, *self._viewed[1])
        ended = Status.NOT_APPLICABLE, Status.FAILED
        return tuple(Tried(VIEW, ended[one.opaque], one.sentence, opaque=one.opaque) for one in found)

    @cached_property
    def _viewed(self) -> "tuple[Observation, tuple[Obstacle, ...]]":
        form = look_at(self.task).form
        if form is None:
            return self, ()
        sent, obstacles = self if form.exact else _without_decay(self), list[Obstacle]()
        update, knowledge = sent.update, sent.knowledge
        if (carried := _carried(sent, form)) is not None:
            knowledge = replace(knowledge, defense=carried)
        elif not _carries_over(sent, form):
            obstacles.append(Obstacle("what client or defence did is not the same of plain layers", opaque=False))
            if (form := next((f for f in form.narrower if _carries_over(self, f)), None)) is None:
                return self, tuple(obstacles)
            update, knowledge = self.update, self.knowledge
        tensors = form.tensors(narrowed(update.tensors))
        if carried is not None and (whole := carried.support) is not None:
            tensors = {name: t * whole[name] for name, t in tensors.items()}
        if not all(bool(t.isfinite().all()) for t in tensors.values()):
            return self, (Obstacle("the update is not finite in plain layers"),)
        found = Observation(form.task, Update(tensors, update.header, update.buffers), knowledge)
        found.__dict__["view"] = found
        found.__dict__["origin"] = self
        return found, tuple(obstacles)

    @cached_property
    def origin(self) -> "Observation":
        """What this is the view of; itself where it is none."""
        return self

    def values(self, name: str) -> Tensor:
        """One tensor of the update in float64, for closed forms: squares vanish or overflow in half precision."""
        return self.update.tensors[name].detach().double()

    @property
    def examples(self) -> int | None:
        """How many made the update: by the labels where they are known, else by the count."""
        return self.example_count if self.knowledge.labels is None else len(self.knowledge.labels)

    @property
    def example_count(self) -> int | None:
        """From the attacker's knowledge, else from the update's header."""
        return self.update.header.example_count if (n := self.knowledge.example_count) is None else n


def _without_decay(observation: Observation) -> Observation:
    """Without what weight decay adds to every entry, as other forms of the network do not have it, and with a client
    that adds none, whose steps weigh as much but for decay times rate; itself where it is not known."""
    known, told, sent = observation.knowledge, observation.linear, observation.update
    client, noises = known.local_training, all(isinstance(step, Noise) for step in steps_of(known.defense))
    if client is None or client.loop is None or told is None or not told.decay or not noises:
        return observation
    left = {k: t - told.decay * observation.task.parameters[k].detach().to(t) for k, t in sent.tensors.items()}
    bare = client.with_loop(lambda loop: replace(loop, optimiser=loop.optimiser.without_decay()))
    return Observation(observation.task, Update(left, sent.header, sent.buffers), replace(known, local_training=bare))


def _carried(observation: Observation, form: NormalForm) -> Carried | None:
    """A defence that goes by tensors or entries, as it acts on a form whose tensors are a linear map of the update's;
    `None` where there is no such defence, or the client's gradient is not known."""
    known, told = observation.knowledge, observation.linear
    plain = known.defense is None or all(map(commutes, steps_of(known.defense)))
    if plain or form.exact or known.defense is None or known.draws is not None or told is None or told.decay:
        return None
    return Carried.of(known.defense, observation.update, form.copies, form.tensors)


def _carries_over(observation: Observation, form: NormalForm) -> bool:
    """Whether what client and defence did is the same of the network in other words."""
    known, told, update = observation.knowledge, observation.linear, observation.update
    steps = steps_of(known.defense)
    named = all(step.blind or (form.exact and keeps_together(step, update, form.tensors)) for step in steps)
    if (steps and known.draws is not None) or not named:
        return False
    if form.exact:
        return True
    alike = all(commutes(s) or (form.entrywise and not by_tensor(s, update)) for s in steps)
    client, examples = known.local_training, observation.examples
    if client is not None and client.loop is not None:
        if form.entrywise:
            return alike
        if told is None and examples is not None:  # a clip of steps leaves a sum of gradients, in other shares
            told = client.with_loop(lambda loop: replace(loop, clip=None)).linear(examples)
    return alike and told is not None and not told.decay
