"""Training of the classifiers whose gradients are attacked."""

from leakgauge.training.augment import CropFlip, NoAugmentation
from leakgauge.training.fit import Epoch, Recipe, accuracy, fit

__all__ = [
    "CropFlip",
    "Epoch",
    "NoAugmentation",
    "Recipe",
    "accuracy",
    "fit",
]
