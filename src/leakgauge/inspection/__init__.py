"""The client's check of a received model, before it trains on it."""

from leakgauge.inspection.rule import Limits as Limits
from leakgauge.inspection.rule import Measurement as Measurement
from leakgauge.inspection.rule import Part as Part
from leakgauge.inspection.rule import Received as Received
from leakgauge.inspection.rule import Rule as Rule
from leakgauge.inspection.rule import measure as measure
from leakgauge.inspection.rule import rules as rules
from leakgauge.inspection.rule import skipped as skipped
from leakgauge.inspection.rules import copies as copies
from leakgauge.inspection.rules import passage as passage
from leakgauge.inspection.rules import rows as rows
from leakgauge.inspection.rules import values as values
