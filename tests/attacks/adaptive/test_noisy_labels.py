"""One label behind known noise: more of it is heard than by the bias alone, and nothing changes without noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hunt.zoo import Net
from leakgauge.attacks.adaptive import Adapted, Naive
from leakgauge.attacks.adaptive.noise import UnderNoise, known_scale
from leakgauge.attacks.labels import CountsFromLastLayer
from leakgauge.attacks.labels.strategy import LabelGuess
from leakgauge.attacks.recipes import inverting_gradients
from leakgauge.clients import FedAvg, FedSGD, Protocol, client_update
from leakgauge.compute import Budget
from leakgauge.defenses import DPSGD, Defense
from leakgauge.defenses import noise as gaussian
from leakgauge.draws import Draws
from leakgauge.models import lenet
from leakgauge.observation import Knowledge, Observation
from leakgauge.task import Batch, DataSpec, Task


def observed(seed: int, defense: Defense, protocol: Protocol, examples: int = 1) -> tuple[Observation, int]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        task = Task.of(lenet(size=16), DataSpec((3, 16, 16), 10))
    x = torch.rand((examples, 3, 16, 16), generator=torch.Generator().manual_seed(seed))
    batch = Batch(x, torch.arange(seed, seed + examples) % 10)
    update = client_update(task, protocol, batch, Draws(seed), defense=defense)
    known = Knowledge(example_count=examples, local_training=protocol, defense=defense)
    return Observation(task, update, known), seed % 10


def read(seen: Observation) -> LabelGuess:
    scale = known_scale(seen)
    assert scale is not None
    found = UnderNoise(scale, CountsFromLastLayer()).infer(seen, torch.Generator().manual_seed(0))
    assert isinstance(found, LabelGuess)
    return found


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(epochs=2, lr=0.01)], ids=["gradient", "delta"])
def test_it_hears_labels_that_the_bias_alone_does_not_tell(protocol: Protocol) -> None:
    defense, heard, alone = gaussian(relative=8.0), 0, 0
    for seed in range(30):
        seen, label = observed(seed, defense, protocol)
        heard += int(read(seen).labels[0]) == label
        guess = CountsFromLastLayer().infer(seen, torch.Generator().manual_seed(0))
        alone += isinstance(guess, LabelGuess) and int(guess.labels[0]) == label
    assert heard >= alone + 6, (heard, alone)
    assert heard >= 24


def test_it_hears_them_of_a_classifier_in_other_words() -> None:
    """The noise was looked up by the names of the plain network, and the search ended with a `KeyError`."""
    net = Net(head="stored transposed")
    for seed in range(5):
        batch, defense = net.batch(1, seed), DPSGD(norm=1.0, noise_multiplier=1e-3)
        task = Task.of(net.build(0), net.spec)
        update = client_update(task, FedSGD(), batch, Draws(seed), defense=defense)
        known = Knowledge(example_count=1, local_training=FedSGD(), defense=defense)
        assert read(Observation(task, update, known)).labels.tolist() == batch.labels.tolist()


def test_faint_noise_changes_nothing_and_is_believed() -> None:
    for seed in range(10):
        seen, label = observed(seed, DPSGD(norm=1.0, noise_multiplier=1e-3), FedSGD())
        found = read(seen)
        assert int(found.labels[0]) == label
        assert found.confidence > 0.99


def test_confidence_falls_to_guessing_where_only_noise_is_left() -> None:
    seen, _ = observed(0, DPSGD(norm=1e-3, noise_multiplier=100.0), FedSGD())
    assert read(seen).confidence < 0.6


def test_several_examples_are_left_to_the_other_strategy() -> None:
    seen, _ = observed(0, gaussian(relative=0.01), FedSGD(), examples=4)
    other = CountsFromLastLayer().infer(seen, torch.Generator().manual_seed(0))
    assert isinstance(other, LabelGuess)
    assert read(seen).labels.tolist() == other.labels.tolist()


def test_the_search_starts_where_the_naive_one_starts() -> None:
    """The label takes no draws that a start would have had."""
    seen, _ = observed(0, gaussian(relative=0.1), FedSGD())
    scale, generator = known_scale(seen), torch.Generator().manual_seed(5)
    assert scale is not None
    before = generator.get_state()
    UnderNoise(scale, CountsFromLastLayer()).infer(seen, generator)
    assert bool((generator.get_state() == before).all())


def test_only_the_attacker_who_knows_the_defence_reads_so() -> None:
    """Of 20 clients: the whole attack's labels, after one step of search."""
    right = {Naive: 0, Adapted: 0}
    for seed in range(20):
        seen, label = observed(seed, gaussian(relative=8.0), FedSGD())
        for kind in right:
            attack = kind(attack=inverting_gradients(steps=1))
            found = attack.reconstruct(seen, Draws(seed).generator("attack"), budget=Budget(gradient_evaluations=1))
            assert found.labels is not None
            right[kind] += int(found.labels[0]) == label
    assert right[Adapted] >= right[Naive] + 4, right


def test_a_tensor_without_noise_is_read_as_it_is() -> None:
    seen, label = observed(3, gaussian(sigma=1e-3), FedSGD())
    scale = known_scale(seen)
    assert scale is not None
    spared = {k: torch.zeros_like(s) for k, s in scale.items()}
    clean, _ = observed(3, gaussian(sigma=1e-12), FedSGD())
    found = UnderNoise(spared, CountsFromLastLayer()).infer(replace(clean), torch.Generator().manual_seed(0))
    assert isinstance(found, LabelGuess)
    assert int(found.labels[0]) == label
