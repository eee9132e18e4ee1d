"""ConvNet-D of Inverting Gradients (Geiping et al., 2020)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from leakgauge.registry import MODELS


@MODELS.register("convnet", needs="images of at least 9 px")
def convnet(*, classes: int = 10, channels: int = 3, size: int = 32, width: int = 64) -> nn.Module:
    """ConvNet-D: eight 3×3 convolutions with BatchNorm and ReLU, two max-pools by 3, one linear layer.

    Widths D, 2D, 2D, 4D, 4D, 4D, pool, 4D, 4D, pool; 2.9 M parameters at D = 64 (the paper's), torch's
    default initialisation. The published definition names two layers alike, so that only eight remain.
    """
    widths = [width, 2 * width, 2 * width, 4 * width, 4 * width, 4 * width, 4 * width, 4 * width]
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    before = channels
    for i, after in enumerate(widths):
        layers[f"conv{i}"] = nn.Conv2d(before, after, 3, padding=1)
        layers[f"bn{i}"] = nn.BatchNorm2d(after)
        layers[f"relu{i}"] = nn.ReLU()
        before = after
        if i in (5, 7):
            layers[f"pool{i}"] = nn.MaxPool2d(3)
    layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(before * (size // 3 // 3) ** 2, classes)
    return nn.Sequential(layers)
