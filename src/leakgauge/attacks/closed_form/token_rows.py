"""Which rows of a table an update moved, and how often each token occurs where a text's rows are added up."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import chi2
from torch import Tensor

from leakgauge.attacks.labels.targets import slopes_at
from leakgauge.batch import Batch
from leakgauge.defenses import Defense, parts_of
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, InputError
from leakgauge.observation import Observation
from leakgauge.step.training import no_loss_of_logits
from leakgauge.task import Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind
from leakgauge.view.entries import SentTensor, noise_of
from leakgauge.view.graph import Graph, OuterSum
from leakgauge.view.trace import probe

PROBES, TEXTS = 4, 3
"""Random batches that show which rows their tokens move, and texts that show which rows a product looks up."""
CHANCE = 1e-6
"""That noise alone moves some row of an embedding as far as a token is taken to."""
SURE = 4
"""Bounds of an entry's rounding that it must exceed, for those of two optimiser states beside it."""
FULL = (
    "every row of the embedding moved: by noise, weight decay that is not known, or an output layer that shares it. "
    "Which tokens occur is not read"
)
SHARED = "an output layer shares the embedding and moves other rows too. Which tokens occur is not read"
ALIKE = 1e-4
"""Relative distance up to which two rows are the same, and share of a row that whole counts may leave."""
WHOLE = 0.02
"""Distance of a count from a whole number."""
RAREST = 8
"""The rarest token of one text is taken to occur at most so often."""


@dataclass(frozen=True, eq=False)
class TokenTable:
    """A parameter with a row for each token.

    Attributes:
        weight: its name.
        axis: the tokens'.
        offset: rows before that of token 0, which are kept for others.
    """

    weight: str
    axis: int
    offset: int

    def rows(self, tensor: Tensor) -> Float[Tensor, "v d"]:
        """A tensor of the parameter's shape, a row for each token; other rows last."""
        return tensor.movedim(self.axis, 0).flatten(1).roll(-self.offset, 0)


def token_table(task: Task, graph: Graph | None) -> TokenTable | None:
    """The table that the input's tokens are looked up in: a product of its gradient shows their places, or random
    texts move the rows of their tokens alone, however these are looked up."""
    for product in () if graph is None else graph.products:
        weight = product.weight or product.parameters[0]
        parameter, gradient = task.parameters[weight], product.node.meta["val"]
        if len(product.parameters) > 1 or parameter.shape != gradient.shape:
            continue
        if graph is not None and (offset := _offset(graph, product)) is not None:
            one = torch.arange(float(parameter.numel())).view(parameter.shape)
            own, axes = product.matrices(one)[0].T.sum(1), range(parameter.ndim)
            axis = next((a for a in axes if torch.equal(one.movedim(a, 0).flatten(1).sum(1), own)), None)
            return None if axis is None else TokenTable(weight, axis, offset)
    with suppress(*FOREIGN):
        return _moved_alone(task)
    return None


def _moved_alone(task: Task) -> TokenTable | None:
    vocabulary, moved = task.data.vocabulary, list[Tensors]()
    names = [k for k, p in task.parameters.items() if p.is_floating_point() and max(p.shape, default=0) >= vocabulary]
    texts = [probe(task, 1, seed).inputs for seed in range(TEXTS)]
    for text in texts if names else ():
        own = {k: task.parameters[k].detach().clone().requires_grad_() for k in names}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            logits, _ = task.logits({**task.parameters, **own}, task.buffers, text)
        towards = torch.randn(logits.shape, generator=torch.Generator().manual_seed(0)).to(logits)
        given = list(own.values())
        slopes = torch.autograd.grad((logits * towards).sum(), given, allow_unused=True, materialize_grads=True)
        moved.append({k: slope.to_dense() != 0 for k, slope in zip(names, slopes, strict=True)})
    held = [set(text.long().flatten().tolist()) for text in texts]
    for name in names:
        for axis in (a for a, size in enumerate(task.parameters[name].shape) if size >= vocabulary):
            rows = [one[name].movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist() for one in moved]
            for offset in range(task.parameters[name].shape[axis] - vocabulary + 1):
                own_rows = [{t + offset for t in tokens} for tokens in held]
                if all(len(some) > 0 and own >= set(some) for some, own in zip(rows, own_rows, strict=True)):
                    return TokenTable(name, axis, offset)
    return None


def _offset(graph: Graph, product: OuterSum) -> int | None:
    """What is added to the tokens of texts that a product looks up; `None` where it looks up no texts."""
    data, task = graph.task.data, graph.task
    if product.shape[0] != 1 or product.shape[2] < data.vocabulary:
        return None
    batch = probe(task, TEXTS)
    texts, looked = batch.inputs.long(), []
    for term in product.terms:
        if term.activation is None:
            return None
        with torch.no_grad():
            rows = graph.rows(term, term.activation, task, batch)[0]
        if not bool(((rows != 0).sum(1) == 1).all() and (rows.amax(1) == 1).all()):
            return None
        looked.append(rows.argmax(1))
    ids = torch.cat(looked)
    if len(ids) % TEXTS:
        return None
    for places in (ids.reshape(TEXTS, -1), ids.reshape(-1, TEXTS).t()):
        for given in (places[:, : texts.shape[1]], places[:, -texts.shape[1] :]):
            offset = (given - texts).unique() if given.shape == texts.shape else texts
            if len(offset) == 1 and 0 <= int(offset[0]) <= product.shape[2] - data.vocabulary:
                return int(offset[0])
    return None


