"""The matching engine and its parts."""

from leakgauge.attacks.matching.adam import Adam
from leakgauge.attacks.matching.bounded_lbfgs import BoundedLBFGS
from leakgauge.attacks.matching.canvases import Canvas, Given, Normal, Pixels, Uniform
from leakgauge.attacks.matching.engine import JointSoftLabels, Matching
from leakgauge.attacks.matching.lbfgs import LBFGS
from leakgauge.attacks.matching.minimiser import Minimiser
from leakgauge.attacks.matching.objectives import Cosine, Objective, SquaredL2
from leakgauge.attacks.matching.priors import NoPrior, Prior, TotalVariation
from leakgauge.attacks.matching.simulator import Simulator

__all__ = [
    "LBFGS",
    "Adam",
    "BoundedLBFGS",
    "Canvas",
    "Cosine",
    "Given",
    "JointSoftLabels",
    "Matching",
    "Minimiser",
    "NoPrior",
    "Normal",
    "Objective",
    "Pixels",
    "Prior",
    "Simulator",
    "SquaredL2",
    "TotalVariation",
    "Uniform",
]
