"""What can we learn from gradients (Qian & Hansen): its numbered tables and figures."""

from __future__ import annotations

from reproduce.item import Item, State
from reproduce.qian_hansen import runs
from reproduce.qian_hansen.activations import activations

CIFAR = "CIFAR-10's photos in a network of 100 outputs for CIFAR-100; labels unknown and soft. "

STARTS = (
    "At most 1 000 iterations of L-BFGS from fifty starts and weight seeds each, a sixth of the paper's 300 calls of "
    "20 (quick: 300 from three); it plots curves and gives no values, so that the error is averaged over the search, "
    "which is the area under its curve. "
)

ITEMS = (
    Item(
        paper="qian-hansen",
        name="table6f",
        state=State.REDUCED,
        note=CIFAR
        + "The published rows are filled by L-BFGS-B in float64 on the paper's objective without its prior; Adam "
        "with the prior for 2 000 of 200 000 steps stands beside.",
        measure=runs.all_rows(runs.table6f),
        needs="3.5 minutes on one core",
    ),
    Item(
        paper="qian-hansen",
        name="figure5a",
        state=State.REDUCED,
        note="Labels unknown and soft. The drop is shown by a search in the row space of the first gradient, as the "
        "pixels do not converge in minutes.",
        measure=runs.all_rows(runs.figure5a),
        needs="3.5 minutes on one core",
    ),
    Item(
        paper="qian-hansen",
        name="figure5b",
        state=State.REDUCED,
        note=CIFAR
        + "Three weight seeds and starts, L-BFGS-B in float64 without a prior; with 24 filters it ends further "
        "off than with 12, in a local minimum.",
        measure=runs.all_rows(runs.figure5b),
        needs="4 minutes on one core",
    ),
    Item(
        paper="qian-hansen",
        name="figure4",
        state=State.REDUCED,
        note="3 000 steps of Adam, five seeds of weights and starts, and the published 200 000 with three. The paper's "
        "weight of 0.1 needs its long decay, a small constant one does not.",
        measure=runs.all_rows(runs.figure4),
        needs="4 minutes on one core",
    ),
    *(
        Item(
            paper="qian-hansen",
            name=name,
            state=State.REDUCED,
            note=STARTS + stands_in,
            needs="a minute on one core",
            measure=runs.all_rows(figure),
        )
        for name, figure, stands_in in (
            ("figure1", runs.FIGURE1, "The ECG that PyWavelets ships."),
            ("figure2", runs.FIGURE2, "The Shepp-Logan head phantom for fMRI."),
            ("figure3", runs.FIGURE3, "scikit-image's faces of 25 px."),
            ("figure8", runs.FIGURE8, "scikit-image's stained tissue for cells."),
            ("figure9", runs.FIGURE9, CIFAR),
        )
    ),
    Item(
        paper="qian-hansen",
        name="ranks",
        state=State.REDUCED,
        note="ours; random weights and examples",
        measure=runs.ranks,
        needs="a minute on one core",
    ),
    Item(
        paper="qian-hansen",
        name="activations",
        state=State.REDUCED,
        note="ours; "
        + CIFAR
        + "Sigmoid, tanh and ReLU at the counts (12 filters, as many units as digits) and at twice as many; quick: one "
        "seed.",
        measure=runs.all_rows(activations),
        needs="8 minutes on one core",
    ),
    *(
        Item(
            paper="qian-hansen",
            name=name,
            state=State.NOT_RUN,
            note="our record of the paper's numbers has nothing of it, so there is nothing to compare with",
        )
        for name in ("figure6", "figure7")
    ),
)
