"""MKOR's naive head, and how much of a network its constructions change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from leakgauge.draws import Draws
from leakgauge.models import vgg16
from leakgauge.servers.mkor import MKOR, Constant, Crafter, LossTreatment, NLLRaw, Routes, routes, wired
from leakgauge.task import DataSpec, Task
from leakgauge.tensors import Tensors
from reproduce.item import Inputs
from reproduce.mkor.mnist import NETWORKS, SEEDS, UNDEFENDED, crafted_rows
from reproduce.mkor.variants import CrossEntropy
from reproduce.mkor.vgg import Target
from reproduce.rows import ItemRows, Row


@dataclass(frozen=True)
class Naive:
    """Only the rows that are read are written, one a class in each hidden layer, and the whole last layer.

    The first layer's rows are equal, 1/inputs each; above them unit n reads unit n alone; all other rows stay honest,
    and the last layer does not read them. The same features as with every row written, and logits that are equal too.

    Source: MKOR, Figure 1 and Eq. (8). Without dropout.
    """

    def craft(self, task: Task, generator: torch.Generator) -> tuple[Tensors, Routes]:
        """See `Crafter.craft`. The generator is not used."""
        del generator
        layers, outputs = wired(task)
        own, head = torch.arange(outputs), Tensors()
        for layer in layers:
            written, first = slice(None) if layer is layers[-1] else slice(0, outputs), layer is layers[0]
            weight = _filled(task.parameters[layer.weight], written, 1 / layer.inputs if first else 0.0)
            if not first:
                weight[own, own] = 1.0
            head[layer.weight] = weight
            if layer.bias is not None:
                head[layer.bias] = _filled(task.parameters[layer.bias], written, 0.0)
        return head, routes(layers[0], outputs)


def _filled(honest: Tensor, written: slice, value: float) -> Tensor:
    """A copy with those rows set to `value`."""
    found = honest.clone()
    found[written] = value
    return found


def naive_head(inputs: Inputs) -> Iterator[Row]:
    """Table 2's batches through LeNet-5: with the naive head, and under a client's own cross-entropy."""
    from leakgauge.data import Parquet

    source, network = Parquet(path=str(inputs.data / "mnist-test.parquet"), channels=1), NETWORKS[0]
    seeds = inputs.seeds(SEEDS[:1] if inputs.quick else SEEDS)
    cases: tuple[tuple[str, Crafter[Routes], LossTreatment], ...] = (
        ("MKOR, naive head", Naive(), NLLRaw()),
        ("MKOR, plain cross-entropy", Constant(), CrossEntropy()),
    )
    for name, head, loss in cases:
        server = MKOR(taps=network.taps(0.0), head=head, loss=loss)
        yield from inputs.once(
            network.name,
            name,
            lambda name=name, server=server: crafted_rows(
                source, network, server, UNDEFENDED, seeds, inputs, name, item="naive-head"
            ),
        )


class Sheet(ItemRows):
    """The item that rows belong to."""

    paper = "mkor"


def changes(inputs: Inputs) -> Iterator[Row]:
    """Share of VGG16's parameters that differ between what the server sends and an honest network, in per cent: of all,
    and of the layer that is changed most."""
    sheet, heads = Sheet("changes", inputs), {"MKOR as released": Constant(), "MKOR, naive head": Naive()}
    seeds = inputs.seeds(SEEDS[:1] if inputs.quick else SEEDS)
    for name, head in heads.items():
        whole, most = [], []
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                honest = inputs.placed(Task.of(vgg16(classes=100, channels=3, size=224), DataSpec((3, 224, 224), 100)))
            server = MKOR(taps=Target("VGG16", 100).taps, head=head, loss=NLLRaw())
            sent = server.broadcast(honest, Draws(seed).generator("server")).task.parameters
            moved = {k: int((sent[k] != v).sum()) for k, v in honest.parameters.items()}
            sizes = {k: v.numel() for k, v in honest.parameters.items()}
            whole.append([100 * sum(moved.values()) / sum(sizes.values())])
            most.append([100 * max(moved[k] / sizes[k] for k in sizes)])
        inputs.say(f"changes {name}: {whole}, {most}")
        yield sheet.row("VGG16", name, "share", whole, seeds)
        yield sheet.row("VGG16, the layer changed most", name, "share", most, seeds)
