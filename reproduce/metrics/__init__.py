"""Scores that papers report and an audit does not: FSIM, shared tags, and the papers' variants of PSNR, SSIM and L1."""

from reproduce.metrics.fsim import FSIM
from reproduce.metrics.semantic import Jaccard, TopLabels, cifar10_labels
from reproduce.metrics.variants import L1, PSNRBytes, PSNRPeak, PSNRShifted, SSIMCropped, SSIMGlobal

__all__ = [
    "FSIM",
    "L1",
    "Jaccard",
    "PSNRBytes",
    "PSNRPeak",
    "PSNRShifted",
    "SSIMCropped",
    "SSIMGlobal",
    "TopLabels",
    "cifar10_labels",
]
