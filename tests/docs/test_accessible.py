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
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(300)  # a busy machine is no finding
    yield driver
    driver.quit()


def findings(browser: Any, pages: list[Path], width: int = 390) -> dict[str, list[str]]:
    """Page → what axe-core says of it, as wide as a telephone; pages without a finding are left out."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
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


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_found_in_the_example_audit(browser: Any, width: int) -> None:
    pages = list((ROOT / "audit-out").glob("*.html"))
    if not pages:
        pytest.skip("`make audit` has written nothing")
    assert findings(browser, pages, width) == {}


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_found_in_the_table_of_defences(browser: Any, width: int) -> None:
    assert findings(browser, [ROOT / "leaderboard" / "index.html"], width) == {}


def test_a_picture_without_words_is_found(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "bare.html"
    page.write_text("<!doctype html><html lang=en><title>t</title><main><h1>h</h1><img src=x.png></main>", "utf-8")
    assert [one.split(":")[0] for one in findings(browser, [page])["bare.html"]] == ["image-alt"]
