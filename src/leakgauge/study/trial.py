"""One trial: client, observation, attack, evaluation. Runs in a worker process and returns plain data. Parts are run so
that whatever they do, being anybody's, ends as one row and spoils no other."""

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from leakgauge.attacks.adaptive.counter import Adapted, Naive, NoneKnown, counter_to
from leakgauge.attacks.closed_form import ServerRead
from leakgauge.attacks.recipes.auto import Auto
from leakgauge.attacks.recipes.information import image_information
from leakgauge.clients import client_update
from leakgauge.clients.client import trained_on
from leakgauge.compute import Budget, Compute
from leakgauge.data.source import Share, whole_gallery
from leakgauge.defenses import parts_of, steps_of
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, InputError, said
from leakgauge.observation import Attack, Cost, Knowledge, Known, Observation, Reconstruction, Status
from leakgauge.resolve import Named
from leakgauge.servers.server import Broadcast
from leakgauge.study.database import Picture
from leakgauge.study.deal import Client, Key
from leakgauge.study.evaluate import Truth, checked, class_prior, evaluate, evaluate_parts
from leakgauge.study.evaluate_texts import evaluate_texts, in_words
from leakgauge.study.identity import withheld_name
from leakgauge.study.judging.records import Data, LayerRead, Role, Scenario, Trial, readable, record_of
from leakgauge.study.plan import UNDEFENDED, Plan
from leakgauge.task import Batch, DataSpec
from leakgauge.update import Update, UpdateHeader
from leakgauge.view.undone import plainer

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


