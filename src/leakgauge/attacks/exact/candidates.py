"""Examples of a gradient: proposed from rows that one alone may drive, and proved; what accepted ones leave of it, and
how exactly they and it are known; the length of an unknown update.

Tolerances are derived, not set. The client computes with round-off v and wrote its update with round-off u. A row sums
n terms, accepted examples' s·δ_ki and what is left: it is off by v·√n·Σ|terms|, and once by u·|sum|. An s·δ_ki is off
by the doubt about its example, carried through the model, and by the client's arithmetic (p − y is rounded as a number
of size one); where doubt may carry a unit over its kink, the row says nothing. All add in quadrature. Over the row's
bias entry that is a candidate's relative error; in a joint fit rows weigh by its inverse.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.attacks.closed_form.linear import grouped
from leakgauge.attacks.exact.sums import Sums, Tail
from leakgauge.tensors import Wire
from leakgauge.view.entries import HARD, summed

FACTOR = 8.0  # how many standard errors a true value may be off

ROUNDED = 0.25
"""Rounding of a sum of d products, in shares of v·|x|·|w|: more for a plain loop, less for sums in blocks."""


@dataclass(frozen=True, eq=False)
class ExplainedExamples:
    """Examples that explain something of a gradient."""

    x: Float[Tensor, "k d"]  # what enters the layer, known to a share `doubt` of the largest input
    labels: Int[Tensor, " k"]
    doubt: Float[Tensor, " k"]
    relative: Float[Tensor, " k"]  # width of the test that accepted each, in shares of what was tested

    def __len__(self) -> int:
        return len(self.labels)

    @staticmethod
    def none(like: Float[Tensor, "units d"]) -> "ExplainedExamples":
        index = torch.zeros(0, dtype=torch.long, device=like.device)
        return ExplainedExamples(like[:0], index, like.new_zeros(0), like.new_zeros(0))

    @property
    def _parts(self) -> tuple[Tensor, ...]:
        return self.x, self.labels, self.doubt, self.relative

    def take(self, which: Tensor) -> "ExplainedExamples":
        return ExplainedExamples(*(part[which] for part in self._parts))

    def joined(self, other: "ExplainedExamples") -> "ExplainedExamples":
        return ExplainedExamples(*map(torch.cat, zip(self._parts, other._parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Shares:
    """What examples contribute to each row's bias entry, s·δ_ki, with its standard error; and how large it may be where
    the error of the example may switch the unit on or off, zero elsewhere (`open`)."""

    value: Float[Tensor, "k units"]
    error: Float[Tensor, "k units"]
    open: Float[Tensor, "k units"]


@dataclass(frozen=True, eq=False)
class Remainder:
    """What examples leave of the sums, row by row."""

    weight: Float[Tensor, "units d"]
    bias: Float[Tensor, " units"]
    error: Float[Tensor, " units"]  # of a row's bias entry; of its weight entries in units of the largest input
    shares: Float[Tensor, "k units"]  # s·δ_ki of each example in each row
    explained: Bool[Tensor, " units"]  # rows of which nothing is left beyond their error
    open: Bool[Tensor, " units"]  # rows that say nothing: an example that was subtracted may or may not drive them


def shares_in(sums: Sums, x: Float[Tensor, "k d"], labels: Int[Tensor, " k"], doubt: Float[Tensor, " k"]) -> Shares:
    """As `shares_of`, in the format of the sums."""
    scale = sums.scale * sums.shortened(x, labels)[:, None]
    return shares_of(sums.tail, x, labels, doubt, scale=scale, reach=sums.reach, wire=sums.wire)


def shares_of(
    tail: Tail,
    x: Float[Tensor, "k d"],
    labels: Int[Tensor, " k"],
    doubt: Float[Tensor, " k"],
    *,
    scale: float | Float[Tensor, "k 1"],
    reach: float,
    wire: Wire,
) -> Shares:
    """s·δ_ki of examples that are known up to a share `doubt` of themselves, where nothing larger than `reach`
    enters the layer. The format of the update tells what the client computes in."""
    unit = wire.arithmetic
    z = tail.answers(x)

    def errors(at: Tensor, of: Tensor = labels) -> Tensor:
        return scale * tail.errors(at, of)

    value = errors(z)
    # What the layer answers is off by the example's error and by the rounding of its own sum of d products.
    length = tail.weight.norm(dim=1)
    off = (doubt * reach)[:, None] * length
    rounded = unit * ROUNDED * x.norm(dim=1, keepdim=True) * length
    shake = torch.randn(z.shape, generator=torch.Generator().manual_seed(0), dtype=z.dtype).to(z)
    moved = (errors(z + shake * (off + rounded)) - value).abs()
    moved = moved.maximum((errors(tail.answers(x * (1 + doubt)[:, None])) - value).abs())
    # The loss's slope in the logits has entries of size one, which another label shows however small p − y is.
    other = errors(z, (labels + 1) % tail.task.data.classes).abs()
    step = FACTOR * (off + rounded)
    open_ = ((errors(z + step) != 0) != (value != 0)) | ((errors(z - step) != 0) != (value != 0))
    driven = (value != 0) & ~open_
    largest = value.abs().amax(1, keepdim=True).expand_as(value)
    error = torch.where(open_, 0.0, moved) + unit * (2 * other + 2 * value.abs())
    # Where the moved value happens to cross the first one it says too little: no less than the mean over the rows.
    mean = ((error.square() * driven).sum(1) / driven.sum(1).clamp_min(1)).sqrt()
    return Shares(value, torch.where(value != 0, error.maximum(mean[:, None]), 0.0), torch.where(open_, largest, 0.0))


def residual(sums: Sums, found: ExplainedExamples) -> Remainder:
    """Subtracts the examples' own gradients."""
    nothing = sums.bias.new_zeros((0, len(sums.bias)))
    shares = shares_in(sums, found.x, found.labels, found.doubt) if len(found) else Shares(*[nothing] * 3)
    weight = torch.addmm(sums.weight, shares.value.T, found.x, alpha=-1.0)
    bias = sums.bias - shares.value.sum(0)
    terms = (shares.value != 0).sum(0) + 1
    rounded = summed(sums.wire, terms, shares.value.abs().sum(0) + bias.abs())
    # A share's own error, and that of the example which it multiplies.
    carried = shares.error.square().sum(0) + (found.doubt[:, None] * shares.value).square().sum(0)
    switched = shares.open.square().sum(0)
    plain = rounded.square() + sums.written.square() + carried
    error = (plain + switched).sqrt()
    silent = (switched > plain) & (bias.abs() <= FACTOR * error)
    explained = (bias.abs() <= FACTOR * error) & (weight.abs().amax(1) <= FACTOR * sums.reach * error)
    return Remainder(weight, bias, error, shares.value, explained, silent)


