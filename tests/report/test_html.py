"""The page: what it says, what it must survive, and how it behaves in a browser."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakgauge.report.html import render
from leakgauge.report.rows import Picture
from report.fixture import Case, fixture, photo, png

Report = dict[str, Any]
CHROMIUM, DRIVER = (Path(shutil.which(name) or name) for name in ("chromium", "chromedriver"))
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
SIZES = [(1280, 800), (390, 844)]


@pytest.fixture(scope="module")
def full() -> tuple[Report, dict[str, list[Picture]]]:
    return fixture()


@pytest.fixture(scope="module")
def html(full: tuple[Report, dict[str, list[Picture]]]) -> str:
    return render(*full)


def _text(html: str) -> str:
    """What a reader sees, spaces made one."""
    bare = re.sub(r"<(style|script)\b.*?</\1>|<svg.*?</svg>|<[^>]+>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", bare)


def test_verdict_comes_first_and_the_worst_case_next(html: str) -> None:
    order = [html.index(f'id="{name}"') for name in ("verdict", "worst", "pictures", "table", "labels", "plots")]
    assert order == sorted(order)
    order = [html.index(f'id="{name}"') for name in ("plots", "knowledge", "failures", "repeat", "reading")]
    assert order == sorted(order)


def test_the_page_says_which_methods_were_tried_and_which_raised(
    full: tuple[Report, dict[str, list[Picture]]],
) -> None:
    report, pictures = full
    trials = [dict(t) for t in report["trials"]]
    for t in trials:
        t["tried"] = [
            {"name": "patches", "status": "failed", "why": "KeyError: '<logits>'", "raised": True},
            {"name": "peeling", "status": "not_applicable", "why": "a delta", "raised": False},
        ]
    shown = render({**report, "trials": trials}, pictures)
    text = _text(shown[shown.index("Methods that attacks of several tried") :])
    assert "patches by an error KeyError: &#39;&lt;logits&gt;&#39;" in text
    assert "peeling not applicable a delta" in text


def test_worst_case_is_the_identified_image_of_highest_psnr(html: str) -> None:
    hero = _text(html[html.index('id="worst"') : html.index("<nav")])
    assert "PSNR 100.0 dB" in hero
    assert "identified among 100 others" in hero
    assert "closed-form" in hero
    assert "no defence" in hero


def test_controls_are_shown_but_never_the_worst_case() -> None:
    report, pictures = fixture((Case("auto", blur=3, noise=0.3), Case("auto", model="mlp", noise=0.0, control=True)))
    html = render(report, pictures)
    assert "lenet" in html[html.index('id="worst"') : html.index("<nav")]
    assert "Known-leaky control" in html[html.index('id="pictures"') :]
    assert ">mlp" not in html[html.index('id="table"') : html.index('id="labels"')]


def test_every_plain_word_reaches_the_page(html: str) -> None:
    """Templates forgive what is undefined, so that a null cannot stop them; this finds a forgotten import of words."""
    text = _text(html)
    assert "nearest public highest" in text
    assert "The attack or the simulated client broke down." in text
    assert "The attack does not fit this scenario." in text
    assert "Which mechanism the client applies" in text
    assert "known" in text[text.index("The defence") :][:60]
    assert "All 4 reasons" in text
    assert "closed-form needs a biased linear layer" in text


def test_numbers_carry_units_and_intervals_that_do_not_break(html: str) -> None:
    assert re.search(r"1\.00\u00a0\[0\.63,\u00a01\.00\]", html)
    assert re.search(r"\d\.\d\u00a0dB", html)
    assert "nan" not in _text(html).lower().split()
    assert "None" not in _text(html)


def test_never_says_safe_without_not(html: str) -> None:
    for found in re.finditer(r"\bsafe\b", _text(html)):
        assert re.search(r"\bnot\b", _text(html)[max(0, found.start() - 40) : found.start()]), found


def test_nothing_is_loaded_from_elsewhere(html: str) -> None:
    assert not re.search(r"https?://", html)
    for address in re.findall(r"\b(?:src|href)=\"([^\"]*)\"", html):
        assert address.startswith(("#", "data:")), address
    assert not re.search(r"url\((?!#)", html)


def test_every_id_is_unique_and_every_reference_lands(html: str) -> None:
    ids = re.findall(r"\bid=\"([^\"]+)\"", html)
    assert len(ids) == len(set(ids))
    pointed = re.findall(r"href=\"#([^\"]+)\"|url\(#([^)]+)\)|aria-labelledby=\"([^\"]+)\"", html)
    assert {name for found in pointed for part in found for name in part.split()} <= set(ids)


def test_same_input_gives_same_bytes_even_in_another_process(html: str) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from report.fixture import fixture; "
        "from leakgauge.report.html import render; sys.stdout.buffer.write(render(*fixture()).encode())"
    )
    tests = str(Path(__file__).parent.parent)
    again = subprocess.run(
        [sys.executable, "-c", code, tests], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert again.stdout.decode() == html


def test_hostile_text_stays_text() -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    case = Case(f"auto{evil}", defense=f"noise(relative=0.1){evil}", model=f"m{evil}", client=f"c{evil}")
    lost = Case("dlg", status="failed", message=f"cannot read {evil}", level="inconclusive")
    report, pictures = fixture((case, lost))
    pictures = {k: [replace(p, name=evil) for p in v] for k, v in pictures.items()}
    report["config"] |= {"name": evil, evil: "</script></style></pre>"}
    report["environment"][evil] = evil
    report["leakgauge_version"] = report["created_at"] = evil
    report["verdict"] |= {"headline": [evil, evil], "gate": {"passed": False, "reasons": [evil]}}
    report["verdict"]["findings"][0]["sentence"] = evil
    html = render(report, pictures)
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert html.count("<script") == 1
    assert html.count("</style>") == 1
    assert "cannot read &#34;&gt;&lt;script&gt;" in html


def _nulls(value: Any, keep: tuple[str, ...] = ()) -> Any:
    """The same report with a null for every number, text and list below the named keys."""
    if isinstance(value, dict):
        return {k: v if k in keep else _nulls(v, keep) for k, v in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_nulls(v, keep) for v in value]
    return None


def _all_failed(report: Report) -> None:
    for trial in report["trials"]:
        trial.update(status="failed", message="broke", scores=None, labels=None, controls={})
    for f in report["verdict"]["findings"]:
        f.update(
            level="inconclusive", **dict.fromkeys(("psnr", "null_psnr", "ssim_mean", "identified", "label_f1", "power"))
        )
    report["verdict"].update(
        level="inconclusive", headline=["This audit does not settle it."], gate={"passed": None, "reasons": []}
    )


def _not_images(report: Report) -> None:
    for trial in report["trials"]:
        if trial["scores"]:
            trial["scores"].update(psnr=None, ssim=None, lpips=None, rank=None, identified=None)


def _null_lists(report: Report) -> None:
    for trial in report["trials"]:
        if trial["scores"]:
            trial["scores"] = {k: [None] if isinstance(v, list) else v for k, v in trial["scores"].items()}
            trial["controls"] = {"mean_image": None, "nearest_public": {"psnr": [None]}, "other_client": {"psnr": None}}


def _empty(report: Report) -> None:
    report.update(
        trials=[],
        verdict={"level": "inconclusive", "headline": [], "findings": [], "gate": None},
        config={},
        environment={},
    )


def _no_findings(report: Report) -> None:
    report["verdict"]["findings"] = []


def _nothing_known(report: Report) -> None:
    for record in [*report["trials"], *report["verdict"]["findings"]]:
        record["scenario"]["knowledge"] = []


DEGENERATE: list[Callable[[Report], None]] = [
    _all_failed,
    _not_images,
    _null_lists,
    _empty,
    _no_findings,
    _nothing_known,
]


@pytest.mark.parametrize("spoil", DEGENERATE, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("with_pictures", [True, False], ids=["pictures", "none"])
def test_degenerate_reports_render(
    full: tuple[Report, dict[str, list[Picture]]], spoil: Callable[[Report], None], with_pictures: bool
) -> None:
    report = copy.deepcopy(full[0])
    spoil(report)
    html = render(report, full[1] if with_pictures else {})
    assert html.rstrip().endswith("</html>")
    assert "None" not in _text(html)


def test_a_report_of_nulls_renders(full: tuple[Report, dict[str, list[Picture]]]) -> None:
    html = render(_nulls(full[0], keep=("id",)), full[1])
    assert "Inconclusive" in html
    assert "None" not in _text(html)
    assert "Inconclusive" in render({}, {})


def test_all_failed_says_so(full: tuple[Report, dict[str, list[Picture]]]) -> None:
    report = copy.deepcopy(full[0])
    _all_failed(report)
    text = _text(render(report, {}))
    assert "No attack returned a result" in text
    assert "A trial without a result is no evidence of protection" in text
    assert "There is nothing to plot" in text


def test_counts_only_says_so_and_keeps_the_numbers(full: tuple[Report, dict[str, list[Picture]]]) -> None:
    html = render({**full[0], "counts_only": True}, {})
    assert _text(html).count("Images were not stored (--counts-only).") == 2
    assert "<img" not in html
    assert "PSNR <b>100.0\u00a0dB" in html


def test_one_trial_renders() -> None:
    report, pictures = fixture((Case("auto", names=("coffee.png",)),))
    assert "coffee.png" in render(report, pictures)


def test_five_hundred_trials_show_the_worst_and_count_the_rest() -> None:
    report, pictures = fixture((Case("auto", names=("coffee.png",)),))
    first, shown = report["trials"][0], next(iter(pictures.values()))
    report["trials"], many = [], {}
    for i in range(500):
        trial = copy.deepcopy(first) | {"id": f"t{i:03}", "seed": i}
        trial["scores"] |= {"psnr": [10 + i / 100], "identified": [i % 2 == 0]}
        report["trials"].append(trial)
        many[trial["id"]] = shown
    html = render(report, many)
    assert html.count("<img") == 2 * (1 + 8)
    assert "492 more images" in html
    gallery = _text(html[html.index('id="pictures"') : html.index('id="table"')])
    assert [float(x) for x in re.findall(r"(\d+\.\d) dB · SSIM", gallery)] == [
        15.0,
        15.0,
        14.9,
        14.9,
        14.9,
        14.9,
        14.9,
        14.8,
    ]


def test_missing_and_broken_pictures_leave_a_labelled_hole() -> None:
    report, pictures = fixture((Case("auto", names=("coffee.png", "rocket.jpg")),))
    a, b = sorted(pictures)
    pictures[a] = [Picture(name="coffee.png", slot=0, original=png(photo("coffee.png")), reconstruction=None)]
    pictures[b] = [Picture(name="rocket.jpg", slot=7, original=b"no png", reconstruction=b"")]
    html = render(report, pictures)
    assert 'aria-label="What the attack made of coffee.png: not available"' in html
    assert 'aria-label="Original of rocket.jpg: not available"' in html


def test_plots_take_any_name() -> None:
    """Underscores hide legend entries, long names overflow the layout, and no font here has every script."""
    cases = (
        Case("_hidden", defense="noise(sigma=1e999)"),
        Case("攻撃" * 40, defense='clip(norm=1) id="a" url(#b) <metadata>', model="x" * 300),
        Case("dlg($a$, $$)", defense="noise(sigma=0.1)"),
        Case("dlg($a$, $$)", defense="noise(sigma=0.2)"),
    )
    html = render(*fixture(cases))
    assert html.count('<svg class="plot"') == 3
    ids = re.findall(r"<[^>]*\bid=\"([^\"]+)\"[^>]*>", html)
    assert len(ids) == len(set(ids))


def test_plots_are_labelled_and_take_their_colours_from_the_page(html: str) -> None:
    plots = re.findall(r'<svg class="plot".*?</svg>', html, flags=re.S)
    assert len(plots) == 3
    for plot in plots:
        assert 'role="img"' in plot
        assert "<title" in plot
        assert "<desc" in plot
        assert not re.search(r"(?:fill|stroke): ?#", plot)
    assert html.count("The numbers in this plot") == len(plots)


def _luminance(colour: str) -> float:
    linear = [((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 255 / 12.92 for c in bytes.fromhex(colour[1:])]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_meets_wcag_aa(html: str, scheme: str) -> None:
    block = re.search(rf':root\[data-theme="{scheme}"\] {{(.*?)}}', html, flags=re.S)
    assert block is not None
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block[1]))

    def contrast(a: str, b: str) -> float:
        low, high = sorted((_luminance(colours[a]), _luminance(colours[b])))
        return (high + 0.05) / (low + 0.05)

    for paper in ("paper", "card", "grey-bg"):
        assert min(contrast(ink, paper) for ink in ("ink", "muted", "accent")) >= 4.5
    for tone in ("red", "amber", "blue", "grey"):
        assert min(contrast(ink, f"{tone}-bg") for ink in (tone, "ink", "accent")) >= 4.5
        assert contrast(tone, "card") >= 4.5
    assert min(contrast(f"series-{i}", "card") for i in range(6)) >= 3


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (CHROMIUM.exists() and DRIVER.exists()):
        missing = f"needs {CHROMIUM} and {DRIVER}"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(params=SIZES, ids=lambda s: f"{s[0]}px")
def page(browser: Any, html: str, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """The page open at a size, its scheme light."""
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    width, height = request.param
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", light)
    browser.get_log("performance")
    browser.get(path.as_uri())
    return browser


def _tab_until(page: Any, condition: str, limit: int = 60) -> None:
    """Presses Tab until the focused element meets a condition in JavaScript."""
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    actions = pytest.importorskip("selenium.webdriver").ActionChains
    for _ in range(limit):
        actions(page).send_keys(keys.TAB).perform()
        if page.execute_script(f"const e = document.activeElement; return {condition};"):
            return
    pytest.fail(f"no Tab reaches {condition}")


@pytest.mark.page
def test_page_is_clean_offline_and_fits(page: Any) -> None:
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
    asked = [
        entry["message"] for entry in page.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert asked
    addresses = [re.search(r'"request":\{.*?"url":"([a-z-]+):', message) for message in asked]
    assert {found[1] for found in addresses if found} <= {"file", "data"}
    broken = "return [...document.images].filter(i => !i.complete || i.naturalWidth === 0).length"
    assert page.execute_script("return document.images.length") > 20
    assert page.execute_script(broken) == 0
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.page
def test_verdict_and_worst_case_are_in_the_first_viewport(page: Any) -> None:
    for selector in (
        "#headline",
        ".verdict .gate p",
        "#worst img:first-of-type",
        "#worst figure:last-child img",
        "#worst .caption",
    ):
        box = page.execute_script("const r = document.querySelector(arguments[0]).getBoundingClientRect();"
                                  "return [r.top, r.bottom, r.height, innerHeight]", selector)  # fmt: skip
        assert 0 <= box[0] < box[1] <= box[3], (selector, box)
        assert box[2] > 0


@pytest.mark.page
def test_the_navigation_lands_where_it_says(page: Any) -> None:
    """A section's heading is just below the bar that stays, or the page has no more to scroll."""
    links = page.execute_script("return [...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))")
    assert len(links) >= 4
    for link in [*links, *reversed(links)]:
        page.execute_script("document.querySelector(`nav a[href='${arguments[0]}']`).click()", link)
        landed = _still(page, f"document.querySelector('{link} h2').getBoundingClientRect().top")
        bar = page.execute_script("return document.querySelector('nav').getBoundingClientRect().bottom")
        ends = page.execute_script("return scrollY + innerHeight >= document.documentElement.scrollHeight - 1")
        assert landed <= page.execute_script("return innerHeight") if ends else bar <= landed <= bar + 48, (
            link,
            landed,
            bar,
        )


