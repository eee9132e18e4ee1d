"""report.json: everything that a finished audit knows, in one document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leakgauge.files import write_whole
from leakgauge.study.grammar import GateConfig
from leakgauge.study.store import Store
from leakgauge.study.verdict import verdict

SCHEMA_VERSION = 1
FREE_SPACE = "free space, then `leakgauge report` the folder"


def gate_of(config: dict[str, Any]) -> GateConfig | None:
    """The gate that a stored plan asks for."""
    return None if config.get("gate") is None else GateConfig.model_validate(config["gate"])


def document(store: Store) -> dict[str, Any]:
    """The report of what is in the store.

    Byte-equal between runs of the same plan on the same machine once every ``seconds`` and
    ``created_at`` is deleted; trials are sorted by id; no number in it is infinite or NaN.
    """
    audit = store.audit
    config = json.loads(audit.config)
    records = store.records()
    return {
        "schema_version": SCHEMA_VERSION,
        "leakgauge_version": audit.version,
        "created_at": audit.created_at,
        "config": config,
        "environment": json.loads(audit.environment),
        "counts_only": audit.counts_only,
        "trials": records,
        "verdict": verdict(records, gate_of(config)),
    }


def write_json(store: Store) -> Path:
    """Writes report.json beside the store, whole or not at all."""
    text = json.dumps(document(store), indent=1, allow_nan=False, ensure_ascii=False)
    return write_whole(store.folder / "report.json", text + "\n", FREE_SPACE)
