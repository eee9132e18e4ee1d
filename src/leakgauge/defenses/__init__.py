"""What a client does to its update before sending it. One defence a file."""

from leakgauge.defenses.clip import Clip, ClipExamples
from leakgauge.defenses.compose import Compose
from leakgauge.defenses.defense import AttackerView, Defense, NoDefense, view_of
from leakgauge.defenses.noise import Absolute, GaussianNoise, RelativeToNorm, RelativeToTensorStd, noise
from leakgauge.defenses.soteria import Soteria
from leakgauge.defenses.topk import TopK
from leakgauge.defenses.transform import Transform, transform

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
    "Soteria",
    "TopK",
    "Transform",
    "noise",
    "transform",
    "view_of",
]
