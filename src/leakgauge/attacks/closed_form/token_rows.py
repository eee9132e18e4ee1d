"""Which rows of an embedding an update moved, as no parameter without gradient moves."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from leakgauge.clients import FedSGD
from leakgauge.clients.client import raw_update
from leakgauge.defenses import Defense, NoDefense, parts_of, view_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Observation
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, Wire, map_tensors
from leakgauge.update import UpdateKind

PROBES = 4
"""Random batches that show whether every token moves its row."""
FULL = (
    "every row of the embedding moved: by noise, weight decay that is not known, or an output layer that shares it. "
    "Which tokens occur is not read"
)


def token_table(task: Task, generator: torch.Generator) -> str | None:
    """The parameter that holds the embedding of the input's tokens, found by sending random texts through the model."""
    if not task.data.is_text:
        return None
    sent = torch.randint(task.data.vocabulary, (3, *task.data.shape), generator=generator)
    found: list[str] = []
    handles = []
    for name, module in task.module.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue

        def look(_: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
            given = args[0].reshape(len(sent), -1) if args and args[0].numel() % len(sent) == 0 else sent[:, :0]
            ends = given[:, : sent.shape[1]], given[:, -sent.shape[1] :]
            if any(torch.equal(end, sent) for end in ends):
                found.append(f"{name}.weight" if name else "weight")

        handles.append(module.register_forward_pre_hook(look))
    try:
        with torch.no_grad():
            task.logits(task.parameters, task.buffers, sent.to(next(iter(task.parameters.values()))))
    finally:
        for handle in handles:
            handle.remove()
    return next((name for name in found if name in task.parameters), None)


def moved_rows(observation: Observation, table: str) -> tuple[Bool[Tensor, " v"] | None, str]:
    """Rows that did not move as one without gradient does; `None` and why where that cannot be told."""
    knowledge, sent = observation.knowledge, observation.update.tensors[table].detach().cpu()
    if knowledge.defense is not None:
        parts = parts_of(knowledge.defense)
        if any(part.without_noise() is not part for part in parts) or _adds_noise(observation):
            return None, "noise moves every row of the embedding: which tokens occur is not read"
        if any(type(part).on_batch is not Defense.on_batch for part in parts):
            return None, "the defence trains on other texts than the client holds"
    idle = _idle(observation, table)
    values, still = sent.double(), torch.zeros_like(sent, dtype=torch.float64)
    bound = torch.zeros_like(values)
    if idle is not None and bool((idle != 0).any()):
        still = idle.double()
        own = observation.task.parameters[table].detach().cpu()
        steps = _steps(observation)
        rounding = torch.finfo(own.dtype).eps * (4 + 2 * steps)
        bound = rounding * (own.double().abs() + still.abs()) + Wire.of(sent).errors(values)
    moved = ((values - still).abs() > bound).any(1)
    return (None, FULL) if too_many(moved, observation.task, observation.examples) else (moved, "")


def too_many(moved: Bool[Tensor, " v"], task: Task, examples: int | None) -> bool:
    """Whether more rows moved than texts have tokens, or all that can: the padding row may be fixed, or zero."""
    fixed = 0 if task.data.padding is None else int(not bool(moved[task.data.padding]))
    all_of_them = int(moved.sum()) >= len(moved) - fixed
    return all_of_them or (examples is not None and int(moved.sum()) > examples * task.data.shape[0])


def _adds_noise(observation: Observation) -> bool:
    defense = observation.knowledge.defense
    view = None if defense is None else view_of(defense, observation.update, None)
    return view is not None and (view.noise_scale is not None or view.log_likelihood is not None)


def covers(observation: Observation, table: str) -> bool:
    """Whether what moves every row can cover a token's own move: Adam takes the sign of both together where its penalty
    is inside, while decay that is a share of the parameters is only added."""
    idle = _idle(observation, table)
    if idle is None or not bool((idle != 0).any()):
        return False
    own = observation.task.parameters[table].detach().cpu().double().flatten()
    share = torch.dot(idle.double().flatten(), own) / torch.dot(own, own)
    return float((idle.double().flatten() - share * own).norm()) > 1e-2 * float(idle.double().norm())


def _steps(observation: Observation) -> int:
    client, examples = observation.knowledge.local_training, observation.examples
    return 1 if client is None or examples is None else client.steps(examples)


def _idle(observation: Observation, table: str) -> Float[Tensor, "v d"] | None:
    """How the client moves parameters that never have a gradient; `None` where its training is not known."""
    task, client, examples = observation.task, observation.knowledge.local_training, observation.examples
    if client is None or examples is None or observation.update.header.kind is UpdateKind.GRADIENT:
        return None

    def nothing(
        task: Task, parameters: Tensors, buffers: Tensors, batch: Batch, model: object, defense: object
    ) -> tuple[Tensors, Tensors]:
        del task, batch, model, defense
        return map_tensors(torch.zeros_like, parameters), buffers

    batch = Batch(torch.zeros(examples, *task.data.shape), torch.zeros(examples, dtype=torch.long))
    try:
        still, _ = client.local_training(task, batch, Draws(0), nothing)
    except InputError:
        return None
    return still[table].detach().cpu()


def drives_every_token(task: Task, table: str, generator: torch.Generator) -> bool:
    """Whether every token of random texts moves its row, but for one that never does (``padding_idx``)."""
    data = task.data
    module = task.module.get_submodule(table.rpartition(".")[0])
    fixed = module.padding_idx if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    for probe in range(PROBES):
        inputs = torch.randint(data.vocabulary, (2, *data.shape), generator=generator)
        labels = torch.randint(data.classes, (2,), generator=generator)
        raw, _ = raw_update(task, FedSGD(), Batch(inputs.float(), labels), Draws(probe), NoDefense())
        moved = set((raw[table] != 0).any(1).nonzero().flatten().tolist())
        if set(inputs.flatten().tolist()) - {fixed, data.padding} - moved:
            return False
    return True
