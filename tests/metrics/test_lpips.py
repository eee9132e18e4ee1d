"""LPIPS against torchmetrics' copy of the authors' code, and its bundled heads."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from leakgauge.data import Samples
from leakgauge.errors import InputError
from leakgauge.metrics import LPIPS
from leakgauge.metrics.metric import SMALLEST
from leakgauge.task import DataSpec


def alexnet() -> nn.Sequential:
    def conv(*args: int) -> list[nn.Module]:
        return [nn.Conv2d(*args), nn.ReLU()]

    pool = nn.MaxPool2d(3, 2)
    return nn.Sequential(
        *conv(3, 64, 11, 4, 2), pool, *conv(64, 192, 5, 1, 2), pool, *conv(192, 384, 3, 1, 1),
        *conv(384, 256, 3, 1, 1), *conv(256, 256, 3, 1, 1), pool,
    )  # fmt: skip


def vgg16() -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        before = width or before
    return nn.Sequential(*layers)


@pytest.fixture
def photos() -> tuple[torch.Tensor, torch.Tensor]:
    x = Samples(size=80).read([0, 1, 2]).inputs
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return (x + 0.1 * noise).clamp(0, 1), x


def weights(shared: Path, net: str) -> str:
    return str(shared / "weights" / f"lpips-{net}-v0.1.safetensors")


@pytest.mark.parametrize(("net", "build"), [("alex", alexnet), ("vgg", vgg16)])
def test_agrees_with_torchmetrics(
    shared: Path, net: str, build: object, photos: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heads come from its own wheel; only the backbone is given to it, in place of torchvision's."""
    peer = pytest.importorskip("torchmetrics.functional.image.lpips")
    state = load_file(weights(shared, net))
    features = build()  # type: ignore[operator]
    features.load_state_dict(
        {k.removeprefix("features."): v.float() for k, v in state.items() if k.startswith("features")}
    )
    monkeypatch.setattr(peer, "_get_tv_model_features", lambda *_: features)
    expected = peer._LPIPS(net=net)(*photos, normalize=True).reshape(-1)
    torch.testing.assert_close(LPIPS(weights=weights(shared, net))(*photos).float(), expected, rtol=2e-3, atol=1e-5)


def test_per_image_and_zero_only_for_the_truth(shared: Path, photos: tuple[torch.Tensor, torch.Tensor]) -> None:
    metric = LPIPS(weights=weights(shared, "alex"))
    a, b = photos
    scores = metric(a, b)
    torch.testing.assert_close(scores, torch.cat([metric(p[None], q[None]) for p, q in zip(a, b, strict=True)]))
    assert metric(b, b).tolist() == [0.0] * 3
    assert bool((scores > 0.01).all())
    blur = F.interpolate(F.interpolate(b, 10, mode="bilinear", antialias=True), b.shape[-2:], mode="bilinear")
    assert bool((metric(blur, b) > metric(0.9 * b + 0.1 * blur, b)).all())


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_enlarged_first(shared: Path, channels: int) -> None:
    metric = LPIPS(weights=weights(shared, "alex"), data_range=2.0, low=-1.0)
    g = torch.Generator().manual_seed(0)
    a, b = (2 * torch.rand(2, channels, 32, 32, generator=g) - 1 for _ in range(2))
    large = [F.interpolate(t, (SMALLEST, SMALLEST), mode="bilinear").expand(-1, 3, -1, -1) for t in (a, b)]
    torch.testing.assert_close(metric(a, b), metric(*large), rtol=1e-4, atol=1e-6)
    assert metric(a[:, :, :28, :20], b[:, :, :28, :20]).shape == (2,)


def test_bad_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match="no file"):
        LPIPS(weights=str(path))
    path.write_bytes(b"text")
    with pytest.raises(InputError, match="cannot read"):
        LPIPS(weights=str(path))
    save_file({"features.0.weight": torch.zeros(64, 3, 11, 11)}, path)
    with pytest.raises(InputError, match="lacks"):
        LPIPS(weights=str(path))


def test_not_for_recordings(shared: Path) -> None:
    metric = LPIPS(weights=weights(shared, "alex"))
    assert not metric.defined_for(DataSpec(shape=(12, 100), classes=2))
    with pytest.raises(InputError, match="not defined"):
        metric(torch.zeros(1, 12, 100), torch.zeros(1, 12, 100))


def test_through_torchmetrics_explains_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InputError, match=r"\[lpips\]"):
        LPIPS(weights="torchmetrics")


def test_through_torchmetrics_where_torchvision_works(
    shared: Path, photos: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = pytest.importorskip("torchmetrics.functional.image.lpips")
    features = alexnet()
    state = load_file(weights(shared, "alex"))
    features.load_state_dict({k.removeprefix("features."): v for k, v in state.items() if k.startswith("features")})
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setattr(peer, "_get_tv_model_features", lambda *_: features)
    torch.testing.assert_close(
        LPIPS(weights="torchmetrics")(*photos), LPIPS(weights=weights(shared, "alex"))(*photos), rtol=2e-3, atol=1e-5
    )
