"""Proposition 3.1 and its gap, and what convolutions know of a picture's place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from leakgauge.clients import FedSGD, client_update
from leakgauge.data import Parquet
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.models import mlp, resnet20
from leakgauge.task import Batch, Task
from reproduce.classifier.training import Augmentation, CropFlip, NoAugmentation, Recipe, accuracy, fit
from reproduce.inverting_gradients.runs import Network, Sheet, proposed
from reproduce.item import Inputs
from reproduce.metrics import PSNRShifted
from reproduce.rows import Row

SHIFTED = "PSNR, best shift"


def proposition31(inputs: Inputs) -> Iterator[Row]:
    """x = (∂L/∂W)_i / (∂L/∂b)_i needs ∂L/∂y_i ≠ 0 of the *pre-activation* y_i, so an active unit, and one image.

    The paper asks for ∂L/∂x_{l+1,i} ≠ 0 of the unit's output. An inactive ReLU has that and a row of zeros; where all
    are inactive, every unit meets the condition and no row has anything.
    """
    page = Sheet.of("proposition31", inputs)
    found: dict[str, list[list[float]]] = {
        "active": [],
        "inactive": [],
        "outward": [],
        "pair": [],
        "off": [],
        "off outward": [],
    }
    for seed in inputs.seeds(range(3)):
        task = Network(name="MLP", build=mlp).task(page.spec, seed, torch.float64, inputs.device)
        scores: dict[str, list[float]] = {name: [] for name in found}
        for index in range(5):
            pair = page.source.read([index, index + 1])
            two = Batch(pair.inputs.double().to(inputs.device), pair.labels.to(inputs.device))
            one, other = (two.take(torch.tensor([i], device=inputs.device)) for i in (0, 1))
            backward = task_rows(task, one)[1]
            shared = torch.minimum(backward.abs(), task_rows(task, other)[1].abs())
            silent = int((backward == 0).nonzero()[0])
            scores["active"].append(read_row(task, one, int(backward.abs().argmax())))
            scores["inactive"].append(read_row(task, one, silent))
            scores["outward"].append(float(output_gradient(task, one)[silent].abs()))
            scores["pair"].append(read_row(task, two, int(shared.argmax())))
            off = switched_off(task)
            scores["off"].append(max(read_row(off, one, unit) for unit in range(len(backward))))
            scores["off outward"].append(float(output_gradient(off, one).abs().min()))
        for name, values in scores.items():
            found[name].append(values)
    setting, seeds, grey = "MLP with ReLU, one image", inputs.seeds((0, 1, 2)), "its row is zero: scored as grey"
    yield page.row(setting, "row of an active unit", "PSNR", found["active"], seeds)
    yield page.row(setting, "row of an inactive unit", "PSNR", found["inactive"], seeds, doubt=grey)
    yield page.row(setting, "row of an inactive unit", "|∂L/∂output| of that unit", found["outward"], seeds, doubt=grey)
    setting, rows = "MLP with ReLU, all units off", "best row of any unit"
    yield page.row(setting, rows, "PSNR", found["off"], seeds, doubt="all rows are zero: scored as grey")
    yield page.row(setting, rows, "least |∂L/∂output| of a unit", found["off outward"], seeds)
    mixture = "against the nearer of the two: the row mixes them"
    name = "row of a unit active for both"
    yield page.row("MLP with ReLU, two images", name, "PSNR", found["pair"], seeds, doubt=mixture)


def switched_off(task: Task) -> Task:
    """The same network with a first bias below which no picture lifts a unit."""
    name = next(name for name, module in task.module.named_modules() if isinstance(module, nn.Linear))
    bias = task.parameters[f"{name}.bias"]
    return task.with_state({f"{name}.bias": torch.full_like(bias, -1e4)})


def task_rows(task: Task, batch: Batch) -> tuple[Tensor, Tensor]:
    """∂L/∂W and ∂L/∂b of the first linear layer, which reads the picture."""
    update = client_update(task, FedSGD(), batch, Draws(0)).tensors
    name = next(name for name, module in task.module.named_modules() if isinstance(module, nn.Linear))
    return update[f"{name}.weight"], update[f"{name}.bias"]


def read_row(task: Task, batch: Batch, unit: int) -> float:
    """PSNR of the picture that a unit's row reads, against the nearest of the batch; grey where the row is zero."""
    weight, bias = task_rows(task, batch)
    if float(bias[unit]) == 0:
        picture = torch.full_like(batch.inputs[:1], 0.5)
    else:
        picture = task.data.denormalise((weight[unit] / bias[unit]).view(1, *task.data.shape))
    return float(PSNR()(picture.expand_as(batch.inputs), batch.inputs).max())


