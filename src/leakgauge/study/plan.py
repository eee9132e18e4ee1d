"""audit.yaml → Plan: read, validated and resolved before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from leakgauge.attacks.closed_form import ServerRead
from leakgauge.clients.client import refuse_combination
from leakgauge.clients.protocol import refuse_mixing
from leakgauge.compute import Budget
from leakgauge.data.lent import Lent
from leakgauge.data.source import Part, Source, check, client_batches, others, spec
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError, did_you_mean, require
from leakgauge.models.weights import fingerprint, read_model, weights_path
from leakgauge.registry import ATTACKS, CLIENTS, SERVERS
from leakgauge.resolve import Named, resolve, resolve_defense
from leakgauge.servers.server import Broadcast, Honest
from leakgauge.study import only
from leakgauge.study.contents import JUDGING, contents
from leakgauge.study.controls import CONTROLS, Client, client_of, control_client
from leakgauge.study.described import described
from leakgauge.study.explaining.captured import explained_by, read_update, refuse_contradiction
from leakgauge.study.explaining.explained import Explained, Setting
from leakgauge.study.given import perceptual_of, source_of
from leakgauge.study.grammar import KNOWABLE, parse
from leakgauge.study.model_spec import ModelSpec, model_of
from leakgauge.task import Batch, DataSpec, Mode
from leakgauge.update import Update


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


class Plan:
    """A resolved plan. Making one validates everything that can be known before running.

    Raises:
        InputError: names the key and the hint.
    """

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self._lent: dict[Part, tuple[tuple[object, ...], Lent]] = {}
        self._sent: tuple[tuple[int, int], Broadcast] | None = None
        self.config = config = parse(raw)
        self.mode = Mode(config.mode)
        self.budget = Budget(config.budget.gradient_evaluations, config.budget.seconds)
        for i, field in enumerate(config.knows):
            require(field in KNOWABLE, f"knows[{i}]", f"unknown field '{field}'", did_you_mean(field, KNOWABLE))
        self.server = resolve(SERVERS, config.server, "server")
        self.source: Source = source_of(config.data)
        self.spec: DataSpec = spec(self.source)
        models = config.model if isinstance(config.model, list) else [config.model]
        self.models = [
            model_of(m, f"model[{i}]" if len(models) > 1 else "model", self.spec, self.mode)
            for i, m in enumerate(models)
        ]
        self.clients = [resolve(CLIENTS, c, f"clients[{i}]") for i, c in enumerate(config.clients)]
        self.defenses = [resolve_defense(d, f"defenses[{i}]") for i, d in enumerate(config.defenses)]
        require(len(set(config.seeds)) == len(config.seeds), "seeds", f"{config.seeds} repeat", "give each seed once")
        self.attacks = self._attacks()
        for field in ("models", "clients", "defenses", "attacks"):
            labels = [named.label for named in getattr(self, field)]
            twice = [name for name in labels if labels.count(name) > 1]
            require(not twice, field, f"names {twice[:1]} twice", "give each once")
        self.batches = self._batches()
        check(self.source, [i for batch in self.batches for i in batch])
        self.perceptual = perceptual_of(config.lpips, self.spec)
        only.check(config.only or [], self._parts)
        self._check_update()
        self._check_clients()

    @cached_property
    def digest(self) -> str:
        """Identity of the plan's text; an output folder belongs to one, and to one state of its `contents`."""
        ran = {key: value for key, value in self.raw.items() if key != JUDGING}
        return hashlib.sha256(json.dumps(described(ran), sort_keys=True, default=str).encode()).hexdigest()

    def contents(self) -> dict[str, str]:
        """What the results rest on beside the text, as it is now: see `leakgauge.study.contents`."""
        return contents(self.raw, self.source, self.batches)

    @property
    def dishonest(self) -> bool:
        """Whether the server crafts what it broadcasts."""
        return not isinstance(self.server.value, Honest)

    def _attacks(self) -> list[Named]:
        """The plan's, and in front of them the read that a dishonest server prepared."""
        named = [resolve(ATTACKS, a, f"attacks[{i}]") for i, a in enumerate(self.config.attacks)]
        if self.dishonest and not any(isinstance(a.value, ServerRead) for a in named):
            named.insert(0, Named("server-read", ServerRead()))
        return named

    def _batches(self) -> list[list[int]]:
        return client_batches(self.source, self.config.data.batch, self.config.data.batches, self.config.data.start)

    def _check_update(self) -> None:
        if self.config.update is None:
            return
        counts = {
            "clients": len(self.clients),
            "defenses": len(self.defenses),
            "model": len(self.models),
            "seeds": len(self.config.seeds),
            "data.batches": len(self.batches),
        }
        for field, count in counts.items():
            require(count == 1, field, f"has {count} entries, and an update file is one client's", "give one")
        require(
            not self.dishonest,
            "server",
            f"is {self.server.label}, and an update file was made with a model as it came",
            "use server: honest, and give the received parameters as the model's weights",
        )
        update, model = self.captured(), self.models[0].value
        # A function of the user's own may load weights itself; one of ours draws them.
        has_weights = not isinstance(model, ModelSpec) or model.weights is not None or ":" in model.name
        refuse_contradiction(update, self.clients[0].value, examples=len(self.batches[0]), has_weights=has_weights)

    def captured(self) -> Update:
        """The update that the plan names.

        Raises:
            InputError: it cannot be read, or is not of the plan's model.
        """
        assert self.config.update is not None
        return read_update(self.config.update, self.broadcast(self.trials()[0]).task)

    def explained(self) -> Explained | None:
        """How much of its captured update the plan explains; `None` where clients are simulated.

        Raises:
            InputError: the plan's client cannot train.
        """
        if self.config.update is None:
            return None
        task = self.broadcast(self.trials()[0]).task
        batch = self.source.read(self.batches[0])
        setting = Setting(task, self.clients[0].value, self.defenses[0].value, batch)
        model = self.models[0].value
        file = model.weights if isinstance(model, ModelSpec) else None
        received = None if file is None else fingerprint(read_model(weights_path(file), "model.weights"))
        update, draws = self.captured(), Draws(self.config.seeds[0]).of("explained", 0)
        return explained_by(update, setting, self.source, self.batches[0], draws, received=received)

    def _check_clients(self) -> None:
        """Protocols and defences that cannot work on these batches or models say so before anything runs."""
        for i, client in enumerate(self.clients):
            try:
                client.value.steps(self.config.data.batch)
            except InputError as error:
                raise error.within(f"clients[{i}]") from error
        for model in range(len(self.models)):
            self._check_server(model)
        for key in self.trials():
            if not key.control and key.seed == 0 and key.batch == 0:
                defense = self.defenses[key.defense].value
                try:
                    refuse_combination(self.clients[key.client].value, defense)
                except InputError as error:
                    raise InputError(f"defenses[{key.defense}]", error.problem, error.hint) from error
                try:
                    defended = defense.on_task(self.broadcast(key).task)
                    if defense.acts_on_examples:
                        refuse_mixing(defended)
                except InputError as error:
                    raise InputError(f"defenses[{key.defense}]", error.problem, error.hint) from error

    def _check_server(self, model: int) -> None:
        """A construction that does not fit a model says so before anything runs."""
        try:
            self.broadcast(Key(model, 0, 0, 0, 0, 0))
        except InputError as error:
            raise error if error.field.startswith(("model", "server")) else error.within("server") from error

    @property
    def _parts(self) -> dict[str, list[Named]]:
        return {"model": self.models, "client": self.clients, "defense": self.defenses, "attack": self.attacks}

    def _kept(self, *combination: int) -> int:
        """How many batches of a combination, as indices in the order of `_parts`, the plan asks for."""
        chosen = {key: named[i] for (key, named), i in zip(self._parts.items(), combination, strict=True)}
        return only.batches(self.config.only, chosen, len(self.batches))

    def lend(self, part: Part, exclude: list[int], size: int, generator: torch.Generator) -> Lent:
        """Gallery or public examples: the same for all trials on a batch and seed, which stand together.

        Of each kind the last one is kept.
        """
        wanted = tuple(exclude), size, generator.initial_seed()
        kept = self._lent.get(part)
        if kept is None or kept[0] != wanted:
            self._lent.pop(part, None)
            self._lent[part] = kept = wanted, others(self.source, exclude, part, size, generator)
        return kept[1]

    def broadcast(self, key: Key) -> Broadcast:
        """What the server sends to the clients of a trial: the undefended task, and what was crafted into it.

        Depends on model and seed alone. The last one is kept: crafted networks can be large.
        """
        wanted = key.model, key.seed
        if self._sent is None or self._sent[0] != wanted:
            seed, resolver = self.config.seeds[key.seed], self.models[key.model].value
            honest = resolver.task(seed, self.spec, self.mode, self.models[key.model].label)
            self._sent = wanted, self.server.value.broadcast(honest, Draws(seed).generator("server"))
        return self._sent[1]

    def trials(self) -> list[Key]:
        """All trials, the controls that are not among them included."""
        sizes = [range(len(named)) for named in self._parts.values()]
        kept = {combination: count for combination in itertools.product(*sizes) if (count := self._kept(*combination))}
        require(bool(kept), "only", "keeps no trial", "loosen it")
        seeds = range(len(self.config.seeds))
        keys = [Key(m, c, d, a, s, b) for (m, c, d, a), count in kept.items() for s in seeds for b in range(count)]
        # Trials that share a broadcast, or a batch and what it is compared with, stand together: they are kept.
        keys.sort(key=lambda key: (key.model, key.seed, key.batch))
        return keys + self._controls(kept)

    def _controls(self, kept: Mapping[tuple[int, ...], int]) -> list[Key]:
        """`CONTROLS` undefended clients with public examples for each model, client and attack that meet a defence or
        an update file; none where the plan itself has as many without a defence, or nothing but such."""
        plain = {i for i, d in enumerate(self.defenses) if isinstance(d.value, NoDefense) and not self.config.update}
        shown = {(m, c, a) for (m, c, d, a), count in kept.items() if d in plain and count >= CONTROLS}
        lacking = sorted({(m, c, a) for m, c, d, a in kept if d not in plain} - shown)
        return [Key(m, c, -1, a, 0, b, control=True) for m, c, a in lacking for b in range(CONTROLS)]

    def examples(self, key: Key) -> Client:
        """What the client of a trial holds."""
        if key.control:
            return control_client(self.source, self.batches, key.batch)
        return client_of(self.source, self.batches[key.batch])

    def neighbours(self, key: Key, most: int) -> tuple[Batch, ...]:
        """Examples of other clients of the same kind, at most so many."""
        if key.control:
            others = (n for n in range(CONTROLS) if n != key.batch)
            return tuple(control_client(self.source, self.batches, n).batch for n in others)[:most]
        chosen = (self.batches[key.batch + 1 :] + self.batches[: key.batch])[:most]
        return tuple(self.source.read(indices) for indices in chosen)
