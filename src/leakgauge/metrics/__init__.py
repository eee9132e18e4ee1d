"""Scores of reconstructions, an image at a time, and what they are compared with."""

from leakgauge.metrics.likeness import Assignment, assign, mean_image, nearest_public
from leakgauge.metrics.metric import LPIPS, MSE, PSNR, PSNR_CAP, SSIM, Metric, is_exact, label_f1, label_f1_by_prior

__all__ = [
    "LPIPS",
    "MSE",
    "PSNR",
    "PSNR_CAP",
    "SSIM",
    "Assignment",
    "Metric",
    "assign",
    "is_exact",
    "label_f1",
    "label_f1_by_prior",
    "mean_image",
    "nearest_public",
]
