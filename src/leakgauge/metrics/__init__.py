"""Scores of reconstructions, an image at a time, and what they are compared with."""

from leakgauge.metrics.likeness import Assignment as Assignment
from leakgauge.metrics.likeness import assign as assign
from leakgauge.metrics.likeness import mean_image as mean_image
from leakgauge.metrics.likeness import nearest_public as nearest_public
from leakgauge.metrics.metric import LPIPS as LPIPS
from leakgauge.metrics.metric import MSE as MSE
from leakgauge.metrics.metric import PSNR as PSNR
from leakgauge.metrics.metric import PSNR_CAP as PSNR_CAP
from leakgauge.metrics.metric import SSIM as SSIM
from leakgauge.metrics.metric import Metric as Metric
from leakgauge.metrics.metric import is_exact as is_exact
from leakgauge.metrics.metric import label_f1 as label_f1
from leakgauge.metrics.metric import label_f1_by_prior as label_f1_by_prior
