"""The matching engine and its parts."""

from leakgauge.attacks.matching.adam import Adam
from leakgauge.attacks.matching.bounded_lbfgs import BoundedLBFGS
from leakgauge.attacks.matching.by_batch import ByBatch
from leakgauge.attacks.matching.canvases import Canvas, Given, Normal, Pixels, Uniform
from leakgauge.attacks.matching.engine import JointSoftLabels, Matching
from leakgauge.attacks.matching.generator import Generator, Pretrained
from leakgauge.attacks.matching.in_turn import InTurn, Turn
from leakgauge.attacks.matching.lbfgs import LBFGS
from leakgauge.attacks.matching.levenberg_marquardt import LevenbergMarquardt
from leakgauge.attacks.matching.minimiser import Minimiser
from leakgauge.attacks.matching.norms import Norm, SquaredNorm
from leakgauge.attacks.matching.objectives import Cosine, Objective, SquaredL2
from leakgauge.attacks.matching.on_support import CosineOnSupport
from leakgauge.attacks.matching.orthogonality import Orthogonality
from leakgauge.attacks.matching.priors import NoPrior, Prior, TotalVariation
from leakgauge.attacks.matching.schedule import Falling, Schedule, Scheduled, StepDecay, decaying, falling
from leakgauge.attacks.matching.simulator import Simulator

__all__ = [
    "LBFGS",
    "Adam",
    "BoundedLBFGS",
    "ByBatch",
    "Canvas",
    "Cosine",
    "CosineOnSupport",
    "Falling",
    "Generator",
    "Given",
    "InTurn",
    "JointSoftLabels",
    "LevenbergMarquardt",
    "Matching",
    "Minimiser",
    "NoPrior",
    "Norm",
    "Normal",
    "Objective",
    "Orthogonality",
    "Pixels",
    "Pretrained",
    "Prior",
    "Schedule",
    "Scheduled",
    "Simulator",
    "SquaredL2",
    "SquaredNorm",
    "StepDecay",
    "TotalVariation",
    "Turn",
    "Uniform",
    "decaying",
    "falling",
]
