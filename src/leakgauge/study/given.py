"""What a plan names beside its parts: the data's source and the perceptual score."""

from __future__ import annotations

import difflib

from leakgauge.data import Source, open_source
from leakgauge.errors import InputError, require
from leakgauge.metrics.lpips import LPIPS
from leakgauge.metrics.metric import Metric
from leakgauge.study.grammar import DataConfig
from leakgauge.task import DataSpec


def source_of(data: DataConfig) -> Source:
    """The source that a plan names, or that it is given. Raises `InputError` with the key."""
    if isinstance(data.source, Source):
        return data.source
    options = dict(data.model_extra or {})
    if data.size is not None:
        options["size"] = data.size
    own = [name for name in DataConfig.model_fields if name not in ("source", "size")]
    for key in options:
        near = difflib.get_close_matches(key, own, n=1, cutoff=0.6)
        require(not near, f"data.{key}", f"unknown key '{key}'", f"did you mean '{near[0] if near else ''}'?")
    try:
        return open_source(data.source, **options)
    except InputError as error:
        raise error if error.field.startswith("data") else error.within("data") from error


def perceptual_of(weights: str | None, data: DataSpec) -> Metric | None:
    """LPIPS from a weights file, or through torchmetrics; `None` when not asked for."""
    if weights is None:
        return None
    if weights == "torchmetrics":
        return LPIPS.through_torchmetrics(data_range=data.range, low=data.low)
    return LPIPS(weights=weights, data_range=data.range, low=data.low)
