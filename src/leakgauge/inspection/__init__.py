"""The client's check of a received model, before it trains on it."""

from leakgauge.inspection.rule import Limits, Measurement, Part, Received, Rule, measure, rules, skipped
from leakgauge.inspection.rules import copies, passage, rows, values  # noqa: F401

__all__ = ["Limits", "Measurement", "Part", "Received", "Rule", "measure", "rules", "skipped"]