def _still(page: Any, value: str) -> float:
    """A value once it has stopped to change."""
    before, now = None, page.execute_script(f"return {value}")
    while now != before:
        time.sleep(0.25)
        before, now = now, page.execute_script(f"return {value}")
    return float(now)


@pytest.mark.page
def test_keyboard_reaches_skip_link_toggle_and_sort(page: Any) -> None:
    _tab_until(page, "e.className === 'skip' && e.getBoundingClientRect().top >= 0", limit=1)
    _tab_until(page, "e.id === 'theme' && getComputedStyle(e).outlineStyle !== 'none'", limit=1)
    keys = pytest.importorskip("selenium.webdriver.common.keys").Keys
    actions = pytest.importorskip("selenium.webdriver").ActionChains
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = page.execute_script(colour)
    actions(page).send_keys(keys.SPACE).perform()
    dark = page.execute_script(colour)
    assert dark != before
    assert page.execute_script("return document.activeElement.textContent") == "Light mode"
    actions(page).send_keys(keys.SPACE).perform()
    assert page.execute_script(colour) == before
    assert page.execute_script("return document.activeElement.textContent") == "Dark mode"
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert page.execute_script("document.documentElement.removeAttribute('data-theme');" + colour) == dark
    _tab_until(page, "e.closest('.sortable thead') && e.tagName === 'BUTTON'")


