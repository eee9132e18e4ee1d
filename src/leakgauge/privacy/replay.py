"""Clip-and-noise code on neighbouring updates with the same random numbers: what moves, over the noise, and the line
that lets it. No statistics: what convicts is a pair of data sets that anybody can run again."""

import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from leakgauge.errors import FOREIGN, InputError, require, said

NORM, ROWS = 10.0, 8
"""Length of updates that are to be clipped, in clips; and how many a call gets that takes any number."""

ROUNDING = 1e-3  # share of a value that rounding may change

SEED, OTHER = 11, 12
LIBRARIES = (str(Path(torch.__file__).parent), str(Path(np.__file__).parent), __file__)
Scale = Callable[[int], float]


@dataclass(frozen=True)
class Replayed:
    """What two runs on neighbouring updates show."""

    fault: str = ""  # what contradicts the claim; empty where nothing was found, which is no proof.
    line: str = ""  # of the code that lets it: file, number, text
    # noise over the furthest move that was found; `None` where it was not measured.
    noise_multiplier: float | None = None
    unjudged: str = ""

    def sentence(self, stated: float) -> str:
        if self.fault:
            return f"The stated noise multiplier {stated:.4g} is contradicted: {self.fault}."
        if self.unjudged:
            return f"This replay says nothing: {self.unjudged}. Leave out --replay."
        found = f"{self.noise_multiplier or 0.0:.4g} was found"
        return f"The stated noise multiplier {stated:.4g} is not contradicted: {found}. That is no proof."


