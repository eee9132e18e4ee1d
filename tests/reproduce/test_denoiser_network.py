"""ROG's denoiser: its size, its norms, its labels and its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from reproduce.denoiser.network import DenoisingUNet, read_denoiser
from safetensors.torch import save_file

from leakgauge.errors import InputError


def small(classes: int = 0, seed: int = 0) -> DenoisingUNet:
    """Width 4, with norms that are not the identity."""
    torch.manual_seed(seed)
    network = DenoisingUNet(width=4, classes=classes)
    for name, parameter in network.named_parameters():
        if "_norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    for name, buffer in network.named_buffers():
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return network.eval()


def counted(width: int) -> int:
    """By hand: each convolution's kernel × in × out, the two biases, and six BatchNorms of two numbers a channel."""
    w = width
    first = 25 * 3 * w + w
    down = 9 * (w * 2 * w + 2 * w * 4 * w + 4 * w * 8 * w)
    up = 16 * (8 * w * 4 * w + 4 * w * 2 * w + 2 * w * w)
    mix = 9 * (8 * w * 4 * w + 4 * w * 2 * w + (w + 3) * w)
    norms = 2 * 2 * (4 * w + 2 * w + w)
    return first + down + up + mix + norms + 9 * w * 3 + 3


@pytest.mark.parametrize(("width", "total"), [(64, 5_822_339), (32, 1_458_115), (24, 821_139), (1, None)])
def test_parameters_are_counted_by_hand(width: int, total: int | None) -> None:
    found = sum(p.numel() for p in DenoisingUNet(width=width).parameters())
    assert found == counted(width)
    assert total in (None, found)


def test_the_twin_has_a_scale_and_a_shift_for_each_class() -> None:
    plain, twin = (sum(p.numel() for p in DenoisingUNet(width=8, classes=c).parameters()) for c in (0, 10))
    assert twin - plain == (10 - 1) * 2 * 2 * (32 + 16 + 8)


@pytest.mark.parametrize("size", [(32, 32), (64, 40), (33, 47), (8, 8), (5, 70)])
def test_any_size_comes_back(size: tuple[int, int]) -> None:
    made = small()(torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))).detach()
    assert made.shape == (2, 3, *size)
    assert 0 <= float(made.min()) < float(made.max()) <= 1


def test_other_sizes_are_those_of_the_picture_with_its_edge_repeated() -> None:
    image = torch.rand(1, 3, 13, 18, generator=torch.Generator().manual_seed(0))
    padded = F.pad(image, (0, 6, 0, 3), mode="replicate")
    torch.testing.assert_close(small()(image), small()(padded)[..., :13, :18])


def test_a_picture_is_treated_alone() -> None:
    images = torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    network = small()
    torch.testing.assert_close(network(images)[2:3], network(images[2:3]), atol=1e-5, rtol=1e-5)


def test_the_encoder_normalises_each_picture_as_instance_norm() -> None:
    network = small()
    seen = []
    network.down[1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    network.down[0].register_forward_hook(lambda _, __, output: seen.append(F.instance_norm(output).relu()))
    network(torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(seen[1], seen[0], atol=1e-5, rtol=1e-5)


def test_the_label_is_used() -> None:
    """What the published code computes and discards."""
    image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).repeat(2, 1, 1, 1)
    made = small(classes=3)(image, torch.tensor([0, 2]))
    assert float((made[0] - made[1]).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("classes", [0, 3])
def test_labels_go_to_a_conditional_network_and_to_no_other(classes: int) -> None:
    labels = None if classes else torch.zeros(1, dtype=torch.int64)
    with pytest.raises(InputError, match="labels"):
        small(classes)(torch.rand(1, 3, 8, 8), labels)


@pytest.mark.parametrize("classes", [0, 3])
def test_a_file_says_which_network_it_is(tmp_path: Path, classes: int) -> None:
    network = small(classes)
    save_file(
        {k: v.half() if v.is_floating_point() else v for k, v in network.state_dict().items()},
        tmp_path / "a.safetensors",
    )
    read = read_denoiser(tmp_path / "a.safetensors")
    assert (read.width, read.classes, read.training) == (4, classes, False)
    assert {p.dtype for p in read.parameters()} == {torch.float32}
    for name, value in network.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name], value, atol=1e-3, rtol=1e-3)


def test_other_files_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / "a.safetensors")
    with pytest.raises(InputError, match="holds no denoiser"):
        read_denoiser(tmp_path / "a.safetensors")
    cut = {k: v for k, v in small().state_dict().items() if not k.startswith("picture")}
    save_file(cut, tmp_path / "b.safetensors")
    with pytest.raises(InputError, match=r"missing picture.weight"):
        read_denoiser(tmp_path / "b.safetensors")
    (tmp_path / "c.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read"):
        read_denoiser(tmp_path / "c.safetensors")


@pytest.mark.parametrize(("changes", "word"), [({"width": 0}, "width"), ({"classes": -1}, "classes")])
def test_settings_are_checked(changes: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        DenoisingUNet(**changes)
