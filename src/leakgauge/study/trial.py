"""One trial: client, observation, attack, evaluation. Runs in a worker process and returns plain data."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from leakgauge.attacks.adaptive.counter import Adapted, Naive, NoneKnown, counter_to
from leakgauge.attacks.closed_form import ServerRead
from leakgauge.attacks.recipes.auto import Auto
from leakgauge.clients import client_update
from leakgauge.clients.client import trained_on
from leakgauge.compute import Budget, Compute
from leakgauge.data.source import InWords, Share, whole_gallery
from leakgauge.defenses import parts_of, steps_of
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, InputError, said
from leakgauge.observation import Attack, Cost, Knowledge, Known, Observation, Reconstruction, Status
from leakgauge.report.rows import Picture
from leakgauge.resolve import Named
from leakgauge.servers.server import Broadcast
from leakgauge.study.attempt import attempt, informed, undisturbed
from leakgauge.study.deal import Client, Key
from leakgauge.study.evaluate import Truth, class_prior, evaluate, evaluate_parts
from leakgauge.study.evaluate_texts import evaluate_texts, in_words
from leakgauge.study.identity import withheld_name
from leakgauge.study.judging.records import Data, Role, Scenario, Trial, readable, record_of
from leakgauge.study.judging.scores import LayerRead
from leakgauge.study.plan import UNDEFENDED, Plan
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.update import Update, UpdateHeader

PUBLIC = 64  # public examples an attacker may hold, and the null baselines use
OTHERS = 7  # other clients' batches that a reconstruction is scored against as well


@dataclass(frozen=True)
class TrialResult:
    """A trial, and its examples beside its reads where these are pictures."""

    trial: Trial
    pictures: tuple[Picture, ...]

    @property
    def record(self) -> Mapping[str, Any]:
        return record_of(self.trial)


def parts(plan: Plan, key: Key) -> tuple[Named, Named, Named]:
    attack = plan.attacks[key.attack]
    if key.control:
        return plan.clients[key.client], UNDEFENDED, attack
    return plan.clients[key.client], plan.defenses[key.defense], attack


def trial_id(plan: Plan, key: Key) -> str:
    """Unique in the plan, readable, and sortable."""
    labels = [named.label for named in (plan.models[key.model], *parts(plan, key))]
    return "/".join([*["control"] * key.control, *labels, f"s{plan.keys.seeds[key.seed]}", f"b{key.batch:03d}"])


def run_trial(
    plan: Plan, key: Key, *, compute: Compute, counts_only: bool = False, lost: Reconstruction | None = None
) -> TrialResult:
    """Simulates the client (or reads the given update), attacks, and only then brings in the truth. Where an earlier
    try was `lost`, it is entered as it is, and nothing is simulated or attacked."""
    client, defense, attack = parts(plan, key)
    examples, sent = plan.examples(key), plan.broadcast(key)
    indices, batch, task = list(examples.indices), examples.batch, sent.task
    streams = Draws(plan.keys.seeds[key.seed])

    shown = plan.data.lend(Share.PUBLIC, indices, PUBLIC, streams.generator("public", key.batch))
    reconstruction, trained = lost, None
    if reconstruction is None:
        try:
            with undisturbed():
                update, draws = _update(plan, key, deepcopy(task), client, defense, deepcopy(batch), streams)
                if plan.keys.update is None:  # what the client trained on, where that differs from what it holds
                    inputs = trained_on(client.value, deepcopy(batch), draws, defense.value).inputs.detach()
                    differs = inputs.shape == batch.inputs.shape and not torch.equal(inputs, batch.inputs)
                    trained = inputs if differs else None
        except FOREIGN as error:  # a defence may be anybody's, and a model too
            reconstruction = _raised(error)
        else:

            def see() -> Observation:
                """The attacker's view, in tensors of its own."""
                with undisturbed():
                    return observe(plan, deepcopy(task), update, draws, client, defense, batch, shown, sent.crafting)

            reconstruction = _attacked(key, attack, see, streams, plan.budget, compute)

    truth = Truth(
        batch,
        gallery=plan.data.lend(Share.GALLERY, indices, plan.keys.gallery, streams.generator("gallery", key.batch)),
        public=shown,
        others=plan.data.neighbours(key.batch, OTHERS, control=key.control),
        prior=class_prior(plan.source.labels, plan.spec.classes),
        trained=trained,
        whole=whole_gallery(plan.source, indices, plan.keys.gallery),
    )
    labels, perceptual = Known.LABELS in plan.knows, plan.perceptual
    if task.named is not None:
        others = plan.source.read([i for i in range(len(plan.source)) if i not in set(indices)][:PUBLIC] or indices)
        found = evaluate_parts(reconstruction, truth, task, others, labels_known=labels, perceptual=perceptual)
    elif plan.spec.is_text:
        found = evaluate_texts(reconstruction, truth, plan.spec, labels_known=labels)
    else:
        found = evaluate(reconstruction, truth, plan.spec, labels_known=labels, perceptual=perceptual)
    role, base = role_of(attack)
    trial = Trial(
        id=trial_id(plan, key),
        scenario=scenario_of(plan, key, examples, sent, counts_only),
        attack=attack.label,
        role=role,
        base=base,
        seed=streams.seed,
        control=key.control,
        status=reconstruction.status.value,
        message=reconstruction.message,
        blind=reconstruction.blind,
        scores=found.scores,
        labels=found.labels,
        controls=found.controls,
        restarts=tuple(_finite(v) for v in reconstruction.restarts),
        trace=tuple((evaluations, _finite(objective)) for evaluations, objective in reconstruction.trace),
        cost=Cost(reconstruction.cost.gradient_evaluations, round(reconstruction.cost.seconds, 3)),
        tokens=found.tokens,
        tried=reconstruction.tried,
        layers=tuple(
            LayerRead(one.layer, min(len(one.maps), len(batch)), float(one.error))  # of several steps, several maps
            for one in reconstruction.features
            if one.certified
        ),
        parts=found.parts,
        words=in_words(plan.source, plan.spec, batch, reconstruction, found.order, counts_only=counts_only)
        if isinstance(plan.source, InWords)
        else None,
    )
    if counts_only or not plan.spec.is_image:
        return TrialResult(trial, ())
    pictures, reads = [], reconstruction.inputs
    for slot, (name, own, mate) in enumerate(zip(examples.names, batch.inputs, found.order, strict=True)):
        read = None if reads is None or mate is None else png(reads[mate], plan.spec)
        pictures.append(Picture(name=readable(name), slot=slot, original=png(own, plan.spec), reconstruction=read))
    return TrialResult(trial, tuple(pictures))


