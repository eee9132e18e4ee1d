"""The same round in plainer words, where there are some: exact reads know plain SGD, and many loops come to it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from leakgauge.clients import SGD, FedAvg, LocalTraining, Protocol, SecureAggregation
from leakgauge.defenses import parts_of
from leakgauge.observation import Observation
from leakgauge.task import Mode, Task
from leakgauge.tensors import Tensors
from leakgauge.update import UpdateKind

__all__ = ["plain_round"]


def plain_round(observation: Observation) -> Observation:
    """An observation of which every simulation gives the same, by a client that more attacks can read.

    A cohort of one is its client. Local training of `SGD` becomes `FedAvg` where it is that. Of one local step the
    weight decay, which moves the broadcast parameters by a known share, is taken off; not of texts, whose reader does
    so itself, nor where a defence has changed the update.
    """
    observation = _alone(observation)
    knowledge, task, count = observation.knowledge, observation.task, observation.examples
    client = knowledge.local_training
    if client is None or observation.update.header.kind is not UpdateKind.DELTA:
        return observation
    apart = knowledge.defense is not None and knowledge.defense.acts_on_examples  # with noise of its own each
    plain = _plain(client, count, mixes=apart or _mixes(task))
    if plain is not client:
        observation = replace(observation, knowledge=replace(knowledge, local_training=plain))
    bare, defended = _without_decay(plain), knowledge.defense is not None and parts_of(knowledge.defense)
    if bare is plain or count is None or defended or task.data.is_text or _steps(plain, count) > 1:
        return observation
    left = _less_decay(observation, plain)
    return replace(
        observation,
        update=replace(observation.update, tensors=left),
        knowledge=replace(observation.knowledge, local_training=bare),
    )


def _alone(observation: Observation) -> Observation:
    """The client, and its draws, in the place of secure aggregation over it alone."""
    client, draws = observation.knowledge.local_training, observation.knowledge.draws
    if not isinstance(client, SecureAggregation) or client.cohort > 1:
        return observation
    own = None if draws is None else client.draws_of(draws, 0)
    return _alone(
        replace(observation, knowledge=replace(observation.knowledge, local_training=client.client, draws=own))
    )


def _mixes(task: Task) -> bool:
    """Whether it matters which examples share a minibatch."""
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in task.module.modules())
    return task.stochastic or (norms and task.mode is Mode.TRAIN)


def _plain(client: Protocol, examples: int | None, *, mixes: bool) -> Protocol:
    """The client as `FedAvg`, or as it is where that is another one."""
    if isinstance(client, SecureAggregation):
        inside = _plain(client.client, None, mixes=mixes)
        return client if inside is client.client else replace(client, client=inside)
    if not isinstance(client, LocalTraining) or not isinstance(client.optimiser, SGD) or client.clip is not None:
        return client
    size, sgd, share = client.batch_size, client.optimiser, 1.0
    if client.accumulate > 1:
        if mixes or examples is None or examples % (size or examples):
            return client
        minibatches = examples // (size or examples)
        if minibatches <= client.accumulate:  # an epoch's only step, which may have fewer than it is divided by
            size, share = None, minibatches / client.accumulate
        elif minibatches % client.accumulate == 0 and size is not None:
            size = size * client.accumulate
        else:
            return client
    if client.drop_last and size is not None and (examples is None or examples % size):
        return client
    plain = FedAvg(
        epochs=client.epochs,
        batch_size=size,
        lr=share * sgd.lr,
        momentum=sgd.momentum,
        dampening=sgd.dampening,
        nesterov=sgd.nesterov,
        weight_decay=sgd.weight_decay / share,
        shuffle=client.shuffle,
    )
    proximal = client.proximal and (examples is None or plain.steps(examples) > 1)  # no force at the first step
    return client if proximal else plain


def _without_decay(client: Protocol) -> Protocol:
    if isinstance(client, SecureAggregation):
        inside = _without_decay(client.client)
        return client if inside is client.client else replace(client, client=inside)
    if isinstance(client, FedAvg) and client.weight_decay:
        return replace(client, weight_decay=0.0)
    if isinstance(client, LocalTraining) and isinstance(client.optimiser, SGD) and client.optimiser.weight_decay:
        return replace(client, optimiser=replace(client.optimiser, weight_decay=0.0))
    return client


def _steps(client: Protocol, examples: int) -> int:
    """Of one client, at most."""
    if isinstance(client, SecureAggregation):
        return max(client.client.steps(count) for count in client.counts(examples))
    return client.steps(examples)


def _less_decay(observation: Observation, client: Protocol) -> Tensors:
    """The update of one step of SGD without what decay alone moves; zero where no more is left than the parameter's own
    rounding."""
    alone = client.client if isinstance(client, SecureAggregation) else client
    loop = alone.training if isinstance(alone, FedAvg) else alone
    assert isinstance(loop, LocalTraining)
    assert isinstance(loop.optimiser, SGD)
    sgd = loop.optimiser
    rate = sgd.lr * sgd.weight_decay * (1 + sgd.momentum * sgd.nesterov)
    found: Tensors = {}
    for name, sent in observation.update.tensors.items():
        own = observation.task.parameters[name].detach().to(sent.device)
        left = sent.double() + rate * own.double()
        rounding = torch.finfo(own.dtype).eps * own.double().abs()
        still = (sent == 0) | (left.abs() <= rounding)
        found[name] = torch.where(still, 0.0, left).to(sent.dtype)
    return found
