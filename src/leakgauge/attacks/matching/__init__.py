"""The matching engine and its parts."""

from leakgauge.attacks.matching.adam import Adam, AnnealedAdam, InTurn, Turn
from leakgauge.attacks.matching.canvases import Generator, Given, LowResolution, Normal, Pixels, Pretrained, Uniform
from leakgauge.attacks.matching.curvature import LBFGS, BoundedLBFGS, GaussNewton
from leakgauge.attacks.matching.engine import Matching
from leakgauge.attacks.matching.kinks import SmearedMasks
from leakgauge.attacks.matching.objectives import Cosine, CosineOnSupport, CosinePerTensor, SquaredL2
from leakgauge.attacks.matching.parts import (
    Canvas,
    Hidden,
    JointSoftLabels,
    Minimiser,
    Objective,
    Polish,
    Prior,
    Schedule,
    Start,
)
from leakgauge.attacks.matching.priors import (
    Balanced,
    ByBatch,
    Decaying,
    Falling,
    NoPrior,
    Orthogonality,
    Proportional,
    Scheduled,
    SquaredNorm,
    TotalVariation,
)
from leakgauge.attacks.matching.simulator import Simulator

__all__ = [
    "LBFGS",
    "Adam",
    "AnnealedAdam",
    "Balanced",
    "BoundedLBFGS",
    "ByBatch",
    "Canvas",
    "Cosine",
    "CosineOnSupport",
    "CosinePerTensor",
    "Decaying",
    "Falling",
    "GaussNewton",
    "Generator",
    "Given",
    "Hidden",
    "InTurn",
    "JointSoftLabels",
    "LowResolution",
    "Matching",
    "Minimiser",
    "NoPrior",
    "Normal",
    "Objective",
    "Orthogonality",
    "Pixels",
    "Polish",
    "Pretrained",
    "Prior",
    "Proportional",
    "Schedule",
    "Scheduled",
    "Simulator",
    "SmearedMasks",
    "SquaredL2",
    "SquaredNorm",
    "Start",
    "TotalVariation",
    "Turn",
    "Uniform",
]
