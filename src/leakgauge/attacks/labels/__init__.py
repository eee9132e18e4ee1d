"""How labels are found in an update. A leak of its own, and the first part of most attacks."""

from leakgauge.attacks.labels.counts import CountsFromLastLayer as CountsFromLastLayer
from leakgauge.attacks.labels.strategy import IDLG as IDLG
from leakgauge.attacks.labels.strategy import LabelGuess as LabelGuess
from leakgauge.attacks.labels.strategy import LabelStrategy as LabelStrategy
from leakgauge.attacks.labels.strategy import Unknown as Unknown
