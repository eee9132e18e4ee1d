"""FSIM against the values of an independent implementation, and cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from reproduce.metrics import FSIM
from reproduce.metrics.fsim import phase_congruency
from torch import Tensor


def waves(count: int, channels: int, height: int, width: int) -> Tensor:
    """Pictures by formula, so that values computed elsewhere stay valid."""
    i = torch.arange(height, dtype=torch.float64)[:, None]
    j = torch.arange(width, dtype=torch.float64)[None]
    made = [
        torch.stack(
            [
                0.5
                + 0.3 * torch.sin(0.13 * (k + 1) * i + 0.07 * (c + 2) * j * (k + 1))
                + 0.15 * torch.cos(0.9 * i - 0.31 * (c + 1) * j + k)
                for c in range(channels)
            ]
        )
        for k in range(count)
    ]
    return torch.stack(made).clamp(0, 1)


def test_agrees_with_piq() -> None:
    """piq 0.8.0, `fsim(b, a, reduction="none")` in float64; even sides transposed, see the class."""
    a, b = waves(3, 3, 32, 40), waves(4, 3, 32, 40)[1:]
    assert FSIM()(b, a).tolist() == pytest.approx([0.7452351267, 0.7224142966, 0.7379266318], abs=1e-9)
    a, b = waves(2, 1, 33, 29), waves(4, 1, 33, 29)[2:]
    assert FSIM()(b, a).tolist() == pytest.approx([0.76990311, 0.73986199], abs=1e-8)


def slow_congruency(grey: np.ndarray) -> np.ndarray:
    """Kovesi's phase congruency as in FeatureSIM.m, orientation by orientation, with numpy's FFT."""
    rows, columns = grey.shape
    x, y = np.meshgrid(np.arange(-columns // 2, columns // 2) / columns, np.arange(-rows // 2, rows // 2) / rows)
    radius, theta = np.fft.ifftshift(np.hypot(x, y)), np.fft.ifftshift(np.arctan2(-y, x))
    low_pass = 1 / (1 + (radius / 0.45) ** 30)
    radius[0, 0] = 1
    energies, amplitudes = np.zeros_like(grey), np.zeros_like(grey)
    for orientation in range(4):
        angle = orientation * np.pi / 4
        ds = np.sin(theta) * np.cos(angl := angle) - np.cos(theta) * np.sin(angl)
        dc = np.cos(theta) * np.cos(angl) + np.sin(theta) * np.sin(angl)
        fan = np.exp(-(np.arctan2(ds, dc) ** 2) / (2 * (np.pi / 4 / 1.2) ** 2))
        responses, shapes = [], []
        for scale in range(4):
            ring = np.exp(-(np.log(radius * 6 * 2**scale) ** 2) / (2 * np.log(0.55) ** 2)) * low_pass
            ring[0, 0] = 0
            responses.append(np.fft.ifft2(np.fft.fft2(grey) * ring * fan))
            shapes.append(np.fft.ifft2(ring * fan).real * np.sqrt(rows * columns))
            if scale == 0:
                power = np.sort(np.abs(responses[0]).ravel() ** 2)[(grey.size - 1) // 2] / np.log(2)
                power /= np.sum((ring * fan) ** 2)
        total = sum(responses)
        unit = total / (np.abs(total) + np.finfo(float).eps)
        energy = sum((r * unit.conj()).real - np.abs((r * unit.conj()).imag) for r in responses)
        spread = 2 * power * sum((s**2).sum() for s in shapes)
        spread += 4 * power * sum((shapes[i] * shapes[j]).sum() for i in range(4) for j in range(i + 1, 4))
        tau = np.sqrt(spread / 2)
        energies += np.maximum(energy - (tau * np.sqrt(np.pi / 2) + 2 * tau * np.sqrt(2 - np.pi / 2)) / 1.7, 0)
        amplitudes += sum(np.abs(r) for r in responses)
    return energies / amplitudes


def test_phase_congruency_is_its_slow_twin() -> None:
    grey = 255 * waves(1, 1, 24, 32)[0]
    torch.testing.assert_close(phase_congruency(grey)[0], torch.from_numpy(slow_congruency(grey[0].numpy())))


def test_a_flat_change_is_worked_by_hand() -> None:
    """No features, so plain means: inside, gradients are 0 and S_g is 1; the border sees the zeros outside."""
    a, b = torch.full((1, 1, 9, 9), 0.2), torch.full((1, 1, 9, 9), 0.6)

    def border(count: int, p: float, q: float) -> float:
        return count * (2 * p * q + 160) / (p * p + q * q + 160)

    edge = [51.0, 153.0]  # (3 + 10 + 3) / 16 of 0.2·255 and 0.6·255, at one border
    corner = [math.sqrt(2) * 13 / 16 * v for v in edge]
    expected = (49 + border(28, *edge) + border(4, *corner)) / 81
    assert float(FSIM()(a, b)) == pytest.approx(expected, abs=1e-6)
