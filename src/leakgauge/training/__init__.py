"""Training of the classifiers whose gradients are attacked."""

from leakgauge.training.augment import CropFlip, NoAugmentation
from leakgauge.training.fit import Epoch, accuracy, fit
from leakgauge.training.recipe import Recipe

__all__ = ["CropFlip", "Epoch", "NoAugmentation", "Recipe", "accuracy", "fit"]
