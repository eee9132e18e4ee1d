"""A filter that refuses to send: the stated defence must show in the bytes that leave, and its ε must not be exceeded.

Documentation is no enforcement: a client whose defence was forgotten, or half applied, ships raw updates. Each check is
one that an honest defence passes whatever its data are, but for six standard deviations of luck. What passes is not
proved to be private: what was forgotten on purpose, so as to pass, may.
"""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from leakgauge.defenses import Defense, steps_of
from leakgauge.defenses.steps import EntryGrid, EntryMask, Noise, Scale
from leakgauge.errors import InputError, require
from leakgauge.privacy.accounting import Ledger, Unit, entering
from leakgauge.tensors import dense
from leakgauge.update import STATISTICS, UpdateKind, trains

LUCK = 6.0  # standard deviations by which an honest round may miss what is expected

SAMPLED = 1 << 15
"""Entries in which noise is looked for; each tensor has its share of them, at a place that nobody else knows."""

FEWEST = 64  # entries of a tensor below which its noise is not looked at by itself
LENGTHS = (0.1, 0.5, 1.0, 2.0, 3.0)  # in standard deviations: how many entries may be nearer to zero
NEARER = torch.erf(torch.tensor(LENGTHS, dtype=torch.float64) / math.sqrt(2))  # the share of Gaussian noise that is
SLACK = 1e-4  # share by which rounding may lengthen what was clipped


@dataclass(frozen=True, kw_only=True)
class Promise:
    """What a defence leaves to be seen in every update."""

    norm: float | None = None  #: greatest length before noise
    sigma: float = 0.0  #: standard deviation of Gaussian noise on every entry that is sent; 0 without.
    keep: float | None = None  #: greatest share of entries that are not zero
    levels: int | None = None  #: greatest number of different sizes in a tensor, zero left out

    @staticmethod
    def of(defense: Defense) -> "Promise":
        """That of a defence, as a plan states it. Raises `InputError` where a part of it does not show in an update, or
        noise comes before a part that changes it."""
        left = Promise()
        for step in steps_of(defense):
            last = "put noise last: it is looked for as sent"
            require(not left.sigma, "defense", f"has {step.by} behind noise", last)
            if isinstance(step, Scale):
                left = replace(left, norm=step.bound)
            elif isinstance(step, Noise) and step.gaussian and step.sigma is not None:
                left = Promise(norm=left.norm, sigma=step.sigma)  # noise covers the others
            elif isinstance(step, EntryMask) and step.keep is not None:
                norm = left.norm / step.keep if step.lengthens and left.norm is not None else left.norm
                left = replace(left, norm=norm, keep=step.keep)
            elif isinstance(step, EntryGrid) and step.levels is not None:
                hint = "clip last, or give a Promise of what it leaves"
                require(left.norm is None, "defense", f"rounds by {step.by} what was clipped, which lengthens it", hint)
                left = replace(left, levels=step.levels)
            else:
                hint = "give a Promise of what it leaves, e.g. Promise(sigma=…) for the noise of local steps"
                raise InputError("defense", f"{step.by} does not show in one update", hint)
        return left


