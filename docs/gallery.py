"""The gallery of what leaks: ``python docs/gallery.py [NAME …]`` runs its settings anew, or those that are named.

It writes a picture for each into ``docs/images/gallery`` and what was measured into ``docs/images/gallery.json``; the
docs build makes the page of these. Seconds are CPU seconds of one thread.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import leakgauge as lg
from leakgauge.attacks.adaptive import Naive
from leakgauge.attacks.recipes import Auto
from leakgauge.clients import FedAvg, FedSGD, Protocol
from leakgauge.defenses import DPSGD, Defense, NoDefense, TopK, noise
from leakgauge.observation import Attack
from leakgauge.servers import Honest, ImprintBlock, Server

HERE = Path(__file__).parent
PICTURES = HERE / "images" / "gallery"
NUMBERS = HERE / "images" / "gallery.json"
SEARCH = lg.Budget(gradient_evaluations=400)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One client's update, and who attacks it. `words` say network, client and defence, in this order."""

    words: tuple[str, str, str]
    network: Callable[[], nn.Module]
    size: int = 32
    photos: Sequence[int] = (2,)
    client: Protocol = field(default_factory=FedSGD)
    defense: Defense = field(default_factory=NoDefense)
    server: Server = field(default_factory=Honest)
    attack: Attack | None = None
    budget: lg.Budget = SEARCH


def perceptron() -> Setting:
    """Eight photos in one gradient."""
    words = ("perceptron of 64 hidden units", "one gradient of eight photos", "none")
    return Setting(words=words, network=lambda: lg.models.mlp(classes=8), photos=range(8))


def large() -> Setting:
    """224 px through sixteen units."""
    words = ("perceptron of 16 hidden units on 224 px", "one gradient of one photo", "none")
    network = lambda: lg.models.mlp(classes=8, shape=(3, 224, 224), hidden=(16,))  # noqa: E731
    return Setting(words=words, network=network, size=224)


def residual() -> Setting:
    """A deep convolutional network, read layer by layer."""
    words = ("ResNet-18 of a quarter of its width, untrained, eval mode", "one gradient of one photo", "none")
    return Setting(
        words=words, network=lambda: lg.models.resnet18(width=16, classes=8), photos=(1,), budget=lg.Budget()
    )