@pytest.mark.page
def test_sorting_orders_by_value_and_says_so(page: Any) -> None:
    column = (
        "return [...document.querySelectorAll('.sortable tbody tr')].map(r => r.cells[4].dataset.v)"
        ".map(v => v === '' ? -Infinity : Number(v))"
    )
    button = "document.querySelectorAll('.sortable thead button')[4]"
    for direction, reverse in (("descending", True), ("ascending", False)):
        page.execute_script(f"{button}.click()")
        values = [float("-inf") if v is None else v for v in page.execute_script(column)]
        assert values == sorted(values, reverse=reverse)
        assert page.execute_script(f"return {button}.parentElement.getAttribute('aria-sort')") == direction


def many_cases(n: int) -> tuple[Report, dict[str, list[Picture]]]:
    """One case n times, under other defences."""
    report, pictures = fixture((Case("auto", names=("coffee.png",)),))
    trial, finding, shown = report["trials"][0], report["verdict"]["findings"][0], next(iter(pictures.values()))
    label = [f"noise(sigma={i / 1000})" for i in range(1, n + 1)]
    trials = [{**trial, "id": d, "scenario": {**trial["scenario"], "defense": d}} for d in label]
    findings = [{**finding, "scenario": {**finding["scenario"], "defense": d}} for d in label]
    verdict = {**report["verdict"], "findings": findings}
    return {**report, "trials": iter(trials), "verdict": verdict}, dict.fromkeys(label, shown)