@contextmanager
def undisturbed() -> Iterator[None]:
    """Puts back what a part may change for the whole process: torch's settings, random numbers, working directory."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    deterministic, grad = torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled()
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(grad), chdir(os.getcwd()):
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(deterministic)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)


def parts(plan: Plan, key: Key) -> tuple[Named, Named, Named]:
    defense = UNDEFENDED if key.control else plan.defenses[key.defense]
    return plan.clients[key.client], defense, plan.attacks[key.attack]


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
                draws = Draws.sample(streams.generator("client", key.batch))
                if plan.keys.update is None or key.control:
                    held, buffers = (deepcopy(task), client.value, deepcopy(batch)), Known.BUFFERS in plan.knows
                    update = client_update(*held, draws, defense=defense.value, send_buffers=buffers)
                else:
                    update = plan.captured(key.batch)
                if plan.keys.update is None:  # what the client trained on, where that differs from what it holds
                    inputs = trained_on(client.value, deepcopy(batch), draws, defense.value).inputs.detach()
                    differs = inputs.shape == batch.inputs.shape and not torch.equal(inputs, batch.inputs)
                    trained = inputs if differs else None
        except FOREIGN as error:  # a defence may be anybody's, and a model too
            reconstruction = _raised(error)
        else:
            see = partial(observe, plan, sent, update, draws, client, defense, batch, shown)
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
    labels = Known.LABELS in plan.knows
    whole_of = evaluate_texts if plan.spec.is_text else partial(evaluate, perceptual=plan.perceptual, task=task)
    if task.named is not None:
        others = plan.source.read([i for i in range(len(plan.source)) if i not in set(indices)][:PUBLIC] or indices)
        found = evaluate_parts(reconstruction, truth, task, others, whole_of, labels_known=labels)
    else:
        found = whole_of(reconstruction, truth, plan.spec, labels_known=labels)
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
        restarts=tuple(map(_six_digits, reconstruction.restarts)),
        trace=tuple((evaluations, _six_digits(objective)) for evaluations, objective in reconstruction.trace),
        cost=Cost(reconstruction.cost.gradient_evaluations, round(reconstruction.cost.seconds, 3)),
        tokens=found.tokens,
        tried=reconstruction.tried,
        layers=tuple(
            LayerRead(one.layer, min(len(one.maps), len(batch)), float(one.error))  # of several steps, several maps
            for one in reconstruction.features
            if one.certified
        ),
        parts=found.parts,
        words=in_words(plan.source, batch, reconstruction, found.order, counts_only=counts_only)
        if hasattr(plan.source, "in_words")
        else None,
    )
    if counts_only or not (plan.spec.is_image or plan.spec.is_volume):
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


@undisturbed()
def observe(
    plan: Plan, sent: Broadcast, update: Update, draws: Draws, client: Named, defense: Named, batch: Batch, lent: Tensor
) -> Observation:
    """What the plan's attacker receives, in tensors of its own: only the fields that the plan names. `lent`: public
    examples. Raises `InputError` where a simulated client diverged, which has sent nothing that could be attacked."""
    knows = plan.knows
    knowledge = Knowledge(
        labels=batch.labels.clone() if Known.LABELS in knows else None,
        example_count=len(batch) if Known.EXAMPLE_COUNT in knows else None,
        local_training=client.value if Known.LOCAL_TRAINING in knows else None,
        buffers=update.buffers if Known.BUFFERS in knows else None,
        defense=defense.value if Known.DEFENSE in knows else None,
        draws=draws if Known.DRAWS in knows else None,
        public_data=lent.clone() if Known.PUBLIC_DATA in knows else None,
        crafting=deepcopy(sent.crafting),
    )
    header = UpdateHeader(
        update.header.kind,
        update.header.example_count if Known.EXAMPLE_COUNT in knows else None,
        update.header.protocol if Known.LOCAL_TRAINING in knows else {},
    )
    seen = Update(update.tensors, header, knowledge.buffers)
    return Observation(defense.value.on_task(deepcopy(sent.task)), seen, knowledge)


def _six_digits(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def png(image: Tensor, spec: DataSpec) -> bytes:
    """A picture, or the three middle planes of a volume's first channel, one beside the other."""
    if spec.is_volume:
        side = max(spec.shape[1:])
        planes = [image[0].select(axis, image.shape[1 + axis] // 2) for axis in range(3)]
        framed = [F.pad(p, (0, side - p.shape[1], 0, side - p.shape[0]), value=spec.low) for p in planes]
        image = torch.cat(framed, 1)[None]
    pixels, out = ((image - spec.low) / spec.range).clamp(0, 1).mul(255).round().to(torch.uint8), io.BytesIO()
    Image.fromarray(pixels.movedim(0, 2).squeeze(2).cpu().numpy()).save(out, format="PNG", optimize=False)
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
    silent = any(step.silent for step in steps_of(defense.value))
    known = [k.value for k in plan.knows if not (silent and k is Known.DEFENSE)]
    return Scenario(
        model=plan.models[key.model].label,
        mode=plan.keys.mode,
        server=plan.server.label,
        server_changes=tuple(change.value for change in sent.changes),
        client=client.label,
        defense=defense.label,
        defended=bool(parts_of(defense.value)),
        knowledge=(*known, *["crafting"] * (sent.crafting is not None)),
        data=Data(
            source=plan.data.name,
            size=plan.data.size,
            kind=next((k for k in ("image", "volume", "text") if getattr(plan.spec, f"is_{k}")), "example"),
            batch=len(examples.batch),
            index=plan.client(key),
            names=tuple(map(shown, examples.names)),
            round=name and shown(name),
            examples=plan.data.distinct(key.batch) if name else (),
        ),
        broken_by="; ".join(broken),
    )


def attempt(
    attack: Attack, observation: Observation, generator: torch.Generator, budget: Budget, compute: Compute
) -> Reconstruction:
    """Runs an attack, which may be anybody's, on an observation of its own. Whatever it raises becomes a failed row
    with the reason: that it does not apply, an attack says by its answer alone, for no gate fails on that."""
    try:
        with undisturbed():
            plain, left = plainer(observation)
            found = attack.reconstruct(plain, generator, budget=budget, compute=compute)
            return checked(found, observation.task).with_view(plain, *left)
    except FOREIGN as error:
        why = str(error) if isinstance(error, InputError) else said(error)
        return Reconstruction(None, None, Status.FAILED, why)


def informed(found: Reconstruction, see: Callable[[], Observation], generator: torch.Generator) -> Reconstruction:
    """Says so where a search matched an update that hardly depends on the images: its distance is then small whatever
    the pictures. Asked of the network alone, apart from the attack's budget, in a view (`see`) of its own."""
    if found.inputs is None or not found.cost.gradient_evaluations or found.blind:
        return found
    observation = see()
    if (examples := observation.examples) is None:
        return found
    try:
        with undisturbed():
            sentence = image_information(observation, examples, generator).sentence
    except FOREIGN:  # it is asked in float64, which not every model runs in
        return found
    return replace(found, blind=sentence) if sentence else found
