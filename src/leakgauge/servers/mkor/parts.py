"""The three parts of MKOR and the contracts between them: taps below, a head above, and what is done about the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from leakgauge.observation import Observation
from leakgauge.registry import Registry
from leakgauge.task import Task
from leakgauge.tensors import Tensors

TAPS = Registry("taps", ("leakgauge.servers.mkor",), "taps")
HEADS = Registry("head", ("leakgauge.servers.mkor",), "head")
LOSSES = Registry("loss", ("leakgauge.servers.mkor",), "loss")


@runtime_checkable
class FeatureMap(Protocol):
    """What crafted layers below the first linear layer compute, and its inverse. Data-free."""

    @property
    def positions(self) -> Int[Tensor, " f"]:
        """Where the features that are read stand in the first linear layer's flat input."""
        ...

    @property
    def remark(self) -> str:
        """What the construction loses on this architecture, for the report; empty if nothing."""
        ...

    def features(self, inputs: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f"]:
        """Those features of raw images, without the network: the test's oracle and the fast path."""
        ...

    def images(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n c h w"]:
        """Raw images in the data's range from such features, or from averages of them; NaN is a feature not seen."""
        ...

    def rescaled(self, features: Float[Tensor, "n f"]) -> Float[Tensor, "n f"]:
        """Features known up to a positive factor each, brought to the scale of features of an image.

        For a first linear layer without a bias: the factor is a guess, and the report says so. NaN stays NaN.
        """
        ...


@dataclass(frozen=True, eq=False)
class CraftedFeatures:
    """Values that replace parameters and buffers of the task, by name, and what they compute."""

    state: Tensors
    map: FeatureMap


@runtime_checkable
class Taps(Protocol):
    """Crafts the layers below the first linear layer."""

    def craft(self, task: Task, generator: torch.Generator) -> CraftedFeatures:
        """Raises `InputError` where the architecture does not fit, and says which layer and why."""
        ...


@dataclass(frozen=True, eq=False)
class ClassReading:
    """Per class: the (weighted) mean feature of the class's examples.

    Attributes:
        classes: labels that were read.
        features: one row a class, at the positions of the feature map; NaN where the client sent nothing that tells.
        up_to_scale: there was no bias to divide by.
        certain: the classes were read without noise, leak or later local steps.
        message: what was and what was not read, and under which loss.
    """

    classes: Int[Tensor, " k"]
    features: Float[Tensor, "k f"]
    up_to_scale: bool
    message: str
    certain: bool = False


@runtime_checkable
class Wiring(Protocol):
    """The head's secret: which rows of the first linear layer's gradient belong to which class."""

    def read(self, observation: Observation, positions: Int[Tensor, " f"]) -> ClassReading | str:
        """Class features out of an update, or why there are none (a sentence for the report)."""
        ...


@dataclass(frozen=True, eq=False)
class CraftedHead:
    """The whole crafted task (features, head and loss applied) and the head's secret."""

    task: Task
    wiring: Wiring


@runtime_checkable
class Head(Protocol):
    """Crafts the linear layers so that each class drives rows of its own."""

    def craft(
        self, task: Task, features: CraftedFeatures, loss: LossTreatment, generator: torch.Generator
    ) -> CraftedHead:
        """Raises `InputError` where the layers are too narrow for the classes, or are not a chain of linear layers."""
        ...


@runtime_checkable
class LossTreatment(Protocol):
    """What the server does so that the class's rows are not mixed by the loss (`leakgauge.servers.mkor.classes`)."""

    def applied(self, task: Task) -> Task:
        """The task with what this treatment changes: a bias of the last layer, or the loss itself."""
        ...

    def separate(
        self, rows: Float[Tensor, "classes f"], totals: Float[Tensor, " classes"], observation: Observation
    ) -> tuple[Float[Tensor, "classes f"], Float[Tensor, " classes"], Tensor, str] | str:
        """Σ_k δ_kn·z_k and Σ_k δ_kn per class, with the loss's mixing taken out.

        Returns:
            rows, totals, the bool mask of classes that can be read, and a remark; or why nothing can be read.
        """
        ...
