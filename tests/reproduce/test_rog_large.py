"""ROG's photos of 128 px get a second post-processor where its weights lie beside the data."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.denoiser.network import DenoisingUNet  # noqa: E402
from reproduce.denoiser.polish import Denoise  # noqa: E402
from reproduce.rog.runs import LARGE, denoised  # noqa: E402


def test_weights_beside_the_data_serve_photos_of_their_size_and_no_others(tmp_path: Path) -> None:
    large, small = (torch.rand(1, 3, side, side) for side in (LARGE, 32))
    assert set(denoised(large, tmp_path)) == {"denoised"}
    file = tmp_path / f"denoiser-{LARGE}.safetensors"
    save_file(DenoisingUNet(width=4).state_dict(), file)
    found = denoised(large, tmp_path)
    assert set(found) == {"denoised", "denoised for 128 px"}
    torch.testing.assert_close(found["denoised for 128 px"], Denoise(weights=str(file))(large))
    assert set(denoised(small, tmp_path)) == {"denoised"}
