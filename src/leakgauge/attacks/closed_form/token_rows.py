"""Which rows of a table an update moved, and how often each token occurs where a text's rows are added up."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import chi2
from torch import Tensor

from leakgauge.attacks.labels.targets import slopes_at
from leakgauge.attacks.matching.simulator import Simulator
from leakgauge.batch import Batch
from leakgauge.defenses.defense import Defense, mixes_examples, parts_of
from leakgauge.defenses.dp import only_scales
from leakgauge.defenses.steps import Noise, Nonlinear
from leakgauge.draws import Draws
from leakgauge.errors import FOREIGN, InputError
from leakgauge.observation import Observation
from leakgauge.step.training import no_loss_of_logits
from leakgauge.task import Task
from leakgauge.tensors import Tensors, map_tensors
from leakgauge.update import UpdateKind
from leakgauge.view.entries import SentTensor, noise_of, wire_of
from leakgauge.view.trace import ROUNDED

PROBES = 4  # random batches that show which rows their tokens move
DRAWN = 32  # of those that a defence is seen to leave alone, which it might do by chance
CHANCE = 1e-6  # that noise alone moves some row of an embedding as far as a token is taken to
SURE = 4  # bounds of an entry's rounding that it must exceed, for those of two optimiser states beside it
ALIKE = 1e-4  # relative distance up to which two rows are the same, and share of a row that whole counts may leave
WHOLE = 0.02  # distance of a count from a whole number
RAREST = 8  # the rarest token of one text is taken to occur at most so often


@dataclass(frozen=True, eq=False)
class TokenTable:
    """A parameter with a row for each token, on one axis, behind `offset` rows that are kept for others."""

    weight: str
    axis: int
    offset: int

    def rows(self, tensor: Tensor) -> Float[Tensor, "v d"]:
        """A tensor of the parameter's shape, a row for each token; other rows last."""
        return tensor.movedim(self.axis, 0).flatten(1).roll(-self.offset, 0)


