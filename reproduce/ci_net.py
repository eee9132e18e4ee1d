"""CI-Net (convolutional inversion network): its numbered tables and figures, in a setting for two cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from leakgauge.attacks.matching import LBFGS, Adam, Generator, Normal, Pixels, SquaredL2, TotalVariation
from leakgauge.attacks.matching.generator import AsItIs
from leakgauge.models import two_convolutions
from leakgauge.models.generators import CINetGenerator, DCGANGenerator, DeepImagePrior, Wide, ZeroFill
from reproduce import ci_net_demonstrations as demonstrations
from reproduce.ci_net_runs import SEEDS, Attempt, Sheet, Target
from reproduce.item import Inputs, Item, State
from reproduce.rows import Row

CI_NET = Attempt()
INVERTING = Attempt(
    name="Inverting Gradients",
    canvas=Pixels(first=Normal()),
    prior=TotalVariation(1e-2),
    minimiser=lambda n: Adam(steps=n),
)
DLG = Attempt(
    name="DLG", canvas=Pixels(first=Normal(), box=False), objective=SquaredL2(), minimiser=lambda n: LBFGS(steps=n),
    stepwise=False,
)  # fmt: skip
DCGAN = Attempt(name="DCGAN", canvas=Generator(network=DCGANGenerator()))
GENERATED = CINetGenerator(width=Wide(32))
PARTS = (
    Attempt(name="CI-Net, Eq. 3 (cosine)"),
    Attempt(name="CI-Net, Eq. 2 (squared distance)", objective=SquaredL2()),
    Attempt(
        name="CI-Net, no interpolation",
        canvas=Generator(network=CINetGenerator(width=Wide(32), enlarge=ZeroFill())),
    ),
    Attempt(name="plain deep image prior", canvas=Generator(network=DeepImagePrior())),
    Attempt(name="CI-Net, output (−1, 1) as in the release", canvas=Generator(network=GENERATED, output=AsItIs())),
)


def sheet(item: str, inputs: Inputs) -> Sheet:
    """Of an item."""
    return Sheet(item, inputs.data, inputs.say)


def table1(inputs: Inputs) -> Iterator[Row]:
    """Quick: CI-Net alone, 600 steps, three seeds, the first to 2 000. Full: 2 000 for all, and the baselines."""
    page, target = sheet("table1", inputs), Target()
    yield from page.grey(target)
    if inputs.quick:
        yield from page.rows(target, CI_NET, SEEDS, (200, 400, 600), longer=(1000, 2000))
        return
    yield from page.rows(target, CI_NET, SEEDS, (200, 400, 600, 1000, 2000))
    for attempt in (INVERTING, DLG):
        yield from page.rows(target, attempt, SEEDS, (2000,), doubt="labels given, so that iDLG is DLG")


def figure1(inputs: Inputs) -> Iterator[Row]:
    """One seed; the full run takes larger batches."""
    for examples in (2, 4, 8) if inputs.quick else (4, 8, 16, 32, 64):
        target = Target(name=f"ResNet-18 of width 16, batch {examples}", examples=examples)
        yield from sheet("figure1", inputs).rows(target, CI_NET, SEEDS[:1], (200 if inputs.quick else 2000,))


def figure2(inputs: Inputs) -> Iterator[Row]:
    """Both generators after equal steps."""
    for attempt in (DCGAN, CI_NET):
        steps = 300 if inputs.quick else 2000
        yield from sheet("figure2", inputs).rows(Target(), attempt, SEEDS[:1] if inputs.quick else SEEDS, (steps,))


def figure3(inputs: Inputs) -> Iterator[Row]:
    """Four images and four of uniform noise."""
    page, steps = sheet("figure3", inputs), 300 if inputs.quick else 2000
    for target in (Target(name="4 images"), Target(name="4 images of noise", noise=True)):
        yield from page.rows(target, CI_NET, SEEDS[:1] if inputs.quick else SEEDS, (steps,))


def figure4(inputs: Inputs) -> Iterator[Row]:
    """Two convolutions and a linear layer with sigmoid; one seed when quick."""
    target = Target(name="two convolutions, batch 4", build=two_convolutions)
    for width in (8, 16, 32, 64) if inputs.quick else (8, 16, 32, 64, 128, 512):
        attempt = Attempt(name=f"CI-Net, {width} channels", canvas=Generator(network=CINetGenerator(width=Wide(width))))
        steps = 300 if inputs.quick else 2000
        yield from sheet("figure4", inputs).rows(target, attempt, SEEDS[:1] if inputs.quick else SEEDS, (steps,))


def parts(inputs: Inputs) -> Iterator[Row]:
    """The attack with one part exchanged."""
    for attempt in PARTS:
        steps = (200,) if inputs.quick else (600, 2000)
        yield from sheet("parts", inputs).rows(Target(), attempt, SEEDS[:1] if inputs.quick else SEEDS, steps)


REDUCED = (
    "ResNet-18 of width 16 with sigmoid, train mode, labels given, generator of 32 channels, output in the data's range"
)


def _item(
    name: str,
    note: str,
    measure: Callable[[Inputs], Iterator[Row]] | None,
    state: State = State.REDUCED,
    needs: str = "",
) -> Item:
    return Item(paper="ci-net", name=name, state=state, note=note, measure=measure, needs=needs)


ITEMS = (
    _item(
        "table1",
        f"{REDUCED}, batch 4 for 128; GIAS is not run, as it needs a generator trained on such pictures. The paper's "
        "scores take each picture's best match, not one to one; a grey picture so scored beats all its baselines.",
        table1,
        needs="TBD",
    ),
    _item("table2", "NOT2", None, State.NOT_RUN, "TBD"),
    _item("table3", "NOT3", None, State.NOT_RUN, "TBD"),
    _item("figure1", f"{REDUCED}, one seed; quick: batches 2 to 8 and 200 steps.", figure1, needs="NEEDSF1"),
    _item("figure2", f"{REDUCED}, batch 4, 2 000 steps for 50 000.", figure2, needs="NEEDSF2"),
    _item("figure3", f"{REDUCED}, batch 4.", figure3, needs="NEEDSF3"),
    _item(
        "figure4",
        "batch 4; the widths of the target are not published, see two-convolutions.",
        figure4,
        needs="NEEDSF4",
    ),
    _item("parts", f"{REDUCED}, batch 4.", parts, needs="NEEDSP"),
    _item("information", "ours, seconds", demonstrations.information),
    _item("proposition1", "a demonstration by construction, seconds", demonstrations.proposition1),
    _item("regulariser", "a demonstration by search from the truth itself, a minute", demonstrations.regulariser),
)