def refit(sums: Sums, found: ExplainedExamples, *, passes: int = 4) -> tuple[ExplainedExamples, Remainder]:
    """All examples at once, by weighted least squares over the rows that they explain together. Shares depend on the
    examples, so the fit is repeated; what the last pass still moved counts as doubt."""
    state = residual(sums, found)
    for _ in range(passes):
        known = state.explained & ~state.open & (state.shares != 0).any(0)
        if int(known.sum()) < len(found):
            break
        # Rows weigh by all of their error; what the fit leaves is counted without the examples' own, which it settles.
        settled = residual(sums, replace(found, doubt=torch.zeros_like(found.doubt)))
        weight = 1 / state.error[known]
        q, r = torch.linalg.qr(state.shares[:, known].T * weight[:, None])
        diagonal = r.diagonal().abs()
        if float(diagonal.min()) <= 1e-12 * float(diagonal.max()):
            break
        inverse = torch.linalg.solve_triangular(r, q.T, upper=True) * weight
        step = inverse @ state.weight[known]
        spread = (inverse * settled.error[known]).norm(dim=1)
        moved = step.square().mean(1).sqrt() / sums.reach
        doubt = (spread.square() + moved.square()).sqrt() + sums.wire.unit / HARD
        found = replace(found, x=found.x + step, doubt=doubt)
        state = residual(sums, found)
        if bool((moved <= spread).all()):
            break
    return found, state


SLACK = 1e-2  # how far outside the data's range a candidate may lie, in shares of the range's width

LOOSE = 1e-2
"""Relative gap up to which a candidate is worth an estimate of its error, and relative tolerance beyond which a test
tests too little."""