def token_table(task: Task) -> TokenTable | None:
    """The table that the input's tokens are looked up in, however they are: a text that holds one token everywhere but
    in the middle moves that token's row, beside rows that every text moves."""
    vocabulary, padding, size = task.data.vocabulary, task.data.padding, torch.Size(task.data.shape).numel()
    tokens = sorted({vocabulary - 2, vocabulary // 3, vocabulary // 5} - {padding})
    if len(tokens) < 2:
        tokens = sorted(set(range(min(vocabulary, 3))) - {padding})
    middle = next((t for t in range(vocabulary) if size > 1 and t not in (*tokens, padding)), None)

    def text(token: int) -> Tensor:
        made = torch.full((1, *task.data.shape), float(token))
        if middle is not None:  # of equal tokens a network that takes their mean off sees nothing
            made.view(-1)[size // 2] = middle
        return made

    names = [k for k, p in task.parameters.items() if p.is_floating_point() and max(p.shape, default=0) >= vocabulary]

    def some(logits: Tensor) -> Tensor:  # few, and of other classes: an output layer may share the table
        return logits.flatten()[[0, logits.numel() // 2, -1]]

    for precise in (False, True) if names and len(tokens) > 1 else ():
        with suppress(*FOREIGN):
            same, least = _precise(task) if precise else (task, 0.0)
            slopes = [_slopes(same, names, text(token), some) for token in tokens]
            for name in names:
                for axis in (a for a, size in enumerate(task.parameters[name].shape) if size >= vocabulary):
                    moved = torch.stack([_beyond(one[name].movedim(axis, 0), least) for one in slopes])
                    own = moved & ~moved.all(0)
                    rows = own.int().argmax(1).tolist()
                    offset = rows[0] - tokens[0]
                    alone = bool((own.sum(1) == 1).all()) and rows == [token + offset for token in tokens]
                    if alone and 0 <= offset <= own.shape[1] - vocabulary:
                        return TokenTable(name, axis, offset)
    return None


def _precise(task: Task) -> tuple[Task, float]:
    """In float64, which shows the rows whose sums cancel, and the share of the largest entry that it may leave of one.
    Some networks do not run in it."""
    return task.to(torch.empty((), dtype=torch.float64)), ROUNDED


def _beyond(rows: Float[Tensor, "v *d"], least: float) -> Bool[Tensor, " v"]:
    """Which have an entry beyond a share of the largest."""
    size = rows.abs().flatten(1).amax(1)
    return size > least * size.amax()


def _slopes(task: Task, names: list[str], texts: Tensor, of: Callable[[Tensor], Tensor]) -> Tensors:
    """Slopes in some parameters of the sum of what is made of the logits."""
    own = {name: task.parameters[name].detach().clone().requires_grad_() for name in names}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        logits, _ = task.logits({**task.parameters, **own}, task.buffers, texts.to(task.like))
    return _gradients(of(logits).sum(), own)


def _gradients(total: Tensor, of: Tensors) -> Tensors:
    slopes = torch.autograd.grad(total, list(of.values()), allow_unused=True, materialize_grads=True)
    return {name: slope.to_dense() for name, slope in zip(of, slopes, strict=True)}


@dataclass(frozen=True, eq=False)
class MovedRows:
    """Rows that moved otherwise than one without gradient does."""

    rows: Bool[Tensor, " v"]
    always: Bool[Tensor, " v"]  # others, that move whatever the text is, as a token's that the model itself adds to it
    noisy: bool  # whether there is noise, so that chance moved one of them with probability `CHANCE`
    whole: bool  # whether each token that occurs moved its row


def moved_rows(observation: Observation, table: TokenTable, generator: torch.Generator) -> MovedRows | str:
    """The rows that moved, or why they cannot be told. Behind noise of known σ, rows whose length a χ² variable exceeds
    by `CHANCE`, shared among all rows: of d entries, Gaussian ones sum to Σ(x/σ)², of d degrees of freedom, those of
    Laplace to Σ√8·|x|/σ, of 2d. Where rows without a gradient are sums that cancel, smaller gradients may be hidden."""
    task, defense, examples = observation.task, observation.knowledge.defense, observation.examples
    (every, alone, always), rounding = _rows_of_texts(task, 0.0, table, generator), 0.0
    idle, sigma = _idle(observation, table), _noise(observation, table)
    if sigma is None:
        return "noise of unknown strength moves every row of the embedding: which tokens occur is not read"
    if not alone:
        with suppress(*FOREIGN):
            told = _rows_of_texts(*_precise(task), table, generator)
            rounding = _cancelled(observation, table, told[2], idle, generator) if told[1] else 0.0
            every, alone, always = told
    if not alone:
        return "an output layer shares the embedding and moves other rows too. Which tokens occur is not read"
    sent = SentTensor.of(observation, table.weight, decay=0.0)
    values = table.rows(sent.sent.double()).cpu()
    if idle is not None or rounding:
        values = values if idle is None else values - idle
        bound = SURE * (table.rows(sent[...].bound).cpu() + rounding * values.norm())
        values = values.sign() * (values.abs() - bound).clamp_min(0)
    moved = (values != 0).any(1)
    if sigma > 0:
        power, factor, freedom = (2, 1.0, 1) if noise_of(observation).gaussian else (1, 8**0.5, 2)
        likely = float(chi2.isf(CHANCE / len(values), freedom * values.shape[1]))
        moved = factor * (values / sigma).abs().pow(power).sum(1) > likely
    moved = moved & ~always
    if rounding and not bool(moved.any()):
        return "rounding moves rows of the embedding as far as its tokens do: which of them occur is not read"
    # More than texts have tokens, or all that can: the padding row may be fixed, or zero.
    fixed = 0 if task.data.padding is None else int(not bool(moved[task.data.padding]))
    most = len(moved) if examples is None else examples * task.data.shape[0]
    if int(moved.sum()) > min(most, len(moved) - fixed - 1):
        causes = "by noise, weight decay that is not known, or an output layer that shares it"
        return f"every row of the embedding moved: {causes}. Which tokens occur is not read"
    whole = every and not rounding and not bool(always[: task.data.vocabulary].any())
    whole = whole and not _covered(observation, table, idle)
    return MovedRows(moved, always, sigma > 0, whole and defense is not None and only_scales(defense, own=True))


def other_texts(task: Task, defense: Defense, examples: int | None, generator: torch.Generator) -> bool:
    """Whether a defence may train on other texts than so many that a client holds: one has nothing to be mixed with, of
    several it depends on the draw whether they are."""
    count, data = 2 if examples is None else examples, task.data
    if count > 1 and mixes_examples(defense):
        return True
    for _ in range(DRAWN):
        texts = torch.randint(data.vocabulary, (count, *data.shape), generator=generator).float()
        made = defense.on_batch(Batch(texts, torch.zeros(count, dtype=torch.long)), generator.clone_state()).inputs
        if made.shape != texts.shape or not torch.allclose(made, texts, atol=1e-3):
            return True
    return False


def _noise(observation: Observation, table: TokenTable) -> float | None:
    """Standard deviation of the noise on each entry; 0 where rows without gradient get none, `None` if not known."""
    defense, sent = observation.knowledge.defense, observation.update.tensors
    empty = sent[table.weight].detach().clone()
    empty[::2] = 0
    for part in () if defense is None else parts_of(defense):
        made = part.on_update({**sent, table.weight: empty}, torch.Generator().manual_seed(0))[table.weight]
        if part.without_noise() is not part or bool((made[::2] != 0).any()):
            scale = (view := noise_of(observation)).noise_scale
            one = sum(isinstance(step, Noise | Nonlinear) for step in view.steps) == 1  # sums of Laplace's are none
            return float(scale[table.weight]) if scale is not None and (view.gaussian or one) else None
    return 0.0


def _idle(observation: Observation, table: TokenTable) -> Float[Tensor, "v d"] | None:
    """How the client moves parameters that never have a gradient; `None` where not at all, or nobody knows."""
    task, client, examples = observation.task, observation.knowledge.local_training, observation.examples
    if client is None or examples is None or observation.update.header.kind is UpdateKind.GRADIENT:
        return None

    def nothing(
        task: Task, parameters: Tensors, buffers: Tensors, batch: Batch, model: object, defense: object
    ) -> tuple[Tensors, Tensors]:
        del task, batch, model, defense
        return map_tensors(torch.zeros_like, parameters), buffers

    batch = Batch(torch.zeros(examples, *task.data.shape), torch.zeros(examples, dtype=torch.long))
    with suppress(InputError):
        still, _ = client.local_training(task, batch, Draws(0), nothing)
        moved = table.rows(still[table.weight].detach().cpu().double())
        return moved if bool((moved != 0).any()) else None
    return None


def _covered(observation: Observation, table: TokenTable, idle: Float[Tensor, "v d"] | None) -> bool:
    """Whether what moves every row can cover a token's own move: Adam takes the sign of both together where its penalty
    is inside, while decay that is a share of the parameters is only added."""
    if idle is None:
        return False
    own, flat = table.rows(observation.task.parameters[table.weight].detach().cpu().double()).flatten(), idle.flatten()
    share = torch.dot(flat, own) / torch.dot(own, own)
    return float((flat - share * own).norm()) > 1e-2 * float(flat.norm())


def _cancelled(
    observation: Observation,
    table: TokenTable,
    always: Bool[Tensor, " v"],
    idle: Float[Tensor, "v d"] | None,
    generator: torch.Generator,
) -> float:
    """Largest entry of rows whose tokens do not occur, in shares of the table's length: what rounding leaves of sums
    that cancel, as a client shows it that holds made-up texts of half of the tokens, and no less than a unit."""
    task, count = observation.task, observation.examples or PROBES
    simulator, most = Simulator.of(observation, task.like, generator), wire_of(observation, table.weight).arithmetic
    for _ in range(PROBES):
        held = torch.randperm(task.data.vocabulary, generator=generator)[: task.data.vocabulary // 2]
        texts = held[torch.randint(len(held), (count, *task.data.shape), generator=generator)]
        batch = Batch(texts.to(task.like), task.layout.made_up_targets(count, generator))
        made, gone = table.rows(simulator.exact(batch)[table.weight].detach().double()).cpu(), ~always
        made, gone[held] = made if idle is None else made - idle, False
        if task.data.padding is not None:
            gone[task.data.padding] = False
        most = max(most, float(made[gone].abs().max() / made.norm()))
    return most


def _rows_of_texts(
    task: Task, least: float, table: TokenTable, generator: torch.Generator
) -> tuple[bool, bool, Bool[Tensor, " v"]]:
    """What random texts show of rows: whether every token that occurs moves its own, but for one that never does
    (``padding_idx``); whether others stand still; and which of these always move.

    They ask the outputs, not the loss: where the network is sure, its soft-max leaves most rows without a gradient.
    What is said of every token counts only those outputs that the loss hears: none in a causal model hears a last one.
    """
    data, targets, whole_step = task.data, task.layout.targets.values(), task.loss is no_loss_of_logits

    def rows_of(texts: Tensor, *, heard: bool = False) -> set[int]:
        taught = task.layout.made_up_targets(len(texts), generator)

        def asked(logits: Tensor) -> Tensor:
            towards = torch.randn(logits.shape, generator=generator).to(logits)
            return (
                logits * torch.where(slopes_at(task, towards, taught) != 0, towards, 0) if heard else logits * towards
            )

        if heard and whole_step:
            own = {table.weight: task.parameters[table.weight].detach().clone().requires_grad_()}
            batch, draws = Batch(texts.to(task.like), taught), torch.Generator().manual_seed(0)
            slopes = _gradients(task({**task.parameters, **own}, task.buffers, batch, draws)[0], own)
        else:
            slopes = _slopes(task, [table.weight], texts, asked)
        return set(_beyond(table.rows(slopes[table.weight]), least).nonzero().flatten().tolist())

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
    return still == fixed and not may_ask_nothing, alone, always


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
    alone = (_whole(rows, size, rows[size.argmin()][None] / times) for times in range(1, RAREST + 1))
    tried = alone if examples == 1 else (_several(rows, size, examples),)
    found = next((each for each in tried if each is not None), None)
    if found is None or int(found.sum(1).max()) > observation.task.data.shape[0]:
        return None
    counts = torch.zeros(examples, len(moved), dtype=torch.long)
    counts[:, moved] = found
    return counts


def _several(rows: Float[Tensor, "k d"], size: Float[Tensor, " k"], examples: int) -> Int[Tensor, "n k"] | None:
    alike = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") <= ALIKE * size[:, None]
    basis, members = rows[:0], alike.sum(1)
    for index in sorted(range(len(rows)), key=lambda i: (-int(members[i]), float(size[i]))):
        if int(members[index]) < 2 or len(basis) == examples:
            break
        if not len(basis) or _whole(rows[index][None], size[index][None], basis) is None:
            basis = torch.cat([basis, rows[index][None]])
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
