"""The matching engine and its parts."""

from leakgauge.attacks.matching.adam import Adam
from leakgauge.attacks.matching.annealed import AnnealedAdam
from leakgauge.attacks.matching.bounded_lbfgs import BoundedLBFGS
from leakgauge.attacks.matching.by_batch import ByBatch
from leakgauge.attacks.matching.canvases import Canvas, Given, Normal, Pixels, Uniform
from leakgauge.attacks.matching.decoder import Decoder
from leakgauge.attacks.matching.denoise import Denoise
from leakgauge.attacks.matching.engine import Matching
from leakgauge.attacks.matching.generator import Generator, Pretrained
from leakgauge.attacks.matching.hidden import Hidden
from leakgauge.attacks.matching.in_turn import InTurn, Turn
from leakgauge.attacks.matching.lbfgs import LBFGS
from leakgauge.attacks.matching.levenberg_marquardt import LevenbergMarquardt
from leakgauge.attacks.matching.low_resolution import LowResolution
from leakgauge.attacks.matching.minimiser import Minimiser
from leakgauge.attacks.matching.norms import Norm, SquaredNorm
from leakgauge.attacks.matching.objectives import Cosine, Objective, SquaredL2
from leakgauge.attacks.matching.on_support import CosineOnSupport
from leakgauge.attacks.matching.orthogonality import Orthogonality
from leakgauge.attacks.matching.per_tensor import CosinePerTensor
from leakgauge.attacks.matching.priors import NoPrior, Prior, TotalVariation
from leakgauge.attacks.matching.proportional import Proportional, proportional
from leakgauge.attacks.matching.schedule import Falling, Schedule, Scheduled, StepDecay, decaying, falling
from leakgauge.attacks.matching.sign_tanh import PerTensorRMS, SignTanh
from leakgauge.attacks.matching.simulator import Simulator
from leakgauge.attacks.matching.soft_labels import JointSoftLabels
from leakgauge.attacks.matching.step_search import StepSearch

__all__ = [
    "LBFGS",
    "Adam",
    "AnnealedAdam",
    "BoundedLBFGS",
    "ByBatch",
    "Canvas",
    "Cosine",
    "CosineOnSupport",
    "CosinePerTensor",
    "Decoder",
    "Denoise",
    "Falling",
    "Generator",
    "Given",
    "Hidden",
    "InTurn",
    "JointSoftLabels",
    "LevenbergMarquardt",
    "LowResolution",
    "Matching",
    "Minimiser",
    "NoPrior",
    "Norm",
    "Normal",
    "Objective",
    "Orthogonality",
    "PerTensorRMS",
    "Pixels",
    "Pretrained",
    "Prior",
    "Proportional",
    "Schedule",
    "Scheduled",
    "SignTanh",
    "Simulator",
    "SquaredL2",
    "SquaredNorm",
    "StepDecay",
    "StepSearch",
    "TotalVariation",
    "Turn",
    "Uniform",
    "decaying",
    "falling",
    "proportional",
]