class _Run(TorchDispatchMode):
    """One call: its Gaussian draws, which are kept, and scaled about their means; and what the lines of a file made."""

    def __init__(self, scale: Scale, file: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scale, self.file, self.out = scale, file, torch.empty(0)
        self.drawn: list[tuple[str, Tensor]] = []
        self.steps: list[tuple[str, Tensor]] = []
        self._last: dict[int, tuple[int, Mapping[str, object]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        random = torch.Tag.nondeterministic_seeded in func.tags
        if not random or not func.overloadpacket.__name__.startswith(("randn", "normal")):
            return func(*args, **kwargs)
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        mean, std = (torch.as_tensor(given.get(k, v)).clone() for k, v in (("mean", 0.0), ("std", 1.0)))
        out = func(*args, **kwargs)
        return out.copy_(self.kept(out, mean, std))

    def kept(self, out: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """A draw as the code gets it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
            frame = frame.f_back
        line = "" if frame is None else _line(frame.f_code.co_filename, frame.f_lineno)
        self.drawn.append((line, ((out - mean) / std).flatten().double()))
        return mean + self.scale(len(self.drawn) - 1) * (out - mean)

    def traced(self, frame: FrameType, event: str, value: Any) -> Any:
        """Keeps numbers and arrays that a name got or a function returned, with the line that made them."""
        if frame.f_code.co_filename != self.file:
            return None
        if event == "call":  # what it is given was made where it is called
            caller = frame.f_back if frame.f_back and frame.f_back.f_code.co_filename == self.file else frame
            self._last[id(frame)] = caller.f_lineno, {}
            return self.traced
        number, before = self._last[id(frame)]
        made = frame.f_locals | ({"return": value} if event == "return" else {})
        for name, one in made.items():
            if before.get(name) is not one and isinstance(one, int | float | Tensor | np.ndarray | np.number):
                self.steps.append((_line(self.file, number), torch.as_tensor(one).detach().double().clone()))
        self._last[id(frame)] = frame.f_lineno, dict(made)
        return self.traced

    def first(self, holds: Callable[[Tensor], bool]) -> str:
        """The line that first made a value of which something holds; else the last."""
        return next((line for line, value in self.steps if holds(value)), self.steps[-1][0] if self.steps else "")


class _Numbers(np.random.Generator):
    """NumPy's generator, whose Gaussian draws are kept alike."""

    run: _Run

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        drawn = super().normal(loc, scale, size)
        return self.run.kept(*(torch.as_tensor(np.asarray(v)) for v in (drawn, loc, scale))).numpy()

    def standard_normal(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return self.normal(size=size)


def _line(file: str, number: int) -> str:
    return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}"


@dataclass(frozen=True)
class Code:
    """Code under test, ``(updates (n, d), generator) → (d,)``, of PyTorch tensors or NumPy arrays."""

    function: Callable[..., Any]
    numpy: bool = False

    def run(self, rows: Tensor, seed: int = SEED, scale: Scale = lambda _: 1.0, *, trace: bool = False) -> _Run:
        """One call with held randomness."""
        run = _Run(scale, getattr(getattr(self.function, "__code__", None), "co_filename", ""))
        numbers = _Numbers(np.random.PCG64(seed))
        numbers.run = run
        given = (rows.numpy().copy(), numbers) if self.numpy else (rows.clone(), torch.Generator().manual_seed(seed))
        before = sys.gettrace()
        try:
            with torch.random.fork_rng(devices=[]), np.errstate(all="ignore"), run:
                torch.manual_seed(seed)
                sys.settrace(run.traced if trace else before)
                made = self.function(*given)
        except FOREIGN as error:
            hint = "it is called with updates (n, d) and a generator, and returns d numbers"
            raise InputError("path", f"raises {said(error)}", hint) from error
        finally:
            sys.settrace(before)
        run.out = torch.as_tensor(made).detach().double()
        shape = tuple(run.out.shape)
        problem = f"returned shape {shape} for {rows.shape[1]} coordinates"
        require(shape == rows.shape[1:], "path", problem, "return the noisy sum or mean")
        return run

    def bare(self, rows: Tensor, seed: int = SEED) -> Tensor:
        return self.run(rows, seed, lambda _: 0.0).out


def neighbours(n: int, size: int, clip: float) -> dict[str, Float[Tensor, "n d"]]:
    """Updates of which the first is the one that is left out, by what they are like."""
    ways = F.normalize(torch.randn(n, size, generator=torch.Generator().manual_seed(0)), dim=1)
    first, same = torch.eye(n, 1), ways[:1].expand(n, size)
    long, against = NORM * clip, clip * (NORM * first - (1 - first))
    made = {"short": 0.1 * clip * ways, "long": long * ways, "alike": long * same, "against": against * same}
    alone = {"alone": long, "huge": 1e30, "tiny": 1e-30, "zero": 0.0}
    return made | {name: length * first * ways for name, length in alone.items()}


def replay(
    code: Code, *, noise_multiplier: float, clip: float, size: int = 1000, updates: int | None = None
) -> Replayed:
    """Whether one update, there or replaced by zeros, moves what is sent by at most 1/z of the noise that is added, z
    the stated `noise_multiplier`. `updates`: of a call, where everybody knows their number; it must not matter
    otherwise."""
    sets = neighbours(updates or ROWS, size, clip)
    pairs = {name: (rows, rows * (1 - torch.eye(len(rows), 1))) for name, rows in sets.items()}
    for name, both in pairs.items():
        for rows in both:
            if not bool(code.run(rows).out.isfinite().all()):
                line = code.run(rows, trace=True).first(lambda v: bool(v.isnan().any()))
                return Replayed(f"finite updates ({name}) leave NaN or infinity", line)
    short, less = sets["short"], pairs["long"][1]
    plain = code.run(short, trace=True)
    if torch.equal(plain.out, code.run(short, OTHER).out):
        line = plain.drawn[0][0] if plain.drawn else plain.first(lambda _: False)
        return Replayed("two calls on the same updates give the same: no noise is drawn anew", line)
    if not torch.equal(plain.out, code.run(short).out):
        return Replayed(unjudged="it draws from a generator that it was not given: no call can be repeated")
    for name, both in pairs.items():
        one, other = ([(line, len(values)) for line, values in code.run(rows).drawn] for rows in both)
        if one != other:
            odd = [a for a in (*one, *other) if one.count(a) != other.count(a)]
            return Replayed(f"whether noise is drawn depends on one update ({name})", (odd or one)[0][0])
    counted = code.run(less, trace=True), code.run(less[1:], trace=True)
    if updates is None and not _near(counted[0].out, counted[1].out):
        steps = zip(*(run.steps for run in counted), strict=False)
        line = next((k for (k, a), (_, b) in steps if a.shape == b.shape and not _near(a, b)), counted[0].steps[-1][0])
        return Replayed("it depends on how many updates there are: give --updates if everybody knows that", line)
    return _measured(code, pairs, plain, noise_multiplier)


def _measured(code: Code, pairs: dict[str, tuple[Tensor, Tensor]], plain: _Run, stated: float) -> Replayed:
    short = pairs["short"][0]
    bare = {name: (code.bare(rows), code.bare(less)) for name, (rows, less) in pairs.items()}
    if not _near(bare["short"][0], code.bare(short, OTHER)):
        return Replayed(unjudged="it draws more than Gaussian noise")
    for name, (rows, less) in pairs.items():
        sent, other = bare[name]
        noise, most = code.run(rows).out - sent, 1e-5 * float(sent.abs().max())
        if not _near(code.run(rows, scale=lambda _: 2.0).out - sent, 2 * noise, most):
            return Replayed(unjudged="what it sends is not a sum and noise: something acts on both together")
        if not _near(noise, code.run(less).out - other, most):
            return Replayed(f"the noise changes with one update ({name})", plain.drawn[0][0])
    sigma = _sigma(code, short, bare["short"][0])
    if sigma is None:
        return Replayed(unjudged="its noise is not drawn entry by entry")
    moves = {name: sent - other for name, (sent, other) in bare.items()}
    least = {name: 1e-6 * sent.abs().max() for name, (sent, _) in bare.items()}
    over = {k: float(torch.where(m.abs() > least[k], m / sigma, 0.0).norm()) for k, m in moves.items()}
    name = max(over, key=lambda k: over[k])
    found = 1 / over[name] if over[name] else float("inf")
    if found >= stated * (1 - ROUNDING):
        return Replayed(noise_multiplier=found)
    clips = 0.1 * float(moves[name].norm() / moves["short"].norm())  # a short update is not clipped
    if clips > 1 + ROUNDING:
        out = (run := code.run(pairs[name][0], scale=lambda _: 0.0, trace=True)).out
        line = run.first(lambda v: v.shape == out.shape and abs(float(F.cosine_similarity(v, out, 0))) > 1 - 1e-6)
        return Replayed(f"one update moves the sum by {clips:.3g} clips ({name})", line, found)
    words = f"the noise is {found:.3g} times what one update moves, and {stated:.3g} is stated"
    return Replayed(words, plain.drawn[0][0], found)


def _sigma(code: Code, rows: Tensor, bare: Tensor) -> Tensor | None:
    """Standard deviation of the noise on each entry; `None` where a draw is not of one entry each."""
    drawn, square = len(code.run(rows).drawn), torch.zeros_like(bare)
    for number in range(drawn):
        found = []
        for seed in (SEED, OTHER):
            run = code.run(rows, seed, lambda i, number=number: float(i == number))  # type: ignore[misc]
            part, values = run.out - bare, run.drawn[number][1]
            where = torch.ones_like(part, dtype=torch.bool) if len(values) == len(part) else part != 0
            if int(where.sum()) not in (0, len(values)):
                return None
            found.append(torch.zeros_like(bare).masked_scatter(where, part[where].abs() / values[: where.sum()].abs()))
        if not _near(found[0], found[1], 1e-2 * float(found[0].max())):
            return None
        square += found[0].square()
    return square.sqrt()


def _near(a: Tensor, b: Tensor, most: float = 0.0) -> bool:
    return float((a - b).abs().max()) <= 0.1 * ROUNDING * max(float(a.abs().max()), float(b.abs().max())) + most
