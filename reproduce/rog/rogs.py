"""The semantic attack of ROG: the picture of a trained generator that is closest to a reconstruction."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from leakgauge.attacks.effort import Effort, SearchingAttack
from leakgauge.attacks.recipes import rog
from leakgauge.errors import InputError, require
from leakgauge.observation import Attack, Observation, Reconstruction
from leakgauge.task import DataSpec

Distance = Callable[[Float[Tensor, "n c h w"], Float[Tensor, "n c h w"]], Float[Tensor, " n"]]
"""A perceptual distance of raw images, differentiable in the first, e.g. an LPIPS network."""


@dataclass(frozen=True, kw_only=True)
class ROGS(SearchingAttack):
    """The generated picture closest to what `attack` recovered: sharp, plausible, and partly invented.

    Minimises ‖G(z, y) − x̂‖₂ + weight · distance(G(z, y), x̂) over the code z of each picture, Adam, from the best of
    `tries` random codes; y is the label, x̂ the reconstruction. The gradient is not looked at again, so the answer
    holds nothing of the client that x̂ does not hold: what is sharper in it is the generator's. Judge it by a
    semantic score and against a mismatched x̂, not by how real it looks.

    Source: Yue et al., *Gradient Obfuscation Gives a False Sense of Security in Federated Learning*, USENIX Security
    2023, the semantic attack (λ₁ = λ₂ = 1, Adam, 1 000 iterations) on BigGAN. Differs: a user's generator; no
    perceptual distance unless one is given, as none comes with the package.

    Attributes:
        generator: called as ``generator(codes, labels)`` with codes ``(n, *code)`` and labels ``(n,)``; answers with
            pictures in (−1, 1) of the data's shape. Eval mode.
        code: shape of one code.
    """

    generator: nn.Module
    code: tuple[int, ...]
    attack: Attack | None = None
    distance: Distance | None = None
    weight: float = 1.0
    steps: int = 1000
    tries: int = 16
    lr: float = 0.05

    def __post_init__(self) -> None:
        for name in ("steps", "tries", "lr"):
            require(getattr(self, name) > 0, name, f"is {getattr(self, name)}", "give a positive number")
        require(self.weight >= 0, "weight", f"is {self.weight}", "give a number ≥ 0")

    def run(self, observation: Observation, effort: Effort) -> Reconstruction:
        """The attack's own answer where it has none. Raises `InputError` for a generator of another shape."""
        found = effort.of(self.attack or rog(), observation)
        if found.inputs is None or found.labels is None or not found.paired:
            return found
        return replace(found, inputs=self.closest(found.inputs, found.labels, observation.task.data, effort.generator))

    def closest(
        self,
        pictures: Float[Tensor, "n c h w"],
        labels: Tensor,
        data: DataSpec,
        generator: torch.Generator,
    ) -> Float[Tensor, "n c h w"]:
        """The generator's picture next to each of `pictures`, raw."""
        module = copy.deepcopy(self.generator).eval().requires_grad_(False)
        n = len(pictures)

        def made(codes: Tensor, of: Tensor) -> Tensor:
            return cast(Tensor, data.low + data.range * (module(codes, of) + 1) / 2)

        def far(codes: Tensor, of: Tensor, to: Tensor) -> Float[Tensor, " n"]:
            shown = made(codes, of)
            away = (shown - to).flatten(1).norm(dim=1)
            return cast(Tensor, away if self.distance is None else away + self.weight * self.distance(shown, to))

        first = torch.randn((self.tries, n, *self.code), generator=generator).to(pictures)
        self._check(module, first[0], labels, data)
        with torch.no_grad():
            away = torch.stack([far(codes, labels, pictures) for codes in first])
        best = first[away.argmin(0), torch.arange(n)].clone().requires_grad_(True)
        optimiser = torch.optim.Adam([best], lr=self.lr)
        for _ in range(self.steps):
            optimiser.zero_grad()
            far(best, labels, pictures).sum().backward()
            optimiser.step()
        with torch.no_grad():
            return made(best, labels).clamp(data.low, data.high)

    def _check(self, module: nn.Module, codes: Tensor, labels: Tensor, data: DataSpec) -> None:
        asked = f"codes of shape {tuple(codes.shape)} and {len(labels)} labels"
        try:
            with torch.no_grad():
                shape = tuple(module(codes, labels).shape)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            said = (str(error).splitlines() or [""])[0]
            raise InputError(
                "generator", f"does not take {asked} ({said})", "give a class-conditional module, and its `code`"
            ) from error
        hint = f"the data have shape {data.shape}"
        require(shape == (len(codes), *data.shape), "generator", f"makes shape {shape[1:]} from {asked}", hint)
