"""A plan: what an audit does, in objects, validated before anything runs; and how the words of a file become one."""

import copy
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from leakgauge.attacks.closed_form import ServerRead
from leakgauge.clients.client import refuse_combination
from leakgauge.clients.protocol import refuse_mixing
from leakgauge.compute import Budget
from leakgauge.data import Parts, Source, open_source
from leakgauge.data.source import check, spec
from leakgauge.defenses import NoDefense, parts_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError, blamed_on, did_you_mean, refusing, require, within
from leakgauge.metrics.metric import LPIPS, Metric
from leakgauge.models.weights import load_weights, weights_path
from leakgauge.observation import Known
from leakgauge.registry import ATTACKS, CLIENTS, DATA, MODELS, SERVERS, TRAINING_LOSSES
from leakgauge.resolve import Named, label, labelled, resolve, resolve_defense, split
from leakgauge.servers.server import Broadcast, Honest
from leakgauge.study.deal import Client, Dealt, Key, Selection, product
from leakgauge.study.explaining.causes import explained_round
from leakgauge.study.explaining.rounds import CapturedRound, clients_of, read_update, refuse_contradiction, rounds_of
from leakgauge.study.explaining.setting import Explained, Setting
from leakgauge.study.grammar import DataConfig, OnlyRule, PlanConfig, parse
from leakgauge.study.identity import Described, contents
from leakgauge.task import DataSpec, Loss, Mode, Task, cross_entropy
from leakgauge.update import Update

UNDEFENDED = Named("none", NoDefense(), ("none",))
HONEST = Named("honest", Honest(), ("honest",))


