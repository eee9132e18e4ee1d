"""Not in the paper: MKOR against defences, and against several local steps, under an honest client's cross-entropy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.data import Parquet
from leakgauge.defenses import Clip, ClipExamples, Compose, Defense, NoDefense, TopK, noise
from leakgauge.draws import Draws
from leakgauge.models import vgg
from leakgauge.observation import Knowledge, Observation
from leakgauge.servers.mkor import MKOR, Decoy, LossTreatment
from leakgauge.task import Batch, DataSpec, Task
from reproduce.item import Inputs
from reproduce.mkor.quiet import AbsentClass
from reproduce.mkor.scoring import Tally, filled_scores
from reproduce.mkor.transform import Transform
from reproduce.mkor.variants import CrossEntropy
from reproduce.mkor.vgg import read
from reproduce.rows import Row

SIZE, CLASSES, BATCH = 64, 20, 16


@dataclass(frozen=True)
class Setting:
    """One row: the client, its defence, and what the server does about the loss."""

    name: str
    client: Protocol = FedSGD()
    defense: Defense = NoDefense()  # noqa: RUF009 - frozen
    loss: LossTreatment = Decoy()  # noqa: RUF009 - frozen
    labels_known: bool = False


SETTINGS = (
    Setting("no defence, decoy"),
    Setting("no defence, absent class", loss=AbsentClass()),
    Setting("no defence, plain cross-entropy", loss=CrossEntropy()),
    Setting("clipping to norm 1", defense=Clip(norm=1.0)),
    Setting("noise 1e-3 of the norm", defense=noise(relative=1e-3)),
    Setting("noise 1e-2 of the norm", defense=noise(relative=1e-2)),
    Setting("noise 1e-1 of the norm", defense=noise(relative=1e-1)),
    Setting("noise 1e-1 of the norm, labels known", defense=noise(relative=1e-1), labels_known=True),
    Setting("noise 1e-1 of each tensor's spread", defense=noise(tensor_std=0.1)),
    Setting("each example clipped to 1, noise 1e-4", defense=Compose((ClipExamples(norm=1.0), noise(sigma=1e-4)))),
    Setting("each example clipped to 1, noise 1e-2", defense=Compose((ClipExamples(norm=1.0), noise(sigma=1e-2)))),
    Setting("top 20 %", defense=TopK(keep=0.2)),
    Setting("top 5 %", defense=TopK(keep=0.05)),
    Setting("a transformation", defense=Transform()),
    Setting("1 local step, lr 0.01", client=FedAvg(epochs=1, lr=0.01)),
    Setting("2 local steps, lr 0.01", client=FedAvg(epochs=2, lr=0.01)),
    Setting("5 local steps, lr 0.01", client=FedAvg(epochs=5, lr=0.01)),
    Setting("5 local steps, lr 0.1", client=FedAvg(epochs=5, lr=0.1)),
)


def measure(inputs: Inputs) -> Iterator[Row]:
    """Sixteen photos with different labels, three of 20 classes absent besides the decoy; the real network."""
    source = Parquet(path=str(inputs.data / "imagenet-sample-256.parquet"))
    seeds, batches = ((0,), 1) if inputs.quick else ((0, 1, 2), 3)
    for setting in SETTINGS:
        tally = Tally("mkor", "defences", setting.name, "MKOR")
        messages = set()
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                honest = Task.of(vgg(classes=CLASSES, channels=3, size=SIZE), DataSpec((3, SIZE, SIZE), CLASSES))
            sent = MKOR(loss=setting.loss).broadcast(honest, Draws(seed).generator("server"))
            for b in range(batches):
                photos = read(source, range(BATCH * b, BATCH * (b + 1)), SIZE)
                labels = torch.randperm(CLASSES - 1, generator=torch.Generator().manual_seed(seed))[:BATCH]
                batch = Batch(photos, labels)
                task, batch = inputs.placed(sent.task), inputs.secret(batch)
                update = client_update(task, setting.client, batch, Draws(seed), defense=setting.defense)
                known = Knowledge(
                    labels=labels if setting.labels_known else None,
                    example_count=BATCH,
                    local_training=setting.client,
                    defense=setting.defense,
                    crafting=sent.crafting,
                )
                assert sent.crafting is not None
                found = sent.crafting.reconstruct(Observation(task, update, known), torch.Generator())
                tally.add(seed, filled_scores(found, Batch(photos, labels)), found)
                if found.inputs is None:
                    messages.add(found.message)
        others = f" (and {len(messages) - 1} alike)" if len(messages) > 1 else ""
        tally.doubt = min(messages, default="") + others
        inputs.say(setting.name)
        yield from tally.rows(seeds)