class Encoder(nn.Module):
    """A transformer encoder over patches of 4 × 4 pixels, with a position embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.place = nn.Conv2d(3, 64, 4, 4), nn.Parameter(torch.randn(64, 64) / 10)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), 2)
        self.head = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.body(self.patches(x).flatten(2).transpose(1, 2) + self.place).mean(1))


def transformer() -> Setting:
    """A vision transformer."""
    words = ("vision transformer, patches of 4 px, two blocks, untrained", "one gradient of one photo", "none")
    return Setting(words=words, network=Encoder, photos=(1,))


class Adapted(nn.Module):
    """A frozen layer with a low-rank correction, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(3072, 128).requires_grad_(False), nn.Linear(128, 8)
        self.down, self.up = nn.Linear(3072, 8, bias=False), nn.Linear(8, 128, bias=False)
        nn.init.normal_(self.up.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        flat = x.flatten(1)
        return self.head((self.base(flat) + self.up(self.down(flat))).relu())


def adapter() -> Setting:
    """Only the factors of rank 8 and the head travel."""
    words = ("frozen layer with LoRA of rank 8, and a head", "one gradient of one photo", "none")
    return Setting(words=words, network=Adapted)


def lenet() -> nn.Module:
    """LeNet as in Deep Leakage from Gradients."""
    return lg.models.lenet(classes=8)


LENET = "LeNet, untrained"


def prepared() -> Setting:
    """A dishonest server."""
    words = (f"{LENET}, behind a block that the server put in front", "one gradient of eight photos", "none")
    return Setting(words=words, network=lenet, photos=range(8), server=ImprintBlock())


def searched() -> Setting:
    """Nothing can be read; 400 gradient evaluations find it."""
    return Setting(words=(LENET, "one gradient of one photo", "none"), network=lenet)


def steps() -> Setting:
    """Local steps are unrolled."""
    words = (LENET, "four local steps on one photo (rate .01)", "none")
    client, budget = FedAvg(epochs=4, lr=0.01), lg.Budget(gradient_evaluations=1600)
    return Setting(words=words, network=lenet, client=client, budget=budget)


def noisy() -> Setting:
    """Noise of a tenth of the update's length."""
    words = (LENET, "one gradient of one photo", "noise of a tenth of the update's length")
    return Setting(words=words, network=lenet, defense=noise(relative=0.1))


def naive() -> Setting:
    """Sparse, and the attacker takes zeros for gradients."""
    words = (LENET, "one gradient of one photo", "top-k of 5 %, and an attacker who has not heard of it")
    return Setting(words=words, network=lenet, defense=TopK(keep=0.05), attack=Naive(attack=Auto()))


def known() -> Setting:
    """The same update."""
    words = (LENET, "one gradient of one photo", "top-k of 5 %, and an attacker who knows it")
    return Setting(words=words, network=lenet, defense=TopK(keep=0.05))


def private() -> Setting:
    """What nothing was got out of."""
    words = (LENET, "one gradient of one photo", "DP-SGD, clip 1, noise multiplier 1")
    return Setting(words=words, network=lenet, defense=DPSGD(norm=1.0, noise_multiplier=1.0))


SETTINGS = {
    one.__name__: one
    for one in (
        perceptron,
        large,
        residual,
        transformer,
        adapter,
        prepared,
        searched,
        steps,
        noisy,
        naive,
        known,
        private,
    )
}


def measured(name: str) -> tuple[dict[str, Any], Tensor, Tensor]:
    """Runs a setting: its numbers, the client's photos and what came back."""
    setting = SETTINGS[name]()
    photos = lg.data.Samples(size=setting.size)
    batch = photos.read(setting.photos)
    torch.manual_seed(0)
    honest = lg.Task.of(setting.network(), lg.data.spec(photos))
    task = setting.server.broadcast(honest, torch.Generator().manual_seed(0)).task
    update = lg.clients.client_update(task, setting.client, batch, lg.Draws(seed=1), defense=setting.defense)
    knows = lg.Knowledge(local_training=setting.client, example_count=len(batch.labels), defense=setting.defense)
    began = time.process_time()
    found = lg.attack(task, update, using=setting.attack, knows=knows, budget=setting.budget)
    seconds = time.process_time() - began
    empty = torch.full_like(batch.inputs, 0.5)
    read = empty if found.inputs is None else lg.metrics.assign(found.inputs, batch.inputs).take(found.inputs)
    scores = lg.metrics.PSNR()(read, batch.inputs).tolist()
    proved = 0 if found.certified is None else int(found.certified.sum())
    row = {"words": list(setting.words), "db": [round(one, 1) for one in scores], "seconds": round(seconds, 1)}
    row |= {"certified": proved, "status": found.status.value, "evaluations": found.cost.gradient_evaluations}
    return row, batch.inputs, read


def draw(name: str, truth: Tensor, read: Tensor) -> None:
    """True photos above what came back; a single one beside it."""
    lines, columns = (1, 2) if len(truth) == 1 else (2, len(truth))
    figure = Figure(figsize=(1.5 * columns, 1.5 * lines), dpi=80)
    for place, picture in enumerate([*truth, *read]):
        axis = figure.add_subplot(lines, columns, place + 1)
        axis.imshow(picture.clamp(0, 1).permute(1, 2, 0).numpy(), interpolation="nearest")
        axis.axis("off")
    figure.subplots_adjust(left=0, right=1, top=1, bottom=0, wspace=0.04, hspace=0.04)
    PICTURES.mkdir(exist_ok=True)
    figure.savefig(PICTURES / f"{name}.png", metadata={"Software": None})


def caption(row: dict[str, Any]) -> str:
    """One sentence of the kept numbers."""
    low, high = min(row["db"]), max(row["db"])
    span = f"{high:.0f} dB" if round(low) == round(high) else f"{low:.0f} to {high:.0f} dB"
    proved = f", {row['certified']} of {len(row['db'])} certified" if row["certified"] else ""
    network, client, defence = row["words"]
    said = f"**{network[0].upper()}{network[1:]}**; {client}; defence: {defence}."
    return f"{said} {span}{proved}, {row['seconds']:g} CPU seconds."


def page() -> str:
    """The page's pictures, each with its caption and the lines that made it."""
    rows, said = json.loads(NUMBERS.read_text(encoding="utf-8")), []
    for name, setting in SETTINGS.items():
        source, first = inspect.getsourcelines(setting)
        title = (setting.__doc__ or "").rstrip(".")
        alt = f"The client's photos, and what came back: {max(rows[name]['db']):.0f} dB at best"
        lines = f"docs/gallery.py, lines {first} to {first + len(source) - 1}"
        said.append(f"## {title}\n\n![{alt}](images/gallery/{name}.png)\n\n{caption(rows[name])}\n\n")
        said.append(f"<details><summary>{lines}</summary>\n\n```python\n{''.join(source)}```\n\n</details>\n\n")
    return "".join(said)


def main() -> None:
    """All settings, or those that are named."""
    lg.Compute(threads=1).apply()
    kept = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    for name in sys.argv[1:] or SETTINGS:
        kept[name], *pictures = measured(name)
        draw(name, *pictures)
        rows = {key: kept[key] for key in SETTINGS if key in kept}
        NUMBERS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
