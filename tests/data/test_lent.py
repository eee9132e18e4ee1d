"""Examples are held in less memory and come back bit for bit."""

from __future__ import annotations

import pytest
import torch

from leakgauge.data import gallery
from leakgauge.data.pictures import Samples
from leakgauge.data.source import Lent, Share, in_chunks, others
from leakgauge.metrics import assignment
from leakgauge.metrics.assignment import mean_image, nearest_public, pairwise_mse


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_what_is_put_in_comes_out_bit_for_bit(low: float, high: float, generator: torch.Generator) -> None:
    bytes_ = torch.randint(256, (4, 3, 5, 5), generator=generator)
    pictures = low + (high - low) * (bytes_.float() / 255)
    other = low + (high - low) * torch.rand((3, 3, 5, 5), generator=generator)
    both = torch.cat([pictures, other])
    lent = Lent.of(both, 9, (3, 5, 5), low, high)
    assert torch.equal(lent.whole(), both)
    assert torch.equal(torch.cat(list(in_chunks(lent, 2))), both)
    assert torch.equal(lent.take([6, 0]), both[[6, 0]])
    assert [k.dtype for k in lent._kept] == [torch.uint8] * 4 + [torch.float32] * 3


def test_an_example_that_is_changed_later_is_not_changed_in_it() -> None:
    examples = torch.rand(2, 3, 4, 4)
    lent = Lent.of(examples, 2, (3, 4, 4), 0.0, 1.0)
    before = lent.whole()
    examples.zero_()
    lent.whole().zero_()
    assert torch.equal(lent.whole(), before)


def test_the_photos_crops_are_held_as_bytes_and_are_those_of_the_gallery() -> None:
    lent = others(Samples(size=16), [0], Share.GALLERY, 30, torch.Generator().manual_seed(3))
    assert {k.dtype for k in lent._kept} == {torch.uint8}
    assert torch.equal(lent.whole(), gallery(Samples(size=16), [0], 30, torch.Generator().manual_seed(3)))


def test_comparing_in_chunks_is_comparing_at_once(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand((3, 3, 6, 6), generator=generator)
    pictures = torch.randint(256, (11, 3, 6, 6), generator=generator) / 255
    lent = Lent.of(pictures, 11, (3, 6, 6), 0.0, 1.0)

    def all_of(examples: torch.Tensor | Lent) -> list[torch.Tensor]:
        return [pairwise_mse(x, examples), nearest_public(x, examples)]

    at_once, mean = all_of(pictures), mean_image(pictures, 2)
    assert torch.equal(mean_image(lent, 2), mean)
    monkeypatch.setattr(assignment, "AT_ONCE", 2000)
    for found in (all_of(pictures), all_of(lent)):
        assert all(torch.equal(a, b) for a, b in zip(found, at_once, strict=True))
    torch.testing.assert_close(mean_image(lent, 2), mean)
    many = torch.randint(256, (77, 3, 6, 6), generator=generator) / 255  # more than is taken whole, two at once
    torch.testing.assert_close(mean_image(Lent.of(many, 77, (3, 6, 6), 0.0, 1.0), 2), mean_image(many, 2))
