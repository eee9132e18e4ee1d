"""The same function in other words: the same certificates and the same pictures, the same lint and the same counts."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from leakgauge.attacks.closed_form import LinearRead
from leakgauge.attacks.exact import Peeling
from leakgauge.observation import Attack
from leakgauge.task import Batch, DataSpec
from same.further import FURTHER, HEADS, LAYERS
from same.readings import (
    BY_ENTRY,
    CLASSES,
    DEFENSES,
    INPUTS,
    SPEC,
    Counted,
    Perceptron,
    Reading,
    Weights,
    attacked,
    cells,
    counted,
    linted,
    pictures,
    share,
    unlike,
)
from same.spellings import ACTIVATIONS, FLATTENINGS, PATCHES, TABLES, Lookup, Patched, Spelled, Table, linear

SIZES = (1, 4)
FIRST = [name for name in LAYERS if name not in FURTHER]
"""Those that the readers by name, the lint and the counts are asked about too."""
WEIGHTS = Weights.drawn()


def perceptron(first: str = "", head: str = "", **parts: Any) -> Perceptron:
    """The perceptron with one of its layers in other words; unnamed ones are plain."""
    one = Spelled(LAYERS[first], *WEIGHTS.first) if first else linear(*WEIGHTS.first)
    last = Spelled(HEADS[head], *WEIGHTS.head) if head else linear(*WEIGHTS.head)
    return Perceptron(one, last, **parts)


@cache
def plain(examples: int, defense: str = "none") -> Reading:
    return attacked(perceptron(), pictures(examples), defense=DEFENSES[defense])


def behind_defenses() -> list[Any]:
    """Every spelling behind every defence; of each one behind a defence is in the fast suite, by its name's hash."""
    cases = []
    for name, spelling in LAYERS.items():
        behind = [d for d in DEFENSES if not (spelling.own and d in BY_ENTRY)]
        fast = {behind[1 + zlib.crc32(name.encode()) % (len(behind) - 1)], "none"}
        for defense in behind:
            for n in SIZES:
                slow = defense not in fast or (n > 1 and defense in BY_ENTRY)
                of = 1_000_000 if slow else 2 * n if defense == "none" else 8
                cases.append(pytest.param(name, n, defense, marks=share(of, name, n, defense)))
    return cases


def test_the_plain_form_is_read() -> None:
    for n in SIZES:
        assert plain(n).certified == n
        assert linted(perceptron(), n) >= {"exact-read"}
    assert counted(perceptron()).read == 4


@pytest.mark.parametrize(
    ("part", "name"),
    [("first", name) for name in LAYERS] + [("head", name) for name in HEADS],
)
def test_spellings_are_the_same_function(part: str, name: str) -> None:
    x, net = pictures(4).inputs, perceptron(**{part: name})
    assert torch.allclose(net(x).log_softmax(1), perceptron()(x).log_softmax(1), atol=1e-5)


@pytest.mark.parametrize(("name", "examples", "defense"), behind_defenses())
def test_auto_reads_a_layer(name: str, examples: int, defense: str) -> None:
    found = attacked(perceptron(first=name), pictures(examples), defense=DEFENSES[defense])
    assert not unlike(found, plain(examples, defense))


@cache
def named(examples: int) -> Attack:
    return LinearRead() if examples == 1 else Peeling()


@pytest.mark.parametrize(("name", "examples"), cells(FIRST, fast={1: 3, 4: 12}))
def test_the_reader_by_name_reads_a_layer(name: str, examples: int) -> None:
    found = attacked(perceptron(first=name), pictures(examples), using=named(examples))
    assert not unlike(found, attacked(perceptron(), pictures(examples), using=named(examples)))


@cache
def plain_lint(examples: int) -> frozenset[str]:
    return linted(perceptron(), examples)


@pytest.mark.parametrize(("name", "examples"), cells(FIRST, fast={1: 4, 4: 12}))
def test_the_lint_says_the_same_of_a_layer(name: str, examples: int) -> None:
    found = linted(perceptron(first=name), examples)
    assert found >= (plain_lint(examples) & {"exact-read"} if LAYERS[name].own else plain_lint(examples))


@cache
def plain_count() -> Counted:
    return counted(perceptron())


@pytest.mark.parametrize("name", [pytest.param(n, marks=share(4, n)) for n in FIRST])
def test_the_counts_say_the_same_of_a_layer(name: str) -> None:
    found = counted(perceptron(first=name))
    assert found.read == plain_count().read
    assert LAYERS[name].own or found == plain_count()


@pytest.mark.parametrize(("name", "examples"), cells(HEADS, fast={1: 1, 4: 4}))
def test_a_head_gives_its_labels(name: str, examples: int) -> None:
    assert not unlike(attacked(perceptron(head=name), pictures(examples)), plain(examples))


@pytest.mark.parametrize("examples", SIZES)
def test_a_linear_path_beside_it_takes_nothing_away(examples: int) -> None:
    wide = linear(*Weights.drawn(1).first)
    beside = perceptron(wide=linear(wide.weight[:CLASSES], wide.bias[:CLASSES]))
    assert not unlike(attacked(beside, pictures(examples)), plain(examples))


@pytest.mark.parametrize(("name", "examples"), cells(ACTIVATIONS, fast={1: 1, 4: 4}))
def test_a_rectifier_is_one_however_it_is_written(name: str, examples: int) -> None:
    net = perceptron(relu=ACTIVATIONS[name])
    assert not unlike(attacked(net, pictures(examples)), plain(examples))


@pytest.mark.parametrize(("name", "examples"), cells(FLATTENINGS, fast={1: 1, 4: 4}))
def test_rows_are_rows_however_they_are_made(name: str, examples: int) -> None:
    net = perceptron(rows=FLATTENINGS[name])
    assert torch.equal(net.rows(pictures(2).inputs), pictures(2).inputs.flatten(1))
    assert not unlike(attacked(net, pictures(examples)), plain(examples))


TEXTS = DataSpec(shape=(6,), classes=CLASSES, high=29.0, vocabulary=30)


def texts(examples: int) -> Batch:
    drawn = torch.randint(30, (examples, 6), generator=torch.Generator().manual_seed(5))
    return Batch(drawn.float(), torch.arange(examples) % CLASSES)


def words(lookup: Lookup | None) -> nn.Module:
    draw = torch.Generator().manual_seed(2)
    head = linear(torch.randn(CLASSES, 16, generator=draw), torch.zeros(CLASSES))
    return Table(torch.randn(30, 16, generator=draw), head, lookup)


@pytest.mark.parametrize("examples", SIZES)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_gives_its_tokens(name: str, examples: int) -> None:
    one, other = (attacked(words(n), texts(examples), spec=TEXTS) for n in (TABLES[name], None))
    assert other.tokens
    assert not unlike(one, other)


def patches(name: str | None) -> nn.Module:
    return Patched(24, 2, SPEC.shape, CLASSES, name)


@pytest.mark.parametrize("name", PATCHES)
def test_a_layer_of_patches_gives_its_picture(name: str) -> None:
    one, other = (attacked(patches(n), pictures(1)) for n in (name, None))
    assert other.certified == 1
    assert not unlike(one, other)


def test_sizes_fit() -> None:
    assert SPEC.shape[0] * SPEC.shape[1] * SPEC.shape[2] == INPUTS