def test_a_thousand_cases_are_paged_and_drawn_in_part() -> None:
    html = render(*many_cases(1000))
    table = html[html.index('id="table"') : html.index('id="labels"')]
    first, further = table.split('<template id="further-rows">')
    assert (first.count("<tr>"), further.count("<tr>")) == (101, 900)
    assert "1000 cases; 100 at a time" in _text(further)
    assert "Pictures of the worst 120 of 1000 cases" in _text(html)
    assert len(html) < 6_000_000


@pytest.mark.page
def test_pages_of_the_table_turn_and_sort_as_one(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_text(render(*many_cases(250)), encoding="utf-8")
    browser.get(path.as_uri())
    rows = "return [...document.querySelectorAll('.sortable tbody tr th')].map(h => h.dataset.v)"
    told = "return document.querySelector('.pages span').textContent"
    first = browser.execute_script(rows)
    assert (len(first), browser.execute_script(told)) == (100, "1–100 of 250")
    for _ in range(2):
        browser.execute_script("document.querySelector('.pages').children[2].click()")
    last = browser.execute_script(rows)
    assert (len(last), browser.execute_script(told)) == (50, "201–250 of 250")
    assert not {*first} & {*last}
    browser.execute_script("document.querySelector('.sortable th button').click()")
    sorted_page = browser.execute_script(rows)
    assert sorted_page == sorted(sorted_page)
    assert max(sorted_page) < max(last)
    assert browser.execute_script(told) == "1–100 of 250"


def test_a_store_is_asked_for_its_number_of_pictures_a_few_times_however_many_trials(
    full: tuple[Report, dict[str, list[Picture]]],
) -> None:
    """A database counts them anew each time: 340 s for the page of 10 000 trials."""

    class Counted(dict[str, list[Picture]]):
        asked = 0

        def __len__(self) -> int:
            self.asked += 1
            return super().__len__()

    report, pictures = full
    counted = Counted(pictures)
    render({**report, "trials": report["trials"] * 20}, counted)
    assert counted.asked <= 5
