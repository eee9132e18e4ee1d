"""What a client does to its update before sending it."""

from leakgauge.defenses.batches import InstaHide, MixUp
from leakgauge.defenses.clip import DPSGD, ClientDP, Clip, ClipExamples, ClipLayers, FedCDP, layers_of
from leakgauge.defenses.defense import Compose, Defense, NoDefense, parts_of, steps_of, view_of
from leakgauge.defenses.noise import (
    Absolute,
    GaussianNoise,
    LaplaceNoise,
    RelativeToNorm,
    RelativeToTensorStd,
    laplace,
    noise,
)
from leakgauge.defenses.quantise import QSGD, Quantise, Sign
from leakgauge.defenses.representations import Precode, Soteria
from leakgauge.defenses.sparsify import Prune, RandomK, TopK
from leakgauge.defenses.steps import AttackerView

__all__ = [
    "DPSGD",
    "QSGD",
    "Absolute",
    "AttackerView",
    "ClientDP",
    "Clip",
    "ClipExamples",
    "ClipLayers",
    "Compose",
    "Defense",
    "FedCDP",
    "GaussianNoise",
    "InstaHide",
    "LaplaceNoise",
    "MixUp",
    "NoDefense",
    "Precode",
    "Prune",
    "Quantise",
    "RandomK",
    "RelativeToNorm",
    "RelativeToTensorStd",
    "Sign",
    "Soteria",
    "TopK",
    "laplace",
    "layers_of",
    "noise",
    "parts_of",
    "steps_of",
    "view_of",
]
