"""How labels are found in an update. A leak of its own, and the first part of most attacks."""

from leakgauge.attacks.labels.counts import CountsFromLastLayer
from leakgauge.attacks.labels.strategy import IDLG, KnownLabels, LabelGuess, LabelStrategy, Unknown

__all__ = ["IDLG", "CountsFromLastLayer", "KnownLabels", "LabelGuess", "LabelStrategy", "Unknown"]
