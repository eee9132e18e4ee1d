"""An electrocardiogram in windows: data that are no pictures."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.errors import InputError, require
from leakgauge.registry import DATA
from leakgauge.task import Batch

QUARTERS = 4
BEAT = 0.6
"""A sample above this share of the recording's range belongs to an R peak; there are three."""


@DATA.register("ecg", needs="PyWavelets")
@dataclass(frozen=True, kw_only=True)
class ECG:
    """Overlapping windows of the 1 024 samples that PyWavelets ships (one lead, three beats), shape (1, window).

    The recording is scaled to [0, 1] as a whole. The label is 0 where no R peak lies in the window, else 1 to 4:
    the quarter of the window that its highest sample is in.

    Attributes:
        window: samples in one example, a multiple of four; a beat is about 330 apart from the next.
        stride: samples between the starts of two windows.
    """

    window: int = 256
    stride: int = 32
    name = "ecg"
    low, high = 0.0, 1.0
    classes = QUARTERS + 1
    normalise = False

    def __post_init__(self) -> None:
        fits = 0 < self.window <= 1024 and self.window % QUARTERS == 0
        require(fits, "window", f"is {self.window}", "give a multiple of 4 up to 1024")
        require(self.stride > 0, "stride", f"is {self.stride}", "give a positive number")

    def __len__(self) -> int:
        return (1024 - self.window) // self.stride + 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.window)

    @property
    def labels(self) -> Int[Tensor, " n"]:
        windows = self._windows
        quarter = 1 + windows.argmax(1) // (self.window // QUARTERS)
        return torch.where(windows.amax(1) > BEAT, quarter, torch.zeros_like(quarter))

    def read(self, indices: Sequence[int]) -> Batch:
        return Batch(self._windows[list(indices)][:, None], self.labels[list(indices)])

    def names(self, indices: Sequence[int]) -> list[str]:
        return [f"ecg[{i * self.stride}:{i * self.stride + self.window}]" for i in indices]

    @cached_property
    def _windows(self) -> Float[Tensor, "n window"]:
        try:
            ecg = importlib.import_module("pywt.data").ecg
        except ModuleNotFoundError as error:
            raise InputError(
                "data.source", "ecg comes with PyWavelets, which is missing", "pip install PyWavelets"
            ) from error
        recording = np.asarray(ecg(), dtype=np.float64)
        scaled = (recording - recording.min()) / (recording.max() - recording.min())
        return torch.from_numpy(scaled.astype(np.float32)).unfold(0, self.window, self.stride).clone()
