"""Which rows of an embedding an update moved: those of the tokens that a client's texts hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from scipy.stats import chi2
from torch import Tensor, nn

from leakgauge.clients import FedSGD, cohort_view
from leakgauge.clients.client import raw_update
from leakgauge.defenses import Defense, NoDefense, parts_of
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.observation import Observation
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, Wire, map_tensors
from leakgauge.tracing import tokens_given
from leakgauge.update import Update, UpdateKind

PROBES = 4
"""Random batches that show which rows their tokens move."""
CHANCE = 1e-6
"""That noise alone moves some row of an embedding as far as a token is taken to."""
FULL = (
    "every row of the embedding moved: by noise, weight decay that is not known, or an output layer that shares it. "
    "Which tokens occur is not read"
)
SHARED = "an output layer shares the embedding and moves other rows too. Which tokens occur is not read"


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
            if args and any(torch.equal(given, sent.to(given)) for given in tokens_given(args[0], sent)):
                found.append(f"{name}.weight" if name else "weight")

        handles.append(module.register_forward_pre_hook(look))
    try:
        with torch.no_grad():
            task.logits(task.parameters, task.buffers, sent.to(next(iter(task.parameters.values()))))
    finally:
        for handle in handles:
            handle.remove()
    return next((name for name in found if name in task.parameters), None)


@dataclass(frozen=True, eq=False)
class Moved:
    """Rows that moved otherwise than one without gradient does.

    Attributes:
        rows: which.
        noisy: whether there is noise, so that chance moved one of them with probability `CHANCE`.
        always: others that move whatever the text is.
    """

    rows: Bool[Tensor, " v"]
    noisy: bool
    always: Bool[Tensor, " v"]


def moved_rows(observation: Observation, table: str, always: Bool[Tensor, " v"]) -> Moved | str:
    """The rows that moved, but for those that `always` do, or why they cannot be told.

    Behind Gaussian noise of known σ, rows whose squared length Σ(row/σ)² a χ² variable of as many degrees of freedom as
    the row has entries exceeds by `CHANCE`, shared among all rows.
    """
    knowledge, sent = observation.knowledge, observation.update.tensors[table].detach().cpu()
    parts = () if knowledge.defense is None else parts_of(knowledge.defense)
    if any(type(part).on_batch is not Defense.on_batch for part in parts):
        return "the defence trains on other texts than the client holds"
    sigma = _noise(observation, table)
    if sigma is None:
        return "noise of unknown strength moves every row of the embedding: which tokens occur is not read"
    if shares_rows(observation.task, table, always):
        return SHARED
    idle = _idle(observation, table)
    values, bound = sent.double(), torch.zeros_like(sent, dtype=torch.float64)
    if idle is not None and bool((idle != 0).any()):
        still = idle.double()
        own = observation.task.parameters[table].detach().cpu()
        rounding = torch.finfo(own.dtype).eps * (4 + 2 * _steps(observation))
        bound = rounding * (own.double().abs() + still.abs()) + Wire.of(sent).errors(values)
        values = values - still
    surplus = (values.abs() - bound).clamp_min(0)
    moved = (surplus > 0).any(1)
    if sigma > 0:
        moved = (surplus / sigma).square().sum(1) > float(chi2.isf(CHANCE / len(values), values.shape[1]))
    moved = moved & ~always
    return FULL if too_many(moved, observation.task, observation.examples) else Moved(moved, sigma > 0, always)


def shares_rows(task: Task, table: str, always: Bool[Tensor, " v"]) -> bool:
    """Whether a text of one token depends on the rows of others than `always`: the output layer is the embedding.

    Of the outputs, not of the loss: where the network is sure its soft-max leaves most rows without a gradient.
    """
    own = task.parameters[table].detach().clone().requires_grad_()
    token = 0 if task.data.padding is None else (task.data.padding + 1) % task.data.vocabulary
    text = torch.full((1, *task.data.shape), float(token)).to(own)
    logits, _ = task.logits({**task.parameters, table: own}, task.buffers, text)
    (slope,) = torch.autograd.grad(logits.sum(), own)
    moved = (slope != 0).any(1) & ~always
    moved[token] = False
    return bool(moved.any())


def too_many(moved: Bool[Tensor, " v"], task: Task, examples: int | None) -> bool:
    """Whether more rows moved than texts have tokens, or all that can: the padding row may be fixed, or zero."""
    fixed = 0 if task.data.padding is None else int(not bool(moved[task.data.padding]))
    all_of_them = int(moved.sum()) >= len(moved) - fixed
    return all_of_them or (examples is not None and int(moved.sum()) > examples * task.data.shape[0])


def _noise(observation: Observation, table: str) -> float | None:
    """Standard deviation of the noise on each entry, 0 where rows without gradient get none; `None` if not known."""
    defense, client = observation.knowledge.defense, observation.knowledge.local_training
    parts = () if defense is None else parts_of(defense)
    if defense is None or not any(p.without_noise() is not p or _fills(p, observation, table) for p in parts):
        return 0.0
    counted = replace(observation.update.header, example_count=observation.examples)
    view = cohort_view(client or FedSGD(), defense, Update(observation.update.tensors, counted), None)
    return float(view.noise_scale[table]) if view.gaussian and view.noise_scale is not None else None


def _fills(part: Defense, observation: Observation, table: str) -> bool:
    """Whether the last stage of a defence makes something of rows that are zero; rounding and top-k do not."""
    if not part.acts_on_update:
        return False
    empty = observation.update.tensors[table].detach().clone()
    empty[::2] = 0
    sent = part.on_update({**observation.update.tensors, table: empty}, torch.Generator().manual_seed(0))
    return bool((sent[table][::2] != 0).any())


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


@dataclass(frozen=True, eq=False)
class ProbedRows:
    """What random texts showed of the rows that tokens move.

    Attributes:
        every: every token moves its row, but for one that never does (``padding_idx``).
        alone: other rows stand still, but for those of `always`.
        always: rows that move whatever the text is, as a token's that the model itself adds to it; few of them.
    """

    every: bool
    alone: bool
    always: Bool[Tensor, " v"]


def rows_of_texts(task: Task, table: str, generator: torch.Generator) -> ProbedRows:
    """Sends random texts."""
    data = task.data
    module = task.module.get_submodule(table.rpartition(".")[0])
    fixed = module.padding_idx if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    moved: list[set[int | None]] = []
    held: list[set[int | None]] = []
    for probe in range(PROBES):
        inputs = torch.randint(data.vocabulary, (2, *data.shape), generator=generator)
        labels = torch.randint(data.classes, (2,), generator=generator)
        raw, _ = raw_update(task, FedSGD(), Batch(inputs.float(), labels), Draws(probe), NoDefense())
        moved.append(set((raw[table] != 0).any(1).nonzero().flatten().tolist()))
        held.append(set(inputs.flatten().tolist()))
    added = moved[0].intersection(*moved) - held[0].intersection(*held) - {data.padding}
    added = added if len(added) <= min(math.prod(data.shape), data.vocabulary // 4) else set()
    always = torch.zeros(len(task.parameters[table]), dtype=torch.bool)
    always[[row for row in added if row is not None]] = True
    probes = list(zip(moved, held, strict=True))
    every = all(there - {fixed, data.padding} <= rows for rows, there in probes)
    return ProbedRows(every, all(rows <= there | added | {data.padding} for rows, there in probes), always)
