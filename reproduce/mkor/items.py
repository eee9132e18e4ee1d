"""MKOR (Maximum Knowledge Orthogonality Reconstruction): its numbered tables and figures."""

from __future__ import annotations

from reproduce.item import Item, State
from reproduce.mkor import defences as mkor_defences
from reproduce.mkor import heads
from reproduce.mkor import mnist as mkor_mnist
from reproduce.mkor import vgg as mkor_vgg

BASELINES = (
    "Baselines: Inverting Gradients, DLG and class fishing on the ten batches (kept on three where a row says so), at "
    "most 300 evaluations, labels given; iDLG, which reads one label of one image, is then DLG without label "
    "variables, which is what DLG is here. Plain columns match pictures one to one within a label and clamp them; the "
    "paper's baselines are unclamped, as their negative decibels show, and both rules of each stand beside."
)

IDLG = {f"{network} | iDLG": (f"{network} | DLG",) for network in ("LeNet5", "modified")}
"""Labels are given, so that DLG here has no label variables, as iDLG has none."""

ITEMS = (
    Item(
        paper="mkor",
        name="table2",
        state=State.REDUCED,
        note=BASELINES,
        measure=mkor_mnist.table(mkor_mnist.UNDEFENDED),
        stands=IDLG,
    ),
    Item(
        paper="mkor",
        name="table3",
        state=State.REDUCED,
        note="CIFAR-10 for CIFAR-100, image i with label i; the update through the exact pooled features; baselines "
        "are not run (a matching step on VGG16 with 100 images of 224 px takes minutes on two cores).",
        measure=mkor_vgg.table3,
    ),
    Item(
        paper="mkor",
        name="table4",
        state=State.REDUCED,
        note="1 000 photos, one a class, in place of the validation set; random batches are these photos with labels "
        "drawn at random; the update through the exact pooled features; all photos are scored, the release scores 100.",
        measure=mkor_vgg.table4,
    ),
    Item(
        paper="mkor",
        name="table6",
        state=State.REDUCED,
        note=BASELINES,
        measure=mkor_mnist.table(mkor_mnist.NOISY),
        stands=IDLG,
    ),
    Item(
        paper="mkor",
        name="table7",
        state=State.REDUCED,
        note=BASELINES,
        measure=mkor_mnist.table(mkor_mnist.SOTERIA),
        stands=IDLG,
    ),
    Item(
        paper="mkor",
        name="figure10",
        state=State.REDUCED,
        note="CIFAR-10 for CIFAR-100, labels drawn from N of 100 classes; the figure has no table of its values.",
        measure=mkor_vgg.figure10,
    ),
    Item(
        paper="mkor",
        name="time",
        state=State.REPRODUCED,
        note="",
        measure=mkor_vgg.seconds,
    ),
    Item(
        paper="mkor",
        name="defences",
        state=State.REDUCED,
        note="ours; grey stands for a picture that did not come back, so the lowest rows are those of grey; a "
        "transformed picture is compared with the one before it",
        measure=mkor_defences.measure,
    ),
    Item(
        paper="mkor",
        name="naive-head",
        state=State.REDUCED,
        note="Table 2's batches through LeNet-5: one row a class written and the others honest, and the released head "
        "under a client's own cross-entropy",
        measure=heads.naive_head,
    ),
    Item(
        paper="mkor",
        name="changes",
        state=State.REPRODUCED,
        note="per cent of the parameters that differ from an honest network's",
        measure=heads.changes,
    ),
    *(
        Item(paper="mkor", name=name, state=State.NOT_RUN, note="our record of the paper has nothing of it")
        for name in ("table1", "table5", "figures1-9", "figures11-18")
    ),
)
