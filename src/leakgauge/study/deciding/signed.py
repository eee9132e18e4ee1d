"""The decision of a stored audit, with the findings of its lint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakgauge.study.deciding.decision import Asked, decide
from leakgauge.study.deciding.facts import facts
from leakgauge.study.grammar import GateConfig
from leakgauge.study.judging.verdict import Verdict

LINT = "lint.json"
"""Findings of the lint that ran before the trials, beside the store."""


def signed(
    judged: Verdict,
    *,
    gate: GateConfig | None,
    config: Mapping[str, Any],
    contents: Mapping[str, str],
    folder: Path,
) -> dict[str, Any]:
    """The ``decision`` of report.json."""
    lint = read_lint(folder)
    exact = next((f for f in lint if f["rule"] == "exact-read"), None)
    data = judged.findings[0].scenario.data if judged.findings else None
    asked = Asked(
        gate=gate,
        batch=1 if data is None else data.batch,
        captured=bool(config.get("update")),
        thing="image" if data is None else data.kind,
        exact="" if exact is None else f"{exact['where']}: {exact['evidence']}.",
    )
    return facts(decide(judged, asked), judged, config=config, contents=contents, lint=lint)


def read_lint(folder: Path) -> list[dict[str, Any]]:
    """What the lint found before the trials; nothing where it did not run."""
    try:
        found: list[dict[str, Any]] = json.loads((folder / LINT).read_text(encoding="utf-8"))["findings"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found
