"""Downwards through activations that rise, from the linear layer of one example."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

from convolutions import Block, made, observed
from leakgauge.attacks.features import descent
from leakgauge.attacks.features.descent import Descent, mend
from leakgauge.attacks.features.fits import rectified
from leakgauge.attacks.features.read import BLURRED, HiddenRead, HiddenTensors
from leakgauge.attacks.features.signals import Kink, KnownInside, KnownTerm, Rising, activation
from leakgauge.batch import Batch
from same import seventh


def network(act: type[nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 6, 3, padding=1), act(), nn.Conv2d(6, 12, 3, stride=2, padding=1), act(), nn.Flatten(1))
    return nn.Sequential(*layers, nn.Linear(12 * 16, 4))


def test_all_tensors_below_a_smooth_head_follow_from_it() -> None:
    module, (inputs, labels) = network(nn.Sigmoid), made(1)
    hidden = HiddenTensors.of(observed(module, inputs, labels), 1).read(torch.Generator().manual_seed(0))
    found = Descent.of(hidden, hidden.reads[-1:])
    assert found.further()
    assert not found.further()
    assert len(found.state.values) >= 2
    seen = hidden.inside.run(list(found.state.values), {}, Batch(inputs.double(), labels))
    for value, truth in zip(found.state.values.values(), seen, strict=True):
        assert float((value - truth).norm() / truth.norm()) < 1e-2


def test_activations_are_known_by_what_they_do() -> None:
    for act, kind in ((nn.Sigmoid, Rising), (nn.Tanh, Rising), (nn.LeakyReLU, Kink), (nn.ReLU, Kink), (nn.SiLU, None)):
        module, (inputs, labels) = network(act), made(1)
        inside = HiddenTensors.of(observed(module, inputs, labels), 1).read(torch.Generator().manual_seed(0)).inside
        bent = activation(inside, inside.layers[1].hidden)
        assert (kind is None and bent is None) or (kind is not None and isinstance(bent, kind))
        if bent is not None and bent.below:
            node = bent.at
            value = torch.linspace(-4, 4, 9, dtype=torch.float64)
            (made_of,) = inside.run([inside.layers[1].hidden], {node: value.clone()})
            assert torch.allclose(bent.argument(made_of), value, atol=1e-9)
    assert KnownInside(inside).bent(inside.layers[1].hidden) is None


@pytest.mark.parametrize("act", [nn.Sigmoid, nn.Tanh])
@pytest.mark.parametrize("gain", [1.0, 8.0, 40.0])
def test_what_a_flat_function_hides_denies_no_example(act: type[nn.Module], gain: float) -> None:
    """A value that is off by a millionth is off by whole units in the argument where the function saturates; those
    entries must not outweigh the others."""
    module, (inputs, labels) = network(act), made(1)
    for layer in (module[0], module[2]):
        layer.weight.data *= gain
    inside = HiddenTensors.of(observed(module, inputs, labels), 1).inside
    node = inside.layers[1].hidden
    (value,) = inside.run([node], {}, Batch(inputs.double(), labels))
    draws = torch.Generator().manual_seed(0)
    noise = torch.randn(value.shape, generator=draws, dtype=torch.float64)
    term = KnownTerm.of(node, value + 1e-6 * noise * value.norm() / noise.norm(), KnownInside(inside))
    (made_of,) = inside.run([term.node], {}, Batch(inputs.double(), labels))
    assert float(term.gaps(made_of).norm() / term.value.norm()) < 1e-4
    other = inputs.double() + 0.1 * torch.randn(inputs.shape, generator=draws, dtype=torch.float64)
    (far,) = inside.run([term.node], {}, Batch(other, labels))
    assert float(term.gaps(far).norm() / term.value.norm()) > 1e-2
    assert 0 < term.active <= term.value.numel()
    ends = KnownTerm.of(node, torch.ones_like(value), KnownInside(inside))  # flat everywhere
    assert not ends.active
    assert bool(ends.gaps(made_of).isfinite().all())


class Worded(nn.Module):
    """An activation in somebody's words."""

    def __init__(self, words: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.words = words

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x)


@pytest.mark.parametrize(
    ("words", "slopes"),
    [
        (lambda x: x * (x > 0), (1.0, 0.0)),
        (lambda x: (x + x.abs()) / 2, (1.0, 0.0)),
        (lambda x: (x + torch.sqrt(x * x + 1e-24)) / 2, (1.0, 0.0)),
        (lambda x: torch.where(x > 0, x, 0.1 * x), (1.0, 0.1)),
        (seventh.ACTIVATIONS["a sign from a polynomial"], (1.0, 0.0)),
        (lambda x: x - x.mean(-1, keepdim=True), None),
        (lambda x: (x - x.mean(-1, keepdim=True)).relu(), (1.0, 0.0)),
    ],
)
def test_activations_are_known_in_other_words(words: Callable[[Tensor], Tensor], slopes: tuple[float, float]) -> None:
    module, (inputs, labels) = network(lambda: Worded(words)), made(1)
    inside = HiddenTensors.of(observed(module, inputs, labels), 1).read(torch.Generator().manual_seed(0)).inside
    bent = activation(inside, inside.layers[1].hidden)
    assert slopes == (None if bent is None else (bent.above, bent.below))
    if slopes == (1.0, 0.0):  # what the next layer reads is what stands behind the activation, in its shape
        assert len(inside.layers[1].shape) == 3
    if bent is not None:
        value = torch.linspace(-4, 4, 9, dtype=torch.float64)
        (one,) = inside.run([inside.layers[1].hidden], {bent.at: value.clone()})
        (other,) = inside.run([inside.layers[1].hidden], {bent.at: value[3:].clone()})
        assert torch.equal(one[3:], other)


