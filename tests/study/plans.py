"""Small plans that run in seconds."""

from __future__ import annotations

from typing import Any


def tiny(**changes: Any) -> dict[str, Any]:
    """Eight trials and ten controls: closed form and a few steps of signed Adam on photos at 16 px."""
    plan: dict[str, Any] = {
        "name": "tiny",
        "model": {"mlp": {"hidden": [8]}},
        "data": {"source": "samples", "size": 16, "batch": 1, "batches": 2},
        "clients": ["fedsgd"],
        "defenses": ["none", {"topk": {"keep": 0.1}}],
        "attacks": ["closed-form", {"inverting-gradients": {"steps": 5}}],
        "gallery": 20,
    }
    return plan | changes
