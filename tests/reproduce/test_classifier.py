"""Training: the schedule, the augmentation, resuming, and the command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from reproduce.classifier import command
from reproduce.classifier.training import CropFlip, NoAugmentation, Recipe, accuracy, fit
from safetensors import safe_open
from torch import nn

from leakgauge.errors import InputError
from leakgauge.task import Batch, DataSpec

DATA = DataSpec((1, 6, 6), 3)


def examples(n: int = 60) -> Batch:
    """Three classes that differ in which third of the image is bright."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % 3
    inputs = 0.3 * torch.rand((n, 1, 6, 6), generator=g)
    for k in range(3):
        inputs[labels == k, :, 2 * k : 2 * k + 2] += 0.6
    return Batch(inputs, labels)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def recipe(epochs: int = 4, **changes) -> Recipe:
    return Recipe(**({"epochs": epochs, "batch_size": 20, "lr": 0.05, "augmentation": NoAugmentation()} | changes))


def test_the_published_schedule() -> None:
    rates = [Recipe().rate(epoch) for epoch in range(120)]
    drops = [epoch for epoch in range(1, 120) if rates[epoch] < rates[epoch - 1]]
    assert drops == [44, 74, 105]
    assert rates[0] == 0.1
    assert rates[-1] == pytest.approx(1e-4)


def test_training_learns_and_says_how_well() -> None:
    module, data = net(), examples()
    before = accuracy(module, DATA, data)
    history = fit(module, DATA, data, recipe(8), seed=0)
    assert [e.number for e in history] == list(range(1, 9))
    assert history[-1].loss < history[0].loss
    assert accuracy(module, DATA, data) > max(before, 0.9)
    assert not module.training


def test_one_step_is_torch_sgd_on_the_mean_loss() -> None:
    module, twin, data = net(), net(), examples(20)
    fit(module, DATA, data, recipe(1), seed=0)
    twin.train()
    step = torch.optim.SGD(twin.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    nn.functional.cross_entropy(twin(data.inputs), data.labels).backward()
    step.step()
    for (name, ours), theirs in zip(module.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4, msg=name)


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    whole, parts = net(), net()
    fit(whole, DATA, examples(), recipe(4, augmentation=CropFlip(padding=1)), seed=3)

    class Stop(Exception):
        pass

    def stop(epoch) -> None:
        if epoch.number == 2:
            raise Stop

    again = recipe(4, augmentation=CropFlip(padding=1))
    with pytest.raises(Stop):
        fit(parts, DATA, examples(), again, seed=3, checkpoint=tmp_path / "c", on_epoch=stop)
    resumed = net()
    seen = []
    fit(resumed, DATA, examples(), again, seed=3, checkpoint=tmp_path / "c", on_epoch=lambda e: seen.append(e.number))
    assert seen == [3, 4]
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path) -> None:
    fit(net(), DATA, examples(), recipe(2), seed=0, checkpoint=tmp_path / "c")
    with pytest.raises(InputError, match="other settings"):
        fit(net(), DATA, examples(), recipe(3), seed=0, checkpoint=tmp_path / "c")
    started = net()
    nn.init.constant_(started[4].bias, 0.5)
    with pytest.raises(InputError, match="other settings"):
        fit(started, DATA, examples(), recipe(2), seed=0, checkpoint=tmp_path / "c")


def test_crops_and_flips_are_of_the_padded_image() -> None:
    g = torch.Generator().manual_seed(1)
    images = 0.1 + torch.rand((30, 3, 5, 5), generator=g)
    changed = CropFlip(padding=2)(images, g)
    padded = nn.functional.pad(images, (2,) * 4)
    seen = set()
    for before, after in zip(padded, changed, strict=True):
        fits = [
            (r, c, flip)
            for r in range(5)
            for c in range(5)
            for flip in (False, True)
            if torch.equal(after, before[:, r : r + 5, c : c + 5].flip(2) if flip else before[:, r : r + 5, c : c + 5])
        ]
        assert len(fits) == 1
        seen.add(fits[0])
    assert len(seen) > 10
    assert {flip for *_, flip in seen} == {False, True}


def test_the_command_writes_weights_that_a_plan_loads(tmp_path: Path) -> None:
    from leakgauge.study.plan import resolve_plan

    data = examples(60)
    np.savez(tmp_path / "d.npz", images=data.inputs.permute(0, 2, 3, 1).numpy(), labels=data.labels.numpy())
    out = tmp_path / "w.safetensors"
    source = f"npz:{tmp_path / 'd.npz'}"
    asked = ["{mlp: {hidden: [8]}}", "--data", source, "--test", source, "-o", str(out), "--half"]
    run = CliRunner().invoke(
        command.command, [*asked, "--epochs", "3", "--batch-size", "20", "--no-augment", "--lr", "0.05"]
    )
    assert run.exit_code == 0, run.output
    assert "accuracy on 60 held-out examples" in run.output
    with safe_open(out, framework="pt") as file:
        assert float(file.metadata()["accuracy"]) > 0.3
    assert not list(tmp_path.glob("*.checkpoint"))
    resolve_plan({"model": {"mlp": {"hidden": [8], "weights": str(out)}}, "data": {"source": source, "batches": 2}})


def archive(path: Path, shape: tuple[int, ...], classes: int = 3, high: float = 1.0) -> str:
    rng, labels = np.random.default_rng(0), np.arange(30) % classes
    np.savez(path, x=rng.random((30, *shape), dtype=np.float32) * high, y=labels)
    return f"{{source: npz:{path}, high: {high}}}"


def run(*asked: str):
    return CliRunner().invoke(command.command, list(asked))
