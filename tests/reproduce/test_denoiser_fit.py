"""Training of the denoiser: what a step does, resuming, learning, and the command."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from reproduce.denoiser import command
from reproduce.denoiser.degradations import Shrink, Shuffled
from reproduce.denoiser.network import DenoisingUNet, read_denoiser
from reproduce.denoiser.training import DenoiserRecipe, fit_denoiser, restored
from safetensors import safe_open

from leakgauge.data import Samples
from leakgauge.errors import InputError
from leakgauge.task import Batch

CANVAS = Shrink(factors=(4,), weights=(1,), modes=("bicubic",), sigma=0.1)


def network(classes: int = 0) -> DenoisingUNet:
    torch.manual_seed(0)
    return DenoisingUNet(width=4, classes=classes)


def examples(size: int = 16) -> Batch:
    return Samples(size=size).read(range(8))


def recipe(steps: int = 6, **changes) -> DenoiserRecipe:
    return DenoiserRecipe(**({"steps": steps, "batch_size": 4, "every": 2, "alone": 0.34} | changes))


def test_the_rate_falls_along_a_cosine_and_the_discriminator_comes_in_late() -> None:
    half = DenoiserRecipe(steps=100, lr=2.0, adversarial=0.3, alone=0.25)
    assert half.rate(0) == 2.0
    assert half.rate(50) == pytest.approx(1.0)
    assert half.rate(99) < 0.001
    assert [half.weight(step) for step in (0, 24, 25, 99)] == [0.0, 0.0, 0.3, 0.3]


def test_a_step_of_l1_alone_is_adam_on_the_mean_distance() -> None:
    """Of the pictures drawn, by hand: one picture, mirror-symmetric, so that the draws cannot matter."""
    half = examples().inputs[:1, :, :, :8]
    data = Batch(torch.cat([half, half.flip(-1)], -1), torch.zeros(1, dtype=torch.int64))
    plain = recipe(1, alone=1.0, degradation=Shuffled(parts=(Shrink(factors=(1,), weights=(1,), sigma=0),)))
    ours, twin = network(), network()
    fit_denoiser(ours, data, plain, seed=0)
    twin.train()
    step = torch.optim.Adam(twin.parameters(), 5e-4, betas=(0.5, 0.999))
    images = data.inputs.repeat(4, 1, 1, 1)
    F.l1_loss(twin(images), images).backward()
    step.step()
    for (name, one), two in zip(ours.named_parameters(), twin.parameters(), strict=True):
        # Adam's first step is the sign of the gradient: entries of size zero may fall either way.
        share = torch.isclose(one, two, atol=1e-6).double().mean()
        assert share > 0.97, name


def test_it_learns_to_undo_the_canvas() -> None:
    """A hundred steps on eight photos, L1: nearer to the photos than what it was given."""
    data, trained = examples(), network()
    noisy = Shrink(factors=(1,), weights=(1,), modes=("nearest",), sigma=0.4)
    plain = recipe(150, batch_size=8, lr=5e-3, adversarial=0.0, every=150, degradation=noisy)
    history = fit_denoiser(trained, data, plain, seed=0)
    assert len(history) == 1
    assert not trained.training
    degraded = noisy(data.inputs, torch.Generator().manual_seed(99))
    answers = restored(trained, degraded, None, chunk=3)
    assert answers.shape == degraded.shape
    assert float((answers - data.inputs).abs().mean()) < 0.8 * float((degraded - data.inputs).abs().mean())


@pytest.mark.parametrize("classes", [0, 8])
def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path, classes: int) -> None:
    whole, parts, resumed = (network(classes) for _ in range(3))
    fit_denoiser(whole, examples(), recipe(), seed=3)

    class Stop(Exception):
        pass

    def stop(leg) -> None:
        if leg.step == 4:
            raise Stop

    with pytest.raises(Stop):
        fit_denoiser(parts, examples(), recipe(), seed=3, checkpoint=tmp_path / "c", on_leg=stop)
    seen = []
    history = fit_denoiser(
        resumed, examples(), recipe(), seed=3, checkpoint=tmp_path / "c", on_leg=lambda leg: seen.append(leg.step)
    )
    assert seen == [6]
    assert [leg.step for leg in history] == [2, 4, 6]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    fit_denoiser(network(), examples(), recipe(2), seed=0, checkpoint=tmp_path / "c")
    for changed, seed, start in ((recipe(4), 0, 0), (recipe(2), 1, 0), (recipe(2), 0, 1)):
        torch.manual_seed(start)
        with pytest.raises(InputError, match="other settings"):
            fit_denoiser(DenoisingUNet(width=4), examples(), changed, seed=seed, checkpoint=tmp_path / "c")
    data = examples()
    for other in (Batch(1 - data.inputs, data.labels), Batch(data.inputs, data.labels.flip(0))):
        with pytest.raises(InputError, match="other settings or data"):
            fit_denoiser(network(), other, recipe(2), seed=0, checkpoint=tmp_path / "c")


def run(*asked: str):
    return CliRunner().invoke(command.fit, asked)


def test_the_command_trains_on_the_part_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Photos that an attack is shown on must stay out."""
    taken: list[tuple[int, ...]] = []
    whole = Samples.read
    monkeypatch.setattr(Samples, "read", lambda self, of: taken.append(tuple(of)) or whole(self, of))
    short = ["--steps", "1", "--every", "1", "--batch-size", "2", "--width", "4", "--size", "16"]
    output = ["-o", str(tmp_path / "a.safetensors")]
    both = ["--data", "samples", "--test", "samples"]
    done = run(*both, "--part", "2:6", "--test-part", "6:8", *short, *output)
    assert done.exit_code == 0, done.output
    assert taken == [(2, 3, 4, 5), (6, 7)]
    for wrong in ("6:2", "2", "2:999"):
        refused = run("--data", "samples", "--part", wrong, *short, *output)
        assert refused.exit_code == 2, wrong
        assert "part" in refused.output


def test_the_command_writes_what_the_network_is_and_how_it_does(tmp_path: Path) -> None:
    short = ["--steps", "2", "--every", "1", "--batch-size", "4", "--width", "4", "--size", "16", "--half"]
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    done = run("--data", "samples", "--test", "samples", *short, "-o", str(first))
    assert done.exit_code == 0, done.output
    assert "step 2/2" in done.output
    with safe_open(first, framework="pt") as file:
        said = file.metadata()
    assert said["data"] == "samples"
    assert "width 4, 0 classes" in said["model"]
    assert "steps=2" in said["recipe"]
    degraded = CANVAS(examples().inputs, torch.Generator().manual_seed(0))
    answers = read_denoiser(first)(degraded).detach()
    for name, images in (("before", degraded), ("after", answers)):
        assert float(said[f"l1_{name}"]) == pytest.approx(float((images - examples().inputs).abs().mean()), abs=1e-3)
    again = run("--data", "samples", *short, "--conditional", "--start", str(first), "-o", str(second))
    assert again.exit_code == 0, again.output
    assert read_denoiser(second).classes == 8
    assert not list(tmp_path.glob("*.checkpoint"))
