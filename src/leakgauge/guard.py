"""A filter that refuses to send: the stated defence must show in the bytes that leave, and its ε must not be exceeded.

Documentation is no enforcement: a client whose defence was forgotten, or half applied, ships raw updates. Each check is
one that an honest defence passes whatever its data are, but for six standard deviations of luck. What passes is not
proved to be private: what was forgotten on purpose, so as to pass, may.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.steps import EntryGrid, EntryMask, Noise, Scale
from leakgauge.errors import InputError, require
from leakgauge.privacy.accounting import Ledger, Release, Unit
from leakgauge.update import STATISTICS, UpdateKind

LUCK = 6.0
"""Standard deviations by which an honest round may miss what is expected."""

SAMPLED = 1 << 15
"""Entries in which noise is looked for; each tensor has its share of them, at a place that nobody else knows."""

FEWEST = 64
"""Entries of a tensor below which its noise is not looked at by itself."""

LENGTHS = (0.1, 0.5, 1.0, 2.0, 3.0)
"""In standard deviations: how many entries may be nearer to zero."""

SLACK = 1e-4
"""Share by which rounding may lengthen what was clipped."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a defence leaves to be seen in every update.

    Attributes:
        norm: greatest length before noise; `None` where nothing is clipped.
        sigma: standard deviation of Gaussian noise on every entry that is sent; 0 without.
        keep: greatest share of entries that are not zero.
        levels: greatest number of different sizes in a tensor, zero left out.
    """

    norm: float | None = None
    sigma: float = 0.0
    keep: float | None = None
    levels: int | None = None

    @staticmethod
    def of(defense: Defense) -> Promise:
        """That of a defence of the update, as a plan states it.

        Raises:
            InputError: a part of it does not show in an update, or noise comes before a part that changes it.
        """
        norm, sigma, keep, levels = None, 0.0, None, None
        for step in steps_of(defense):
            require(not sigma, "defense", f"has {step.by} behind noise", "put noise last: it is looked for as sent")
            if isinstance(step, Scale):
                norm = step.bound
            elif isinstance(step, Noise) and step.gaussian and step.sigma is not None:
                sigma, keep, levels = step.sigma, None, None  # noise covers them
            elif isinstance(step, EntryMask) and step.keep is not None:
                keep = step.keep
                norm = norm / keep if step.lengthens and norm is not None else norm
            elif isinstance(step, EntryGrid) and step.levels is not None:
                hint = "clip last, or give a Promise of what it leaves"
                require(norm is None, "defense", f"rounds by {step.by} what was clipped, which lengthens it", hint)
                levels = step.levels
            else:
                hint = "give a Promise of what it leaves, e.g. Promise(sigma=…) for the noise of local steps"
                raise InputError("defense", f"{step.by} does not show in one update", hint)
        return Promise(norm=norm, sigma=sigma, keep=keep, levels=levels)


class SendingGuard:
    """Looks at every update of one client before it is sent.

    Args:
        promise: of the stated defence, or the defence itself.
        sends: what replies are: `None` for parameters, which are compared with those received.
        statistics: whether running statistics may travel, which no clip and no noise covers.
        ledger: file in which each round is entered before it is sent.
        epsilon, delta: what may be spent in it.

    Raises:
        InputError: the defence does not show in an update, or ε is to be counted without clip and noise.
    """

    def __init__(
        self,
        promise: Promise | Defense,
        *,
        sends: UpdateKind | None = None,
        statistics: bool = False,
        ledger: Path | str | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
    ) -> None:
        self.promise = promise if isinstance(promise, Promise) else Promise.of(promise)
        self.sends, self.statistics, self.epsilon, self.delta = sends, statistics, epsilon, delta
        self.ledger = None if ledger is None else Path(ledger)
        counted = self.promise.norm is not None and self.promise.sigma > 0
        hint = "state a clip with noise, and give both or none"
        require((self.ledger is None) == (epsilon is None), "ledger", "and epsilon belong together", hint)
        require(self.ledger is None or counted, "ledger", "counts ε, which needs a clip and noise", hint)
        self._seed = secrets.randbits(62)
        self._last: list[Tensor] = []
        self._room = torch.empty(0)

    def refuse(self, before: Mapping[str, Tensor], reply: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Why an update must not be sent; empty where nothing speaks against it, and it is entered in the ledger.

        Args:
            before: what the client received.
            reply: what it is about to send, by the same names.
        """
        found = [*self._of_names(before, reply)]
        if not found:
            sent, squares = self._difference(before, reply)
            found += self._of_size(sent, squares)
            if not found:
                sample = self._sample(sent)
                found += [*self._of_noise(sample), *self._of_rounding(sent, sample)]
                self._last = sample
        if not found and self.ledger is not None:
            found += self._of_ledger(self.ledger)
        return tuple(found)

    def _of_names(self, before: Mapping[str, Tensor], reply: Mapping[str, Tensor]) -> Iterator[str]:
        for name, tensor in reply.items():
            if name not in before:
                yield f"{name} is sent, and the server has no such parameter"
            elif tensor.shape != before[name].shape:
                yield f"{name} has the shape {tuple(tensor.shape)}, and the server's {tuple(before[name].shape)}"
            elif not self.statistics and name.endswith(STATISTICS):
                same = torch.equal(tensor, before[name]) if self.sends is None else not bool(tensor.any())
                if not same:
                    yield f"{name} travels, which no clip and no noise covers"

    def _difference(
        self, before: Mapping[str, Tensor], reply: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Float[Tensor, " tensors"]]:
        """What is sent in float32, and the squared length of each tensor."""
        names = [k for k, v in reply.items() if v.is_floating_point() and not k.endswith(STATISTICS)]
        if self.sends is None:
            size = sum(reply[name].numel() for name in names)
            if len(self._room) < size:
                self._room = torch.empty(size)
        sent, first = {}, 0
        for name in names:
            flat = reply[name].detach().reshape(-1)
            if self.sends is None:
                room = self._room[first : (first := first + flat.numel())]
                flat = torch.sub(flat, before[name].detach().reshape(-1), out=room)
            sent[name] = flat.float()
        return sent, torch.stack([torch.dot(flat, flat) for flat in sent.values()] or [torch.zeros(())])

    def _of_size(self, sent: Mapping[str, Tensor], squares: Float[Tensor, " tensors"]) -> Iterator[str]:
        promise, square = self.promise, float(squares.double().sum())
        if not math.isfinite(square):
            yield "it holds NaN or infinity"
        elif promise.norm is not None:
            count = sum(flat.numel() for flat in sent.values())
            noise = promise.sigma**2 * (count + LUCK * math.sqrt(2 * count))
            most = promise.norm**2 * (1 + SLACK) ** 2 + 2 * LUCK * promise.norm * promise.sigma + noise
            if square > most:
                yield f"its length is {square**0.5:.4g}, and clip and noise leave at most {most**0.5:.4g}"

    def _sample(self, sent: Mapping[str, Tensor]) -> list[Tensor]:
        """A part of each tensor, in one piece, always the same for this client."""
        if not self.promise.sigma and self.promise.levels is None:
            return []
        g, found = torch.Generator().manual_seed(self._seed), []
        most = max(FEWEST * 4, SAMPLED // max(len(sent), 1))
        for flat in sent.values():
            start = int(torch.randint(max(1, len(flat) - most + 1), (), generator=g))
            part = flat[start : start + most].clone()
            found.append(part[part != 0] if self.promise.keep is not None else part)
        return found

    def _of_noise(self, sample: list[Tensor]) -> Iterator[str]:
        """Gaussian noise keeps entries away from zero whatever is under it (Anderson's inequality), and so it does with
        the difference of any two: along a tensor, between tensors, and between rounds."""
        sigma = self.promise.sigma
        if not sigma:
            return
        if not all(_is_noisy(part, sigma) for part in [*sample, torch.cat(sample)] if len(part) >= FEWEST):
            yield f"noise of standard deviation {sigma:.4g} is not in every tensor"
        twice = math.sqrt(2) * sigma
        along = (part[lag:] - part[:-lag] for part in sample for lag in (1, 2) if len(part) >= FEWEST + lag)
        lengths = ((one, two, min(len(one), len(two))) for one, two in pairwise(sample))
        across = (one[:n] - two[:n] for one, two, n in lengths if n >= FEWEST)
        if not all(_is_noisy(part, twice) for part in (*along, *across)):
            yield "its noise repeats itself within the update"
        pairs = [(a, b) for a, b in zip(sample, self._last, strict=False) if a.shape == b.shape and len(a) >= FEWEST]
        if not all(_is_noisy(a - b, twice) for a, b in pairs):
            yield "its noise is that of the round before"

    def _of_rounding(self, sent: Mapping[str, Tensor], sample: list[Tensor]) -> Iterator[str]:
        promise = self.promise
        if promise.keep is not None:
            kept, count = sum(int(f.count_nonzero()) for f in sent.values()), sum(f.numel() for f in sent.values())
            if kept > promise.keep * count + len(sent):
                yield f"{kept / count:.1%} of its entries are not zero, and {promise.keep:.1%} are stated"
        if promise.levels is not None:
            most = max((len(part[part != 0].abs().unique()) for part in sample), default=0)
            if most > promise.levels:
                yield f"a tensor holds {most} different sizes, and {promise.levels} are stated"

    def _of_ledger(self, ledger: Path) -> Iterator[str]:
        assert self.epsilon is not None
        assert self.promise.norm is not None
        release = Release(noise_multiplier=self.promise.sigma / self.promise.norm, sample_rate=1.0, steps=1)
        book = Ledger.load(ledger) if ledger.exists() else Ledger(unit=Unit.CLIENT)
        after = book.spend(noise_multiplier=release.noise_multiplier, sample_rate=1.0).epsilon(self.delta)
        if after > self.epsilon:
            yield f"with it ε would be {after:.3g}, and {self.epsilon:g} may be spent"
        else:
            Ledger.enter(ledger, release, unit=Unit.CLIENT)


class Refused(Exception):
    """An update was not sent; says why."""


def _is_noisy(x: Float[Tensor, " n"], sigma: float) -> bool:
    """Whether no more entries are near zero than Gaussian noise alone allows, which whatever is under it can only
    lower."""
    size, n = x.abs() / sigma, len(x)
    for length in LENGTHS:
        p = math.erf(length / math.sqrt(2))
        if float((size <= length).sum()) > n * p + LUCK * math.sqrt(n * p * (1 - p)) + 1:
            return False
    return True
