"""What can be read off captured updates without an attack."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from pathlib import Path

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn.functional import cosine_similarity

from leakgauge.errors import FOREIGN, refusing
from leakgauge.files import json_text, read_json, sealed, unsealed
from leakgauge.observation import Observation
from leakgauge.risk.jacobian import gradient_rank, rounded_levels
from leakgauge.task import Task
from leakgauge.tensors import Tensors
from leakgauge.tracing import input_layers
from leakgauge.update import Update
from leakgauge.view.graph import Graph, followed


class LintSeverity(Enum):
    """How much a finding gives away by itself."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


HIGH, MEDIUM, LOW = LintSeverity

SENT, UNSENT = "batchnorm-statistics", "statistics-assumed-local"
"""Rules on running statistics: those that are known to travel, and those of which nothing is said."""
OPAQUE = "network-not-understood"  # rule on a network that the reads of the lint see only in part
HIDDEN = "hidden-inputs"  # rule on layers that give away what they are given, with the batch beyond which they do not
SEARCHED = "only-searches"  # rule on rounds of which nothing is read, so that an audit rests on searches
MOVED = 0.5  # share of an embedding's rows above which weight decay or the like moved them, rather than what occurs
CANCELS = 1e-3  # two rows cancel if the norm of their sum is below this share of their norms
PARALLEL = 1e-4
"""What the cosine of two vectors lacks of one at most where one is a multiple of the other, half precision allowed."""


@dataclass(frozen=True)
class LintFinding:
    """One thing that needs no attack to be seen."""

    rule: str
    severity: LintSeverity
    where: str
    evidence: str
    hint: str  # the smallest change that stops it


def lint_update(
    update: Update, where: str, observed: Observation | None = None, *, rounded: bool = False, thinned: bool = False
) -> Iterator[LintFinding]:
    """Rules on the tensors and the header of an update. Where it is observed of a network that is known, matrices are
    those of the layers that the network comes to, and tables those that it looks rows up in.

    Where a defence rounds the values (`rounded`), ranks say nothing, and where it sends zeros for some (`thinned`) they
    count nobody; where that is not known, few levels and scattered zeros show it.
    """
    yield from _header(update, where)
    plain = update if observed is None else replace(update, tensors=observed.view.update.tensors)
    yield from () if rounded else _ranks(plain, _first(plain, observed), where, thinned)
    task = None if observed is None else observed.task
    if task is None or not task.data.is_text:  # of texts the read of tokens says more
        yield from _embeddings(update, where, task)


def _first(update: Update, observed: Observation | None) -> set[str]:
    """Weights of layers that read the input; the first tensor where no network is known."""
    if observed is None:
        return set(islice(update.tensors, 1))
    with suppress(*FOREIGN):  # the network is anybody's
        return {layer.weight for layer in input_layers(observed.view.task, torch.Generator().manual_seed(0))}
    return set()


def _header(update: Update, where: str) -> Iterator[LintFinding]:
    statistics = [name for name in update.buffers or {} if name.endswith(("running_mean", "running_var"))]
    if statistics:
        seen = (
            f"the reply carries {len(statistics)} running statistics, e.g. {statistics[0]}: with the broadcast ones "
            "they give means and variances of the client's activations"
        )
        yield LintFinding(SENT, MEDIUM, where, seen, "send parameters only, or use GroupNorm")
    count = update.header.example_count
    if count is not None:
        seen = f"the header says that {count} example{'s' * (count != 1)} made it"
        hint = "send a rounded count, or equal weights"
        yield LintFinding("exact-count", MEDIUM if count == 1 else LOW, where, seen, hint)


def _ranks(update: Update, first: set[str], where: str, thinned: bool) -> Iterator[LintFinding]:
    """∂L/∂W is a sum of one outer product for each example and position (token, patch), so its rank is at most their
    number: a count from below. A gradient of one outer product, with a bias beside it, is an exact read: of the
    example itself where it is a `first` layer, of its features elsewhere. Two outputs whose rows cancel, as under
    soft-max, have rank one whatever the batch. Rounded and thinned values have a rank of their own."""
    seen = {name: gradient_rank(t) for name, t in _matrices(update.tensors).items()}
    low = {name: rank for name, rank in seen.items() if 0 < rank < min(update.tensors[name].shape)}
    levels = {name: rounded_levels(update.tensors[name]) for name in low}
    bound = {name: _must_be_one(update.tensors[name]) for name in low}
    own = [name for name in low if not (levels[name] or bound[name] or thinned or _scattered(update.tensors[name]))]
    if own:
        name = max(own, key=lambda name: low[name])
        made = (
            f"{name} has rank {low[name]} of {min(update.tensors[name].shape)}: at least so many examples (or tokens, "
            "patches) made the update, and no noise covers them"
        )
        hint = "noise on every entry, or more examples than the layer has units"
        yield LintFinding("rank-counts-examples", LOW, where, made, hint)
    for name, rank in low.items():
        idle = levels[name] == 1 or (update.header.example_count != 1 and bound[name])
        beside = None if rank != 1 or idle else _error_signals(name, update.tensors)
        if beside is not None:
            bias, entered = beside
            gives = (
                f"{name} is one outer product with {bias}: what entered this layer is the ratio of the two, in "
                f"{entered} numbers"
            )
            severity = HIGH if name in first else MEDIUM
            hint = "several examples a step that share active units, noise, or no bias and a layer in front"
            yield LintFinding("input-of-biased-layer", severity, where, gives, hint)