WEAK = 1e-3  # relative tolerance beyond which one row alone is no reason to accept a candidate, even for a while

LIKELY = 1e-3
"""Expected false matches among all tests up to which one row alone is taken before others; of rows that agree, one."""

ROWS_OF_ONE = 4  # rows that are asked for the only example, the surest: all of them show it


def _ratios(
    sums: Sums, state: Remainder, of: Bool[Tensor, " rows"]
) -> tuple[Int[Tensor, " k"], Float[Tensor, "k d"], Float[Tensor, " k"]]:
    """Rows whose bias entry exceeds its error, their ratios to it in the data's range, and the relative error."""
    rows = (of & (state.bias.abs() > FACTOR * state.error)).nonzero()[:, 0]
    x, doubt = state.weight[rows] / state.bias[rows, None], state.error[rows] / state.bias[rows].abs()
    slack = (SLACK + FACTOR * doubt[:, None]) * (sums.high - sums.low)
    inside = ((x >= sums.low - slack) & (x <= sums.high + slack)).all(1)
    rows, x, doubt = rows[inside], x[inside], doubt[inside]
    if sums.examples == 1 and len(rows) > ROWS_OF_ONE:
        surest = doubt.argsort(stable=True)[:ROWS_OF_ONE].sort().values
        rows, x, doubt = rows[surest], x[surest], doubt[surest]
    return rows, x, doubt


def candidates(sums: Sums, state: Remainder, known: Float[Tensor, "k d"]) -> tuple[ExplainedExamples, int]:
    """Examples that predict the row that they were read from, best first, and how many tests were made.

    A row that one example alone drives is s·δ_ki·(x_k, 1): d numbers make the candidate, which goes through the model,
    and the row's bias entry tests it, for every label. Rows that give the same example agree. Those that are `known`
    are not asked for again: they were accepted, or taken back."""
    rows, x, doubt = _ratios(sums, state, ~state.explained & ~state.open)
    if not len(rows):
        return ExplainedExamples.none(sums.weight), 0
    whole, shortened = _predicted(sums, state, rows, x, doubt)
    gap = (shortened * whole - state.bias[rows, None]).abs()
    least, best = gap.min(1)
    size, error = state.bias[rows].abs(), state.error[rows]
    labels, scale = sums.labels[best], sums.scale * shortened.gather(1, best[:, None])
    near = (least <= (LOOSE * size).maximum(FACTOR * error)).nonzero()[:, 0]
    if not len(near):
        return ExplainedExamples.none(sums.weight), gap.numel()
    x, labels, doubt, least, size, error = (t[near] for t in (x, labels, doubt, least, size, error))
    shares = shares_of(sums.tail, x, labels, doubt, scale=scale[near], reach=sums.reach, wire=sums.wire)
    at = torch.arange(len(near), device=near.device), rows[near]
    tolerance = FACTOR * (error + shares.error[at] + shares.open[at])
    tried = ExplainedExamples(x, labels, doubt, tolerance / size)
    kept = ((least <= tolerance) & (tried.relative < LOOSE)).nonzero()[:, 0]
    tried = tried.take(kept[tried.relative[kept].argsort()])
    groups = grouped(_alike(tried.x, tried.doubt) & (tried.labels[:, None] == tried.labels), range(len(tried)))
    fresh = tried.take(torch.tensor([int(group[0]) for group in groups], dtype=torch.long, device=x.device))
    agree = torch.tensor([len(group) > 1 for group in groups], dtype=torch.bool, device=x.device)
    if len(known) and len(fresh):  # a unit on its kink leaves what looks like its example again
        new = torch.cdist(fresh.x, known).amin(1) / fresh.x.norm(dim=1).clamp_min(1e-12) > 1e-3
        fresh, agree = fresh.take(new), agree[new]
    sure = fresh.relative * gap.numel() <= torch.where(agree, 1.0, LIKELY)
    return fresh.take(sure if bool(sure.any()) else fresh.relative < WEAK), gap.numel()


