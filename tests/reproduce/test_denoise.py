"""The denoiser as a polish: what the packaged weights gain, what they must not invent, and sizes and channels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from reproduce.denoiser.polish import CONDITIONAL, LABEL_FREE, WEIGHTS, Denoise, network
from reproduce.metrics.identification import identify
from torch import Tensor, nn

from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.matching import AnnealedAdam, LowResolution, Matching, SquaredL2
from leakgauge.clients import FedSGD, client_update
from leakgauge.data import Samples, gallery
from leakgauge.draws import Draws
from leakgauge.errors import InputError
from leakgauge.metrics import LPIPS
from leakgauge.metrics.likeness import Assignment
from leakgauge.observation import Knowledge, Observation, Status
from leakgauge.task import Batch, DataSpec, Task

SIZES = (32, 64)


def photos(size: int) -> Tensor:
    return Samples(size=size).read(range(8)).inputs


def canvas(images: Tensor, sigma: float = 0.1) -> Tensor:
    """What ROG shows of pictures after an imperfect search, without a clamp."""
    size = images.shape[-1]
    small = F.interpolate(images, (size // 4, size // 4), mode="bicubic", antialias=True)
    small = small + sigma * torch.randn(small.shape, generator=torch.Generator().manual_seed(1))
    return F.interpolate(small, (size, size), mode="bicubic")


def l1(one: Tensor, two: Tensor) -> float:
    return float((one.clamp(0, 1) - two).abs().mean())


@pytest.mark.parametrize("weights", [LABEL_FREE, CONDITIONAL])
def test_packaged_weights_are_small_and_say_how_they_were_made(weights: str) -> None:
    from safetensors import safe_open

    path = WEIGHTS / f"{weights}.safetensors"
    assert path.stat().st_size < 4e6
    with safe_open(path, framework="pt") as file:
        said = file.metadata()
        assert {str(file.get_slice(k).get_dtype()) for k in file.keys() if "num_batches" not in k} == {"F16"}  # noqa: SIM118
    assert said["command"].startswith("leakgauge fit denoiser --data parquet:../shared/data/cifar10-train.parquet")
    assert float(said["lpips_after"]) < 0.75 * float(said["lpips_before"])


@pytest.mark.parametrize("size", SIZES)
def test_photos_come_nearer_to_the_truth(size: int) -> None:
    """Photos it was not trained on, at its own size and at twice that."""
    truth, degraded = photos(size), canvas(photos(size))
    assert l1(Denoise()(degraded), truth) < l1(degraded, truth)


@pytest.mark.parametrize("size", SIZES)
def test_photos_look_more_like_the_truth(size: int, shared: Path) -> None:
    """At least a quarter off LPIPS, which training never saw."""
    lpips = LPIPS(weights=str(shared / "weights" / "lpips-alex-v0.1.safetensors"))
    truth, degraded = photos(size), canvas(photos(size))
    assert float(lpips(Denoise()(degraded), truth).mean()) < 0.75 * float(lpips(degraded, truth).mean())


def test_a_picture_of_someone_else_does_not_become_the_victim() -> None:
    """Control: each answer shows the next photo; held against a photo of its own number, it identifies nobody."""
    truth = photos(32)
    others = gallery(Samples(size=32), range(8), 40, torch.Generator().manual_seed(0))
    own = Assignment(tuple(range(8)))
    wrong, right = canvas(truth.roll(1, 0)), canvas(truth)
    for made in (wrong, Denoise()(wrong)):
        assert int(identify(made, truth, own, others).identified.sum()) <= 1
    for made in (right, Denoise()(right)):
        assert int(identify(made, truth, own, others).identified.sum()) >= 7


def test_a_grey_field_stays_grey_but_for_its_frame() -> None:
    """No picture where there is none. Zeros beyond the edge of a flat picture are all that its network sees, so the
    outer eight pixels are left out."""
    for level in (0.2, 0.5, 0.8):
        made = Denoise()(torch.full((1, 3, 48, 48), level))[..., 8:-8, 8:-8]
        assert float(made.std()) < 0.06
        assert abs(float(made.mean()) - level) < 0.06


@pytest.mark.parametrize("size", [(33, 47), (30, 30), (12, 50), (3, 5)])
def test_sizes_that_are_no_multiple_of_eight(size: tuple[int, int]) -> None:
    image = F.interpolate(photos(64)[:2], size, mode="bilinear", antialias=True)
    made = Denoise()(image)
    assert made.shape == image.shape
    assert l1(made, image) < 0.15


def test_grey_pictures_are_taken_as_colour_without_colour() -> None:
    grey = canvas(photos(32)).mean(1, keepdim=True)
    made = Denoise()(grey)
    assert made.shape == grey.shape
    torch.testing.assert_close(made, Denoise()(grey.repeat(1, 3, 1, 1)).mean(1, keepdim=True))


def test_the_datas_range_is_kept() -> None:
    plain = canvas(photos(32))[:2]
    scaled = Denoise(low=-1.0, high=1.0)(2 * plain - 1)
    torch.testing.assert_close(scaled, 2 * Denoise()(plain) - 1, atol=1e-5, rtol=1e-4)


def test_values_beyond_the_range_are_clamped_first() -> None:
    wild = canvas(photos(32))[:2] * 3 - 1
    torch.testing.assert_close(Denoise()(wild), Denoise()(wild.clamp(0, 1)))


def test_labels_steer_the_blend_and_only_where_asked() -> None:
    images, labels = canvas(photos(32))[:2], torch.tensor([3, 7])
    free, both = Denoise(), Denoise(conditional=CONDITIONAL, blend=0.25)
    torch.testing.assert_close(free(images, labels), free(images))
    torch.testing.assert_close(both(images), free(images))
    expected = 0.75 * free(images) + 0.25 * network(CONDITIONAL)(images.clamp(0, 1), labels)
    torch.testing.assert_close(both(images, labels), expected)
    other = both(images, torch.tensor([8, 1]))
    assert float((other - expected).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"blend": 1.5}, "blend"),
        ({"low": 1.0, "high": 0.0}, "high"),
        ({"weights": "denoiser-cifar1O"}, "did you mean 'denoiser-cifar10'"),
        ({"weights": CONDITIONAL}, "need labels"),
        ({"conditional": LABEL_FREE}, "take no labels"),
        ({"weights": "no-such-file.safetensors"}, "no-such-file"),
    ],
)
def test_settings_are_checked(settings: dict, word: str) -> None:
    with pytest.raises(InputError, match=word):
        Denoise(**settings)


def test_examples_that_are_no_pictures_are_refused() -> None:
    with pytest.raises(InputError, match="pictures"):
        Denoise()(torch.rand(2, 1, 256))
    with pytest.raises(InputError, match="pictures"):
        Denoise()(torch.rand(2, 4, 16, 16))


class Linear(nn.Module):
    """A network whose update gives the picture away, so that the attack's own errors are small."""

    def __init__(self, classes: int, pixels: int) -> None:
        super().__init__()
        self.out = nn.Linear(pixels, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(x.flatten(1))
        return logits


def attacked(polish: tuple, classes: int = 10) -> object:
    torch.manual_seed(0)
    data = DataSpec((3, 16, 16), classes)
    task = Task.of(Linear(classes, 3 * 16 * 16), data)
    batch = Batch(photos(16)[:2], torch.tensor([0, 1]))
    update = client_update(task, FedSGD(), batch, Draws(0))
    observation = Observation(task, update, Knowledge(labels=batch.labels, example_count=2))
    attack = Matching(
        objective=SquaredL2(),
        canvas=LowResolution(factor=4),
        minimiser=AnnealedAdam(steps=10),
        labels=CountsFromLastLayer(),
        polish=polish,
    )
    return attack.reconstruct(observation, torch.Generator().manual_seed(0))


def test_the_engine_polishes_with_labels_where_a_polish_takes_them() -> None:
    both = Denoise(conditional=CONDITIONAL)
    raw, polished = attacked(()), attacked((both,))
    expected = both(raw.inputs, torch.tensor([0, 1]))
    torch.testing.assert_close(polished.inputs, expected)
    assert torch.equal(polished.labels, raw.labels)


def test_the_engine_says_when_the_labels_are_others() -> None:
    result = attacked((Denoise(conditional=CONDITIONAL),), classes=7)
    assert result.status is Status.NOT_APPLICABLE
    assert "knows 10 classes" in result.message


def test_data_of_another_range_are_refused_rather_than_clamped() -> None:
    signed = DataSpec((3, 32, 32), 10, low=-1.0, high=1.0)
    assert "0 to 1 (low, high), the data have -1 to 1" in Denoise().refuses(signed)
    assert not Denoise(low=-1.0, high=1.0).refuses(signed)
