"""What a client does to its update before sending it."""

from leakgauge.defenses.attacker_view import AttackerView
from leakgauge.defenses.batches import InstaHide, MixUp
from leakgauge.defenses.clip import DPSGD, ClientDP, Clip, ClipExamples, ClipLayers, FedCDP, layers_of
from leakgauge.defenses.defense import (
    Compose,
    Defense,
    NoDefense,
    kept_factor,
    leaves_gradients,
    mixes_examples,
    only_scales,
    parts_of,
    shortens,
    steps_of,
    view_of,
    without_idle_clips,
)
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
    "kept_factor",
    "laplace",
    "layers_of",
    "leaves_gradients",
    "mixes_examples",
    "noise",
    "only_scales",
    "parts_of",
    "shortens",
    "steps_of",
    "view_of",
    "without_idle_clips",
]
