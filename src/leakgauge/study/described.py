"""A plan in words that a file can hold: objects given from Python by what they are and what is in them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from leakgauge.checkpoint import fingerprint


def described(value: Any) -> Any:
    """`value` in JSON types. Objects of other contents (weights, tensors, parameters) are described differently."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): described(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [described(inside) for inside in value]
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {fingerprint(value)}"
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, nn.Module):
        return {kind: fingerprint(*value.state_dict().values())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {kind: {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)}}
    return kind if isinstance(value, type) or not vars_of(value) else {kind: described(vars_of(value))}


def plan_in_words(plan: Any) -> dict[str, Any]:
    """A plan's own words where it was read from a file (`written`), else its fields, described."""
    if plan.written is not None:
        return dict(described(plan.written))
    told = (f.name for f in dataclasses.fields(plan) if f.init and f.name not in ("written", "again"))
    return {name: described(getattr(plan, name)) for name in told}


def vars_of(value: Any) -> dict[str, Any]:
    """What an object of no dataclass holds; private members left out."""
    return {name: held for name, held in getattr(value, "__dict__", {}).items() if not name.startswith("_")}


def withheld_name(name: str) -> str:
    """A short hash in place of a file's name, the same in every audit, so that two audits can be compared.

    Whoever can guess the name can check the guess: names that are themselves secrets should be changed in the data.
    """
    return f"#{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:12]}"
