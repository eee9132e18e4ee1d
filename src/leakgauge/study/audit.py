"""What `leakgauge.audit` returns: a finished audit, with its verdict and its files."""

from __future__ import annotations

import html
import shutil
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, TypeVar

from leakgauge.errors import InputError
from leakgauge.files import private_folder
from leakgauge.risk.lint import LintFinding
from leakgauge.study.judging.results import Finding
from leakgauge.study.judging.verdict import HEADS, Verdict, setting_rows
from leakgauge.study.pipeline.lint_file import LINT
from leakgauge.study.store import RESULTS

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Audit:
    """A finished audit.

    Attributes:
        name: as its plan has it.
        verdict: what all trials say together; never "safe".
        lint: what can be read without an attack, and settings that fail their purpose; the gravest first.
        folder: where its files lie: ``report.html``, ``report.json`` and the trials. A temporary one, which goes with
            this object, where `leakgauge.audit` was given none.
    """

    name: str
    verdict: Verdict
    folder: Path
    lint: tuple[LintFinding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Each attack in each setting, the worst first and controls last."""
        return self.verdict.findings

    @property
    def passed(self) -> bool | None:
        """Whether the gate passes; `None` without one."""
        return self.verdict.gate.passed

    def save(self, folder: Path | str) -> Path:
        """Copies report and trials; ``leakgauge report`` and ``leakgauge gate`` read such a folder.

        Raises:
            InputError: it holds an audit.
        """
        return copied(self.folder, Path(folder), (*RESULTS, LINT))

    def to_frame(self) -> pandas.DataFrame:
        """A row for each finding.

        Raises:
            InputError: pandas is not installed.
        """
        return frame([_row(found) for found in self.findings])

    def _repr_html_(self) -> str:
        words = (*self.verdict.headline, self.verdict.gate.sentence)
        return table(f"{self.name}: {self.verdict.level.words}", HEADS, setting_rows(self.verdict), words)


def lent(folder: Path | str | None) -> Path:
    """Where results go: the folder, or a temporary one where there is none."""
    return Path(mkdtemp(prefix="leakgauge-")) if folder is None else Path(folder)


Finished = TypeVar("Finished")


def owning(result: Finished, folder: Path, given: Path | str | None) -> Finished:
    """The result, with which a temporary folder goes away."""
    if given is None:
        weakref.finalize(result, shutil.rmtree, folder, True)
    return result


def _row(found: Finding) -> dict[str, object]:
    s, seen, psnr = found.scenario, found.identified, found.psnr
    return {
        "model": s.model,
        "client": s.client,
        "defense": s.defense,
        "server": s.server,
        "attack": found.attack,
        "control": found.control,
        "level": found.level.value,
        "images": found.images,
        "clients": found.clients,
        "identified": None if seen is None else seen.count,
        "identified_low": None if seen is None else seen.low,
        "identified_high": None if seen is None else seen.high,
        "recovered": found.recovered,
        "psnr_mean": None if psnr is None else psnr.mean,
        "psnr_highest": None if psnr is None else psnr.highest,
        "failed": found.failed,
        "flags": "; ".join(flag.sentence for flag in found.flags),
        "sentence": found.sentence,
    }


def frame(rows: list[dict[str, object]]) -> pandas.DataFrame:
    """Rows as a table of pandas, which is no requirement of leakgauge.

    Raises:
        InputError: it is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_frame", "needs pandas, which is not installed", "pip install pandas") from error
    return pandas.DataFrame(rows)


def table(title: str, heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: tuple[str, ...]) -> str:
    """A small HTML table, for notebooks."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    said = "".join(f"<p>{html.escape(text)}</p>" for text in words if text)
    return f"<p><b>{html.escape(title)}</b></p><table><tr>{head}</tr>{body}</table>{said}"


def copied(source: Path, folder: Path, names: tuple[str, ...]) -> Path:
    """The files of a finished run in another folder of their owner's alone.

    Raises:
        InputError: one of them is there already.
    """
    there = [name for name in names if (folder / name).exists()]
    if there:
        raise InputError("folder", f"{folder} holds {', '.join(there)} already", "give another folder")
    private_folder(folder)
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / name)
        elif (source / name).exists():
            shutil.copy2(source / name, folder / name)
    return folder
