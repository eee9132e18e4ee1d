"""Inverting Gradients: its numbered tables and figures."""

from __future__ import annotations

from reproduce.inverting_gradients import demonstrations, figures, local, tables
from reproduce.inverting_gradients.runs import LENET, LENET_TRAINED, RESNET, RESNET_TRAINED
from reproduce.item import Item, Measure, State

LENET_NOTE = (
    "Six images for a hundred, from a re-encoding of the test set that is in another order than CIFAR-10's: they are "
    "not the paper's first. Euclidean + L-BFGS is the release's (no line search, labels given, best of "
    "16); L-BFGS-B beside it has a line search, the data's range and float64. Quick: three images, 2 400 of 4 800 "
    "steps, 600 iterations, one start of L-BFGS-B; all 6 000 iterations are table1-lbfgs. "
)
RESNET_NOTE = (
    "ResNet-20 of width 16 for 64, four images for a hundred (not the paper's, see table1-lenet). "
    "L-BFGS as in the release (no line search, best "
    "of 8, 6 000 inner iterations, which the paper counts as 300). Quick: two images, 300 of 4 800 steps, 40 of the "
    "inner iterations; kept results say “40 iterations”. "
)
TABLE2_NOTE = (
    "ConvNet of D = 16 for 64; one batch of distinct labels, ten of single images (the release's overlap). Quick: "
    "two of one image, 250 of 4 800 steps. At a local learning rate of 1e-4 several steps are one gradient: see "
    "local-lr. But for pictures alone in their batch, the quick run's means lie below those of grey ones (see grey), "
    "with intervals that overlap: E 5, n 1 is ahead in the mean of its two images, and nothing more is shown. With all "
    "steps, eight images end where grey ones do, after one epoch and after five, with a rate of 1 as with 0.1. "
)
BOTH_READINGS = "The paper's 300 iterations of L-BFGS are 6 000 in the release; the rival has both. "
UNSIGNED = "Without the sign the attack ends 6 to 10 dB higher here; the paper calls the sign a minor change. "
GREY = "All means of the quick run lie below those of grey pictures (see grey): they say nothing of the paper's. "
TRAINED = "Our own training, with crops and flips. "


def _item(name: str, note: str, measure: Measure | None, needs: str, state: State = State.REDUCED) -> Item:
    return Item(paper="inverting-gradients", name=name, state=state, note=note.strip(), measure=measure, needs=needs)