def test_zeros_are_turned_only_where_that_explains_all_that_the_shift_misses() -> None:
    """One zero below the floor is found; a channel whose signals are off turns none, however many are near."""
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(1, 8, 200, generator=draw, dtype=torch.float64).clamp_min(0)
    signal = torch.randn(truth.shape, generator=draw, dtype=torch.float64)
    shift = (signal * (truth > 0)).sum((0, 2))
    seen = truth + 1e-6 * torch.randn(truth.shape, generator=draw, dtype=torch.float64)
    truth[0, 3, 7], seen[0, 3, 7] = 1e-7, 1e-7
    shift[3] = (signal * (truth > 0)).sum((0, 2))[3]
    shift[5] += 1e-2
    found, left = mend(seen, seen > 1e-5, signal, shift, 5e-6, 1e-5)
    assert torch.equal(found, truth > 0)
    assert left < 1e-4
    seen[0, 3, 7] = -1e-7  # the read is off by more than it is large
    found, _ = mend(seen, seen > 1e-5, signal, shift, 5e-6, 1e-5)
    assert torch.equal(rectified(seen, found) > 0, truth > 0)


def test_a_read_takes_the_order_of_what_is_known() -> None:
    """Each has an order of its own; a tensor that the other makes tells which example is which."""
    torch.manual_seed(1)
    inputs, labels = made(3)
    hidden = HiddenTensors.of(observed(Block(72), inputs, labels), 3).read(torch.Generator().manual_seed(0))
    one, *others = [read for read in hidden.reads if read.scaled]
    known = Descent(hidden, 0.0, KnownInside(hidden.inside))
    known._begin(one)
    seen = hidden.inside.run([one.hidden, *(other.hidden for other in others)], {}, Batch(inputs.double(), labels))
    order = torch.cdist(known.state.values[one.hidden].flatten(1), seen[0].flatten(1)).argmin(1)
    found = [known._ordered(other.reordered(torch.tensor([2, 0, 1]))) for other in others]
    assert any(read is not None for read in found)
    for read, truth in zip(found, seen[1:], strict=True):
        if read is not None:
            maps = read.layers[0].hidden_of(read.maps)
            assert torch.equal(torch.cdist(maps.flatten(1), truth.flatten(1)).argmin(1), order)


@pytest.mark.parametrize("count", [1, 2])
def test_whichever_read_it_starts_from_the_same_is_known_in_the_end(count: int) -> None:
    """What a tensor makes of layers behind it tells their signals, and these what is in front."""
    torch.manual_seed(1)
    inputs, labels = made(count)
    hidden = HiddenTensors.of(observed(Residual(80), inputs, labels), count).read(torch.Generator().manual_seed(0))
    starts = [read for read in hidden.reads if read.scaled and len(read.maps) == count]
    assert len(starts) >= 2
    known = set()
    for start in starts:
        found = Descent.of(hidden, [start])
        found.fit()
        found.further()
        known.add(frozenset(found.state.values))
        seen = hidden.inside.run([*found.state.values], {}, Batch(inputs.double(), labels))
        for value, truth in zip(found.state.values.values(), seen, strict=True):
            gaps = torch.cdist(truth.flatten(1), value.flatten(1)).amin(1) / truth.flatten(1).norm(dim=1)
            assert float(gaps.max()) < 1e-4
    assert len(known) == 1
    assert len(next(iter(known))) >= 4


def test_an_example_that_the_network_is_sure_of_hides_no_tensor() -> None:
    """Its signals are a ten thousandth of the other's; it is known less exactly, and nothing else is lost."""
    known, gaps = [], []
    for sure in (0.0, 8.0):
        torch.manual_seed(1)
        (inputs, labels), module = made(2), Residual(80)
        module.head.bias.data[0] += sure  # of the first example's class
        hidden = HiddenTensors.of(observed(module, inputs, labels), 2).read(torch.Generator().manual_seed(0))
        found = Descent.of(hidden, [next(read for read in hidden.reads if read.scaled and len(read.maps) == 2)])
        found.fit()
        known.append([node.name for node in found.state.values])
        seen = hidden.inside.run([*found.state.values], {}, Batch(inputs.double(), labels))
        for value, truth in zip(found.state.values.values(), seen, strict=True):
            gaps.append(torch.cdist(truth.flatten(1), value.flatten(1)).amin(1) / truth.flatten(1).norm(dim=1))
    assert known[0] == known[1]
    assert len(known[0]) >= 4
    assert float(torch.stack(gaps)[:, 1:].max()) < 1e-4
    assert float(torch.stack(gaps).max()) < BLURRED


