"""Training of the classifiers whose gradients are attacked."""

from leakgauge.training.fit import CropFlip, Epoch, NoAugmentation, Recipe, accuracy, fit

__all__ = [
    "CropFlip",
    "Epoch",
    "NoAugmentation",
    "Recipe",
    "accuracy",
    "fit",
]
