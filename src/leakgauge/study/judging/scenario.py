"""How a trial is described: what is attacked, by what, and what the client trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from leakgauge.attacks.adaptive.counter import Adapted, Naive, NoneKnown, counter_to
from leakgauge.attacks.closed_form import ServerRead
from leakgauge.attacks.recipes.auto import Auto
from leakgauge.clients.client import trained_on
from leakgauge.defenses import parts_of
from leakgauge.draws import Draws
from leakgauge.observation import Known
from leakgauge.resolve import Named
from leakgauge.servers.server import Broadcast
from leakgauge.study.attempt import own_copy
from leakgauge.study.deal import Key
from leakgauge.study.identity import withheld_name
from leakgauge.study.judging.records import Data, Role, Scenario
from leakgauge.study.plan import Plan
from leakgauge.task import Batch


def role_of(attack: Named) -> tuple[Role, str]:
    """What an attack claims to be, and the attack that it is a reading of."""
    value = attack.value
    if isinstance(value, Naive):
        return Role.NAIVE, repr(value.attack)
    inner = value.attack if isinstance(value, Adapted) else value
    role = Role.STRONGEST if isinstance(inner, Auto) else Role.SERVER if isinstance(inner, ServerRead) else Role.RECIPE
    return role, repr(inner)


def scenario_of(
    plan: Plan,
    key: Key,
    client: Named,
    defense: Named,
    batch: int,
    names: tuple[str, ...],
    sent: Broadcast,
    counts_only: bool = False,
) -> Scenario:
    """What is attacked."""
    crafted = sent.crafting is not None
    name, held = _of_the_round(plan, key, counts_only)
    counters = [counter_to(part) for part in parts_of(defense.value)]
    broken = [counter.broken_by for counter in counters if isinstance(counter, NoneKnown) and counter.broken_by]
    known = [k for k in plan.knows if k is not Known.DEFENSE or not defense.value.tells_nothing]
    return Scenario(
        model=plan.models[key.model].label,
        mode=plan.mode.value,
        server=plan.server.label,
        server_changes=tuple(change.value for change in sent.changes),
        client=client.label,
        defense=defense.label,
        defended=bool(parts_of(defense.value)),
        knowledge=(*(k.value for k in known), *(["crafting"] if crafted else [])),
        data=Data(
            source=plan.data.name,
            size=plan.data.size,
            kind="image" if plan.spec.is_image else "text" if plan.spec.is_text else "example",
            batch=batch,
            index=plan.client(key),
            names=names,
            round=name,
            examples=held,
        ),
        broken_by="; ".join(broken),
    )


def _of_the_round(plan: Plan, key: Key, counts_only: bool) -> tuple[str, tuple[int, ...]]:
    """Name of a captured round among several, and which of the audit's examples it holds: the same one counts once."""
    if key.control or len(plan.rounds) < 2:
        return "", ()
    name = plan.rounds[key.batch].name
    return withheld_name(name) if counts_only else name, plan.data.distinct(key.batch)


def trained_inputs(client: Named, batch: Batch, draws: Draws, defense: Named) -> Tensor | None:
    """What the client trained on, where that differs from what it holds; one for each example."""
    inputs = trained_on(client.value, own_copy(batch), draws, defense.value).inputs.detach()
    return None if inputs.shape != batch.inputs.shape or torch.equal(inputs, batch.inputs) else inputs
