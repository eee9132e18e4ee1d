"""Scores of reconstructions, an image at a time, and what they are compared with."""

from leakgauge.metrics.assignment import Assignment, assign
from leakgauge.metrics.fsim import FSIM
from leakgauge.metrics.identification import Identification, identify, mean_image, nearest_public
from leakgauge.metrics.labels import label_f1, label_f1_by_prior, presence_accuracy, presence_accuracy_by_prior
from leakgauge.metrics.lpips import LPIPS, TorchmetricsLPIPS
from leakgauge.metrics.metric import Metric
from leakgauge.metrics.papers import L1, PSNRBytes, PSNRShifted
from leakgauge.metrics.pixel import MSE, PSNR, PSNR_CAP, PSNRPeak, is_exact
from leakgauge.metrics.semantic import Jaccard, TopLabels, cifar10_labels
from leakgauge.metrics.ssim import SSIM, SSIMCropped, SSIMGlobal

__all__ = [
    "FSIM",
    "L1",
    "LPIPS",
    "MSE",
    "PSNR",
    "PSNR_CAP",
    "SSIM",
    "Assignment",
    "Identification",
    "Jaccard",
    "Metric",
    "PSNRBytes",
    "PSNRPeak",
    "PSNRShifted",
    "SSIMCropped",
    "SSIMGlobal",
    "TopLabels",
    "TorchmetricsLPIPS",
    "assign",
    "cifar10_labels",
    "identify",
    "is_exact",
    "label_f1",
    "label_f1_by_prior",
    "mean_image",
    "nearest_public",
    "presence_accuracy",
    "presence_accuracy_by_prior",
]
