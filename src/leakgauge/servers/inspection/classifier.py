"""A last layer in which some classes count more than others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from leakgauge.registry import RULES
from leakgauge.servers.inspection.matrices import head, layers, too_small, working
from leakgauge.servers.inspection.rule import Measurement, Part, Received

CAP = 40.0
PRUNED, SURVIVORS, FAR = 0.6, 4, 1e4


@RULES.register("uneven-classes")
@dataclass(frozen=True)
class UnevenClasses:
    """Compares the rows of the last linear layer in size.

    Statistic: max over rows of |log₂(‖w_row‖/typical)|, at most 40. Typical is the median over rows, or the largest row
    where the median row is zero; a layer of zeros gives 0. Where under 60 % of the entries of the rows that are not
    zero are left, the layer is pruned, and rows with fewer than 4 entries are left out: pruning by size empties the
    rows of rare classes, and a few survivors have any size. Honest classifiers stay within a few powers of two. Judged
    from 3 rows on. Invariant under a factor of the layer.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "With the other classes' rows at zero or one class's row enlarged, the gradient holds the examples of one "
        "class alone (class fishing). Honest reasons: classes that were never trained or were removed."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        layer = head(found)
        if layer is None:
            return Measurement(0.0, (), "The model has no linear layer.", tuple(unjudged))
        if reason := too_small(layer, units=3, inputs=1):
            return Measurement(0.0, (), "The last linear layer has too few rows to compare.", (*unjudged, reason))
        rows = norms = torch.cat([part.norm(dim=1) for part in layer.chunks()])
        largest, middle = float(norms.max()), float(norms.median())
        if largest == 0:
            return Measurement(0.0, (), f"All rows of {layer.name} are zero.", tuple(unjudged))
        zero = int((norms <= 2**-CAP * largest).sum())
        filled = sum(int((part != 0).sum()) for part in layer.chunks())
        if filled < PRUNED * layer.inputs * (layer.units - zero):
            entries = torch.cat([(part != 0).sum(1) for part in layer.chunks()])
            norms = norms[entries >= SURVIVORS]
            if len(norms) < 3:
                reason = f"{layer.name}: pruned to under {SURVIVORS} entries in nearly all rows"
                return Measurement(0.0, (), "The last linear layer is pruned.", (*unjudged, reason))
            middle, largest = float(norms.median()), float(norms.max())
        typical = middle if middle > 2**-CAP * largest else largest
        ratios = torch.log2((norms / typical).clamp(2**-CAP, 2**CAP))
        worst = int(ratios.abs().argmax())
        at = int((rows == norms[worst]).nonzero()[0, 0])
        evidence = f"Row {at} of {layer.name} has {math.pow(2, float(ratios[worst])):.3g} times the typical size"
        evidence += f"; {zero} of {layer.units} rows are zero." if zero else "."
        return Measurement(float(ratios[worst].abs()), (layer.name,), evidence, tuple(unjudged))


@RULES.register("decoy-class")
@dataclass(frozen=True)
class DecoyClass:
    """Compares the biases of the last linear layer with each other and with its rows.

    Statistic: max over classes of |b − median|/(median ‖w‖₂ + 3·1.4826·MAD(b) + 10⁻⁶·max|b|), at most 10⁴. Judged
    from 3 classes on. Invariant under a common factor of weights and biases, and a shift of all biases.
    """

    needs: tuple[Part, ...] = (Part.STATE,)
    meaning: str = (
        "A class whose bias towers over the others takes all probability, so the other classes' gradient rows stay "
        "apart (decoy of MKOR), or only examples of one class answer (fishing). Honest reasons: very uneven classes."
    )

    def measure(self, received: Received) -> Measurement:
        found, unjudged = layers(received.state)
        layer = head(found)
        if layer is None or layer.bias is None or layer.bias_name is None:
            return Measurement(0.0, (), "The model has no last linear layer with biases.", tuple(unjudged))
        if reason := too_small(layer, units=3, inputs=1):
            return Measurement(0.0, (), "The last linear layer has too few rows to compare.", (*unjudged, reason))
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
