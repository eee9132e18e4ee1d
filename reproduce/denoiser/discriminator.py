"""The networks that the denoiser's training needs beside it: its judge, and its conditional twin."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from leakgauge.errors import require
from reproduce.denoiser.network import DenoisingUNet


def conditional(network: DenoisingUNet, classes: int) -> DenoisingUNet:
    """A conditional twin that, before it is trained, answers as the label-free `network` whatever the label.

    Raises:
        InputError: the network is conditional already.
    """
    require(not network.classes, "start", "is conditional already", "start from a label-free denoiser")
    twin = DenoisingUNet(width=network.width, classes=classes)
    state = network.state_dict()
    for name in [name for name in state if "_norm." in name and name.rpartition(".")[2] in ("weight", "bias")]:
        part = "scale" if name.endswith("weight") else "shift"
        state[name.replace("norm.weight", part).replace("norm.bias", part)] = state.pop(name).repeat(classes, 1)
    twin.load_state_dict(state)
    return twin


class PatchDiscriminator(nn.Module):
    """Whether each patch of a picture in [0, 1] is real, as logits; `probability` is their sigmoid.

    Three 4×4 convolutions of stride 2 with spectral norm to 64, 128 and 256 channels, BatchNorm on all but the
    first, leaky ReLU of slope .2, and a 3×3 convolution to one channel. Each answer sees 38 px.

    Source: ROG's published code (the channels, norms and sigmoid). The kernels' sizes are PatchGAN's (Isola et al.,
    2017).
    """

    def __init__(self, channels: tuple[int, ...] = (64, 128, 256)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for k, after in enumerate(channels):
            layers.append(spectral_norm(nn.Conv2d(before, after, 4, stride=2, padding=1, bias=k == 0)))
            if k:
                layers.append(nn.BatchNorm2d(after))
            layers.append(nn.LeakyReLU(0.2))
            before = after
        self.layers = nn.Sequential(*layers, nn.Conv2d(before, 1, 3, padding=1))

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 p q"]:
        logits: Tensor = self.layers(2 * images - 1)
        return logits.float()

    def probability(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1 p q"]:
        """Of being real, a patch."""
        logits: Tensor = self(images)
        return logits.sigmoid()