def _predicted(
    sums: Sums, state: Remainder, rows: Int[Tensor, " k"], x: Float[Tensor, "k d"], doubt: Float[Tensor, " k"]
) -> tuple[Float[Tensor, "k labels"], Float[Tensor, "k labels"]]:
    """The bias entry of each row that a candidate of its own drives alone, for each label, and what a clip of examples
    multiplies it by: that takes whole gradients, of rows that give the same example once, as the surest has it."""
    of_rows = sums.tail.errors_of_row(sums.tail.answers(x), rows, int(sums.labels.max()) + 1)
    whole = sums.scale * of_rows[:, sums.labels]
    shortened = torch.ones_like(whole)
    if sums.clip is None:
        return whole, shortened
    groups = grouped(_alike(x, doubt), doubt.argsort().tolist())
    surest = torch.stack([group[doubt[group].argmin()] for group in groups])
    possible = torch.stack([(whole[group] / state.bias[rows[group], None] > 0).any(0) for group in groups])
    example, label = possible.nonzero(as_tuple=True)
    found = torch.ones_like(whole[: len(groups)])
    found[example, label] = sums.shortened(x[surest[example]], sums.labels[label])
    for group, by_label in zip(groups, found, strict=True):
        shortened[group] = by_label
    return whole, shortened


def _alike(x: Float[Tensor, "k d"], doubt: Float[Tensor, " k"]) -> Bool[Tensor, "k k"]:
    """Which candidates are equal within their errors."""
    size = x.norm(dim=1).clamp_min(1e-12)
    gap = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    near: Tensor = gap <= (FACTOR * (doubt[:, None] + doubt) + 1e-9) * (size[:, None] + size)
    return near


AGREE = 3  # rows that must name the same factor
MOST = 3  # factors that are tried

ERRORS = 4.0
"""A row's factor is off by this many times its relative rounding: of the entry, of the example and of its share."""


def factors(sums: Sums) -> tuple[list[float], int]:
    """What the whole gradient may have been multiplied by (clipping, an unknown learning rate), likeliest first.

    The model tells the bias entry of a row that an example drives alone, for every label; the observed one is that
    times the factor, for the right label. Other rows name other factors, by accident. A factor is no proof: what is
    read with it has to prove itself. At most `MOST`, named by `AGREE` rows or more; and how many tests were made."""
    state = residual(sums, ExplainedExamples.none(sums.weight))
    rows, x, doubt = _ratios(sums, state, ~state.explained)
    if len(rows) < AGREE:
        return [], 0
    whole, shortened = _predicted(sums, state, rows, x, doubt)
    named = state.bias[rows, None] / (shortened * whole)
    row = torch.arange(len(rows), device=rows.device)[:, None].expand_as(named)
    width = (ERRORS * doubt)[:, None].expand_as(named)
    valid = torch.isfinite(named) & (named > 0) & (width < 1e-2)
    return _agreed(named[valid].log(), width[valid], row[valid]), int(named.numel())


def _agreed(value: Float[Tensor, " m"], width: Float[Tensor, " m"], row: Int[Tensor, " m"]) -> list[float]:
    """Values that lie within their widths of most others, of other rows; each with its neighbours taken once."""
    order = value.argsort()
    value, width, row = value[order], width[order], row[order]
    found: list[float] = []
    free = torch.ones(len(value), dtype=torch.bool, device=value.device)
    low = torch.searchsorted(value, value - width)
    high = torch.searchsorted(value, value + width, right=True)
    for index in (high - low).argsort(descending=True, stable=True).tolist():
        if len(found) == MOST or int(high[index] - low[index]) < AGREE:
            break
        near = slice(int(low[index]), int(high[index]))
        if not bool(free[index]) or len(row[near].unique()) < AGREE:
            continue
        free[near] = False
        weight = 1 / width[near].square().clamp_min(1e-30)
        found.append(float(((value[near] * weight).sum() / weight.sum()).exp()))
    return found


CHANCE = 1e-6  # most expected false matches among all tests, for a certificate by one row's bias entry alone
BLOCK = 1 << 22  # numbers that are worked on at a time
SINGULAR = 1e-12  # share of the largest eigenvalue, or of a direction's square, that is none
NEAR = 10 ** (-45 / 20)  # largest error of a proved example, in shares of the largest input: 45 dB


