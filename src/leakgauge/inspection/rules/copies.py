"""Rules about copied rows and convolutions with single taps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from leakgauge.inspection.matrices import WIDE, Omission, WeightTensor, comparable, layers
from leakgauge.inspection.rule import Measurement, Received, most_suspicious, register

MIN_UNITS, MIN_INPUTS, MIN_SPREAD = 4, 4, 6.0
SKETCH, CANDIDATE, SAME = 64, 0.95, 1 - 1e-5
LEAST = 3  # what all rows of a layer count for at least, where they are one
SPARSE = 0.3  # share of exact zeros in a layer's other rows from which it counts as pruned


@register(
    "copies",
    "Units that measure the same thing with different thresholds split a batch into single examples (imprint); "
    "mirrored pairs let one unit of a pair wake for every input; equal filters pass one picture on, many times. "
    "Honest reasons: a network widened by copying.",
)
def copied_rows(received: Received) -> Measurement:
    """Counts rows that are parallel to another, or antiparallel.

    Statistic: max over layers of m/(1 + n/50), with m of n rows that have |cos| > 1 − 10⁻⁵ with another one
    (trained filters and units of strongly decayed layers resemble each other to 0.99, and thousands of rows that were
    cut down to rank 3 or 4 meet to 0.999 by chance). Rows whose participation ratio (Σw²)²/Σw⁴ is 6 or less count
    only in a layer that is not pruned: pruned rows with few survivors are parallel by chance. The last linear layer,
    and layers of rows of two or three entries, count only where all rows point the same way, and then as three at
    least: classes that never occur have parallel rows where the layer started at zero, but rows of a soft-max that
    started there add up to zero. All pairs in a Gaussian sketch of 64 dimensions; candidates in full. Invariant under
    a factor per row."""
    last = "the last layer, where classes that never occur have parallel rows"
    found, unjudged = comparable(received.state, units=MIN_UNITS, inputs=MIN_INPUTS, last=last)
    compared = {layer.name for layer in found}
    zeros = {layer.name: 1 - int(layer.rows.count_nonzero()) / layer.weight.numel() for layer in found}
    suspects = []
    for layer in layers(received.state)[0]:
        rows = _Rows.of(layer)
        uniform = _uniform(layer, rows)
        same, mirrored = (layer.units, 0) if uniform else (0, 0)
        if layer.name in compared and not uniform:
            same, mirrored = _copies(layer, rows, _elsewhere(zeros, layer.name))
        evidence = f"{same} of {layer.units} rows of {layer.name} are multiples of another row"
        evidence += f", {mirrored} of them with the opposite sign." if mirrored else "."
        if same or mirrored:
            count = max(same, mirrored, LEAST * uniform)
            suspects.append((count / (1 + layer.units / 50), layer.name, evidence))
    return most_suspicious(suspects, "No layer has rows that are multiples of each other.", unjudged)


@dataclass(frozen=True, eq=False)
class _Rows:
    """A layer's rows in short: which are not dead, the participation ratio of each, and its direction in a sketch."""

    live: Bool[Tensor, " n"]
    ratio: Float[Tensor, " n"]
    sketch: Float[Tensor, "n s"]

    @staticmethod
    def of(layer: WeightTensor) -> "_Rows":
        k = layer.inputs
        generator = torch.Generator().manual_seed(0)
        plane = torch.randn((k, SKETCH), generator=generator) if k > SKETCH else torch.eye(k)

        def measure(part: Tensor) -> tuple[Tensor, Tensor]:
            top = part.abs().amax(1, keepdim=True)
            square = (part / top.clamp_min(1e-30)).square_()
            return top[:, 0], square.sum(1) ** 2 / square.square_().sum(1).clamp_min(1e-30)

        tops, spreads = layer.by_rows(measure)
        sketches = torch.cat([part @ plane.to(part) for part in layer.chunks(WIDE)])
        return _Rows(tops > tops.max() * 1e-6, spreads, torch.nn.functional.normalize(sketches, dim=1))