def test_a_read_that_shifts_deny_leaves_nothing_behind() -> None:
    """Neither its signals nor its error."""
    torch.manual_seed(1)
    inputs, labels = made(3)
    hidden = HiddenTensors.of(observed(Residual(80), inputs, labels), 3).read(torch.Generator().manual_seed(0))
    front, other = [replace(read, error=2e-6) for read in hidden.reads if read.layers[0].weight != "head.weight"]
    draw, held = torch.Generator().manual_seed(0), other.maps > 0
    signals = {k: t * (1 + 0.02 * torch.randn(t.shape, generator=draw)) for k, t in other.signals.items()}
    turned = other.raw + 0.05 * other.raw.std() * torch.randn(other.raw.shape, generator=draw)
    wrong = replace(other, raw=turned, maps=turned * (turned > 0), signals=signals, error=1e-5)
    one, two = Descent.of(hidden, [front]), Descent.of(hidden, [front, wrong])
    assert bool((held != (wrong.maps > 0)).any())
    assert set(two.state.sent) == set(one.state.sent)
    assert two.error == one.error
    for found in (one, two):
        found.fit()
        seen = hidden.inside.run([*found.state.values], {}, Batch(inputs.double(), labels))
        for value, truth in zip(found.state.values.values(), seen, strict=True):
            gaps = torch.cdist(truth.flatten(1), value.flatten(1)).amin(1) / truth.flatten(1).norm(dim=1)
            assert float(gaps.max()) < 1e-4


class Residual(nn.Module):
    """Two convolutions beside an identity, behind two others."""

    def __init__(self, width: int = 72) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(2, 24, 3, padding=1), nn.Conv2d(24, width, 3, stride=2, padding=1)
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(self.stem(x).relu()).relu()
        x = (self.second(self.first(x).relu()) + x).relu()
        return self.head(x.mean((2, 3)))


@pytest.fixture
def blunted() -> tuple[HiddenTensors, list[HiddenRead], Tensor, Tensor]:
    """Three examples: their reads, of which the one in front of the identity, the most exact, takes a faint entry of
    each for a zero; and what it is, and what is in front of it."""
    torch.manual_seed(1)
    inputs, labels = made(3, seed=1)
    hidden = HiddenTensors.of(observed(Residual(), inputs, labels), 3).read(torch.Generator().manual_seed(0))
    front, *others = [replace(read, error=2e-6) for read in hidden.reads if read.layers[0].weight != "head.weight"]
    assert front.layers[0].weight == "first.weight"
    assert [read.layers[0].weight for read in others] == ["second.weight"]
    maps, raw = front.maps.clone(), front.raw.clone()
    for kept, seen in zip(maps.flatten(1), raw.flatten(1), strict=True):
        faint, zero = torch.where(kept > 0, kept, torch.inf).argmin(), kept.argmin()
        kept[faint], seen[zero] = 0.0, -float(seen[faint])  # a true zero is read as far below as that lies above
    inside = hidden.inside
    before = next(layer.hidden for layer in inside.layers if layer.weight == "down.weight")
    truth, ahead = inside.run([front.hidden, before], {}, Batch(inputs.double(), labels))
    return hidden, [replace(front, maps=maps, raw=raw, error=1e-6, sparse=True), *others], truth, ahead


def _masks(found: Descent, node: Node, truth: Tensor) -> tuple[Tensor, Tensor]:
    value = found.state.values[node]
    order = torch.cdist(truth.flatten(1), value.flatten(1)).argmin(1)
    return value[order] > 0, truth > 0


def test_zeros_of_a_start_are_told_once_signals_reach_it(blunted) -> None:
    """What an identity carries past a block is known only when the block's other convolution has been read."""
    hidden, starts, truth, _ = blunted
    assert torch.equal(*_masks(Descent.of(hidden, starts), starts[0].hidden, truth))


def test_a_wrong_zero_is_told_by_the_gradient_in_front_of_it(blunted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the shift's sum tells nothing; and the tensor in front is exact all the same."""
    hidden, starts, truth, ahead = blunted
    monkeypatch.setattr(descent, "mend", lambda _, on, *__: (on, 0.0))
    found = Descent.of(hidden, starts)
    one, other = _masks(found, starts[0].hidden, truth)
    assert torch.equal(one, other)
    (value,) = [v for n, v in found.state.values.items() if v.shape == ahead.shape]
    gaps = torch.cdist(ahead.flatten(1), value.flatten(1)).amin(1) / ahead.flatten(1).norm(dim=1)
    assert float(gaps.max()) < 1e-4