def shown(sums: Sums, state: Remainder, found: ExplainedExamples, tests: int) -> Bool[Tensor, " k"]:
    """Which examples the rows show, if the update's length is what it is taken to be.

    A row that is wholly explained repeats d + 1 numbers. Its own row makes an example, and one number of it tests the
    label: a test of relative width w passes a wrong candidate with a probability of about w. Each further row that the
    example drives, and that is explained, tests d + 1. That proves it where nothing of the gradient is left. Before,
    two examples that drive the same rows in one proportion (equal labels, a saturated soft-max, two classes) could
    stand as their mixture in all of them: so the test must be narrow enough that not one of all that were made
    would pass by accident; with a single explained row, that fewer than `CHANCE` would.

    The example must be known to `NEAR` besides: one whose gradient is faint may be there for certain, and blurred. And
    each of its inputs must stand in one of these rows: of what was left out of all of them zero is read. Where it is
    known what was left out, they must be `standing` besides."""
    if not len(found):
        return torch.zeros(0, dtype=torch.bool, device=state.bias.device)
    drives = state.shares.abs() > FACTOR * state.error
    showing = drives & state.explained & ~state.open
    rows = showing.sum(1)
    near = FACTOR * found.doubt <= NEAR
    chance = found.relative * tests
    whole = bool((state.explained | state.open).all())
    sent = sums.entries.sent_beyond(FACTOR * sums.reach * state.error[:, None].to(sums.entries.value))
    near &= (showing.to(sent.device).double() @ sent.double() > 0).all(1).to(near.device)
    if sums.entries.seen is not None and not bool(sent.all()):
        near &= standing(state, sent).all(1).to(near.device)
    return near & (((rows >= 2) & ((chance <= 1) | whole)) | ((rows == 1) & (chance <= CHANCE)))


def standing(state: Remainder, sent: Bool[Tensor, "rows d"]) -> Bool[Tensor, "k d"]:
    """Inputs of each example that rows whose entry was sent tell apart from those of the others to `NEAR`, by least
    squares with these rows' errors: a sum says nothing of one of two."""
    rows = state.explained & ~state.open & (state.error > 0)
    if not bool(rows.any()):
        return torch.zeros((len(state.shares), sent.shape[1]), dtype=torch.bool, device=sent.device)
    shares, sent = (state.shares[:, rows] / state.error[rows]).to(sent.device).double(), sent[rows.to(sent.device)]
    chosen, whose = torch.ones_like(sent[:, :1]), sent.all(0).long()  # entries that all were sent are alike
    chosen, whose = torch.cat([chosen, sent[:, whose == 0]], 1), torch.where(whose == 0, (1 - whose).cumsum(0), 0)
    known = [_apart(shares, part) for part in chosen.double().split(max(1, BLOCK // shares.shape[0] ** 2), dim=1)]
    return torch.cat(known, 1)[:, whose]


def _apart(shares: Float[Tensor, "k rows"], sent: Float[Tensor, "rows d"]) -> Bool[Tensor, "k d"]:
    values, vectors = torch.linalg.eigh(torch.einsum("ir,jr,rp->pij", shares, shares, sent))
    open_ = values <= SINGULAR * values[:, -1:].clamp_min(torch.finfo(torch.float64).tiny)
    weights = vectors.square()  # [d, k, directions]
    spread = (weights / values.masked_fill(open_, torch.inf)[:, None]).sum(2).sqrt()
    known: Tensor = (FACTOR * spread <= NEAR) & ((weights * open_[:, None]).sum(2) <= SINGULAR)
    return known.T


def certify(sums: Sums, state: Remainder, found: ExplainedExamples, tests: int) -> Bool[Tensor, " k"]:
    """Which examples are proved: those that are `shown`, at a length that is known.

    At the length that was sent, m examples in one proportion fail the test: their rows are m times as large as their
    mixture's. A length that the rows themselves name is m times too long then, the mixture explains them, and no number
    of rows or digits tells it from one example. So is the stated length where a clip made the update m times shorter.
    Nor do several that agree on a length prove it: each may be a mixture with one faint example, the same for all. So
    such a length is proved where every example is shown and nothing of any row is left. The only example has no other
    to be mixed with."""
    proved = shown(sums, state, found, tests)
    whole = len(found) == sums.examples and bool(proved.all()) and bool((state.explained | state.open).all())
    return proved if sums.told or sums.examples == 1 or whole else torch.zeros_like(proved)