def with_read(server: Named, attacks: Sequence[Named]) -> tuple[Named, ...]:
    """The attacks, and after them the read that a dishonest server prepared."""
    has = isinstance(server.value, Honest) or any(isinstance(a.value, ServerRead) for a in attacks)
    return tuple(attacks) if has else (*attacks, Named("server-read", ServerRead(), ("server-read",)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan(Described):
    """What an audit does, in objects: every model × client × defence × attack × seed × batch that `only` keeps. Making
    one validates everything that can be known before running. `resolve_plan` makes one from a file's words."""

    keys: PlanConfig  #: the plan's keys; of those that name parts, the parts stand here.
    data: Dealt
    #: of values `ModelSpec`; alternatives, each label once, as clients, defences and attacks are.
    models: tuple[Named, ...]
    clients: tuple[Named, ...]
    defenses: tuple[Named, ...]
    attacks: tuple[Named, ...]
    server: Named = HONEST  #: who broadcasts; its own read is an attack behind the plan's.
    knows: tuple[Known, ...]
    only: tuple[Selection, ...] | None
    perceptual: Metric | None
    #: the plan in the words of its file, for reports; without it the objects are described.
    written: Mapping[str, Any] | None = None
    #: makes the plan in another process, where what it holds cannot be copied there (open files)
    again: "Callable[[], Plan] | None" = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", with_read(self.server, self.attacks))
        seeds = self.keys.seeds
        require(len(set(seeds)) == len(seeds), "seeds", f"{seeds} repeat", "give each seed once")
        for key, several in self._parts.items():
            labels = [named.label for named in several]
            twice = [name for name in labels if labels.count(name) > 1]
            require(not twice, key, f"names {twice[:1]} twice", "give each once")
        check(self.source, [i for batch in self.data.indices for i in batch], blank=self.keys.update is not None)
        self._check_update()
        self._check_clients()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return super().__reduce_ex__(protocol) if self.again is None else (self.again, ())

    @property
    def source(self) -> Source:
        return self.data.source

    @cached_property
    def spec(self) -> DataSpec:
        return spec(self.source)

    def contents(self) -> dict[str, str]:
        """What the results rest on beside the text, as it is now: see `leakgauge.study.identity`."""
        return contents(self.config if self.written is None else self.written, self.source, self.data.indices)

    @property
    def budget(self) -> Budget:
        """Of one trial's attack."""
        return Budget(self.keys.budget.gradient_evaluations, self.keys.budget.seconds)

    def _check_update(self) -> None:
        if self.keys.update is None:
            return
        alone = {"clients": self.clients, "defenses": self.defenses, "model": self.models, "seeds": self.keys.seeds}
        for key, several in alone.items():
            problem = f"has {len(several)} entries, and an update file is one client's"
            require(len(several) == 1, key, problem, "give one")
        many, batches = len(self.rounds), len(self.data.indices)
        hint = f"give {many}, each round's examples after those of the one before"
        require(batches == many, "data.batches", f"has {batches} entries, and there are {many} captured rounds", hint)
        problem = f"is {self.server.label}, and an update file was made with a model as it came"
        hint = "use server: honest, and give the received parameters as the model's weights"
        require(isinstance(self.server.value, Honest), "server", problem, hint)
        protocol, examples, drawn = self.clients[0].value, self.data.batch, self.models[0].value.drawn
        for i, captured in enumerate(self.rounds):
            has_weights = not drawn or captured.weights is not None
            refuse_contradiction(self.captured(i), protocol, examples=examples, has_weights=has_weights)

    @cached_property
    def rounds(self) -> tuple[CapturedRound, ...]:
        """Captured ones, a batch each, with the weights that each began from; none where clients are simulated."""
        own = self.models[0].value.weights
        file = None if own is None else weights_path(own)
        return tuple(replace(one, weights=one.weights or file) for one in rounds_of(self.keys.update))

    def captured(self, number: int = 0) -> Update:
        return read_update(self.rounds[number].update, self.broadcast(Key(0, 0, 0, 0, 0, number)).task)

    def explained(self, number: int = 0) -> Explained:
        indices, captured = self.data.indices[number], self.rounds[number]
        task = self.broadcast(Key(0, 0, 0, 0, 0, number)).task
        setting = Setting(task, self.clients[0].value, self.defenses[0].value, self.source.read(indices))
        update, draws = self.captured(number), Draws(self.keys.seeds[0]).of("explained", number)
        found = explained_round(captured, update, setting, self.source, indices, draws)
        return replace(found, round=captured.name) if len(self.rounds) > 1 else found

    def client(self, key: Key) -> int:
        """Which client's a trial is: clients that hold the same examples are one, and so are rounds of one node."""
        if key.control or len(self.rounds) < 2:
            return self.data.holder(key.batch, control=key.control)
        holders = [self.data.holder(number) for number in range(len(self.data.indices))]
        return clients_of([r.node for r in self.rounds], holders)[key.batch]

    def _check_clients(self) -> None:
        """Protocols and defences that cannot work on these batches or models say so before anything runs."""
        for i, client in enumerate(self.clients):
            with within(client.field or f"clients[{i}]"):
                client.value.steps(self.data.batch)
        for model in range(len(self.models)):  # a construction that does not fit a model says so
            with within("server", "server", "model"):
                self.broadcast(Key(model, 0, 0, 0, 0, 0))
        for key in self.trials():
            if not key.control and key.seed == 0 and key.batch == 0:
                named, defense = self.defenses[key.defense], self.defenses[key.defense].value
                with blamed_on(named.field or f"defenses[{key.defense}]"):
                    refuse_combination(self.clients[key.client].value, defense)
                    defended = defense.on_task(self.broadcast(key).task)
                    if defense.acts_on_examples:
                        refuse_mixing(defended)

    @property
    def _parts(self) -> dict[str, tuple[Named, ...]]:
        return {"models": self.models, "clients": self.clients, "defenses": self.defenses, "attacks": self.attacks}

    def broadcast(self, key: Key) -> Broadcast:
        """What the server sends to the clients of a trial: the undefended task, and what was crafted into it.

        Depends on model, seed and captured round alone. The last one is kept: crafted networks can be large.
        """
        number = min(key.batch, len(self.rounds) - 1) if self.rounds and not key.control else 0
        return _broadcast(self, key.model, self.keys.seeds[key.seed], number)

    def trials(self) -> list[Key]:
        """All trials, the controls that are not among them included."""
        plain = {i for i, d in enumerate(self.defenses) if not parts_of(d.value) and not self.keys.update}
        sizes = tuple(len(named) for named in self._parts.values())
        return product(sizes, self.only, len(self.keys.seeds), len(self.data.indices), plain)

    def examples(self, key: Key) -> Client:
        return self.data.examples(key.batch, control=key.control)


@lru_cache(1)
def _broadcast(plan: Plan, model: int, seed: int, number: int) -> Broadcast:
    resolver = plan.models[model].value
    if plan.rounds and (weights := plan.rounds[number].weights) is not None:
        resolver = replace(resolver, weights=str(weights))
    honest = resolver.task(seed, plan.spec, Mode(plan.keys.mode), plan.models[model].label)
    return plan.server.value.broadcast(honest, Draws(seed).generator("server"))  # type: ignore[no-any-return]


OWN = [name for name in DataConfig.model_fields if name not in ("source", "size")]
"""Keys under ``data`` that are not the source's."""


def resolve_plan(raw: Mapping[str, Any]) -> Plan:
    """The plan that the keys of a file describe; objects may stand where the file has names."""
    config = parse(dict(raw))
    knows = known(config.knows)
    server = resolve(SERVERS, config.server, "server")
    given = source_of(config.data.source, config.data.options, OWN)
    several = config.model if isinstance(config.model, list) else [config.model]
    if held := given if isinstance(given, Parts) else getattr(given, "parts", None):
        asked: ModelSpec = spec_of(several[0], "model").value
        own = asked.given is None and ":" in asked.name  # a training step may be named as well as given
        made = replace(asked, weights=None).built(0) if own else asked.given
        if held is given or (isinstance(made, Task) and made.named):  # what a capture kept suits networks as it is
            given = held.of(made.layout if isinstance(made, Task) else None)
    source = cast(Source, given)
    data, mode, loss = spec(source), Mode(config.mode), loss_of(config.loss)
    places = [f"model[{i}]" for i in range(len(several))] if len(several) > 1 else ["model"]
    models = [model_of(m, p, data, mode, loss, min(config.data.batch, 2)) for m, p in zip(several, places, strict=True)]
    clients = [resolve(CLIENTS, c, f"clients[{i}]") for i, c in enumerate(config.clients)]
    defenses = [resolve_defense(d, f"defenses[{i}]") for i, d in enumerate(config.defenses)]
    attacks = with_read(server, [resolve(ATTACKS, a, f"attacks[{i}]") for i, a in enumerate(config.attacks)])
    parts = {"model": models, "client": clients, "defense": defenses, "attack": attacks}
    dealt = config.data
    called = dealt.source if isinstance(dealt.source, str) else ""
    return Plan(
        keys=config,
        data=Dealt(source, dealt.batch, dealt.batches, dealt.start, called, dealt.size),
        models=tuple(models),
        clients=tuple(clients),
        defenses=tuple(defenses),
        attacks=tuple(attacks),
        server=server,
        knows=knows,
        only=None if config.only is None else tuple(_rule(r, i, parts) for i, r in enumerate(config.only)),
        perceptual=perceptual_of(config.lpips, data),
        written=raw,
        again=partial(resolve_plan, raw),
    )


def known(names: Sequence[str]) -> tuple[Known, ...]:
    """What attackers are given. Raises `InputError` for a field that there is not."""
    fields = [k.value for k in Known]
    for i, name in enumerate(names):
        require(name in fields, f"knows[{i}]", f"unknown field '{name}'", did_you_mean(name, fields))
    return tuple(map(Known, names))


def _rule(rule: OnlyRule, number: int, parts: Mapping[str, Sequence[Named]]) -> Selection:
    """Names of labels, or of parts without their parameters, to places in the plan's lists."""
    places: list[frozenset[int] | None] = []
    for key, several in parts.items():
        wanted, called = getattr(rule, key), [{named.label, named.name} for named in several]
        names = [wanted] if isinstance(wanted, str) else wanted
        for name in names or ():
            there = set().union(*called)
            require(name in there, f"only[{number}].{key}", f"'{name}' is not in the plan", did_you_mean(name, there))
        places.append(None if names is None else frozenset(i for i, own in enumerate(called) if own & set(names)))
    model, client, defense, attack = places
    return Selection(model, client, defense, attack, rule.batches)


def source_of(source: Any, options: Mapping[str, Any], own: Collection[str] = ()) -> Source | Parts:
    """The source that a plan names, with the keywords of its constructor, or that it is given; parts become one with
    their task. The plan's own keys beside them are for a hint where one is misspelt."""
    kind = source.partition(":")[0] if isinstance(source, str) else ""
    taken = next((entry.parameters for entry in DATA if entry.name == kind), {})
    for key in (key for key in options if key not in taken):
        near = difflib.get_close_matches(key, own, n=1, cutoff=0.6)
        require(not near, f"data.{key}", f"unknown key '{key}'", f"did you mean '{near[0] if near else ''}'?")
    if isinstance(source, Parts | Source):
        require(not options, f"data.{next(iter(options), '')}", "is for a source that the plan names", "leave it out")
        return source
    with within("data", "data"):
        opened: Source | Parts = open_source(source, **options)
        return opened


def perceptual_of(weights: str | None, data: DataSpec) -> Metric | None:
    """LPIPS from a weights file, or through torchmetrics; `None` when not asked for."""
    return None if weights is None else LPIPS(weights=weights, data_range=data.range, low=data.low)


def fitted(accepted: Iterable[str], data: DataSpec) -> dict[str, object]:
    """Those of a constructor's arguments that the data decide, unless somebody gives them."""
    known: dict[str, object] = {"classes": data.classes, "shape": data.shape}
    if data.is_image:
        known |= {"channels": data.shape[0], "size": data.shape[-1]}
    if data.is_text:
        known |= {"vocabulary": data.vocabulary, "padding": data.padding, "length": data.shape[0]}
    return {name: known[name] for name in accepted if name in known}


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """A network, or a training step of it, and where its weights come from."""

    name: str  #: name, arguments: of the constructor, as a plan has it
    arguments: dict[str, object]
    weights: str | None  #: a file, or ``packaged:NAME``; `None` for those that it has.
    field: str
    loss: Loss = cross_entropy
    given: nn.Module | Task | None = None  #: in place of a name, the same for every seed

    @property
    def drawn(self) -> bool:
        """Whether its weights come from a seed, as those of a model of ours; a user's function may load some."""
        return self.given is None and self.weights is None and ":" not in self.name

    def built(self, seed: int) -> nn.Module | Task:
        """The model, or a training step of it; one without weights draws them from `seed`."""
        if self.given is not None:
            made = self.given if self.weights is None else copy.deepcopy(self.given)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                with refusing(self.field, "cannot be built", "set data.size or the model to match"):
                    made = resolve(MODELS, {self.name: self.arguments}, self.field).value
        module = made.module if isinstance(made, Task) else made
        problem = f"'{self.name}' gives a {type(made).__name__}"
        require(isinstance(module, nn.Module), self.field, problem, "return a torch.nn.Module, or a leakgauge.Task")
        if self.weights is not None:
            load_weights(module, weights_path(self.weights, self.field), self.field)
            made = made.of_module(module) if isinstance(made, Task) else made
        return made

    def task(self, seed: int, data: DataSpec, mode: Mode, label: str) -> Task:
        """The training step of a module on that data, or the user's own. Raises `InputError` where it does not fit."""
        try:
            made = self.built(seed)
            if not isinstance(made, Task):
                return Task.of(made, data, mode=mode, loss=self.loss, name=label)
        except InputError as error:
            raise InputError(error.field.replace("model", self.field, 1), error.problem, error.hint) from error
        ours, theirs, own = made.mode.value, mode.value, made.data.shape
        require(ours == theirs, "mode", f"is {theirs}, the model's training step is in {ours}", f"write mode: {ours}")
        same = own == data.shape
        require(same, self.field, f"takes examples of shape {own}, the data have {data.shape}", "give its parts")
        return replace(made, name=label)


def spec_of(given: Any, field: str, data: DataSpec | None = None, loss: Loss = cross_entropy) -> Named:
    """The model that a plan names, or that it is given: a module, a training step, or ``{label: one of them}``. The
    data decide arguments that nobody gives."""
    given, called = labelled(given, field)
    if isinstance(given, nn.Module | Task):
        shown = given.name if isinstance(given, Task) else type(given).__name__
        return Named(called or shown, ModelSpec(shown, {}, None, field, loss, given))
    name, arguments = split(given, field)
    weights = arguments.pop("weights", None)
    if weights is not None and not isinstance(weights, str):
        raise InputError(f"{field}.weights", f"is {weights!r}", "give a file, or packaged:NAME")
    with blamed_on(field):
        entry = MODELS[name]
    full = ({} if data is None else fitted(entry.parameters, data)) | arguments
    shown = called or label(name, {**arguments, "weights": Path(weights).name} if weights else arguments)
    return Named(shown, ModelSpec(name, full, weights, field, loss), (name,), field)


def model_of(given: Any, field: str, data: DataSpec, mode: Mode, loss: Loss = cross_entropy, count: int = 2) -> Named:
    """The model that a plan names, or that it is given, tried once on the data's format: on `count` made-up examples,
    unless it is a step of the user's own, which was tried when it was made, or learns numbers, of unknown form."""
    found = spec_of(given, field, data, loss)
    task = found.value.task(0, data, mode, found.label)
    if task.named is None and task.of_classes:
        try:
            task.fits(task.layout.made_up(count, torch.Generator().manual_seed(0)))
        except InputError as error:
            hint = f"make it answer a batch of {count} with finite logits [{count}, {task.outputs}], not detached"
            raise InputError(field, f"its loss {error.problem}", hint) from error
    return found


def loss_of(given: Any) -> Loss:
    """What the clients minimise: a name, ``package.module:function`` of logits and labels, or a function."""
    if isinstance(given, str | Mapping):
        name, arguments = split(given, "loss")
        if ":" in name and not arguments:
            return TRAINING_LOSSES[name].build
    return resolve(TRAINING_LOSSES, given, "loss").value  # type: ignore[no-any-return]
