"""The windows of a convolution over any number of axes."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Windows"]


@dataclass(frozen=True)
class Windows:
    """What each place of a convolution reads, a linear map of the tensor that it slides over.

    Attributes:
        kernel, stride, padding, dilation: one number for each axis that it slides along.
        places: how many places along each of them; empty for as many as there is room for.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    places: tuple[int, ...] = ()

    def over(self, places: tuple[int, ...]) -> Windows:
        """The same with so many places."""
        return Windows(self.kernel, self.stride, self.padding, self.dilation, places)

    def __call__(self, hidden: Float[Tensor, "n channels *size"]) -> Float[Tensor, "n channels *kernel_and_places"]:
        """Every place's window: axes of the example, the channel, the kernel's and then those of the places."""
        axes = len(self.kernel)
        found = F.pad(hidden, [p for pad in reversed(self.padding) for p in (pad, pad)])
        for k in range(axes):
            length = self.dilation[k] * (self.kernel[k] - 1) + 1
            found = found.unfold(2 + k, length, self.stride[k])[..., :: self.dilation[k]]
            if self.places:
                found = found.narrow(2 + k, 0, self.places[k])
        order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
        return found.permute(order)
