"""Rows of a report made by hand."""

from __future__ import annotations

from typing import Any

from leakgauge.intervals import proportion_interval, proportion_upper


def finding(identified: int, n: int, psnr: float, spread: float = 1.0) -> dict[str, Any]:
    """What one attacker achieved."""
    ends = proportion_interval(identified, n)
    return {
        "level": "exposed",
        "images": n,
        "trials": n,
        "failed": 0,
        "psnr": {
            "mean": psnr,
            "low": psnr - spread,
            "high": psnr + spread,
            "highest": psnr + 3,
            "median": psnr,
            "lowest": psnr - 3,
        },
        "null_psnr": {"mean": 11.0, "high": 12.0, "kind": "nearest_public"},
        "ssim_mean": 0.5,
        "ssim_worst": 0.75,
        "lpips_mean": None,
        "lpips_worst": None,
        "identified": {
            "count": identified,
            "n": n,
            "rate": identified / n,
            "low": ends.low,
            "high": ends.high,
            "chance": 0.02,
            "upper": proportion_upper(identified, n),
        },
        "recovered": identified,
        "label_f1": {"mean": 1.0, "low": 1.0, "high": 1.0, "baseline": 0.25, "n": n, "leaks": True},
        "power": {"psnr": 30.0, "shown": True, "trial": "control/x"},
        "cost": {"gradient_evaluations": 10, "seconds": 0.1},
        "sentence": "as it went",
        "attack": "auto",
    }


def row(
    family: str,
    label: str,
    accuracy: float | None,
    naive: tuple[int, float],
    adapted: tuple[int, float] | None = None,
    *,
    n: int = 20,
    strength: int = 0,
    epsilon: float | None = None,
    counter: str | None = "support-mask",
) -> dict[str, Any]:
    """One row; `naive` and `adapted` are pictures identified and mean PSNR."""
    first = finding(naive[0], n, naive[1])
    private = {
        "epsilon": epsilon,
        "delta": 1e-5,
        "accountant": "rdp",
        "unit": "example",
        "noise_multiplier": 1.0,
        "sample_rate": 0.1,
        "steps": 100,
        "robustness": "an attacker is right at most 3 % of the time",
        "reason": None,
    }
    ends = (None, None) if accuracy is None else (accuracy - 0.01, accuracy + 0.01)
    return {
        "family": family,
        "strength": strength,
        "label": label,
        "defense": "none" if family == "undefended" else label,
        "client": "fedsgd",
        "batch": 1,
        "cohort": 1,
        "counters": []
        if family == "undefended"
        else [
            {"part": family.title(), "counter": counter, "because": "The wire shows it.", "known": counter is not None}
        ],
        "accuracy": {
            "value": accuracy,
            "low": ends[0],
            "high": ends[1],
            "reason": "no data" if accuracy is None else None,
        },
        "cost": {"bytes": 500, "bytes_undefended": 1000, "examples": 8, "seconds": {"relative": 1.5}},
        "leakage": {"naive": first, "adapted": first if adapted is None else finding(adapted[0], n, adapted[1])},
        "privacy": private if epsilon is not None else {"epsilon": None, "reason": "no clip and noise"},
    }


def report(rows: list[dict[str, Any]], sentences: dict[str, Any]) -> dict[str, Any]:
    """A report.json around rows."""
    measured = any(r["accuracy"]["value"] is not None for r in rows)
    return {
        "schema_version": 1,
        "leakgauge_version": "0",
        "created_at": "2026-01-01T00:00:00+00:00",
        "config": {"name": "by hand", "attack": "auto", "delta": 1e-5},
        "environment": {},
        "tolerance": {"accuracy": 0.02, "identified": 0.05},
        "utility": {"measured": measured, "reason": None if measured else "no data to train with"},
        "rows": rows,
        "recommendation": sentences,
        "not_tried": ["A server that prepares the model."],
        "sureness": ["About 20 pictures a row."],
    }
