"""What a client does to its update before sending it. One defence a file."""

from leakgauge.defenses.attacker_view import AttackerView
from leakgauge.defenses.clip import ClientDP, Clip, ClipExamples, ClipLayers, layers_of
from leakgauge.defenses.compose import Compose, parts_of
from leakgauge.defenses.defense import (
    Defense,
    NoDefense,
    kept_factor,
    mixes_examples,
    only_scales,
    shortens,
    steps_of,
    view_of,
)
from leakgauge.defenses.dp_sgd import DPSGD, FedCDP
from leakgauge.defenses.mixup import InstaHide, MixUp
from leakgauge.defenses.noise import (
    Absolute,
    GaussianNoise,
    LaplaceNoise,
    RelativeToNorm,
    RelativeToTensorStd,
    laplace,
    noise,
)
from leakgauge.defenses.precode import Precode
from leakgauge.defenses.quantise import QSGD, Quantise, Sign
from leakgauge.defenses.soteria import Soteria
from leakgauge.defenses.sparsify import Prune, RandomK, TopK
from leakgauge.defenses.transform import Transform

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
    "Transform",
    "kept_factor",
    "laplace",
    "layers_of",
    "mixes_examples",
    "noise",
    "only_scales",
    "parts_of",
    "shortens",
    "steps_of",
    "view_of",
]