class SendingGuard:
    """Looks at every update of one client before it is sent. Raises `InputError`: the defence does not show in an
    update, or ε is to be counted without clip and noise.

    Args:
        promise: of the stated defence, or the defence itself.
        sends: what replies are: `None` for parameters, which are compared with those received.
        statistics: whether running statistics may travel, which no clip and no noise covers.
        ledger: file in which each round is entered before it is sent.
        epsilon, delta: what may be spent in it.
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
        self._last = torch.empty((0, 0))

    def refuse(self, before: Mapping[str, Tensor], reply: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Why an update must not be sent, from what the client received and what it is about to send, by the same
        names; empty where nothing speaks against it, and it is entered in the ledger."""
        before, reply = dense(before), dense(reply)
        found = [*self._of_names(before, reply)]
        if not found:
            sent = {k: v.detach().float() for k, v in reply.items() if trains(k, v)}
            moved = [(v - before[k].to(v) if self.sends is None else v).flatten().cpu() for k, v in sent.items()]
            found += self._of_size(moved)
            if not found and (self.promise.sigma or self.promise.levels is not None):
                sample = self._sample(moved)
                found += self._of_sample(sample)
                self._last = sample
        if not found:
            found += self._of_ledger()
        return tuple(found)

    def _of_names(self, before: Mapping[str, Tensor], reply: Mapping[str, Tensor]) -> Iterator[str]:
        for name, tensor in reply.items():
            if name not in before:
                yield f"{name} is sent, and the server has no such parameter"
            elif tensor.shape != before[name].shape:
                yield f"{name} has the shape {tuple(tensor.shape)}, and the server's {tuple(before[name].shape)}"
            elif not self.statistics and name.endswith(STATISTICS):
                still = before[name] if self.sends is None else torch.zeros_like(tensor)
                if not torch.equal(tensor, still):
                    yield f"{name} travels, which no clip and no noise covers"

    def _of_size(self, moved: Sequence[Tensor]) -> Iterator[str]:
        promise, count = self.promise, sum(t.numel() for t in moved)
        square = sum(float(torch.linalg.vector_norm(t, dtype=torch.float64)) ** 2 for t in moved)
        if not math.isfinite(square):
            yield "it holds NaN or infinity"
            return
        if promise.norm is not None:
            noise = promise.sigma**2 * (count + LUCK * math.sqrt(2 * count))
            most = promise.norm**2 * (1 + SLACK) ** 2 + 2 * LUCK * promise.norm * promise.sigma + noise
            if square > most:
                yield f"its length is {square**0.5:.4g}, and clip and noise leave at most {most**0.5:.4g}"
        kept = sum(int(t.count_nonzero()) for t in moved) if promise.keep is not None else 0
        if promise.keep is not None and kept > promise.keep * count + len(moved):
            yield f"{kept / count:.1%} of its entries are not zero, and {promise.keep:.1%} are stated"

    def _sample(self, moved: Sequence[Tensor]) -> Float[Tensor, "tensors m"]:
        """A part of each tensor, in one piece, always the same for this client; NaN behind a part's end."""
        g, most = torch.Generator().manual_seed(self._seed), max(FEWEST * 4, SAMPLED // max(len(moved), 1))
        found = torch.full((len(moved), most), torch.nan)
        for row, tensor in zip(found, moved, strict=True):
            start = int(torch.randint(max(1, len(tensor) - most + 1), (), generator=g))
            part = tensor[start : start + most]
            part = part[part != 0] if self.promise.keep is not None else part
            row[: len(part)] = part
        return found

    def _of_sample(self, sample: Float[Tensor, "tensors m"]) -> Iterator[str]:
        """Gaussian noise keeps entries away from zero whatever is under it (Anderson's inequality), and so it does with
        the difference of any two: along a tensor, between tensors, and between rounds."""
        if sigma := self.promise.sigma:
            twice = math.sqrt(2) * sigma
            differences = (sample[:, 1:] - sample[:, :-1], sample[:, 2:] - sample[:, :-2], sample[1:] - sample[:-1])
            if not _noisy(sample, sigma):
                yield f"noise of standard deviation {sigma:.4g} is not in every tensor"
            if not all(_noisy(each, twice) for each in differences):
                yield "its noise repeats itself within the update"
            if sample.shape == self._last.shape and not _noisy(sample - self._last, twice):
                yield "its noise is that of the round before"
        if self.promise.levels is not None:
            most = max((len(part[(part != 0) & ~part.isnan()].abs().unique()) for part in sample), default=0)
            if most > self.promise.levels:
                yield f"a tensor holds {most} different sizes, and {self.promise.levels} are stated"

    def _of_ledger(self) -> Iterator[str]:
        if self.ledger is None or self.epsilon is None or self.promise.norm is None:
            return
        with entering(self.ledger) as write:
            book = Ledger.load(self.ledger) if self.ledger.exists() else Ledger(unit=Unit.CLIENT)
            book = book.spend(noise_multiplier=self.promise.sigma / self.promise.norm, sample_rate=1.0)
            if (after := book.epsilon(self.delta)) > self.epsilon:
                yield f"with it ε would be {after:.3g}, and {self.epsilon:g} may be spent"
            else:
                write(book)


class Refused(Exception):
    """An update was not sent; says why."""


def _noisy(x: Float[Tensor, "k m"], sigma: float) -> bool:
    """Whether neither a row nor all of them hold more entries near zero than Gaussian noise alone allows, which
    whatever is under it can only lower. NaN is no entry; fewer than `FEWEST` are not judged."""
    size = x.abs() / sigma
    nearer = torch.stack([(size < length).sum(1) for length in LENGTHS], 1)
    n = (~x.isnan()).sum(1, keepdim=True)
    nearer, n = (torch.cat([each, each.sum(0, keepdim=True)]) for each in (nearer, n))
    most = n * NEARER + LUCK * (n * NEARER * (1 - NEARER)).sqrt() + 1
    return not bool(((nearer > most) & (n >= FEWEST)).any())
