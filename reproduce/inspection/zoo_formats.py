"""Data formats of the zoo's models."""

from __future__ import annotations

from leakgauge.task import DataSpec
from reproduce.inspection.zoo_dice import Dice

SERIES = ("wave", "recurrent")
"""Families that read series instead of pictures."""
CLASSES = (2, 3, 5, 10, 10, 10, 20, 47, 62, 100)


def drawn_format(dice: Dice, family: str, largest: int = 64) -> DataSpec:
    """Shape, classes and normalisation."""
    classes = dice.pick(CLASSES)
    if family in SERIES:
        return DataSpec(shape=(dice.pick((1, 2, 12)), 128), classes=min(classes, 10))
    side = min(largest, dice.pick((28, 32, 32, 32, 40, 48, 64)))
    side = max(side, 32) if family == "vgg" else side
    channels = dice.pick((1, 3, 3))
    if dice.chance(0.5):
        return DataSpec(shape=(channels, side, side), classes=classes)
    mean, std = ((0.13,), (0.31,)) if channels == 1 else ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))
    return DataSpec(shape=(channels, side, side), classes=classes, mean=mean, std=std)