def _error_signals(name: str, tensors: Tensors) -> tuple[str, int] | None:
    """Of one outer product, the vector that is a multiple of a factor, as a bias's gradient is; the other's length."""
    matrix = tensors[name].double()
    column, row = matrix[:, matrix.norm(dim=0).argmax()], matrix[matrix.norm(dim=1).argmax()]
    vectors = {k: t.double() for k, t in tensors.items() if t.ndim == 1 and t.is_floating_point() and bool(t.any())}
    for factor, other in ((column, row), (row, column)):
        for k, vector in vectors.items():
            fits = vector.shape == factor.shape
            if fits and abs(float(cosine_similarity(vector, factor, 0, 1e-300))) >= 1 - PARALLEL:
                return k, len(other)
    return None


def _must_be_one(gradient: Tensor) -> bool:
    """Whether what is not zero of it is one row or column, or two rows that cancel: of rank one whatever the batch."""
    live = _live(gradient)
    twos = [rows for rows in (live, live.T) if len(rows) == 2]
    return min(live.shape) == 1 or any(float(two.sum(0).norm()) <= CANCELS * float(two.norm()) for two in twos)


def _scattered(gradient: Tensor) -> bool:
    """Whether a tenth of the entries are zeros, though neither their row nor their column is."""
    live = _live(gradient)
    return int((live == 0).sum()) * 10 >= live.numel()


def _live(gradient: Tensor) -> Tensor:
    moved = gradient != 0
    return gradient[moved.any(1)][:, moved.any(0)].double()


def _matrices(tensors: Tensors) -> Tensors:
    return {name: t for name, t in tensors.items() if t.ndim == 2 and t.is_floating_point()}


def _embeddings(update: Update, where: str, task: Task | None) -> Iterator[LintFinding]:
    graph = None if task is None else followed(task)
    products = graph.products if isinstance(graph, Graph) else ()
    looked_up: set[str | None] = {p.weight for p in products if p.activation is not None and p.activation.hot}
    if not products:  # by the usual names
        looked_up = {n for n in _matrices(update.tensors) if "emb" in n.lower() and "pos" not in n.lower()}
    for name, gradient in ((k, t) for k, t in update.tensors.items() if k in looked_up):
        rows = (gradient != 0).any(1).nonzero().flatten().tolist()
        if 0 < len(rows) <= MOVED * len(gradient):
            shown = ", ".join(str(row) for row in rows[:8]) + (", …" if len(rows) > 8 else "")
            seen = f"{len(rows)} of {len(gradient)} rows of {name} moved: what has these numbers occurs ({shown})"
            yield LintFinding("tokens-of-embedding", HIGH, where, seen, "noise on every row")


LINT = "lint.json"  # in the audit's folder
NOT_RUN = "not-run"  # rule of the one finding that stands where no lint of the audit is
FINDINGS = TypeAdapter(list[LintFinding])


def sorted_findings(found: Iterable[LintFinding]) -> list[LintFinding]:
    return sorted(found, key=lambda f: [*LintSeverity].index(f.severity))


def findings_text(found: Sequence[LintFinding], audit: str = "") -> str:
    """As a JSON document. `audit`: identity of the audit whose plan was read; empty where it is none."""
    of = {"audit": audit} if audit else {}
    return json_text(sealed({**of, "findings": records_of(found)}))


def records_of(found: Sequence[LintFinding]) -> list[dict[str, object]]:
    return list(FINDINGS.dump_python(list(found), mode="json"))


def read_lint(folder: Path, audit: str) -> list[LintFinding]:
    """What `findings_text` wrote beside this audit. Where it is missing, or of another audit, one finding says so: that
    nothing is there is not that nothing was found."""
    file = folder / LINT
    hint = f"remove it and run the same command again: {file}"
    with refusing("folder", f"{LINT} cannot be read", hint):
        if not file.exists():
            return [_not_run("is missing")]
        found = unsealed(read_json(file))
        own, of = FINDINGS.validate_python(found["findings"]), found.get("audit")
    return own if of == audit else [_not_run("is of another audit")]


def _not_run(why: str) -> LintFinding:
    evidence = f"{LINT} {why}: what can be read exactly, without a search, is not known"
    return LintFinding(NOT_RUN, MEDIUM, "audit", evidence, "run the same command again: trials are kept")
