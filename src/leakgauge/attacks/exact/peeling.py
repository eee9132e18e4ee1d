"""A batch taken apart, example by example, from the gradient of one linear layer; and the last examples, which no row
shows alone: sparse directions in what is left of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.exact.candidates import (
    FACTOR,
    ExplainedExamples,
    Remainder,
    candidates,
    certify,
    factors,
    refit,
    residual,
    shares_in,
    shown,
)
from leakgauge.attacks.exact.sums import Sums, Tail, scale_of, sums_of
from leakgauge.attacks.matching.problem import Meter
from leakgauge.observation import Cost, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Mode, Task
from leakgauge.tracing import input_layers

SPARE = 6  # zeros that a direction must have beyond those which its rows were chosen for
APART = 1e-3  # least part of a direction that those before it do not hold
FITS = 1e-2  # largest part of an example's shares that the model does not predict from its input
POWERS = (0.0, 1.0, 2.0, 4.0)  # powers of a row's inverse length by which rows are drawn, in turn
SILENT = 0.2  # least share of units that an example does not drive, for which the search is long enough
SURE = 100  # sets of rows that are tried for each that is expected to be needed at that share
BATCH = 4_000_000  # numbers in one group of trials


@dataclass(frozen=True, eq=False)
class _Span:
    """What is left of a gradient, A = [W b] = L·(S·Vᵀ), in its numerical rank."""

    code: Float[Tensor, "rows r"]  # L, one row a unit
    sizes: Float[Tensor, " r"]  # S, falling
    rows: Float[Tensor, "r c"]  # S·Vᵀ
    error: Float[Tensor, " rows"]  # of a row of A in any direction
    live: Tensor  # units whose rows hold anything

    @staticmethod
    def of(sums: Sums, state: Remainder, examples: int) -> "_Span | None":
        """Of at most so many examples; `None` where nothing is left."""
        live = (~state.explained & ~state.open).nonzero()[:, 0]
        if not len(live):
            return None
        a = torch.cat([state.weight[live], state.bias[live, None]], 1)
        error = state.error[live] * sums.reach
        u, s, v = torch.linalg.svd(a, full_matrices=False)
        # Norm of a matrix of independent entries with these errors; and what the sizes beyond the examples show.
        noise = float(error.norm() + error.max() * a.shape[1] ** 0.5)
        if len(s) > examples and float(s[examples]) > noise:
            noise, error = float(s[examples]), error * (float(s[examples]) / noise)
        rank = int((s[:examples] > 3 * noise).sum())
        return None if not rank else _Span(u[:, :rank], s[:rank], s[:rank, None] * v[:rank], error, live)

    def zeros(self, q: Float[Tensor, "r n"]) -> Bool[Tensor, "rows n"]:
        """Which entries of each direction are zero within their error."""
        allowed: Tensor = FACTOR * self.error[:, None] * (q / self.sizes[:, None]).norm(dim=0)
        return (self.code @ q).abs() <= allowed


def finish(
    sums: Sums, state: Remainder, examples: int, generator: torch.Generator, meter: Meter, *, groups: int
) -> tuple[ExplainedExamples | None, str]:
    """All examples that are left, at once, or none of them, with how far the search came in words.

    What is left is A = Σ_k d_k·(x_k, 1)ᵀ, d_k example k's shares. The d_k span the columns of A and are zero in rows
    that their examples do not drive: of all directions in the span, they have the most zeros. A set of as many rows as
    the rank makes a basis with one non-zero entry in the set each; where the other rows belong to units that example k
    does not drive, one of these is d_k. With half of the units driven that takes about 2^(r−1)/r sets.

    Source: SPEAR (Dimitrov et al., NeurIPS 2024). Differs: a whole basis from each set (information-set decoding)
    instead of one direction from each null space; zeros by a derived error; the scale from the bias column.

    One direction may be missing: the input of its example is what is orthogonal to all others. It gives up after so
    many sets that examples which leave `SILENT` of the units undriven would long have been found."""
    span = _Span.of(sums, state, examples)
    if span is None:
        return None, ""
    rank, trials, best = len(span.sizes), 0, 0
    tries = islice(_search(span, generator), groups if len(span.live) >= rank + SPARE else 0)
    for directions, trials in tries:
        best = max(best, directions.shape[1])
        if directions.shape[1] >= rank - 1:
            whole = directions if directions.shape[1] == rank else _completed(sums, span, directions)
            found = _examples(sums, span, whole, len(state.bias)) if whole.shape[1] == rank else None
            if found is not None:
                return found, f"; {rank} left, {rank} told apart in {trials} sets of rows"
        if trials >= SURE * SILENT ** (1 - rank) or meter.over(0) is not None:
            break
    return None, f"; {rank} left, {best} told apart in {trials} sets of rows"


def _search(span: _Span, generator: torch.Generator) -> Iterator[tuple[Float[Tensor, "r m"], int]]:
    """Independent directions with far more zeros than they were made with, sparsest first (mixtures of two examples go
    as sparser directions are found), and how many sets it took."""
    (rows, rank), trials = span.code.shape, 0
    pool, counts = span.code.new_zeros((rank, 0)), span.code.new_zeros(0)
    sets = max(1, BATCH // (rows * rank))
    size = (span.code * span.sizes).norm(dim=1).clamp_min(1e-300).log().float().cpu()
    if rank == 1:
        yield pool, 0
        return
    while True:
        # Gumbel noise on the logarithm draws without replacement, short rows (few examples drive them) more often.
        noise = -(-torch.rand((sets, rows), generator=generator).clamp(1e-9, 1 - 1e-6).log()).log()
        power = torch.tensor(POWERS)[torch.arange(sets) % len(POWERS), None]
        index = (noise - power * size).topk(rank, dim=1).indices.to(span.code.device)
        inverse, info = torch.linalg.inv_ex(span.code[index])
        trials += sets
        q = inverse[info == 0].permute(1, 0, 2).reshape(rank, -1)
        q = q / q.norm(dim=0).clamp_min(1e-300)
        q = q[:, q.isfinite().all(0)]
        zeros = span.zeros(q).sum(0)
        good = zeros >= rank - 1 + max(SPARE, rows // 12)
        if bool(good.any()):
            pool, counts = torch.cat([pool, q[:, good]], 1), torch.cat([counts, zeros[good].to(counts)])
            kept = _independent(pool, counts)
            pool, counts = pool[:, kept], counts[kept]
        yield pool, trials


def _completed(sums: Sums, span: _Span, directions: Float[Tensor, "r m"]) -> Float[Tensor, "r n"]:
    """With the last direction, from the input that the others leave and the label whose shares lie in the span best."""
    other = torch.linalg.qr(directions, mode="complete")[0][:, -1] @ span.rows
    if float(other[-1].abs()) <= 1e-9 * float(other.abs().max()):
        return directions
    x = (other[:-1] / other[-1])[None].expand(len(sums.labels), -1)
    shares = shares_in(sums, x, sums.labels, sums.bias.new_zeros(len(x))).value[:, span.live]
    q = shares @ span.code
    gap = (shares - q @ span.code.T).norm(dim=1) / shares.norm(dim=1).clamp_min(1e-300)
    best = q[int(gap.argmin())]
    return torch.cat([directions, (best / best.norm().clamp_min(1e-300))[:, None]], 1)


def _independent(pool: Float[Tensor, "r m"], counts: Float[Tensor, " m"]) -> list[int]:
    """The sparsest directions of which none is in the span of those before it."""
    order = counts.argsort(descending=True, stable=True)
    parts, kept = pool[:, order], list[int]()
    while len(apart := (parts.norm(dim=0) > APART).nonzero()):  # one at a time; what is in the span stays there
        first = int(apart[0])
        kept.append(int(order[first]))
        way = parts[:, first] / parts[:, first].norm()
        order, parts = order[first + 1 :], parts[:, first + 1 :]
        for _ in range(2):
            parts = parts - way[:, None] * (way @ parts)
    return kept


def _examples(sums: Sums, span: _Span, directions: Float[Tensor, "r r"], units: int) -> ExplainedExamples | None:
    """Inputs by the dual basis, scaled so that the bias column is one; the label whose shares fit. `None` where not
    all of them do: a direction may still be a mixture."""
    rows = torch.linalg.solve(directions, span.rows)
    scale = rows[:, -1]
    if bool((scale.abs() <= 1e-9 * rows.abs().amax(1)).any()):
        return None
    x = rows[:, :-1] / scale[:, None]
    shares = sums.bias.new_zeros((len(x), units))
    shares[:, span.live] = (span.code @ directions).T * scale[:, None]
    doubt = span.error.max() * torch.linalg.inv(directions).norm(dim=1) / scale.abs() / sums.reach
    made = (shares_in(sums, x, label.expand(len(x)), doubt).value for label in sums.labels)
    best = torch.stack([(own - shares)[:, span.live].norm(dim=1) for own in made], 1).min(1)
    if bool((best.values > FITS * shares.norm(dim=1)).any()):
        return None
    # One match of whole rows, not one of many tests: proved only where nothing is left of the gradient.
    return ExplainedExamples(x, sums.labels[best.indices], doubt, torch.ones_like(doubt))


BLURRED = 0.1  # largest error of an example, in shares of the largest input, with which it is worth subtracting


@dataclass(frozen=True, eq=False)
class Peeled:
    """How far the peeling came."""

    found: ExplainedExamples
    certified: Bool[Tensor, " k"]  # which of these are proved
    state: Remainder
    tried: int  # candidates that went through the model
    stopped: bool  # before it had ended
    search: str = ""  # how far that for sparse directions came in vain, in words


def _goes_on(meter: Meter, sums: Sums, index: int, state: Remainder, tried: int) -> bool:
    """Whether there is room for more, after a round and so many candidates."""
    meter.spent = -(-tried // sums.examples)
    meter.note(index, float(state.bias.norm() / sums.bias.norm()))
    return meter.over(1) is None


def peel(sums: Sums, meter: Meter, *, before: int = 0, most_rounds: int = 400) -> Peeled:
    """Reads the rows that one example alone drives, subtracts these examples, and reads again until nothing is new,
    `before` candidates having gone through the model already."""
    found = ExplainedExamples.none(sums.weight)
    state = residual(sums, found)
    read = back = found.x  # as they were accepted; and those that were taken back
    tests, stopped = 0, False
    for index in range(most_rounds):
        fresh, made = candidates(sums, state, torch.cat([found.x, back]))
        tests += made
        if not len(fresh):
            break
        read = torch.cat([read, fresh.x])
        found, state = refit(sums, found.joined(fresh))
        blurred = FACTOR * found.doubt > BLURRED
        if bool(blurred.any()):
            back = torch.cat([back, read[blurred]])
            found, read = found.take(~blurred), read[~blurred]
            state = residual(sums, found)
        if bool(state.explained.all()):
            break
        if not _goes_on(meter, sums, index, state, before + tests // len(sums.labels)):
            stopped = True
            break
    return Peeled(found, certify(sums, state, found, tests), state, tests // len(sums.labels), stopped)


def peel_rescaled(sums: Sums, meter: Meter) -> tuple[Sums, Peeled]:
    """As `peel`; where nothing is read at the stated length, or nothing proved at one that a clip may have shortened,
    at those that the rows agree on: at the first that is proved, or else at the one at which they show most."""
    first = peel(sums, meter)
    if first.stopped or bool(first.certified.any()) or (len(first.found) and sums.told):
        return sums, first
    named, tests = factors(sums)
    spent = first.tried + tests // len(sums.labels)
    best, most = (sums, first), int(shown(sums, first.state, first.found, spent * len(sums.labels)).sum())
    for factor in named:
        if not _goes_on(meter, sums, 0, first.state, spent):
            best = best[0], replace(best[1], stopped=True)
            break
        other = replace(sums, scale=factor * sums.scale, told=False)
        found = peel(other, meter, before=spent)
        spent += found.tried
        count = spent * len(sums.labels)
        found = replace(found, certified=certify(other, found.state, found.found, count))
        seen = int(shown(other, found.state, found.found, count).sum())
        ends = found.stopped or bool(found.certified.any())
        if seen > most or ends:
            best, most = (other, found), seen
        if ends:
            break
    return best[0], replace(best[1], tried=spent)


@ATTACKS.register(
    "peeling",
    needs="a linear layer with bias that reads the input, units that switch off (ReLU) behind it; example_count; "
    "one local step",
)
@dataclass(frozen=True, kw_only=True)
class Peeling(SearchingAttack):
    """Whole batches, with labels and certificates, out of the gradient of a biased linear layer that reads the input.

    Row i of ∂L/∂W is Σ_k s·δ_ki·x_k over the examples that drive unit i, and ∂L/∂b_i is Σ_k s·δ_ki. A row that one
    example alone drives is that example (Geiping et al., 2020, Proposition 3.1). It goes through the model, which
    tells its label and all its δ_ki; its whole gradient is subtracted, and rows that two examples drove are now driven
    by one. Repeated, this is the decoder of a fountain code.

    Source: Shariati and Meybodi, 2026 (LT codes). Differs: tolerances are derived from the format of the update
    (`leakgauge.attacks.exact.candidates`), accepted examples are fitted jointly after every round, and a certificate
    needs two explained rows, or one with a chance below 1e-6 (`leakgauge.attacks.exact.candidates`).

    Rows tell the length of an update that was clipped, which a whole batch must prove (`candidates.certify`); an
    example tells by how much a known clipping of examples shortened its gradient (`sums`).

    Any depth may stand behind the layer. Known failure: activations that never switch off (sigmoid, leaky ReLU), and
    more examples than the units can tell apart.

    Result: the certified examples first, then what was read without proof. Labels are paired with the images. `EXACT`
    where all are certified, `CONVERGED` where some are, `FAILED` where nothing was read. Examples whose gradient is
    below the rounding of the update are in no read: `silent` counts them, once all else is explained without noise.

    Attributes:
        directions: where the peeling stalls, a search for sparse directions (`leakgauge.attacks.exact.peeling`) is
            tried for at most so many examples; 0 for none.
        groups: of sets of rows that this search tries, of `leakgauge.attacks.exact.peeling.BATCH` numbers each.
    """

    directions: int = 20
    groups: int = 120

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """Works in float64 whatever the effort says. One gradient evaluation is the batch once through the model."""
        observation, generator = observation.view, effort.generator
        meter = Meter(effort.budget, effort.on_step)
        sums = readable(observation, generator, effort.compute.like(torch.float64))
        if isinstance(sums, str):
            return Reconstruction.not_applicable(sums)
        sums, result = peel_rescaled(sums, meter)
        whole = bool(result.state.explained.all())
        if not whole and not _goes_on(meter, sums, 0, result.state, result.tried):
            result = replace(result, stopped=True)
        left = 0 if whole or result.stopped else sums.examples - len(result.found)
        if 0 < left <= self.directions:
            more, words = finish(sums, result.state, left, generator, meter, groups=self.groups)
            alone, result = result, replace(result, search=words)
            if more is not None:
                found, state = refit(sums, alone.found.joined(more))
                certified = certify(sums, state, found, max(1, alone.tried * len(sums.labels)))
                if int(certified.sum()) > int(alone.certified.sum()):  # else they explain less than they should
                    result = replace(alone, found=found, state=state, certified=certified)
        return report(observation, sums, result, meter.over(1) if result.stopped else None)


def report(observation: Observation, sums: Sums, result: Peeled, stopped: Status | None) -> Reconstruction:
    """What peeling came to, certified examples first."""
    proved, examples, data = int(result.certified.sum()), sums.examples, observation.task.data
    cost = Cost(-(-result.tried // examples))
    explained = bool(result.state.explained.all())
    rest = examples - len(result.found)
    silent = rest if explained and rest > 0 and not sums.noisy and (sums.told or proved) else 0
    message = f"{proved} of {examples} examples certified"
    if len(result.found) > proved:
        message += f", {len(result.found) - proved} read without proof"
    if rest > 0:
        message += f", {rest} silent (below the rounding of the update)" if silent else f", {rest} not read"
    message += result.search
    if not len(result.found):
        return Reconstruction(None, None, stopped or Status.FAILED, message, cost=cost, silent=silent)
    order = result.certified.int().argsort(descending=True, stable=True)[:examples]
    like = next(iter(observation.update.tensors.values()))
    inputs = data.denormalise(result.found.x[order].view(-1, *data.shape))
    status = Status.EXACT if proved == examples else stopped or Status.CONVERGED
    return Reconstruction(
        inputs.to(like.device),
        result.found.labels[order].to(like.device),
        status,
        message,
        cost=cost,
        certified=result.certified[order].to(like.device),
        silent=silent,
    )


def readable(observation: Observation, generator: torch.Generator, like: Tensor) -> Sums | str:
    """The layer's sums, or why they cannot be had."""
    if (examples := observation.examples) is None:
        return "needs the number of examples (knows: example_count, or labels)"
    if isinstance(scale := scale_of(observation, examples), str):
        return scale
    tail = readable_layer(observation.task, generator, like)
    return tail if isinstance(tail, str) else sums_of(observation, tail, examples, scale)


def readable_layer(task: Task, generator: torch.Generator, like: Tensor) -> Tail | str:
    """The layer that peeling reads, in the dtype and on the device of `like`, or why there is none."""
    if why := mixes(task):
        return why
    if not task.of_classes:
        return "the loss takes real numbers for labels, of which no list can be tried"
    raw = torch.rand((3, *task.data.shape), generator=generator, dtype=torch.float64).to(like)
    raw = task.data.low + task.data.range * raw
    for layer in input_layers(task, generator):
        if layer.bias is not None:
            tail = Tail(task.to(like), layer)
            if tail.gates(raw):
                return tail
    return "no linear layer with bias reads the input and is the only way from it to the output"


def mixes(task: Task) -> str:
    """Why an update is no sum over examples, each by itself; empty where it is."""
    if task.stochastic:
        return "the model draws at random, so an example does not tell its gradient"
    if task.penalties:
        return "the loss has penalties beside the one on the logits"
    norms = [n for n, m in task.module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return f"the BatchNorm '{norms[0]}' in train mode mixes examples" if norms and task.mode is Mode.TRAIN else ""
