"""Local steps of weights from which a layer is computed: a read knows their first order, and is corrected by itself."""

from __future__ import annotations

import pytest

from hunt.scenarios import Scenario
from hunt.zoo import Net
from leakgauge.clients import FedAvg, Protocol

WORDS = (
    "weight_norm",
    "weight norm by hand",
    "low rank beside",
    "low rank merged",
    "a learned rotation first",
    "standardised rows with gains",
    "hyperbolic sines of what is kept",
)
"""Layers whose weights stand for others: of the cells below one was certified without a correction."""

CLIENTS: dict[str, Protocol] = {
    "momentum": FedAvg(lr=0.1, epochs=2, momentum=0.9),
    "three steps": FedAvg(lr=0.05, epochs=3),
}


OPEN = ("a learned rotation first", "three steps")
"""What a turn of the correction explains no better, however large the budget."""


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("client", list(CLIENTS))
@pytest.mark.parametrize("norm", ["", "layer"])
def test_local_steps_of_weights_that_stand_for_others_are_certified(
    word: str, client: str, norm: str, request: pytest.FixtureRequest
) -> None:
    if (word, client) == OPEN:
        request.applymarker(pytest.mark.xfail(strict=True, reason="the correction ends at 6.3e-02 and 7.1e-03"))
    found = Scenario(net=Net(first=word, norm=norm), client=CLIENTS[client], seed=11).read()
    assert found.certified == 1, found.why
    assert min(found.psnr) > 55


def test_several_examples_are_corrected_together() -> None:
    found = Scenario(net=Net(first="weight_norm"), client=CLIENTS["momentum"], examples=2, seed=7).read()
    assert found.certified == 2, found.why
    assert min(found.psnr) > 55