def _elsewhere(zeros: Mapping[str, float], name: str) -> float:
    """Median share of zeros in the other layers, for a layer without rows of its own to tell from."""
    others = sorted(share for other, share in zeros.items() if other != name)
    return others[len(others) // 2] if others else 0.0


def _uniform(layer: WeightTensor, rows: _Rows) -> bool:
    """Whether all rows of a layer that mixes inputs point the same way, all but dead ones; two that are long tell."""
    index, least = torch.nonzero(rows.live)[:, 0], 2 if layer.inputs >= MIN_INPUTS else 3
    if layer.depthwise or layer.inputs < 2 or len(index) < max(least, layer.units / 2):
        return False
    first = int(index[0])
    if not bool((rows.sketch[index] @ rows.sketch[first] > CANDIDATE).all()):
        return False
    row = layer.weight.reshape(layer.units, -1)[first].float()
    cosine = torch.cat([torch.nn.functional.cosine_similarity(p.float(), row[None], dim=1) for p in layer.chunks()])
    return bool((cosine[index] > SAME).all())


def _copies(layer: WeightTensor, rows: _Rows, elsewhere: float) -> tuple[int, int]:
    """How many rows have a parallel or antiparallel one, and how many an antiparallel one."""
    wide, few = rows.live & (rows.ratio > MIN_SPREAD), rows.live & (rows.ratio <= MIN_SPREAD)
    telling = int(wide.sum()) >= max(2, 0.05 * layer.units)
    sparse = float((layer.rows[wide] == 0).float().mean()) if telling else elsewhere
    index = torch.nonzero(wide if layer.depthwise or sparse >= SPARSE else wide | few)[:, 0]
    flat, same, mirrored = layer.weight.reshape(layer.units, -1), 0, 0
    for some in _pairs(rows.sketch[index]).split(max(1, (1 << 23) // layer.inputs)):
        x, y = (flat[index[each]].float() for each in some.T)
        cosine = torch.nn.functional.cosine_similarity(x, y, dim=1)
        same += int((cosine.abs() > SAME).sum())
        mirrored += int((cosine < -SAME).sum())
    return same, mirrored


def _pairs(sketch: Float[Tensor, "n s"]) -> Int[Tensor, "p 2"]:
    """Each row with its likeliest copy, where that is likely enough."""
    found = [torch.empty((0, 2), dtype=torch.long)]
    for start in range(0, len(sketch), 1024):
        cosine = (sketch[start : start + 1024] @ sketch.T).abs_()
        here = torch.arange(len(cosine))
        cosine[here, here + start] = 0
        best = cosine.max(1)
        pairs = torch.stack([here + start, best.indices], 1)
        found.append(pairs[best.values > CANDIDATE])
    return torch.cat(found)


EQUAL = 0.05  # taps within 5 % are equal


@dataclass(frozen=True)
class Counts:
    """Rows of a layer by how many of their entries exceed a quarter of the largest one."""

    none: int
    one: int
    two: int
    others: int
    zeros: float  # share of zeros in rows of two or more entries
    tap: float  # median size of a single tap
    regular: float  # see `regularity`


@register(
    "taps",
    "Units that copy one input carry pixels through the network unchanged, so a later layer's gradient holds "
    "the picture (MKOR). Honest reasons: identity (Dirac) initialisation.",
)
def single_taps(received: Received) -> Measurement:
    """Counts rows with one entry four times any other, beyond what pruning explains.

    Statistic: max over layers of (ρ²·n₁ − e)/√n₁, with n₁ the rows of one such entry and ρ how regular these
    entries are: the larger of the share that are equal in size and the share at one place of the kernel
    (`regularity`). Taps that pass a picture on keep it in place or in scale; what decay leaves of a kernel has any size
    and place. e = 0 where the layer's other rows are dense: there this does not happen by chance. In a pruned layer
    e = b + 2√(b + 1), b² = 2·n₀·n₂ (each + ½): were the survivors spread over the rows as a Poisson mixture,
    n₁² ≤ 2·n₀·n₂ in expectation whatever the mixture (Cauchy–Schwarz). Rows below 10⁻⁶ of the layer's largest
    count as zero, so that decayed dead units do not. Invariant under a factor per layer or row."""
    found, unjudged = comparable(received.state, units=1, inputs=MIN_INPUTS)
    why = "depthwise, where trained filters often have one large entry"
    unjudged += [Omission(layer.name, why) for layer in found if layer.depthwise]
    counts = [(layer, _count(layer)) for layer in found if not layer.depthwise]
    zeros = {layer.name: c.zeros for layer, c in counts if c.others}
    suspects = []
    for layer, c in counts:
        evidence = (
            f"{c.one} of {layer.units} rows of {layer.name} keep one entry (median size {c.tap:.3g}) over four "
            f"times as large as the rest of their row."
        )
        if excess := _excess(c, _elsewhere(zeros, layer.name)):
            suspects.append((excess, layer.name, evidence))
    return most_suspicious(suspects, "No layer has more single-tap rows than pruning explains.", unjudged)


def _count(layer: WeightTensor) -> Counts:
    kernel = layer.weight[0, 0].numel()

    def measure(part: Tensor) -> tuple[Tensor, ...]:
        magnitude = part.abs()
        top, place = magnitude.max(1)
        large, zero = magnitude > top[:, None] / 4, magnitude == 0
        return top, place, large.to(part).sum(1), zero.to(part).sum(1)

    top, place, size, zero = layer.by_rows(measure)
    size = size * (top > top.max() * 1e-6)
    none, one, two = (int((size == m).sum()) for m in range(3))
    single, several = size == 1, size >= 2
    entries = int(several.sum()) * layer.inputs
    share = float(zero[several].double().sum()) / entries if entries else 0.0
    middle = float(top[single].median()) if one else 0.0
    regular = regularity(top[single], place[single] % kernel, kernel)
    return Counts(none, one, two, layer.units - none - one, share, middle, regular)


def regularity(taps: Float[Tensor, " n"], places: Int[Tensor, " n"], kernel: int) -> float:
    """The larger of two shares: taps within 5 % of each other, and, beyond chance, taps at one of `kernel` places."""
    if not len(taps):
        return 0.0
    size = taps.double().log().sort().values
    ends = torch.searchsorted(size, size + EQUAL, right=True)
    equal = float((ends - torch.arange(len(size))).max()) / len(size)
    if kernel == 1:
        return equal
    alike = float(places.bincount().max()) / len(places)
    return max(equal, (alike - 1 / kernel) / (1 - 1 / kernel))


def _excess(c: Counts, elsewhere: float) -> float:
    if not c.one:
        return 0.0
    telling = c.others >= max(2, 0.05 * (c.none + c.one + c.others))
    expected = 0.0
    if (c.zeros if telling else elsewhere) >= SPARSE:
        bound = math.sqrt(2 * (c.none + 0.5) * (c.two + 0.5))
        expected = bound + 2 * math.sqrt(bound + 1)
    return max(0.0, c.regular**2 * c.one - expected) / math.sqrt(c.one)
