"""What a client does to its update before sending it. One defence a file."""

from leakgauge.defenses.clip import Clip, ClipExamples
from leakgauge.defenses.compose import Compose
from leakgauge.defenses.defense import AttackerView, Defense, NoDefense, view_of
from leakgauge.defenses.noise import Absolute, GaussianNoise, RelativeToNorm, RelativeToTensorStd, noise
from leakgauge.defenses.topk import TopK

__all__ = [
    "Absolute",
    "AttackerView",
    "Clip",
    "ClipExamples",
    "Compose",
    "Defense",
    "GaussianNoise",
    "NoDefense",
    "RelativeToNorm",
    "RelativeToTensorStd",
    "TopK",
    "noise",
    "view_of",
]
