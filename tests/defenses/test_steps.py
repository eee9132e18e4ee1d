"""What defences say that they do, against what they do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from leakgauge.defenses import (
    DPSGD,
    QSGD,
    ClientDP,
    Clip,
    ClipExamples,
    ClipLayers,
    Compose,
    Defense,
    FedCDP,
    InstaHide,
    MixUp,
    NoDefense,
    Prune,
    Quantise,
    RandomK,
    Sign,
    TopK,
    laplace,
    noise,
    steps_of,
    view_of,
)
from leakgauge.defenses.defense import kept_factor, mixes_examples
from leakgauge.defenses.dp import only_scales, shortens
from leakgauge.defenses.steps import DefenseStage, EntryGrid, EntryMask, Noise, Nonlinear, PerExampleScale, Scale
from leakgauge.draws import Draws
from leakgauge.tensors import Tensors, map_tensors, squared_norm
from leakgauge.update import Update, UpdateHeader, UpdateKind

UPDATE_STAGE = (
    Clip(norm=0.5),
    TopK(keep=0.3),
    RandomK(keep=0.3),
    RandomK(keep=0.3, unbiased=True),
    Prune(rate=0.3),
    noise(sigma=0.1),
    laplace(sigma=0.1),
    noise(relative=0.5),
    Quantise(levels=7),
    QSGD(levels=7),
    Sign(),
    ClientDP(noise_multiplier=0.1, norm=0.5),
    Compose((Clip(norm=0.5), TopK(keep=0.5))),
    Compose((RandomK(keep=0.5, unbiased=True), Clip(norm=0.2))),
    Compose((NoDefense(),)),
)


def update(seed: int = 0) -> Tensors:
    g = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in (("w", (9, 7)), ("b", (9,)))}


@pytest.mark.parametrize("defense", UPDATE_STAGE, ids=repr)
def test_an_update_is_what_its_steps_say(defense: Defense) -> None:
    """Entries that noise and grids leave alone are those of the client times one factor, and the stated one."""
    raw, steps = update(), [step for step in steps_of(defense) if step.stage is DefenseStage.UPDATE]
    sent = defense.on_update(raw, torch.Generator().manual_seed(1))
    kept = map_tensors(lambda s: s != 0, sent)
    assert all(bool(k.all()) for k in kept.values()) or any(isinstance(step, EntryMask | EntryGrid) for step in steps)
    if any(isinstance(step, EntryGrid | Noise | Nonlinear) for step in steps):
        return
    ratios = torch.cat([(sent[k] / raw[k] / kept_factor(defense, raw[k]))[kept[k]] for k in raw])
    assert float(ratios.max() - ratios.min()) < 1e-12
    scales = [step.bound for step in steps if isinstance(step, Scale)]
    assert bool(scales) == (float(ratios.max()) < 1 - 1e-9)
    lengthens = any(isinstance(step, EntryMask) and step.lengthens for step in steps)
    assert not scales or lengthens or float(squared_norm(sent)) <= min(scales) ** 2 * (1 + 1e-9)
    if any(isinstance(step, EntryMask) and step.smallest for step in steps):
        assert all(float(raw[k][~kept[k]].abs().max()) <= float(raw[k][kept[k]].abs().min()) for k in ("w",))


@pytest.mark.parametrize(
    "defense",
    [
        *UPDATE_STAGE,
        Compose((TopK(keep=0.3), noise(sigma=0.1))),
        Compose((RandomK(keep=0.3, unbiased=True), laplace(sigma=0.1), Clip(norm=0.5))),
        Compose((noise(sigma=0.1), Compose((QSGD(levels=7), Prune(rate=0.3))))),
    ],
    ids=repr,
)
def test_who_knows_the_draw_simulates_what_was_sent(defense: Defense) -> None:
    """Noise that a known draw adds stands on entries that top-k left out, too."""
    raw, draws = update(), Draws(3)
    sent = Update(defense.on_update(raw, draws.generator("update")), UpdateHeader(UpdateKind.GRADIENT, 1))
    seen = view_of(defense, sent, draws)(raw)
    assert all(torch.allclose(seen[k], sent.tensors[k], rtol=1e-9, atol=1e-12) for k in raw)


@pytest.mark.parametrize("sigma", [0.1, 2.0])
@pytest.mark.parametrize("kind", [noise, laplace])
def test_noise_is_as_large_as_stated(kind, sigma: float) -> None:  # type: ignore[no-untyped-def]
    defense = kind(sigma=sigma)
    sent = defense.on_update({"w": torch.zeros(20_000, dtype=torch.float64)}, torch.Generator().manual_seed(0))["w"]
    (step,) = steps_of(defense)
    assert isinstance(step, Noise)
    assert step.sigma is not None
    assert float(sent.std()) == pytest.approx(step.sigma, rel=0.03)


@pytest.mark.parametrize("defense", [ClipExamples(norm=0.5), ClipLayers(norm=0.5)], ids=repr)
def test_examples_are_scaled_to_their_bound(defense: Defense) -> None:
    each = {name: torch.stack([t, 3 * t]) for name, t in update().items()}
    sent = defense.on_example_gradients(each, torch.Generator())
    (step,) = steps_of(defense)
    assert isinstance(step, PerExampleScale)
    for groups in [["w", "b"]] if not step.by_layer else [["w"], ["b"]]:
        for k in range(2):
            norm = float(torch.cat([sent[name][k].flatten() for name in groups]).norm())
            assert norm == pytest.approx(step.bound)


def test_compositions_are_concatenations_stage_by_stage() -> None:
    parts = (noise(sigma=0.1), DPSGD(norm=1.0, noise_multiplier=1.0), MixUp(), TopK(keep=0.5))
    together = steps_of(Compose(parts))
    assert sorted(step.by for step in together) == sorted(step.by for part in parts for step in steps_of(part))
    assert [step.stage for step in together] == sorted(step.stage for step in together)
    nested = steps_of(Compose((Compose(parts[:2]), Compose(parts[2:]))))
    assert list(map(type, nested)) == list(map(type, together))
    assert steps_of(NoDefense()) == steps_of(None) == ()


class Renamed(Clip):
    """The same under another name."""


@dataclass(frozen=True, kw_only=True)
class Twice(Clip):
    """Changes what the class above says of itself."""

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(lambda t: 2 * t, super().on_update(tensors, generator))


@dataclass(frozen=True)
class Own(Defense):
    """Says nothing of itself."""

    def on_update(self, tensors: Tensors, generator: torch.Generator | None) -> Tensors:
        return map_tensors(torch.sin, tensors)


def test_a_class_inherits_what_it_does_not_change() -> None:
    (same,) = steps_of(Renamed(norm=1.0))
    assert isinstance(same, Scale)
    (other,) = steps_of(Twice(norm=1.0))
    assert isinstance(other, Nonlinear)
    assert other.derived
    (own,) = steps_of(Own())
    assert isinstance(own, Nonlinear)
    assert not own.derived


def test_folds() -> None:
    assert only_scales(Compose((Clip(norm=1.0), ClipExamples(norm=1.0))))
    assert only_scales(None)
    assert not only_scales(Compose((Clip(norm=1.0), TopK(keep=0.5))))
    assert not only_scales(Own())
    assert shortens(FedCDP(noise_multiplier=1.0))
    assert not shortens(TopK(keep=0.5))
    assert mixes_examples(InstaHide())
    assert not mixes_examples(Clip(norm=1.0))
    assert kept_factor(RandomK(keep=0.3, unbiased=True), torch.zeros(10)) == pytest.approx(10 / 3)
