"""One page in plain words, for a signature."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from leakgauge.report.html import browser, print_pdf, sheet
from report.fixture import CASES, fixture, text_of

MADE = fixture(CASES[:2])


def test_it_says_what_is_signed() -> None:
    digest = sha256(b"report").hexdigest()
    words = text_of(sheet(MADE.told, MADE.verdict, digest=digest, by="A. Engineer", to="Ward 7"))
    decision = MADE.told["decision"]
    for part in (decision["title"], decision["reason"], decision["next"]["step"], decision["again_when"], digest):
        assert " ".join(str(part).split()) in words
    for part in ("A. Engineer", "Ward 7", "Signature", "What was not", "Until 20"):
        assert part in words
    for item in decision["out_of_scope"]:
        assert item["what"] in words


def test_what_it_holds_is_no_markup() -> None:
    told = MADE.told | {"config": {"name": "<script>alert(1)</script>"}}
    assert "<script>alert" not in sheet(told, MADE.verdict, digest="")


def test_every_update_has_its_digest() -> None:
    """Of three rounds the first alone was listed."""
    hashes = {f"update[{i}] round-{i}/{file}": f"{k}{i}" * 32 for i in range(9) for k, file in enumerate("ab")}
    decision = MADE.told["decision"] | {"hashes": hashes}
    words = text_of(sheet(MADE.told | {"decision": decision}, MADE.verdict, digest=""))
    assert all(name in words and digest[:16] in words for name, digest in hashes.items())


@pytest.mark.slow
def test_it_prints_on_one_page(tmp_path: Path) -> None:
    command = browser()
    if command is None:
        pytest.skip("needs a browser")
    long = "a defence with a label of many words, as people write them"
    first = MADE.verdict.findings[0]
    scenarios = [replace(first.scenario, defense=f"{long} {i}") for i in range(9)]
    verdict = replace(MADE.verdict, findings=tuple(replace(first, scenario=s) for s in scenarios))
    (tmp_path / "sheet.html").write_text(sheet(MADE.told, verdict, digest="0" * 64), encoding="utf-8")
    assert print_pdf(tmp_path / "sheet.html", tmp_path / "sheet.pdf", command)
    assert len(re.findall(rb"/Type\s*/Page[^s]", (tmp_path / "sheet.pdf").read_bytes())) == 1
    assert not print_pdf(tmp_path / "sheet.html", tmp_path / "no.pdf", str(tmp_path / "none"))
