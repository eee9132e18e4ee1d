"""What a sparsifier left out of every row is no zero, and what a clip may have shortened no length, to any reader."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from leakgauge.attacks.exact.candidates import Remainder, standing
from leakgauge.clients import FedSGD, client_update
from leakgauge.defenses import (
    ClientDP,
    Clip,
    Compose,
    Defense,
    NoDefense,
    Prune,
    Quantise,
    RandomK,
    TopK,
    laplace,
    noise,
)
from leakgauge.draws import Draws
from leakgauge.metrics import PSNR
from leakgauge.observation import Knowledge, Observation, Reconstruction, Status
from leakgauge.registry import ATTACKS
from leakgauge.task import Batch, DataSpec, Task
from leakgauge.tensors import squared_norm
from leakgauge.update import Update

SPEC = DataSpec((3, 2, 2), 3)
SURE = 45.0

SPARSIFIERS: dict[str, Defense] = {
    "top-k": TopK(keep=0.45),
    "few": TopK(keep=0.3),
    "prune": Prune(rate=0.6),
    "more": Prune(rate=0.75),
    "random": RandomK(keep=0.2),
    "both": Compose((TopK(keep=0.45), RandomK(keep=0.9))),
}


def after(length: float) -> dict[str, tuple[Defense, ...]]:
    """What may come behind a sparsifier and fill its zeros, of an update of that length."""
    tiny = noise(sigma=1e-6 * length)
    return {
        "nothing": (),
        "noise": (tiny,),
        "noise by tensor": (noise(tensor_std=1e-4),),
        "heavy tails": (laplace(sigma=1e-6 * length),),
        "two noises": (tiny, laplace(sigma=1e-6 * length)),
        "clip": (Clip(norm=0.5 * length),),
        "clip and noise": (Clip(norm=0.5 * length), tiny),
        "client dp": (ClientDP(noise_multiplier=1e-7, norm=10 * length),),
        "grid": (Quantise(levels=32767),),
    }


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    hidden = nn.Linear(12, 24, bias=kind != "no bias")
    if kind == "linear":
        made = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    else:
        made = nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(24, 3))
    if kind != "plain":
        made[-1].weight.data *= 400 if kind == "no bias" else 40  # what is left out changes no error signal
    return made


def batch(examples: int, seed: int) -> Batch:
    """Two inputs of each are so faint that a sparsifier leaves them out of every row."""
    draw = torch.Generator().manual_seed(seed)
    x = 0.3 + 0.7 * torch.rand((examples, *SPEC.shape), generator=draw)
    x[:, 0, 0, 0], x[:, 2, 1, 0] = 0.05, 0.03
    return Batch(x, torch.randint(3, (examples,), generator=draw))


def certified(reader: str, task: Task, update: Update, n: int, told: Defense | None) -> tuple[Tensor, Reconstruction]:
    knows = Knowledge(example_count=n, local_training=FedSGD(), defense=told)
    found = ATTACKS[reader].build().reconstruct(Observation(task, update, knows), torch.Generator().manual_seed(0))
    if found.inputs is None:
        return torch.zeros(0, *task.data.shape), found
    sure = torch.full((len(found.inputs),), found.status is Status.EXACT)
    return found.inputs[sure if found.certified is None else found.certified], found


@pytest.mark.parametrize(
    ("kind", "reader", "examples"),
    [
        ("plain", "peeling", 1),
        ("saturated", "peeling", 1),
        ("plain", "peeling", 2),
        ("plain", "closed-form", 1),
        ("no bias", "rank-one", 1),
        ("linear", "any-loss", 1),
    ],
)
def test_no_reader_certifies_what_was_left_out(kind: str, reader: str, examples: int) -> None:
    task, proved, wide = Task.of(network(kind), SPEC), 0, reader == "peeling" and examples == 1
    for seed in range(1 if reader == "peeling" else 3):
        data = batch(examples, seed)
        length = max(float(squared_norm(client_update(task, FedSGD(), data, Draws(seed)).tensors)) ** 0.5, 1e-9)
        for name, sparsifier in {"": NoDefense(), **SPARSIFIERS}.items():
            for last, parts in after(length).items():
                if not wide and last not in ("nothing", "noise"):
                    continue
                defense = Compose((sparsifier, *parts))
                update = client_update(task, FedSGD(), data, Draws(seed), defense=defense)
                for told in (defense, None):
                    sure, _ = certified(reader, task, update, examples, told)
                    proved += len(sure)
                    near = [float(PSNR()(x.expand_as(data.inputs), data.inputs).max()) for x in sure.float()]
                    assert all(psnr >= SURE for psnr in near), (name, last, told is None, near)
    assert proved, "the table tests nothing"


@pytest.mark.parametrize("reader", ["peeling", "closed-form"])
def test_entries_that_a_row_shows_are_certified_behind_a_sparsifier(reader: str) -> None:
    task, data = Task.of(network("plain"), SPEC), batch(1, 0)
    for defense in (TopK(keep=0.6), Compose((TopK(keep=0.6), noise(relative=1e-6)))):
        update = client_update(task, FedSGD(), data, Draws(0), defense=defense)
        assert certified(reader, task, update, 1, defense)[1].status is Status.EXACT


@pytest.mark.parametrize("told", [True, False])
def test_a_clip_hides_the_length_of_an_example_without_biases(told: bool) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 24, bias=False), nn.ReLU(), nn.Linear(24, 2, bias=False))
    task, x = Task.of(module, DataSpec((3, 2, 2), 2)), batch(1, 0).inputs
    for defense in (NoDefense(), Clip(norm=0.01)):
        update = client_update(task, FedSGD(), Batch(x, torch.ones(1, dtype=torch.long)), Draws(0), defense=defense)
        found = certified("rank-one", task, update, 1, defense if told else None)[1]
        assert (found.status is Status.EXACT) == (told and isinstance(defense, NoDefense))


def test_an_input_stands_where_the_rows_that_were_sent_tell_the_examples_apart() -> None:
    """A column that one row sends is a sum of two examples; rows in one proportion tell nothing."""
    shares = torch.tensor([[1.0, 1.0, 0.0], [1.0, 2.0, 1.0]], dtype=torch.float64)
    error, none = torch.full((3,), 1e-9, dtype=torch.float64), torch.zeros(3, dtype=torch.bool)
    state = Remainder(torch.zeros(3, 4), torch.zeros(3), error, shares, ~none, none)
    sent = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
    assert standing(state, sent).tolist() == [[True, False, False, False], [True, False, True, False]]
    alike = Remainder(torch.zeros(3, 4), torch.zeros(3), error, torch.stack([shares[1], 2 * shares[1]]), ~none, none)
    assert not bool(standing(alike, sent).any())
    faint = Remainder(torch.zeros(3, 4), torch.zeros(3), 1e6 * error, shares, ~none, none)
    assert not bool(standing(faint, sent).any())
