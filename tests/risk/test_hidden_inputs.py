"""The batch up to which a layer is said to give its input away, against the read itself."""

import pytest
import torch

from convolutions import Block, made, observed
from hunt.zoo import POOLS
from leakgauge.attacks.features.read import HiddenTensors
from leakgauge.risk.count import hidden_inputs, summary
from same.spellings import Spelled


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_largest_batch_is_where_the_read_ends(mode):
    torch.manual_seed(1)
    module = Block(50)
    inputs, labels = made(4)
    said = {one.weight: one for one in hidden_inputs(observed(module, inputs, labels, mode).task)}["second.weight"]
    assert (said.filters, said.places, said.largest) == (50, 16, 3)
    for count in (3, 4):
        observation = observed(module, inputs[:count], labels[:count], mode)
        found = HiddenTensors.of(observation, count).read(torch.Generator().manual_seed(0))
        read = any(r.layers[0].weight == "second.weight" and len(r.maps) == count for r in found.reads)
        assert read is (count <= said.largest)


def test_a_stride_that_leaves_one_line_in_common_is_no_read():
    torch.manual_seed(1)
    inputs, labels = made(1)
    stem = hidden_inputs(observed(Block(50), inputs, labels).task)[0]
    assert stem.weight == "stem.weight"
    assert stem.largest == 0


def test_the_summary_names_the_number():
    torch.manual_seed(1)
    inputs, labels = made(1)
    found = hidden_inputs(observed(Block(50), inputs, labels).task)
    assert "none above batch 3" in summary(found, 2)[0]
    assert "no layer" in summary(found, 9)[0]


@pytest.mark.parametrize(
    ("parts", "mode", "whole"),
    [((2, 1), "eval", True), ((2, 2), "eval", False), ((2, 2), "train", False), ((3,), "train", True)],
)
def test_steps_of_a_round_and_clients_of_a_sum_are_one_batch(parts, mode, whole):
    torch.manual_seed(1)
    inputs, labels = made(4)
    said = {one.weight: one for one in hidden_inputs(observed(Block(50), inputs, labels, mode).task)}["second.weight"]
    assert said.whole(parts) is whole


def test_batch_statistics_of_each_step_take_one_row_off():
    """62 filters hold four maps of 16 places in two steps, and not in one."""
    torch.manual_seed(1)
    inputs, labels = made(4)
    said = {one.weight: one for one in hidden_inputs(observed(Block(62), inputs, labels, "train").task)}
    assert said["second.weight"].whole((2, 2))
    assert not said["second.weight"].whole((4,))


@pytest.mark.parametrize("word", ["random Hadamard", "rotary angles", "coordinates of a sparse weight"])
def test_another_layer_in_other_words_hides_none(word):
    torch.manual_seed(1)
    inputs, labels = made(1)
    net = Block(50)
    plain = hidden_inputs(observed(net, inputs, labels).task)
    net.head = Spelled(POOLS["first"][word], net.head.weight.detach(), net.head.bias.detach())
    assert hidden_inputs(observed(net, inputs, labels).task) == plain
