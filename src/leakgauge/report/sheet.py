"""The sheet that a person signs: one A4 page in plain words, from an audit's verdict, and its PDF through a browser."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from leakgauge.report.html import page
from leakgauge.study.judging.results import Level
from leakgauge.study.judging.verdict import Verdict

HOLDS = timedelta(days=365)
"""How long an answer is taken to hold at most: attacks are published meanwhile."""

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell"),
    *("microsoft-edge", "msedge", "brave", "brave-browser"),
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
"""Commands of browsers that print without a window."""

SECONDS = 120
"""After which a browser is given up."""

KNOWN = {
    "example_count": "how many examples a client has",
    "local_training": "how clients train",
    "defense": "the defence",
    "labels": "the labels",
    "buffers": "the running statistics",
    "public_data": "public data of the same kind",
    "draws": "the client's random draws",
}

SHOWN = 4
"""Attacks and settings that are named; the others are counted."""

FILES = 6
"""Digests that are shown; all are in report.json."""


def sheet(
    told: Mapping[str, Any], verdict: Verdict, *, digest: str, commit: str = "", by: str = "", to: str = ""
) -> str:
    """The page as HTML.

    Args:
        told: report.json without verdict and trials.
        verdict: of the audit.
        digest: SHA-256 of the file.
        commit: of the repository in which the audit lies.
        by, to: who audited, and for whom; a line to write on where empty.
    """
    decision, made = told["decision"], str(told["created_at"])
    own = [f for f in verdict.findings if not f.control]
    tried = [f for f in own if f.level is not Level.NOT_APPLICABLE]
    return page(
        "report",
        "sheet.html.j2",
        {"short": _short},
        report=told,
        decision=decision,
        digest=digest,
        commit=commit,
        by=by,
        to=to,
        made=made[:10],
        until=_until(made),
        settings=_some([f"{f.scenario.client}, {f.scenario.defense}" for f in own]),
        models=_some([f.scenario.model for f in own]),
        clients=max((f.clients for f in own), default=0),
        batch=told["config"].get("data", {}).get("batch", 1),
        attacks=_some([f.attack.split("(")[0] for f in tried]),
        evaluations=sum(f.cost.gradient_evaluations for f in tried),
        time=_time(sum(f.cost.seconds for f in tried)),
        knew=[KNOWN.get(k, k) for k in (tried[0].scenario.knowledge if tried else ())],
        withheld=[KNOWN[k] for k in decision["withheld"]],
        shown=sum(f.power.shown is True for f in own),
        rows=len(own),
        hashes=dict(list(decision["hashes"].items())[:FILES]),
    )


def _some(names: list[str]) -> list[str]:
    """Different ones in their order, the rest counted."""
    each = list(dict.fromkeys(names))
    return each if len(each) <= SHOWN else [*each[: SHOWN - 1], f"{len(each) - SHOWN + 1} more"]


def _short(value: object) -> str:
    """The first digits of a digest; a version as it is."""
    text = str(value)
    return f"{text[:16]}…" if len(text) >= 40 else text


def _time(seconds: float) -> str:
    """Time of one core, in the unit that a person would use."""
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _until(made: str) -> str:
    try:
        return f"{datetime.fromisoformat(made) + HOLDS:%Y-%m-%d}"
    except ValueError:
        return ""


def commit_of(folder: Path) -> str:
    """The commit of the repository that a folder lies in, and whether files differ from it; empty without one."""
    words = (("rev-parse", "HEAD"), ("status", "--porcelain"))
    asked = [["git", "-C", str(folder), *each] for each in words]
    try:
        head, changed = (subprocess.run(a, capture_output=True, text=True, timeout=9, check=True).stdout for a in asked)
    except (OSError, subprocess.SubprocessError):
        return ""
    return head.strip()[:12] + (", with changes that are not committed" if changed.strip() else "")


def browser(environment: Mapping[str, str] = os.environ) -> str | None:
    """The command of a browser that is installed: what ``BROWSER_PATH`` says, or the first that is found."""
    names = (environment.get("BROWSER_PATH", ""), *BROWSERS)
    return next((found for name in names if name and (found := shutil.which(name))), None)


def print_pdf(html: Path, pdf: Path, command: str) -> bool:
    """Prints a page through a browser without a window; whether it did."""
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    fixed = ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--print-to-pdf={pdf.absolute()}"]
    try:
        asked = [command, *root, *fixed, html.absolute().as_uri()]
        done = subprocess.run(asked, capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and pdf.is_file()
