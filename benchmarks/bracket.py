"""How well a batch can be estimated from a noisy update: a bracket around a linearised bound.

`python benchmarks/bracket.py` brackets photo 0 of the samples on a LeNet, for two sizes of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.stats import t as student
from torch import Tensor
from torch.func import jvp, vjp, vmap

from leakgauge.clients import FedSGD, Protocol, raw_update
from leakgauge.data import Samples, spec
from leakgauge.defenses import NoDefense
from leakgauge.draws import Draws
from leakgauge.errors import InputError, require
from leakgauge.models import lenet
from leakgauge.task import Batch, Task
from leakgauge.tensors import Tensors, forward_mode

PRIOR = 0.25
"""Standard deviation of a pixel before the update is seen, in shares of the data's range: that of photographs."""

WIDE = 1.0
"""Decibels between the ends beyond which a bracket says nothing."""

CONFIDENCE = 0.9999
"""Confidence of the ends, where random probes stand for all directions."""

HELD = 60_000_000
"""Numbers that are held of all Krylov vectors: 480 MB."""

WHOLE = 8
"""Times as many directions as probes are taken one by one."""

EXHAUSTED = 1e-13
"""Share of the largest singular value below which a direction is the rounding of those before it."""


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """Ends of the mean squared error of a pixel, in squared units of the data.

    Attributes:
        low, high: of the error.
        range: of the data, the peak of PSNR.
        prior: the error without the update.
        probes, steps: random directions (all there are where `whole`), and Krylov steps of each.
    """

    low: float
    high: float
    range: float
    prior: float
    probes: int
    steps: int
    whole: bool

    @property
    def psnr(self) -> tuple[float, float]:
        """Lower and upper end in dB: the error's upper and lower one."""
        return self._decibels(self.high), self._decibels(self.low)

    @property
    def prior_psnr(self) -> float:
        """PSNR of the prior's mean, a grey picture, in dB."""
        return self._decibels(self.prior)

    @property
    def refused(self) -> bool:
        """Whether it is too wide to say anything."""
        low, high = self.psnr
        return not high - low <= WIDE

    def says(self, share: float) -> list[str]:
        """Lines for a reader, for noise of a share of the update's norm."""
        low, high = self.psnr
        start = f"under noise of {share:g} of the update, to first order, the best estimate has"
        if self.refused:
            return [f"{start} between {low:.1f} and {high:.1f} dB: too wide to say anything; audit it"]
        grey = f"  (a grey picture {self.prior_psnr:.1f}; an attacker who knows pictures well may do better)"
        return [f"{start} {low:.1f} to {high:.1f} dB", grey]

    def _decibels(self, error: float) -> float:
        return 10 * math.log10(self.range**2 / max(error, 1e-30))


