"""What the hunt once found and what has been mended since: each must hold for good. The newest last."""

from __future__ import annotations

from hunt.relations import Pair
from hunt.scenarios import Scenario
from hunt.zoo import Net
from leakgauge.clients import SGD, FedSGD, LocalTraining, SecureAggregation
from leakgauge.clients.optimisers import CosineRate
from leakgauge.defenses import (
    DPSGD,
    QSGD,
    Clip,
    Compose,
    Defense,
    FedCDP,
    MixUp,
    NoDefense,
    Precode,
    Prune,
    Quantise,
    TopK,
    laplace,
)
from leakgauge.defenses.dp import ClipExamples
from leakgauge.defenses.representations import InstaHide

INSTAHIDE = InstaHide(k=2, largest=0.65, centre=(0.0,))
LAPLACE = laplace(sigma=1e-9)
ENCODED = Scenario(defense=InstaHide(), examples=2, seed=354573)


PLAIN, QUIET = NoDefense(), DPSGD(noise_multiplier=1e-6, norm=0.1)


def worded(net: Net, defense: Defense = PLAIN, seed: int = 0) -> Pair:
    """The plain form and the same in other words."""
    plain = Net(net.family)
    return Pair("words", Scenario(plain, defense=defense, seed=seed), Scenario(net, defense=defense, seed=seed), True)


def by_hand(scenario: Scenario) -> Pair:
    """Rows over biases, whatever the attack says."""
    return Pair("by hand", scenario, scenario, same=False)


def certificate(scenario: Scenario) -> Pair:
    """Nothing is proved that is none of the client's."""
    return Pair("certificate", scenario, scenario, same=False)


TWICE = LocalTraining(optimiser=SGD(lr=0.1), epochs=2)
DECAYED = LocalTraining(optimiser=SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.0005), epochs=2)


