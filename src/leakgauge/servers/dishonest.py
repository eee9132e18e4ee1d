"""Every dishonest server in one place: positive controls for audits and for the check of received models.

They live apart from `leakgauge.servers`, which observations import, because servers read observations.
"""

from leakgauge.servers.fishing import ClassFishing, FeatureFishing
from leakgauge.servers.identity_convolutions import IdentityConvolutions
from leakgauge.servers.imprint import Imprint, ImprintBlock
from leakgauge.servers.input_skip import InputSkip
from leakgauge.servers.label_flip import LabelFlip
from leakgauge.servers.mkor import MKOR
from leakgauge.servers.reversible import ReversibleNetwork
from leakgauge.servers.routed import SubModelPerExample
from leakgauge.servers.trap import LinearFirst, TrapWeights

__all__ = [
    "MKOR",
    "ClassFishing",
    "FeatureFishing",
    "IdentityConvolutions",
    "Imprint",
    "ImprintBlock",
    "InputSkip",
    "LabelFlip",
    "LinearFirst",
    "ReversibleNetwork",
    "SubModelPerExample",
    "TrapWeights",
]
