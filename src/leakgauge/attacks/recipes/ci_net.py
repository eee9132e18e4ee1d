"""CI-Net: an over-parameterised convolutional network in place of the pixels."""

from __future__ import annotations

from leakgauge.attacks.information import IfInformative
from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.matching import Adam, Cosine, Matching
from leakgauge.attacks.matching.generator import Generator, IntoRange, Output
from leakgauge.models.generators import ByPixels, CINetGenerator, Wide
from leakgauge.registry import ATTACKS


@ATTACKS.register("ci-net", needs="example_count; pictures of at most 256 px; a client in train mode for ResNets")
def ci_net(
    *,
    width: int | None = None,
    steps: int = 5000,
    lr: float = 1e-3,
    output: Output = IntoRange(),  # noqa: B008 - frozen
    restarts: int = 1,
) -> IfInformative:
    """CI-Net: the weights of an untrained generator, global cosine (Eq. 3), signed Adam without decay, no regulariser.

    Source: CI-Net (convolutional inversion network) as its published code runs it; the paper leaves network,
    optimiser and steps to a missing appendix. `width` is by the code's rule unless given.
    Differs: the generator's (−1, 1) is mapped into the data's range (theirs, `AsItIs`, is far slower: see
    `IntoRange`); asks first whether the update carries image information at all; the best point by distance is
    kept, not the last; labels that are not known are counted from the last layer (the paper assumes them).
    A ResNet in eval mode leaves float32 nothing to match, see `image_information`: the paper's client must train
    in train mode, which it does not say.
    """
    network = CINetGenerator(width=ByPixels() if width is None else Wide(width))
    matching = Matching(
        objective=Cosine(),
        canvas=Generator(network=network, output=output),
        minimiser=Adam(steps=steps, lr=lr, signed=True, decay=()),
        labels=CountsFromLastLayer(),
        restarts=restarts,
    )
    return IfInformative(attack=matching)