REGRESSIONS: dict[str, Pair] = {
    "a norm behind the first layer": by_hand(Scenario(Net(norm="layer"), examples=2, seed=666291)),
    "a search of texts": Pair("recipe", Scenario(Net("texts"), using="matching"), Scenario(Net("texts")), same=False),
    "clipped examples in another basis": worded(Net(first="cumulative sum"), ClipExamples(norm=0.05), 892930),
    "mixtures in other words": worded(Net(first="product of three"), MixUp(), 44767),
    "a scale in front of the head": worded(Net(first="inner", relu="half of both"), Prune(rate=0.1), 439041),
    "a head in another scale behind a grid": worded(Net(first="bmm", head="temperature"), QSGD(levels=32767), 670189),
    "maps put in another order": worded(Net("convolution", rows="by channel"), seed=414330),
    "encodings beyond the data's range": by_hand(ENCODED),
    "a read before a budget that is spent": by_hand(Scenario(defense=Quantise(levels=255), examples=2, seed=955287)),
    "layers clipped one by one": worded(Net(first="in place"), FedCDP(noise_multiplier=1e-6, norm=0.1), 335271),
    "float32 numbers in a wider type": Pair(
        "order",
        Scenario(Net(norm="batch"), examples=4, seed=708371),
        Scenario(Net(norm="batch"), examples=4, wide_wire=True, seed=708371),
    ),
    "all entries kept": Pair(
        "nothing",
        Scenario(Net("texts"), seed=326588),
        Scenario(Net("texts"), defense=Compose(defenses=(PLAIN, TopK(keep=1.0))), seed=326588),
        same=True,
    ),
    "rows behind a norm, nearly one example's": by_hand(Scenario(Net(norm="layer", units=32), examples=4, seed=380368)),
    "all mixtures, where others show some": by_hand(Scenario(Net(units=32), defense=MixUp(), examples=4, seed=419243)),
    "a layer in front of a bottleneck": worded(Net(first="a line on every edge"), Precode(size=16), 146198),
    "layers clipped one by one, behind a norm": Pair(
        "words",
        Scenario(Net(norm="batch"), defense=FedCDP(noise_multiplier=1e-6, norm=0.1), seed=3),
        Scenario(Net(norm="batch", head="stored transposed"), defense=FedCDP(noise_multiplier=1e-6, norm=0.1), seed=3),
    ),
    "several starts of a network that torch.func refuses": Pair(
        "recipe",
        Scenario(Net(first="if on a value"), using="naive", lacks=()),
        Scenario(Net(first="if on a value"), lacks=()),
        same=False,
    ),
    "rows in front of draws": by_hand(Scenario(defense=Precode(size=16), examples=4, seed=960356)),
    "a clip that did nothing": Pair(
        "nothing", Scenario(defense=QUIET, seed=190291), Scenario(defense=Compose((QUIET, Clip(norm=1e9))), seed=190291)
    ),
    "labels that no layer counts": worded(Net("convolution", head="log of softmax"), seed=741413),
    "a first layer in another scale behind a grid": worded(Net(first="spectral scale"), QSGD(levels=32767), 350877),
    "rows that are corners, behind top-k": by_hand(Scenario(defense=TopK(keep=0.5), examples=2, seed=944310)),
    "rows beside those that agree, in an order that nobody knows": by_hand(
        Scenario(
            client=LocalTraining(optimiser=SGD(lr=0.1), schedule=CosineRate(cosine=4), ema=0.9, batch_size=1, clip=0.1),
            defense=Precode(size=16),
            examples=4,
            seed=375552,
        )
    ),
    "one network that torch.func refuses, clipped by examples": worded(
        Net(first="an operator of a library"), QUIET, 824847
    ),
    "sums over segments, whose way back has no derivative": Pair(
        "words",
        Scenario(examples=2, seed=951030),
        Scenario(Net(first="segments of compressed rows"), examples=2, seed=951030),
    ),
    "a half behind a root": worded(Net("convolution", relu="half of one and the root of its square"), seed=271883),
    "a sign in 150 operations": worded(Net("convolution", relu="a sign from a polynomial"), seed=630223),
    "encodings beside a clip": Pair(
        "nothing",
        Scenario(Net(wide=True), defense=INSTAHIDE, examples=2, seed=431086),
        Scenario(Net(wide=True), defense=Compose((INSTAHIDE, Clip(norm=1e9))), examples=2, seed=431086),
    ),
    "encodings after several steps": by_hand(
        Scenario(
            client=LocalTraining(optimiser=SGD(lr=0.1, momentum=0.9), accumulate=2, clip=0.1),
            defense=InstaHide(),
            examples=4,
            seed=52090,
        )
    ),
    "rows of several steps that lack entries": by_hand(
        Scenario(
            Net(norm="batch", deep=True),
            client=LocalTraining(optimiser=SGD(lr=0.1), schedule=(1.0, 0.5), batch_size=1),
            defense=TopK(keep=0.5),
            examples=4,
            seed=559659,
        )
    ),
    "known decay behind a mask": by_hand(
        Scenario(
            Net(norm="after", deep=True, units=96),
            client=LocalTraining(optimiser=SGD(lr=0.1, weight_decay=5e-4)),
            defense=Prune(rate=0.1),
            examples=2,
            seed=301143,
        )
    ),
    "what was read beside a proved example of masked sums": by_hand(
        Scenario(
            Net(norm="after", units=32),
            client=SecureAggregation(cohort=2, client=FedSGD()),
            defense=Prune(rate=0.5),
            examples=2,
            seed=733885,
        )
    ),
    "tokens of mixtures of two texts, proved to be the client's": certificate(
        Scenario(Net("decoder"), defense=MixUp(), examples=2, seed=11)
    ),
    "texts behind known noise below the rounding, of Laplace too": Pair(
        "knowledge",
        Scenario(Net("decoder"), defense=LAPLACE, examples=2, lacks=("defense",), seed=428347),
        Scenario(Net("decoder"), defense=LAPLACE, examples=2, lacks=(), seed=428347),
        same=False,
    ),
    "tokens of mixtures, which are nobody's": Pair(
        "knowledge",
        Scenario(Net("decoder"), defense=MixUp(), examples=4, lacks=("defense",), seed=941369),
        Scenario(Net("decoder"), defense=MixUp(), examples=4, lacks=(), seed=941369),
        same=False,
    ),
    "a decay of weights that stand for others": Pair(
        "words",
        Scenario(client=DECAYED, seed=37765),
        Scenario(Net(first="a learned centre taken off"), client=DECAYED, seed=37765),
        same=True,
    ),
    "three examples read and a mixture, beside a search": Pair(
        "recipe",
        Scenario(Net(units=32), client=TWICE, examples=4, using="closed-form", seed=965714),
        Scenario(Net(units=32), client=TWICE, examples=4, seed=965714),
        same=False,
    ),
    "another number type inside": Pair(
        "counts",
        Scenario(Net(deep=True), seed=129656),
        Scenario(Net(first="traced to a graph", relu="in double, and rounded back", deep=True), seed=129656),
        same=True,
    ),
    "outputs but for what the loss does not see": Pair(
        "words",
        Scenario(Net(norm="batch"), defense=ClipExamples(norm=0.05), examples=4, seed=91531),
        Scenario(
            Net(head="squared distances to means, with a handicap", norm="batch"),
            defense=ClipExamples(norm=0.05),
            examples=4,
            seed=91531,
        ),
        same=True,
    ),
}
