"""All that a printed failure names."""

# ruff: noqa: F403
from hunt.relations import *
from hunt.relations import Pair as Pair
from hunt.scenarios import *
from hunt.scenarios import Scenario as Scenario
from hunt.zoo import *
from leakgauge.clients import *
from leakgauge.defenses import *
from leakgauge.defenses.compression import *
from leakgauge.defenses.representations import *
