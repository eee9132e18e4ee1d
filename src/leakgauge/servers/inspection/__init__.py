"""The client's check of a received model, before it trains on it."""

from leakgauge.servers.inspection import (  # noqa: F401
    changes,
    classifier,
    constants,
    copies,
    graph,
    ladders,
    layers,
    own_data,
    passage,
    relabelled,
    rows,
    signs,
    sizes,
    spectrum,
    sub_models,
    taps,
    thresholds,
    values,
)
from leakgauge.servers.inspection.inspect import measure, rules, skipped
from leakgauge.servers.inspection.limits import Limits
from leakgauge.servers.inspection.rule import Measurement, Part, Received, Rule

__all__ = ["Limits", "Measurement", "Part", "Received", "Rule", "measure", "rules", "skipped"]
