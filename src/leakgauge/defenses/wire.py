"""Bytes that an update takes on the wire after a defence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from leakgauge.defenses.defense import Defense, steps_of
from leakgauge.defenses.sparsify import kept_entries
from leakgauge.defenses.steps import DefenseStage, DefenseStep, EntryGrid, EntryMask, Noise
from leakgauge.tensors import Tensors


@dataclass(frozen=True)
class _Coded:
    """How one tensor is coded: so many values of so many bits each, the place of each, and what is sent once."""

    sent: int
    value_bits: int | float  # log2 3 of a sign that may be zero
    place_bits: int = 0
    extra_bits: int = 0

    @property
    def bits(self) -> int:
        return math.ceil(self.sent * self.value_bits) + self.sent * self.place_bits + self.extra_bits


def wire_bytes(defense: Defense, tensors: Tensors) -> int:
    """Bytes of `tensors` as sent after `defense`, in the plainest code that the defence allows; their zeros count for
    `prune` and `sign`.

    Per tensor of n entries, rounded up to whole bytes:

    - no defence, noise, or one that changes values alone (clip, Soteria): n · element size;
    - top-k and random-k: k values and k places of ⌈log2 n⌉ bits each; pruning: the same with the entries that are not
      zero, wherever they are;
    - quantisers: ⌈log2(2s+1)⌉ bits a value and one number, the norm;
    - sign: one bit a value; where there are zeros, log2 3 bits; scaled: one number more;
    - `Compose`: in the stated order, so that a sparsifier says how many values are sent, a quantiser how long each is.

    Places of a sparse tensor are not listed where a bit a place for the whole tensor is shorter, nor is a sparse code
    used that is longer than the dense one. No entropy coding, no header, no names.
    """
    steps, total = [step for step in steps_of(defense) if step.stage is DefenseStage.UPDATE], 0
    for t in tensors.values():
        width = 8 * t.element_size()
        coded, nonzero = _Coded(t.numel(), width), int((t != 0).sum())
        for step in steps:
            coded = _after(step, coded, t.numel(), nonzero, width)
        total += math.ceil(coded.bits / 8)
    return total


def _after(step: DefenseStep, before: _Coded, entries: int, nonzero: int, width: int) -> _Coded:
    """How a tensor of so many entries, numbers of `width` bits, is coded after a step of the update."""
    if isinstance(step, Noise):  # fills the zeros and leaves the grid: all values, as numbers
        return _Coded(entries, width)
    if isinstance(step, EntryMask) and not step.looks:
        sent = min(nonzero if step.keep is None else kept_entries(step.keep, entries), before.sent)
        listed = replace(before, sent=sent, place_bits=_bits(entries))
        mapped = replace(before, sent=sent, place_bits=0, extra_bits=before.extra_bits + entries)
        return min(listed, mapped, before, key=lambda coded: coded.bits)
    if isinstance(step, EntryGrid):
        signs = math.log2(3) if nonzero < before.sent else 1.0
        bits = signs if step.levels is None else _bits(2 * step.levels + 1)
        beside = step.numbers * width if entries else 0
        return replace(before, value_bits=bits, extra_bits=before.extra_bits + beside)
    return before


def _bits(values: int) -> int:
    """⌈log2 values⌉: bits that tell so many values apart."""
    return (values - 1).bit_length() if values > 0 else 0