@dataclass(frozen=True, eq=False)
class Moved:
    """Rows that moved otherwise than one without gradient does.

    Attributes:
        rows: which.
        noisy: whether there is noise, so that chance moved one of them with probability `CHANCE`.
    """

    rows: Bool[Tensor, " v"]
    noisy: bool


def moved_rows(observation: Observation, table: TokenTable, probed: ProbedRows) -> Moved | str:
    """The rows that moved, but for those that always do, or why they cannot be told.

    Behind Gaussian noise of known σ, rows whose squared length Σ(row/σ)² a χ² variable of as many degrees of freedom as
    the row has entries exceeds by `CHANCE`, shared among all rows.
    """
    knowledge = observation.knowledge
    parts = () if knowledge.defense is None else parts_of(knowledge.defense)
    if any(type(part).on_batch is not Defense.on_batch for part in parts):
        return "the defence trains on other texts than the client holds"
    sigma = _noise(observation, table)
    if sigma is None:
        return "noise of unknown strength moves every row of the embedding: which tokens occur is not read"
    if not probed.alone:
        return SHARED
    idle = _idle(observation, table)
    sent = SentTensor.of(observation, table.weight, decay=0.0)
    values = table.rows(sent.sent.double()).cpu()
    if idle is not None and bool((idle != 0).any()):
        bound = SURE * table.rows(sent[...].bound).cpu()
        values = values - idle.double()
        values = values.sign() * (values.abs() - bound).clamp_min(0)
    moved = (values != 0).any(1)
    if sigma > 0:
        moved = (values / sigma).square().sum(1) > float(chi2.isf(CHANCE / len(values), values.shape[1]))
    moved = moved & ~probed.always
    return FULL if too_many(moved, observation.task, observation.examples) else Moved(moved, sigma > 0)


def too_many(moved: Bool[Tensor, " v"], task: Task, examples: int | None) -> bool:
    """Whether more rows moved than texts have tokens, or all that can: the padding row may be fixed, or zero."""
    fixed = 0 if task.data.padding is None else int(not bool(moved[task.data.padding]))
    all_of_them = int(moved.sum()) >= len(moved) - fixed
    return all_of_them or (examples is not None and int(moved.sum()) > examples * task.data.shape[0])


def _noise(observation: Observation, table: TokenTable) -> float | None:
    """Standard deviation of the noise on each entry, 0 where rows without gradient get none; `None` if not known."""
    defense = observation.knowledge.defense
    parts = () if defense is None else parts_of(defense)
    if not any(p.without_noise() is not p or _fills(p, observation, table.weight) for p in parts):
        return 0.0
    view = noise_of(observation)
    return float(view.noise_scale[table.weight]) if view.gaussian and view.noise_scale is not None else None


def _fills(part: Defense, observation: Observation, weight: str) -> bool:
    """Whether the last stage of a defence makes something of entries that are zero; rounding and top-k do not."""
    if not part.acts_on_update:
        return False
    empty = observation.update.tensors[weight].detach().clone()
    empty[::2] = 0
    sent = part.on_update({**observation.update.tensors, weight: empty}, torch.Generator().manual_seed(0))
    return bool((sent[weight][::2] != 0).any())


def covers(observation: Observation, table: TokenTable) -> bool:
    """Whether what moves every row can cover a token's own move: Adam takes the sign of both together where its penalty
    is inside, while decay that is a share of the parameters is only added."""
    idle = _idle(observation, table)
    if idle is None or not bool((idle != 0).any()):
        return False
    own = table.rows(observation.task.parameters[table.weight].detach().cpu().double()).flatten()
    share = torch.dot(idle.double().flatten(), own) / torch.dot(own, own)
    return float((idle.double().flatten() - share * own).norm()) > 1e-2 * float(idle.double().norm())


def _idle(observation: Observation, table: TokenTable) -> Float[Tensor, "v d"] | None:
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
    return table.rows(still[table.weight].detach().cpu())


@dataclass(frozen=True, eq=False)
class ProbedRows:
    """What random texts showed of the rows that tokens move.

    Attributes:
        every: every token that occurs moves its row, but for one that never does (``padding_idx``).
        alone: other rows stand still, but for those of `always`.
        always: rows that move whatever the text is, as a token's that the model itself adds to it; few of them.
    """

    every: bool
    alone: bool
    always: Bool[Tensor, " v"]


