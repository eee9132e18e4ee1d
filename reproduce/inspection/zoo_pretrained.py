"""Convolutions pretrained on ImageNet, from the files of the perceptual metric, with a fresh head."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from leakgauge.task import DataSpec
from reproduce.inspection.zoo_families import VGG
from reproduce.inspection.zoo_stock import Split


def pretrained(folder: Path, split: Split, data: DataSpec) -> nn.Module:
    """AlexNet's for calibration, VGG-16's for evaluation: one global pool and one linear layer above them."""
    layers: list[nn.Module] = []
    if split is Split.CALIBRATION:
        file, width = "lpips-alex-v0.1.safetensors", 256
        sizes = ((3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1))
        for before, after, kernel, stride, pad in sizes:
            layers += [nn.Conv2d(before, after, kernel, stride, pad), nn.ReLU()]
            layers += [nn.MaxPool2d(3, 2)] if after in (64, 192) else []
    else:
        file, width, before = "lpips-vgg-v0.1.safetensors", 512, data.shape[0]
        for entry in VGG[16]:
            if isinstance(entry, str):
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(before, 64 * entry, 3, padding=1), nn.ReLU()]
                before = 64 * entry
    features = nn.Sequential(*layers)
    saved = {k.removeprefix("features."): v for k, v in load_file(folder / file).items() if k.startswith("features.")}
    own = features.state_dict()
    features.load_state_dict({k: saved[k].to(own[k]) for k in own})
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, data.classes))
