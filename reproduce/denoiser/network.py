"""ROG's denoiser, a network from pictures to pictures."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from leakgauge.errors import InputError, require
from leakgauge.models.weights import load_weights, read_model

MULTIPLE = 8  # three halvings: other sizes are padded to a multiple of this and cut back


class DecoderNorm(nn.Module):
    """BatchNorm whose scale and shift depend on the label when there are `classes`; else plain BatchNorm.

    The gain and shift of all classes start at 1 and 0.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.norm = nn.BatchNorm2d(channels, affine=not classes)
        if classes:
            self.scale = nn.Parameter(torch.ones(classes, channels))
            self.shift = nn.Parameter(torch.zeros(classes, channels))

    def forward(self, x: Float[Tensor, "n c h w"], labels: Int[Tensor, " n"] | None) -> Float[Tensor, "n c h w"]:
        normal: Tensor = self.norm(x)
        if not self.classes or labels is None:
            return normal
        return normal * self.scale[labels, :, None, None] + self.shift[labels, :, None, None]


class DenoisingUNet(nn.Module):
    """Pictures in [0, 1] → pictures in [0, 1] of the same size.

    Reflection of 2 px, 5×5 convolution to `width` channels; three 3×3 convolutions of stride 2 to 2, 4 and 8 times
    that, each with InstanceNorm and ReLU; then three times a transposed 4×4 convolution of stride 2, norm, ReLU, the
    skip connection, and a 3×3 convolution, norm, ReLU. The last skip connection is the input picture itself. A 3×3
    convolution to three channels, and (tanh + 1)/2.

    Source: ROG, section 4 and its published code, where the width is 64. Differs:

    * the published code computes the label-conditional normalisation of the decoder and then discards it, so that its
      "conditional" network does not see the label. Here, with `classes`, it is used.
    * The decoder's norm is BatchNorm, whose statistics are fixed after training. InstanceNorm there would give
      every channel of a flat picture unit variance, and texture with it.
    * The paper speaks of four halvings; its code, and this, makes three.
    * Sizes that are no multiple of 8 are padded by repeating the edge, and cut back.

    Attributes:
        width: channels at full size. 5 822 339 weights at 64, 1 458 115 at 32, 821 139 at 24.
        classes: number of labels of the conditional twin; 0 for the label-free network.
    """

    def __init__(self, *, width: int = 32, classes: int = 0) -> None:
        super().__init__()
        require(width > 0, "width", f"is {width}", "give a positive number of channels")
        require(classes >= 0, "classes", f"is {classes}", "give the number of labels, 0 for none")
        self.width, self.classes = width, classes
        self.first = nn.Conv2d(3, width, 5)
        self.down = nn.ModuleList(
            nn.Conv2d(width * 2**k, width * 2 ** (k + 1), 3, stride=2, padding=1, bias=False) for k in range(3)
        )
        self.up, self.up_norm, self.mix, self.mix_norm = (nn.ModuleList() for _ in range(4))
        for k in (2, 1, 0):
            after = width * 2**k
            self.up.append(nn.ConvTranspose2d(2 * after, after, 4, stride=2, padding=1, bias=False))
            self.up_norm.append(DecoderNorm(after, classes))
            self.mix.append(nn.Conv2d(after + (after if k else 3), after, 3, padding=1, bias=False))
            self.mix_norm.append(DecoderNorm(after, classes))
        self.picture = nn.Conv2d(width, 3, 3, padding=1)

    def forward(
        self, images: Float[Tensor, "n 3 h w"], labels: Int[Tensor, " n"] | None = None
    ) -> Float[Tensor, "n 3 h w"]:
        require(
            (labels is not None) == bool(self.classes),
            "labels",
            f"{'are missing' if labels is None else 'are given'} and the denoiser has {self.classes} classes",
            "give labels to a conditional denoiser, and to no other",
        )
        height, width = images.shape[-2:]
        whole = F.pad(images, (0, -width % MULTIPLE, 0, -height % MULTIPLE), mode="replicate")
        x = self.first(F.pad(2 * whole - 1, (2,) * 4, mode="reflect")).relu()
        skips = [whole]
        for k, layer in enumerate(self.down):
            # Over each picture's own channels: InstanceNorm, as a GroupNorm, which is faster in this memory layout.
            x = layer(x)
            x = F.group_norm(x, x.shape[1]).relu()
            if k < 2:
                skips.append(x)
        for up, up_norm, mix, mix_norm in zip(self.up, self.up_norm, self.mix, self.mix_norm, strict=True):
            x = up_norm(up(x), labels).relu()
            x = mix_norm(mix(torch.cat([x, skips.pop()], 1)), labels).relu()
        made: Tensor = (self.picture(x).float().tanh() + 1) / 2
        return made[..., :height, :width]


def read_denoiser(path: Path) -> DenoisingUNet:
    """The network of a weights file, in eval mode and float32; width and classes are those of the tensors. Raises
    `InputError`: the file cannot be read, or is no denoiser.
    """
    state = read_model(path, "denoiser")
    first, scale = state.get("first.weight"), state.get("up_norm.0.scale")
    if first is None or first.ndim != 4:
        raise InputError("denoiser", f"{path.name} holds no denoiser", "give one of the packaged files")
    network = DenoisingUNet(width=len(first), classes=0 if scale is None else len(scale))
    load_weights(network, path, "denoiser")
    return network.eval()
