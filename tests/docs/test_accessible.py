"""axe-core finds nothing in the pages that were built: the documentation, the table of defences,
and the example audit's report and sheet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.pages import ROOT

AXE = os.environ.get("LEAKGAUGE_AXE", "")
BUILT = ROOT / "docs" / "_build" / "html"
CHROMIUM, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))
ASKED = """
const done = arguments[arguments.length - 1];
axe.run(document).then(
  found => done(found.violations.map(one => `${one.id}: ${one.nodes.length} × ${one.nodes[0].html.slice(0, 80)}`)),
  problem => done([String(problem)]));
"""

pytestmark = [
    pytest.mark.page,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not AXE, reason="LEAKGAUGE_AXE names no axe.min.js (npm install axe-core)"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium and chromedriver here"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A telephone's width."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield driver
    driver.quit()


def findings(browser: Any, pages: list[Path]) -> dict[str, list[str]]:
    """Page → what axe-core says of it; pages without a finding are left out."""
    script, said = Path(AXE).read_text(encoding="utf-8"), {}
    for page in pages:
        browser.get(page.as_uri())
        browser.execute_script(script)
        said[page.name] = browser.execute_async_script(ASKED)
    return {name: found for name, found in said.items() if found}


def test_nothing_is_found_in_the_documentation(browser: Any) -> None:
    pages = [page for page in BUILT.rglob("*.html") if "_modules" not in page.parts]
    if not pages:
        pytest.skip("`make docs` has built nothing")
    assert findings(browser, pages) == {}


def test_nothing_is_found_in_the_example_audit(browser: Any) -> None:
    pages = list((ROOT / "audit-out").glob("*.html"))
    if not pages:
        pytest.skip("`make audit` has written nothing")
    assert findings(browser, pages) == {}


def test_nothing_is_found_in_the_table_of_defences(browser: Any) -> None:
    assert findings(browser, [ROOT / "leaderboard" / "index.html"]) == {}


def test_a_picture_without_words_is_found(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "bare.html"
    page.write_text("<!doctype html><html lang=en><title>t</title><main><h1>h</h1><img src=x.png></main>", "utf-8")
    assert [one.split(":")[0] for one in findings(browser, [page])["bare.html"]] == ["image-alt"]