def rows_of_texts(task: Task, table: TokenTable, generator: torch.Generator) -> ProbedRows:
    """Sends random texts, and asks the outputs, not the loss: where the network is sure, its soft-max leaves most rows
    without a gradient. But what is said of every token counts only those outputs that the loss hears: none in a causal
    model hears a last token."""
    data, targets = task.data, task.layout.targets.values()

    def rows_of(inputs: Tensor, *, heard: bool = False) -> set[int]:
        own = task.parameters[table.weight].detach().clone().requires_grad_()
        state, taught = {**task.parameters, table.weight: own}, task.layout.made_up_targets(len(inputs), generator)
        if heard and task.loss is no_loss_of_logits:
            total = task(state, task.buffers, Batch(inputs.to(own), taught), torch.Generator().manual_seed(0))[0]
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                logits, _ = task.logits(state, task.buffers, inputs.to(own))
            towards = torch.randn(logits.shape, generator=generator).to(logits)
            slopes = slopes_at(task, towards, taught) if heard else towards
            total = (logits * torch.where(slopes != 0, towards, 0)).sum()
        (slope,) = torch.autograd.grad(total, own, allow_unused=True, materialize_grads=True)
        return set((table.rows(slope.to_dense()) != 0).any(1).nonzero().flatten().tolist())

    texts = [torch.randint(data.vocabulary, (2, *data.shape), generator=generator) for _ in range(PROBES)]
    moved, held = [rows_of(text) for text in texts], [set(text.flatten().tolist()) for text in texts]
    told = [rows_of(text, heard=True) for text in texts]
    added = moved[0].intersection(*moved) - held[0].intersection(*held) - {data.padding}
    added = added if len(added) <= min(math.prod(data.shape), data.vocabulary // 4) else set()
    always = torch.zeros(len(table.rows(task.parameters[table.weight])), dtype=torch.bool)
    always[sorted(added)] = True
    still = set().union(*(there - rows for rows, there in zip(told, held, strict=True))) - {data.padding}
    fixed = {t for t in still if t not in rows_of(torch.full((2, *data.shape), t))} if len(still) == 1 else set()
    may_ask_nothing = any(t.whole and t.edges[0][0] < 0 for t in targets)
    alone = all(rows <= there | added | {data.padding} for rows, there in zip(moved, held, strict=True))
    return ProbedRows(still == fixed and not may_ask_nothing, alone, always)


def counts_of_pooled(
    observation: Observation, table: TokenTable, moved: Bool[Tensor, " vocabulary"]
) -> Int[Tensor, "n vocabulary"] | None:
    """Counts of each text, in no order; `None` where rows are no whole combinations of as many as there are texts.

    Of a sum or mean of embeddings every token of text b moves its row by the same δ_b for each time it occurs:
    row_v = Σ_b c_bv·δ_b, also over several steps of plain SGD. The rows that several tokens share, and that are no
    whole combination of others, are the δ_b. A text all of whose tokens occur twice is read as once.
    """
    examples = observation.examples or 0
    rows = table.rows(observation.values(table.weight)).cpu()[moved]
    size = rows.norm(dim=1)
    if not bool((size > 0).all()) or examples < 1:  # moved by weight decay alone
        return None
    found = _one(rows, size) if examples == 1 else _several(rows, size, examples)
    if found is None or int(found.sum(1).max()) > observation.task.data.shape[0]:
        return None
    counts = torch.zeros(examples, len(moved), dtype=torch.long)
    counts[:, moved] = found
    return counts


def _one(rows: Float[Tensor, "k d"], size: Float[Tensor, " k"]) -> Int[Tensor, "1 k"] | None:
    least = rows[size.argmin()]
    tried = (_whole(rows, size, least[None] / times) for times in range(1, RAREST + 1))
    return next((found for found in tried if found is not None), None)


def _several(rows: Float[Tensor, "k d"], size: Float[Tensor, " k"], examples: int) -> Int[Tensor, "n k"] | None:
    alike = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") <= ALIKE * size[:, None]
    basis = rows[:0]
    members = alike.sum(1)
    for index in sorted(range(len(rows)), key=lambda i: (-int(members[i]), float(size[i]))):
        if int(members[index]) < 2 or len(basis) == examples:
            break
        row = rows[index][None]
        if len(basis) and _whole(row, size[index][None], basis) is not None:
            continue
        basis = torch.cat([basis, row])
    if len(basis) != examples or int(torch.linalg.matrix_rank(basis, rtol=ALIKE)) < examples:
        return None
    return _whole(rows, size, basis)


def _whole(
    rows: Float[Tensor, "k d"], size: Float[Tensor, " k"], basis: Float[Tensor, "n d"]
) -> Int[Tensor, "n k"] | None:
    """Whole numbers ≥ 0, not all 0, that make every row of the basis; `None` where there are none."""
    shares = torch.linalg.lstsq(basis.T, rows.T, driver="gelsd").solution
    counts = shares.round()
    fits = (shares - counts).abs().max() < WHOLE and bool((counts >= 0).all()) and bool((counts.sum(0) > 0).all())
    left = (rows - counts.T @ basis).norm(dim=1)
    return counts.long() if fits and bool((left <= 10 * ALIKE * size).all()) else None
