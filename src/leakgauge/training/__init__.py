"""Training of the classifiers whose gradients are attacked, and of the denoiser that polishes what came back."""

from leakgauge.training.augment import CropFlip, NoAugmentation
from leakgauge.training.autoencoder import fit_autoencoder
from leakgauge.training.denoiser import DenoiserRecipe, Leg, fit_denoiser
from leakgauge.training.fit import Epoch, Recipe, accuracy, fit

__all__ = [
    "CropFlip",
    "DenoiserRecipe",
    "Epoch",
    "Leg",
    "NoAugmentation",
    "Recipe",
    "accuracy",
    "fit",
    "fit_autoencoder",
    "fit_denoiser",
]
