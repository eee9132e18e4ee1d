"""Rules about rows and their biases: sign, moments, size, and what changed since a reference or the previous round."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.inspection.matrices import Omission, WeightTensor, comparable, head, layers, too_few, working
from leakgauge.inspection.rule import Measurement, Part, Received, most_suspicious, register
from leakgauge.tensors import finite

MIN_UNITS, MIN_INPUTS = 8, 16
ALIVE = 1e-6
TAIL = 4.0  # kurtosis up to which a row counts in full; a normal distribution has 3


@register(
    "trap-weights",
    "Rows whose negative half is scaled up are silent for most inputs, so a unit that wakes holds a single "
    "example (trap weights). Honest reasons: none known to us for large values.",
)
def trap_weights(received: Received) -> Measurement:
    """Rows in which one sign is made to outweigh the other.

    Statistic: max over layers of two numbers, in standard errors of independent entries.

    1. |s|/(2u²): s is the mean over rows of the skewness about the row's mean, which scaling one sign changes and a
       shift, as early training makes one, does not; u ≥ 1 is how many times more the rows' skewness and size
       vary than independent entries allow, since training makes rows unlike. Halved, since training skews rows too.
    2. The excess of rows with exactly as many positive as negative entries, expected √(2/πk) of rows.

    Both are divided by h², with h = κ/4, at least 1, and κ the kurtosis of the rows' entries (mean fourth central
    moment over squared mean second one, the median over rows): a few large entries decide in pruned rows, also under
    noise or rounding, and pruning keeps the very entries that training has skewed. Rows of traps need many entries
    of one size (normal: κ = 3).

    The last linear layer is left out: training skews it. Invariant under a factor of the layer.
    """
    last = "the last layer, which training skews"
    found, unjudged = comparable(received.state, units=MIN_UNITS, inputs=MIN_INPUTS, last=last)
    suspects = [(signs[0], layer.name, signs[1]) for layer in found if (signs := _signs(layer))]
    return most_suspicious(suspects, "No layer to judge.", unjudged, share=1 / 3, least=4.0)


def _signs(layer: WeightTensor) -> tuple[float, str] | None:
    """The statistic of a layer and the sentence about it; `None` where too few rows are alive."""
    scale = max(float(part.abs().max()) for part in layer.chunks())
    if scale == 0:
        return None
    energy, m2, m3, m4, m6, even, count = layer.by_rows(lambda part: _moments(part / scale))
    live = (energy > ALIVE**2 * energy.max()) & (count >= MIN_INPUTS) & (m2 > 1e-9 * energy)
    rows = int(live.sum())
    if rows < MIN_UNITS:
        return None
    energy, m2, m3, m4, m6, count = (x[live].double() for x in (energy, m2, m3, m4, m6, count))
    skews = m3 / m2**1.5
    # Sampling error of a row's skewness, and of its energy, for independent entries of these moments.
    error = ((m6 - 6 * m4 * m2 + 9 * m2**3) / m2**3).clamp_min(1e-6).mean() / layer.inputs
    size_error = (m4 - m2**2).clamp_min(1e-12).mean() / m2.mean() ** 2 / layer.inputs
    slack = 1 + 2 / math.sqrt(2 * rows)
    unlike = max(float((skews.var() / error).sqrt()), float((m2.var() / m2.mean() ** 2 / size_error).sqrt())) / slack
    skew, unlike = float(skews.mean() / (error / rows).sqrt()), max(1.0, unlike)
    balanced, chance = float(even[live].double().mean()), min(1.0, float((2 / math.pi / count).sqrt().mean()))
    least = max(chance, 1e-9)
    spread = math.sqrt(least * max(1 - least, 0.01) / rows + 1 / rows**2)
    heavy = max(1.0, float((m4 / m2**2).median()) / TAIL)
    evidence = (
        f"Row skewness of {layer.name}: {skew:+.1f} standard errors (spread {unlike:.1f} × "
        f"that of fresh weights); {balanced:.0%} of rows are balanced, {chance:.1%} expected."
    )
    return max(0.0, abs(skew) / (2 * unlike**2), (balanced - least) / spread) / heavy**2, evidence


def _moments(part: Float[Tensor, "n k"]) -> tuple[Tensor, ...]:
    """By row: mean square, central moments 2, 3, 4 and 6, whether its signs are even, and non-zero entries."""
    energy = part.square().mean(1)
    sign = part.sign()
    even, count = (sign.sum(1) == 0).to(part), sign.abs_().sum(1)
    centred = part - part.mean(1, keepdim=True)
    square = centred.square()
    m2, m3 = square.mean(1), centred.mul_(square).mean(1)
    m6 = centred.square_().mean(1)
    return energy, m2, m3, square.square_().mean(1), m6, even, count


EXTREME_CAP, FAR = 1e6, 1e4
LEAST = 0.1  # least sum of a row of k weights, as a multiple of √k; torch's default initialisation gives 0.5


@register(
    "extreme-bias",
    "A huge bias on one class silences the loss of all others, and very negative ones put units to sleep, so "
    "that only the units of the server's choice answer. Honest reasons: rare classes, folded normalisation.",
)
def extreme_bias(received: Received) -> Measurement:
    """Compares biases with what the unit's weights can add up to, and with the other biases of the layer.

    Statistic: max over units of q·log(1 + z), at most 10⁶. q = |b|/max(‖w‖₁, s, √k/10), with s the median ‖w‖₁ of
    rows that are not zero and k the entries of a row, so that q > 1 means that no input in [−1, 1] changes the unit's
    sign; z = |b|/(first quartile of |b| + 10⁻³·s). A normalisation layer counts as ‖w‖₁ = max(4·|γ|, 1). Where all rows
    are zero s is 1. √k/10 stands for weights that have collapsed to nothing under decay, beside which any honest
    bias is huge; above it, the statistic is invariant under a common factor of a linear layer's weights and biases."""
    found, unjudged = layers(received.state)
    suspects = []
    for name, bias, sums in _pairs(found, received.state):
        typical = float(sums[sums > 0].median()) if bool((sums > 0).any()) else 1.0
        calm = float(bias.abs().sort().values[(len(bias) - 1) // 4]) + 1e-3 * typical
        share = bias.abs() / sums.clamp_min(typical)
        values = share * torch.log1p(bias.abs() / calm)
        at = int(values.argmax())
        evidence = f"Bias {at} of {name} is {bias[at]:.4g}, {share[at]:.2g} times what the unit's weights sum to."
        suspects.append((min(EXTREME_CAP, float(values[at])), name, evidence))
    return most_suspicious(suspects, "No layer has biases.", unjudged, share=1 / 3, least=2.0)


def _pairs(
    found: list[WeightTensor], state: Mapping[str, Tensor]
) -> Iterator[tuple[str, Float[Tensor, " n"], Float[Tensor, " n"]]]:
    for layer in found:
        if layer.bias is not None and layer.bias_name is not None:
            bias = working(layer.bias)
            sums = torch.cat([p.abs().sum(1) for p in layer.chunks()]).to(bias)
            yield layer.bias_name, bias, sums.clamp_min(LEAST * layer.inputs**0.5)
    for name, bias in state.items():
        gain = state.get(name.removesuffix("bias") + "weight")
        if not name.endswith("bias") or gain is None or gain.dim() != 1 or bias.shape != gain.shape or not len(bias):
            continue
        if bias.is_floating_point() and gain.is_floating_point() and finite(bias) and finite(gain):
            yield name, working(bias), (4 * working(gain).abs().to(working(bias))).clamp_min(1.0)


@register(
    "decoy-class",
    "A class whose bias towers over the others takes all probability, so the other classes' gradient rows stay "
    "apart (decoy of MKOR), or only examples of one class answer (fishing). Honest reasons: very uneven classes.",
)
def decoy_class(received: Received) -> Measurement:
    """Compares the biases of the last linear layer with each other and with its rows.

    Statistic: max over classes of |b − median|/(median ‖w‖₂ + 3·1.4826·MAD(b) + 10⁻⁶·max|b|), at most 10⁴. Judged
    from 3 classes on. Invariant under a common factor of weights and biases, and a shift of all biases."""
    found, unjudged = layers(received.state)
    layer = head(found)
    if layer is None or layer.bias is None or layer.bias_name is None:
        return Measurement(0.0, (), "The model has no last linear layer with biases.", tuple(unjudged))
    if layer.units < 3:
        words = "The last linear layer has too few rows to compare."
        return Measurement(0.0, (), words, (*unjudged, too_few(layer)))
    bias = working(layer.bias).double()
    row = float(torch.cat([part.norm(dim=1) for part in layer.chunks()]).median())
    away = (bias - bias.median()).abs()
    scale = row + 3 * 1.4826 * float(away.median()) + 1e-6 * float(bias.abs().max())
    at = int(away.argmax())
    statistic = min(FAR, float(away[at]) / scale) if scale else 0.0
    evidence = (
        f"Bias {at} of {layer.bias_name} is {float(bias[at]):.4g} where the median is {float(bias.median()):.4g}: "
        f"{statistic:.2g} times the layer's scale apart."
    )
    return Measurement(statistic, (layer.bias_name,), evidence, tuple(unjudged))


TURNED_UNITS, TURNED_INPUTS = 4, 8
COSINE = 0.5


SINCE = {Part.REFERENCE: "the reference", Part.PREVIOUS: "the previous round"}


def _replaced(state: Mapping[str, Tensor], known: Mapping[str, Tensor], words: str) -> Measurement:
    """Max over layers of the share of rows with cosine below ½ to their old self, of rows zero neither then nor
    now: pruning makes such."""
    found, unjudged = comparable(state, units=TURNED_UNITS, inputs=TURNED_INPUTS)
    suspects = []
    for layer in found:
        if layer.name not in known:
            unjudged.append(Omission(layer.name, f"not in {words}"))
            continue
        rows = layer.rows
        old = working(known[layer.name]).reshape(rows.shape).to(rows)
        before, now = old.norm(dim=1), rows.norm(dim=1)
        live = (before > 1e-6 * before.max()) & (now > 1e-6 * now.max())
        cosine = torch.nn.functional.cosine_similarity(rows, old, dim=1, eps=1e-30)
        turned = int((live & (cosine < COSINE)).sum())
        step = float((rows - old).norm()) / max(float(old.norm()), 1e-30)
        evidence = (
            f"{turned} of {layer.units} rows of {layer.name} point elsewhere than in {words}; the layer changed by "
            f"{100 * step:.3g} % of its size."
        )
        if live.any():
            suspects.append((turned / int(live.sum()), layer.name, evidence))
    return most_suspicious(suspects, "No layer to compare.", unjudged, share=1 / 3, least=0.1)


MOST = 4096


def _relabelled(state: Mapping[str, Tensor], known: Mapping[str, Tensor], words: str) -> Measurement:
    """Number of classes whose row has cosine > 0.9 with another's old row, at least 0.2 more than with its own."""
    layer = head(layers(state)[0])
    if layer is None or layer.name not in known:
        return Measurement(0.0, (), "The model has no linear layer to compare.")
    if not 2 <= layer.units <= MOST:
        reason = Omission(layer.name, f"{layer.units} rows, compared from 2 to {MOST}")
        return Measurement(0.0, (), "The last linear layer has too few or too many rows to compare.", (reason,))
    new = torch.nn.functional.normalize(layer.rows, dim=1)
    old = torch.nn.functional.normalize(working(known[layer.name]).reshape(layer.units, -1).to(new), dim=1)
    cosine = new @ old.T
    own = cosine.diagonal().clone()
    best, other = cosine.fill_diagonal_(-1.0).max(1)
    moved = torch.nonzero((best > 0.9) & (best > own + 0.2))[:, 0]
    if not len(moved):
        return Measurement(0.0, (), f"No class carries another class's row of {words}.")
    shown = ", ".join(f"{int(i)} has {int(other[i])}'s" for i in moved[:4])
    evidence = f"{len(moved)} classes carry another's row of {words}: {shown}."
    return Measurement(float(len(moved)), (layer.name,), evidence)


TURNED = (
    "Fine-tuning and averaging move every row a little; crafted units replace whole rows and leave the others. "
    "Honest reasons: another architecture variant, a layer that was started afresh, very large first steps."
)
SWAPPED = (
    "With classes swapped every example is wrong, so the update is large and of features rather than of "
    "mistakes (label flipping). Honest reasons: the classes were put in another order."
)


def _since(name: str, meaning: str, since: Part, summary: str, compare: Callable[..., Measurement]) -> None:
    def measure(received: Received) -> Measurement:
        return compare(received.state, getattr(received, since.value), SINCE[since])

    measure.__doc__ = f"{summary} {SINCE[since]}."
    register(f"{name}-{since.value}", meaning, needs=(Part.STATE, since))(measure)


for part in SINCE:
    _since("replaced", TURNED, part, "Units whose rows turned by 60° against", _replaced)
    _since("relabelled", SWAPPED, part, "Classes that carry another's row of", _relabelled)
