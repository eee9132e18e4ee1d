"""Qian & Hansen's networks with the three activations: what the count leaves open, a search has to find."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from leakgauge.attacks.recipes import RowSpace, qian_hansen
from leakgauge.models.networks import Activation
from reproduce.item import Inputs
from reproduce.qian_hansen.data import cifar, mnist
from reproduce.qian_hansen.networks import one_convolution, one_hidden_layer
from reproduce.qian_hansen.runs import DIGIT, PHOTO, quasi_newton
from reproduce.qian_hansen.trials import Comparison

ACTIVATIONS: tuple[Activation, ...] = ("sigmoid", "tanh", "relu")


def activations(inputs: Inputs) -> list[Comparison]:
    """At the counts, and at twice that many units, of which rectifiers leave about half without a gradient."""
    return [comparison for name in ACTIVATIONS for comparison in _with(name, inputs)]


def _with(name: Activation, inputs: Inputs) -> Iterator[Comparison]:
    made = partial(Comparison, item="activations", seeds=(0,) if inputs.quick else (0, 1, 2))
    for filters in (12, 24):
        yield made(
            setting=f"photo, {filters} filters, {name}",
            attack="Qian & Hansen",
            run=qian_hansen(weight=0.0, minimiser=quasi_newton(600)),
            build=partial(one_convolution, classes=100, filters=filters, activation=name),
            data=PHOTO,
            batches=[cifar(inputs.data, 1)],
            doubt="L-BFGS-B without a prior, 600 evaluations",
        )
    for units in (4, 8):
        yield made(
            setting=f"4 digits, {units} units, {name}",
            attack="row space (ours)",
            run=RowSpace(restarts=2),
            build=partial(one_hidden_layer, classes=10, shape=DIGIT.shape, units=units, activation=name),
            data=DIGIT,
            batches=[mnist(inputs.data, 4)],
            doubt="two restarts of 2 000 evaluations",
        )