def error_bracket(
    task: Task,
    batch: Batch,
    noise: Tensors,
    generator: torch.Generator,
    *,
    protocol: Protocol | None = None,
    prior: float = PRIOR,
    probes: int = 16,
    steps: int = 120,
) -> Bracket:
    """Around (1/d)·tr[(JᵀJ/σ² + I/τ²)⁻¹], the error of the best estimate where the update is linear near the batch.

    J is the Jacobian of the update with respect to the d numbers of the batch, at the batch; never formed. From each
    probe, Golub–Kahan steps make a bidiagonal B; as 1/(λ + 1/τ²) is completely monotone, Gauss quadrature on BᵀB
    bounds the probe's part from below, and Gauss–Radau with a node at 0 (B with one more column) from above. Working
    on J, not on JᵀJ, keeps small singular values. The trace is the mean over random signs, with Student's interval
    at `CONFIDENCE`; over all unit vectors where there are at most `WHOLE` times as many as `probes`.

    Source: Golub and Meurant, *Matrices, Moments and Quadrature*, for the bounds; the bound itself is van Trees'.
    Limits: local (a ReLU network is linear in the batch's own piece only); labels are known; a prior that knows
    pictures better than a Gaussian one beats it, so it is no guarantee.

    Args:
        noise: σ of the update's tensors, name → scalar or a tensor of its shape; zero is refused, as then any full
            rank would fix the batch.
        prior: τ, in shares of the data's range.

    Raises:
        InputError: a noise that is not positive; the model draws at random; no examples.
    """
    require(len(batch) > 0, "batch", "is empty", "give at least one example")
    require(prior > 0, "prior", f"is {prior}", "give a positive share of the range")
    if task.stochastic:
        raise InputError("model", "drops units at random, so its update is no function of the batch", "use mode: eval")
    positive = all(bool((sigma > 0).all()) for sigma in noise.values())
    require(positive, "noise", "is not positive everywhere", "assume the rounding of the wire, e.g. 1e-7 of each entry")
    task = task.to(torch.empty((), dtype=torch.float64))
    draws, tau = Draws.sample(generator), prior * task.data.range

    def whitened(flat: Tensor) -> Tensor:
        sent = raw_update(
            task, protocol or FedSGD(), Batch(flat.view(batch.inputs.shape), batch.labels), draws, NoDefense()
        )
        return torch.cat([(tau * value / noise[name].double()).flatten() for name, value in sent[0].items()])

    point = batch.inputs.double().flatten()
    d = len(point)
    whole = d <= WHOLE * probes
    signs = torch.randint(2, (probes, d), generator=generator).double() * 2 - 1
    starts = torch.eye(d, dtype=torch.float64) if whole else signs / d**0.5
    group = max(1, HELD // (steps * max(sum(v.numel() for v in task.parameters.values()), d)))
    found = [ends for some in starts.split(group) for ends in _ends(whitened, point, some, steps)]
    ends = torch.tensor(found, dtype=torch.float64)
    low, high = ends.mean(0).tolist()
    if not whole:
        reach = float(student.ppf((1 + CONFIDENCE) / 2, len(ends) - 1))
        off = reach * ends.std(0) / len(ends) ** 0.5
        low, high = low - float(off[0]), high + float(off[1])
    return Bracket(
        low=tau**2 * max(low, 0.0),
        high=tau**2 * min(high, 1.0),
        range=task.data.range,
        prior=tau**2,
        probes=len(starts),
        steps=steps,
        whole=whole,
    )


def relative_noise(task: Task, batch: Batch, share: float, generator: torch.Generator) -> Tensors:
    """σ of noise whose norm is `share` of the batch's own update's, as the defence `noise: {relative: …}` adds it."""
    require(share > 0, "noise", f"is {share}", "give a positive share of the update's norm")
    double, batch = task.to(torch.empty((), dtype=torch.float64)), Batch(batch.inputs.double(), batch.labels)
    update = raw_update(double, FedSGD(), batch, Draws.sample(generator), NoDefense())[0]
    norm = sum(float(v.detach().double().square().sum()) for v in update.values()) ** 0.5
    sigma = share * norm / sum(v.numel() for v in update.values()) ** 0.5
    return {name: torch.tensor(sigma, dtype=torch.float64) for name in update}


def _ends(
    function: Callable[[Tensor], Tensor], point: Tensor, starts: Float[Tensor, "p d"], steps: int
) -> list[tuple[float, float]]:
    """Bounds of vᵀ(JᵀJ + I)⁻¹v for unit vectors v, J of `function` at `point`."""
    pull = vmap(vjp(function, point)[1])
    push = vmap(lambda direction: jvp(function, (point,), (direction,))[1])
    lefts: list[Tensor] = []
    rights = [starts]
    count = len(starts)
    alphas: list[list[float]] = [[] for _ in range(count)]
    betas: list[list[float]] = [[] for _ in range(count)]
    live, largest = [True] * count, torch.zeros(count, dtype=torch.float64)

    def kept(vectors: Tensor, into: list[list[float]]) -> Tensor:
        """Unit vectors and their lengths; one that is only rounding ends its run: nothing is left in the span."""
        size = vectors.norm(dim=1)
        largest.copy_(largest.maximum(size))
        for index in range(count):
            live[index] = live[index] and float(size[index]) > EXHAUSTED * float(largest[index])
            if live[index]:
                into[index].append(float(size[index]))
        going = torch.tensor(live)[:, None]
        return torch.where(going, vectors / size.clamp_min(1e-300)[:, None], 0.0)

    with forward_mode():
        for _ in range(min(steps, len(point))):
            lefts.append(kept(_orthogonal(push(rights[-1]).detach(), lefts), alphas))
            if not any(live):
                break
            rights.append(kept(_orthogonal(pull(lefts[-1])[0].detach(), rights), betas))
            if not any(live):
                break
    ends = []
    for index in range(count):
        own, other = alphas[index], betas[index]
        upper = _quadrature(own, other)
        # A run that came to its end is exact at both ends.
        ends.append((_quadrature(own, other[: len(own) - 1]) if live[index] else upper, upper))
    return ends


def _orthogonal(vectors: Float[Tensor, "p n"], basis: list[Tensor]) -> Float[Tensor, "p n"]:
    """Each without its parts along its own basis, twice: once loses digits."""
    if basis:
        matrix = torch.stack(basis, 1)
        for _ in range(2):
            along = torch.einsum("pkn,pn->pk", matrix, vectors)
            vectors = vectors - torch.einsum("pkn,pk->pn", matrix, along)
    return vectors


def _quadrature(alphas: list[float], betas: list[float]) -> float:
    """e₁ᵀ(BᵀB + I)⁻¹e₁ for the upper bidiagonal B: square, or with one more column where there are as many `betas`."""
    k = len(alphas)
    b = torch.zeros((k, max(k, len(betas) + 1)), dtype=torch.float64)
    for i, alpha in enumerate(alphas):
        b[i, i] = alpha
    for i, beta in enumerate(betas):
        b[i, i + 1] = beta
    if not k:
        return 1.0
    _, sizes, right = torch.linalg.svd(b, full_matrices=True)
    weights = right[:, 0].square()
    values = torch.zeros(b.shape[1], dtype=torch.float64)
    values[: len(sizes)] = sizes.square()
    return float((weights / (1 + values)).sum())


def main() -> None:
    """Prints the bracket for noise of .01 and .1 of the update's norm."""
    source = Samples(size=16)
    torch.manual_seed(0)
    task, batch = Task.of(lenet(size=16), spec(source)), source.read([0])
    for share in (0.01, 0.1):
        generator = torch.Generator().manual_seed(0)
        found = error_bracket(task, batch, relative_noise(task, batch, share, generator), generator)
        print(*found.says(share), sep="\n")


if __name__ == "__main__":
    main()
