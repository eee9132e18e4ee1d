"""What gives data away before any search: the shape of a finding, and the rules that read an update alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.update import Update


class Severity(Enum):
    """How much a finding gives away by itself."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True)
class LintFinding:
    """One thing that needs no attack to be seen.

    Attributes:
        rule: name of the rule.
        where: what it was found in.
        evidence: what was seen, with numbers.
        hint: the smallest change that stops it.
        residual: of an exact read, the share of the gradient's square that it does not explain.
    """

    rule: str
    severity: Severity
    where: str
    evidence: str
    hint: str
    residual: float | None = None


def lint_update(update: Update, where: str, task: Task | None = None) -> Iterator[LintFinding]:
    """Rules on the tensors and the header of an update. With a task, embeddings are known by type."""
    yield from _header(update, where)
    yield from _ranks(update, where)
    yield from _embeddings(update, where, task)


def _header(update: Update, where: str) -> Iterator[LintFinding]:
    statistics = [name for name in update.buffers or {} if name.endswith(("running_mean", "running_var"))]
    if statistics:
        yield LintFinding(
            "batchnorm-statistics",
            Severity.MEDIUM,
            where,
            f"the reply carries {len(statistics)} running statistics, e.g. {statistics[0]}: with the broadcast ones "
            "they give means and variances of the client's activations",
            "send parameters only, or use GroupNorm",
        )
    count = update.header.example_count
    if count is not None:
        yield LintFinding(
            "exact-count",
            Severity.MEDIUM if count == 1 else Severity.LOW,
            where,
            f"the header says that {count} example{'s' * (count != 1)} made it",
            "send a rounded count, or equal weights",
        )


@dataclass(frozen=True)
class Spectrum:
    """Numerical rank of a gradient, and the share of its square beyond one outer product."""

    rank: int
    full: int
    beyond_one: float


def spectrum(gradient: Tensor) -> Spectrum:
    """Singular values above the rounding of the gradient's own type count."""
    matrix = gradient.detach().double()
    largest = float(matrix.abs().max())
    full = min(matrix.shape)
    if largest == 0:
        return Spectrum(0, full, 0.0)
    values = torch.linalg.svdvals(matrix / largest)
    rounding = torch.finfo(gradient.dtype).eps * max(matrix.shape) * float(values[0])
    squares = values.square()
    return Spectrum(int((values > rounding).sum()), full, float(squares[1:].sum() / squares.sum()))


def _ranks(update: Update, where: str) -> Iterator[LintFinding]:
    """∂L/∂W is a sum of one outer product for each example and position (token, patch), so its rank is at most their
    number: a count from below. A gradient of one outer product, with a bias beside it, is an exact read: of the
    example itself where it is the first layer, of its features elsewhere."""
    seen = {name: spectrum(t) for name, t in _matrices(update.tensors).items()}
    low = {name: s for name, s in seen.items() if 0 < s.rank < s.full}
    if low:
        name, most = max(low.items(), key=lambda entry: entry[1].rank)
        yield LintFinding(
            "rank-counts-examples",
            Severity.LOW,
            where,
            f"{name} has rank {most.rank} of {most.full}: at least so many examples (or tokens, patches) made the "
            "update, and no noise covers them",
            "noise on every entry, or more examples than the layer has units",
        )
    for name, s in low.items():
        bias = update.tensors.get(f"{name.removesuffix('weight')}bias")
        if s.rank == 1 and bias is not None and bool((bias != 0).any()):
            yield LintFinding(
                "input-of-biased-layer",
                Severity.HIGH if name == next(iter(update.tensors)) else Severity.MEDIUM,
                where,
                f"{name} is one outer product with {name.removesuffix('weight')}bias: what entered this layer is the "
                f"ratio of the two, in {update.tensors[name].shape[1]} numbers",
                "several examples a step that share active units, noise, or no bias and a layer in front",
                s.beyond_one,
            )


def _matrices(tensors: Tensors) -> Tensors:
    return {name: t for name, t in tensors.items() if t.ndim == 2 and t.is_floating_point() and name.endswith("weight")}


def _embeddings(update: Update, where: str, task: Task | None) -> Iterator[LintFinding]:
    for name, gradient in _tables(update, task).items():
        used = (gradient != 0).any(1)
        if bool(used.any()) and not bool(used.all()):
            rows = used.nonzero().flatten().tolist()
            shown = ", ".join(str(row) for row in rows[:8]) + (", …" if len(rows) > 8 else "")
            yield LintFinding(
                "tokens-of-embedding",
                Severity.HIGH,
                where,
                f"{len(rows)} of {len(used)} rows of {name} are not zero: these tokens occur, and no others ({shown})",
                "freeze the embedding, or noise on every row",
                0.0,
            )


def _tables(update: Update, task: Task | None) -> Tensors:
    """Embeddings by type; without a model by the usual names."""
    if task is None:
        return {n: t for n, t in _matrices(update.tensors).items() if "emb" in n.lower() and "pos" not in n.lower()}
    modules = {f"{n}.weight" if n else "weight": m for n, m in task.module.named_modules()}
    return {n: t for n, t in update.tensors.items() if isinstance(modules.get(n), nn.Embedding)}