def _attacked(
    key: Key, attack: Named, see: Callable[[], Observation], streams: Draws, budget: Budget, compute: Compute
) -> Reconstruction:
    """The attack on what is seen, and what the network says of its answer: each gets a view of its own."""
    try:
        known = see()
    except InputError as error:
        why = f"the simulated client diverged, or its defence changes the update's form ({error.problem})"
        return Reconstruction(None, None, Status.FAILED, why)
    except FOREIGN as error:
        return _raised(error)
    found = attempt(attack.value, known, streams.generator("attack", key.batch), budget, compute)
    del known
    return informed(found, see, streams.generator("information", key.batch))


def _raised(error: BaseException) -> Reconstruction:
    return Reconstruction(None, None, Status.FAILED, f"the client or its defence raised {said(error)}")


def _update(
    plan: Plan, key: Key, task: Task, client: Named, defense: Named, batch: Batch, streams: Draws
) -> tuple[Update, Draws]:
    draws = Draws.sample(streams.generator("client", key.batch))
    if plan.keys.update is not None and not key.control:
        return plan.captured(key.batch), draws
    send_buffers = Known.BUFFERS in plan.knows
    return client_update(task, client.value, batch, draws, defense=defense.value, send_buffers=send_buffers), draws


def observe(
    plan: Plan,
    task: Task,
    update: Update,
    draws: Draws,
    client: Named,
    defense: Named,
    batch: Batch,
    shown: Tensor,
    crafting: Attack | None = None,
) -> Observation:
    """What the plan's attacker receives: only the fields that the plan names. Raises `InputError` where a simulated
    client diverged, which has sent nothing that could be attacked."""
    knows = plan.knows
    knowledge = Knowledge(
        labels=batch.labels.clone() if Known.LABELS in knows else None,
        example_count=len(batch) if Known.EXAMPLE_COUNT in knows else None,
        local_training=client.value if Known.LOCAL_TRAINING in knows else None,
        buffers=update.buffers if Known.BUFFERS in knows else None,
        defense=defense.value if Known.DEFENSE in knows else None,
        draws=draws if Known.DRAWS in knows else None,
        public_data=shown.clone() if Known.PUBLIC_DATA in knows else None,
        crafting=deepcopy(crafting),
    )
    header = UpdateHeader(
        update.header.kind,
        update.header.example_count if Known.EXAMPLE_COUNT in knows else None,
        update.header.protocol if Known.LOCAL_TRAINING in knows else {},
    )
    return Observation(defense.value.on_task(task), Update(update.tensors, header, knowledge.buffers), knowledge)


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def png(image: Tensor, spec: DataSpec) -> bytes:
    scaled = ((image - spec.low) / spec.range).clamp(0, 1).mul(255).round().to(torch.uint8).cpu().numpy()
    picture = Image.fromarray(scaled[0] if scaled.shape[0] == 1 else np.moveaxis(scaled, 0, 2))
    out = io.BytesIO()
    picture.save(out, format="PNG", optimize=False)
    return out.getvalue()


def role_of(attack: Named) -> tuple[Role, str]:
    """What an attack claims to be, and the attack that it is a reading of."""
    value = attack.value
    if isinstance(value, Naive):
        return Role.NAIVE, repr(value.attack)
    inner = value.attack if isinstance(value, Adapted) else value
    role = Role.STRONGEST if isinstance(inner, Auto) else Role.SERVER if isinstance(inner, ServerRead) else Role.RECIPE
    return role, repr(inner)


def scenario_of(plan: Plan, key: Key, examples: Client, sent: Broadcast, counts_only: bool) -> Scenario:
    client, defense, _ = parts(plan, key)
    shown = withheld_name if counts_only else str
    name = plan.rounds[key.batch].name if len(plan.rounds) > 1 and not key.control else ""
    counters = [counter_to(part) for part in parts_of(defense.value)]
    broken = [counter.broken_by for counter in counters if isinstance(counter, NoneKnown) and counter.broken_by]
    known = [
        k for k in plan.knows if k is not Known.DEFENSE or not any(step.silent for step in steps_of(defense.value))
    ]
    return Scenario(
        model=plan.models[key.model].label,
        mode=plan.keys.mode,
        server=plan.server.label,
        server_changes=tuple(change.value for change in sent.changes),
        client=client.label,
        defense=defense.label,
        defended=bool(parts_of(defense.value)),
        knowledge=(*(k.value for k in known), *["crafting"] * (sent.crafting is not None)),
        data=Data(
            source=plan.data.name,
            size=plan.data.size,
            kind="image" if plan.spec.is_image else "text" if plan.spec.is_text else "example",
            batch=len(examples.batch),
            index=plan.client(key),
            names=tuple(map(shown, examples.names)),
            round=name and shown(name),
            examples=plan.data.distinct(key.batch) if name else (),
        ),
        broken_by="; ".join(broken),
    )