ITEMS = (
    _item(
        "table1-lenet",
        LENET_NOTE + UNSIGNED + "Ten images and three weight seeds of the proposed attack: rows of the main job above.",
        tables.lenet(LENET, 1e-2),
        "an hour on one core: 17 s an image and attack, 8 ms an evaluation of L-BFGS-B, 290 s for 16 starts",
    ),
    _item(
        "table1-lbfgs",
        "Euclidean + L-BFGS of table1-lenet alone, with all its 6 000 iterations (the paper's 300 calls of 20), three "
        "images; quick: 600 iterations.",
        tables.all_iterations,
        "15 minutes on one core",
    ),
    _item(
        "table1-lenet-trained",
        LENET_NOTE + BOTH_READINGS + UNSIGNED + TRAINED,
        tables.lenet(LENET_TRAINED, 1e-3),
        "as table1-lenet, and 15 s an image",
    ),
    _item(
        "table1-resnet",
        RESNET_NOTE + GREY,
        tables.resnet(RESNET, 0.0),
        "an hour on one core: 120 s an image and attack, 530 s for 8 starts of L-BFGS; at width 64 five times that",
    ),
    _item(
        "table1-resnet-trained", RESNET_NOTE + GREY + TRAINED, tables.resnet(RESNET_TRAINED, 1e-2), "as table1-resnet"
    ),
    _item(
        "table2",
        TABLE2_NOTE,
        tables.table2(1.0, "table2"),
        "some 4 hours on one core by these, 1.5 of them for E 5, n 8 (1.1 s a step; the others 0.12–0.23 s)",
    ),
    _item("table2-lr", TABLE2_NOTE, tables.table2(0.1, "table2-lr"), "as table2"),
    _item(
        "table2-width",
        "The paper's ConvNet, D = 64, two batches of eight images with distinct labels (the second with another weight "
        "seed, added as one run left the claim open), 1 000 of 4 800 steps with a learning rate of 0.1 for 1. The "
        "update is read as one gradient: at a local learning rate of 1e-4 five steps are parallel to one but for 1e-6 "
        "of their cosine, see local-lr. Quick: D = 16, 250 steps.",
        tables.table2_width,
        "1.5 hours on one core",
    ),
    _item(
        "table3",
        "A ResNet-18 of width 32 for 64, trained for four epochs on 12 000 photos; three images for "
        "ten. Quick: the third and fourth image, "
        "300 of 4 800 steps, 40 iterations.",
        tables.table3,
        "2.9 hours on one core",
    ),
    _item(
        "figure4",
        "Untrained, total variation 1e-2; five images for ten, not the paper's. Quick: two images, 300 of 4 800 steps, "
        "ResNet-18 of "
        "widths 8, 16 and 32 and a ResNet-34 of width 16; but for width 32 all end about as grey pictures do (see "
        "grey). Width 128 and the pictures shown are not run.",
        tables.figure4,
        "20 hours on one core (0.02, 0.03, 0.07 and 0.25 s a step for widths 8 to 64)",
    ),
    _item(
        "figure5",
        "LeNet, where a step is cheap, by `auto` and by the paper's attack. Quick: one image, 80 evaluations of "
        "`auto`, 300 of 4 800 steps and only up to five local ones. Five steps at 1e-1 do not impede it, unlike in the "
        "paper: LeNet fits the image in its first step, and the others add nothing; see local-lr.",
        local.figure5,
        "some 3 hours on one core",
    ),
    _item(
        "figure6",
        "Untrained LeNet and trained ResNet-20 of width 16, CIFAR-10; all 100 images are scored, and told from 100 "
        "strangers. Quick: LeNet, 300 of 4 800 steps.",
        figures.figure6,
        "1.7 hours on one core (0.036 s a step on LeNet, 1.2 s on the ResNet)",
    ),
    _item(
        "figure7",
        "Label flipping on the trained LeNet; identity convolutions need 3·4ⁿ channels to pass n strides of 2. Quick: "
        "three images, 1 200 of 4 800 steps.",
        figures.figure7,
        "7 minutes on one core",
    ),
    _item(
        "figure9",
        "Quick: LeNet, ten images, 1 200 of 4 800 steps; full: a hundred, and the trained ResNet-20 of width 16.",
        figures.figure9,
        "6 hours on one core",
    ),
    _item(
        "imagenet",
        "they need torchvision's weights trained on ImageNet, which nothing here has, and 224 px",
        None,
        "a forward and backward of ResNet-152 at 224 px for each of 24 000 steps",
        State.NOT_RUN,
    ),
    _item(
        "local-lr",
        "Five local steps on one image. An attack that takes the update for a gradient stands beside the one that "
        "unrolls the steps. At lr 0.1 LeNet, whose logits are large, fits the image in its first step, the other "
        "gradients vanish, and the update is the first gradient again. Quick: two images (one on the ConvNet), 150 "
        "evaluations or steps.",
        local.local_lr,
        "8.3 hours on one core, 15 minutes of them on LeNet",
    ),
    _item(
        "step-search",
        "LeNet, L-BFGS-B on the squared distance inside `step-search` (a cosine sees little more than the product of "
        "steps and learning rate), four steps, candidates 1, 2, 4 and 8. At learning rate 0.1 the first "
        "step fits the image, and the number of the others leaves no trace. Quick: two images, 400 evaluations.",
        local.step_search,
        "40 minutes on one core (0.09 s an evaluation of all candidates)",
    ),
    _item(
        "proposition31",
        "A demonstration: five images, three weight seeds, closed form.",
        demonstrations.proposition31,
        "4 seconds",
    ),
    _item(
        "padding",
        "Untrained ResNet-20 of width 16, eval mode, total variation 1e-4. Quick: two images, 400 of 4 800 steps: "
        "inconclusive, as both paddings end below a grey picture (14.1 dB).",
        demonstrations.padding,
        "64 minutes on one core",
    ),
    _item(
        "augmentation",
        "ResNet-20 of width 8. Quick: trained on 4 000 images for 4 epochs, three images, 400 of 4 800 steps; full: "
        "50 000 images, 20 epochs. The quick rows are inconclusive: all end near a grey picture.",
        demonstrations.augmentation,
        "not timed; the training alone takes hours on one core",
    ),
    _item("grey", "ours: what no attack scores on the pictures of the items above", tables.grey, "seconds"),
    _item(
        "table5",
        "our record of the paper has of it only the order of Table 2's rows",
        None,
        "unknown",
        State.NOT_RUN,
    ),
    *(
        _item(name, "our record of the paper has nothing of it", None, "unknown", State.NOT_RUN)
        for name in ("table4", "figure1", "figure2", "figure3", "figure8", "figures10-20")
    ),
)