def output_gradient(task: Task, batch: Batch) -> Tensor:
    """∂L/∂output of every unit of the first activation, for one image: what the proposition asks not to be zero."""
    module, kept = copy.deepcopy(task.module), []
    module.load_state_dict({**task.parameters, **task.buffers})

    def keep(_: nn.Module, __: tuple[Tensor, ...], out: Tensor) -> None:
        out.retain_grad()
        kept.append(out)

    next(m for m in module.modules() if isinstance(m, nn.ReLU)).register_forward_hook(keep)
    task.loss(module(task.data.normalise(batch.inputs)), batch.labels).backward()
    gradient: Tensor | None = kept[0].grad
    assert gradient is not None
    return gradient[0]


def circular(build: Callable[[], nn.Module]) -> nn.Module:
    """The network with every convolution padding around the edge; its weights are drawn as ever."""
    module = build()
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.padding_mode = "circular"
    return module


def padding(inputs: Inputs) -> Iterator[Row]:
    """The same weights with both paddings, and a stranger's picture as the null baseline of the shifted score."""
    page, quick = Sheet.of("padding", inputs, **{SHIFTED: PSNRShifted()}), inputs.quick
    images = [[i] for i in range(2 if quick else 3)]
    build = partial(resnet20, width=16)
    for word, made in (("zero", build), ("circular", lambda: circular(build))):
        network = Network(name=f"ResNet-20 of width 16 untrained, {word} padding", build=made)
        yield from page.rows(network, proposed(1e-4, 400 if quick else 4800), images)
    yield from strangers(page, images)


def strangers(page: Sheet, images: Sequence[Sequence[int]]) -> Iterator[Row]:
    """What another photo and a grey one score: the best of 1 024 shifts lifts them too."""
    truth = torch.cat([page.source.read(batch).inputs for batch in images])
    other = page.source.read(range(1000, 1000 + len(truth))).inputs
    for name, pictures in (("another photo", other), ("grey picture", torch.full_like(truth, 0.5))):
        for metric, score in page.metrics.items():
            yield page.row("null baseline", name, metric, [score(pictures, truth).tolist()])


def augmentation(inputs: Inputs) -> Iterator[Row]:
    """Two networks trained on the same images, one of them with crops and flips."""
    page, quick = Sheet.of("augmentation", inputs, **{SHIFTED: PSNRShifted()}), inputs.quick
    images = [[i] for i in range(3 if quick else 10)]
    number, epochs = (4_000, 4) if quick else (50_000, 20)
    examples = Parquet(path=str(inputs.data / "cifar10-train.parquet")).read(range(number))
    held_out = page.source.read(range(1000, 2000))
    for word, change in (("plain", NoAugmentation()), ("crops and flips", CropFlip())):
        module, right = trained(page, examples, held_out, change, epochs)
        network = Network(name=f"ResNet-20 of width 8, trained: {word}", build=lambda module=module: module)
        doubt = f"{number} images, {epochs} epochs, accuracy {right:.2f}"
        yield from page.rows(network, proposed(1e-2, 400 if quick else 4800), images, doubt=doubt)
    yield from strangers(page, images)


def trained(
    page: Sheet, examples: Batch, held_out: Batch, change: Augmentation, epochs: int
) -> tuple[nn.Module, float]:
    """A small residual network and its accuracy."""
    torch.manual_seed(0)
    module = resnet20(width=8)
    fit(module, page.spec, examples, Recipe(epochs=epochs, augmentation=change), seed=0)
    right = accuracy(module, page.spec, held_out)
    page.inputs.say(f"{page.item}: {change}, accuracy {right:.3f}")
    return module, right
