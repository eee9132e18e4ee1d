"""The page: what it says, what it must survive, and how it behaves in a browser."""

from __future__ import annotations

import json
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

from leakgauge.observation import Status, Tried
from leakgauge.report.html import render
from leakgauge.study.database import Picture
from leakgauge.study.judging.gate import GateResult, Reason, Why
from leakgauge.study.judging.records import Scenario
from leakgauge.study.judging.results import Flag, Level, Power
from leakgauge.study.judging.verdict import Verdict
from report.fixture import Case, Fixture, fixture, photo, png, text_of

CHROMIUM, DRIVER = (Path(shutil.which(name) or name) for name in ("chromium", "chromedriver"))
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
SIZES = [(1280, 800), (390, 844)]


@pytest.fixture(scope="module")
def full() -> Fixture:
    return fixture()


@pytest.fixture(scope="module")
def html(full: Fixture) -> str:
    return full.html


def test_verdict_comes_first_and_the_worst_case_next(html: str) -> None:
    order = [
        html.index(f'id="{name}"') for name in ("verdict", "worst", "pictures", "lint", "table", "labels", "plots")
    ]
    assert order == sorted(order)
    order = [html.index(f'id="{name}"') for name in ("plots", "knowledge", "failures", "repeat", "reading")]
    assert order == sorted(order)


def test_the_page_says_which_methods_were_tried_and_which_raised(full: Fixture) -> None:
    methods = (
        Tried("patches", Status.FAILED, "KeyError: '<logits>'", raised=True),
        Tried("peeling", Status.NOT_APPLICABLE, "a delta", raised=False),
    )
    shown = replace(full, trials=tuple(replace(t, tried=methods) for t in full.trials)).html
    text = text_of(shown[shown.index("Methods that attacks of several tried") :])
    assert "patches by an error KeyError: '<logits>'" in text
    assert "peeling not applicable a delta" in text


def test_worst_case_is_the_identified_image_of_highest_psnr(html: str) -> None:
    hero = text_of(html[html.index('id="worst"') : html.index("<nav")])
    assert "PSNR 100.0 dB" in hero
    assert "identified among 100 others" in hero
    assert "closed-form" in hero
    assert "no defence" in hero


def test_what_is_identified_in_an_audit_without_a_result_is_said_to_be_chance(full: Fixture) -> None:
    """Beside "inconclusive" a pair of noise was "identified" in red."""
    html = replace(full, verdict=replace(full.verdict, level=Level.INCONCLUSIVE)).html
    hero = html[html.index('id="worst"') : html.index("<nav")]
    assert "identified, as by chance among 100 others" in text_of(hero)
    assert 'class="hit"' not in hero


def test_controls_are_shown_but_never_the_worst_case() -> None:
    html = fixture((Case("auto", blur=3, noise=0.3), Case("auto", model="mlp", noise=0.0, control=True))).html
    assert "lenet" in html[html.index('id="worst"') : html.index("<nav")]
    assert "Known-leaky control" in html[html.index('id="pictures"') :]
    assert ">mlp" not in html[html.index('id="table"') : html.index('id="labels"')]


def test_every_plain_word_reaches_the_page(html: str) -> None:
    """Templates forgive what is undefined, so that a null cannot stop them; this finds a forgotten import of words."""
    text = text_of(html)
    assert "nearest public highest" in text
    assert "The attack or the simulated client broke down." in text
    assert "The attack does not fit this scenario." in text
    assert "Which mechanism the client applies" in text
    assert "known" in text[text.index("The defence") :][:60]
    assert re.search(r"All \d+ reasons", text)
    assert "closed-form needs a biased linear layer" in text


def test_numbers_carry_units_and_intervals_that_do_not_break(html: str) -> None:
    assert re.search(r"1\.00\u00a0\[0\.63,\u00a01\.00\]", html)
    assert re.search(r"\d\.\d\u00a0dB", html)
    assert "nan" not in text_of(html).lower().split()
    assert "None" not in text_of(html)


def test_never_says_safe_without_not(html: str) -> None:
    for found in re.finditer(r"\bsafe\b", text_of(html)):
        assert re.search(r"\bnot\b", text_of(html)[max(0, found.start() - 40) : found.start()]), found


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
        "sys.stdout.buffer.write(fixture().html.encode())"
    )
    tests = str(Path(__file__).parent.parent)
    again = subprocess.run(
        [sys.executable, "-c", code, tests], capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert again.stdout.decode() == html


def test_hostile_text_stays_text() -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=alert(2)>'
    case = Case(f"auto{evil}", defense=f"noise(relative=0.1){evil}", model=f"m{evil}", client=f"c{evil}")
    lost = Case("dlg", status="failed", message=f"cannot read {evil}")
    made = fixture((case, lost))
    pictures = {k: [replace(p, name=evil) for p in v] for k, v in made.pictures.items()}
    told = made.told | {"config": {"name": evil, evil: "</script></style></pre>"}, "environment": {evil: evil}}
    told |= {"leakgauge_version": evil, "created_at": evil}
    first, *rest = made.verdict.findings
    gate = GateResult(False, (Reason(Why.BROKEN, evil, evil, evil),))
    findings = (replace(first, sentence=evil), *rest)
    verdict = replace(made.verdict, headline=(evil, evil), gate=gate, findings=findings)
    html = render(told, verdict, made.trials, pictures)
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert html.count("<script") == 1
    assert html.count("</style>") == 1
    assert "cannot read &#34;&gt;&lt;script&gt;" in html


def _all_failed(full: Fixture) -> Fixture:
    trials = tuple(replace(t, status="failed", message="broke", scores=None) for t in full.trials)
    none = {"psnr": None, "null_psnr": None, "ssim_mean": None, "identified": None, "label_f1": None, "power": Power()}
    findings = tuple(replace(f, level=Level.INCONCLUSIVE, **none) for f in full.verdict.findings)
    verdict = Verdict(Level.INCONCLUSIVE, ("This audit does not settle it.", ""), findings, GateResult(None))
    return replace(full, trials=trials, verdict=verdict)


def _not_images(full: Fixture) -> Fixture:
    none = {"psnr": (None,), "ssim": None, "mse": (None,), "likeness": None}
    return replace(full, trials=tuple(replace(t, scores=t.scores and replace(t.scores, **none)) for t in full.trials))


def _empty(full: Fixture) -> Fixture:
    told = full.told | {"config": {}, "environment": {}}
    return Fixture(told, Verdict(Level.INCONCLUSIVE, ("", ""), (), GateResult(None)), (), full.pictures)


def _nothing_known(full: Fixture) -> Fixture:
    def blind(s: Scenario) -> Scenario:
        return replace(s, knowledge=())

    findings = tuple(replace(f, scenario=blind(f.scenario)) for f in full.verdict.findings)
    trials = tuple(replace(t, scenario=blind(t.scenario)) for t in full.trials)
    return replace(full, trials=trials, verdict=replace(full.verdict, findings=findings))


DEGENERATE: list[Callable[[Fixture], Fixture]] = [_all_failed, _not_images, _empty, _nothing_known]


@pytest.mark.parametrize("spoil", DEGENERATE, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("with_pictures", [True, False], ids=["pictures", "none"])
def test_degenerate_reports_render(full: Fixture, spoil: Callable[[Fixture], Fixture], with_pictures: bool) -> None:
    spoiled = spoil(full)
    html = (spoiled if with_pictures else replace(spoiled, pictures={})).html
    assert html.rstrip().endswith("</html>")
    assert "None" not in text_of(html)


def test_all_failed_says_so(full: Fixture) -> None:
    text = text_of(replace(_all_failed(full), pictures={}).html)
    assert "No attack returned a result" in text
    assert "A trial without a result is no evidence of protection" in text
    assert "There is nothing to plot" in text


def test_settings_that_the_gate_takes_for_a_baseline_are_controls_on_the_page(full: Fixture) -> None:
    """Their trials are no controls of the audit: they once made rows of their own, without a finding."""
    first, *rest = full.verdict.findings
    assert first.scenario.defense == "none"
    told = replace(full, verdict=replace(full.verdict, findings=(replace(first, control=True), *rest)))
    assert text_of(told.html).count("Known-leaky control") == text_of(full.html).count("Known-leaky control") + 1
    row = '<th scope="row" data-v='
    assert told.html.count(row) == full.html.count(row) - 1


def test_counts_only_says_so_and_keeps_the_numbers(full: Fixture) -> None:
    html = replace(full, told=full.told | {"counts_only": True}, pictures={}).html
    assert text_of(html).count("Images were not stored (--counts-only).") == 2
    assert "<img" not in html
    assert "PSNR <b>100.0\u00a0dB" in html


def test_one_trial_renders() -> None:
    assert "coffee.png" in fixture((Case("auto", names=("coffee.png",)),)).html


def test_five_hundred_trials_show_the_worst_and_count_the_rest() -> None:
    made = fixture((Case("auto", names=("coffee.png",)),))
    (first,), shown = made.trials, next(iter(made.pictures.values()))
    assert first.scores is not None
    trials = tuple(
        replace(
            first, id=f"t{i:03}", seed=i, scores=replace(first.scores, psnr=(10 + i / 100,), identified=(i % 2 == 0,))
        )
        for i in range(500)
    )
    html = replace(made, trials=trials, pictures={t.id: shown for t in trials}).html
    assert html.count("<img") == 2 * (1 + 8)
    assert "492 more images" in html
    gallery = text_of(html[html.index('id="pictures"') : html.index('id="table"')])
    found = [float(x) for x in re.findall(r"(\d+\.\d) dB · SSIM", gallery)]
    assert found == [15.0, 15.0, 14.9, 14.9, 14.9, 14.9, 14.9, 14.8]


def test_missing_and_broken_pictures_leave_a_labelled_hole() -> None:
    made = fixture((Case("auto", names=("coffee.png", "rocket.jpg")),))
    a, b = sorted(made.pictures)
    made.pictures[a] = [Picture(name="coffee.png", slot=0, original=png(photo("coffee.png")), reconstruction=None)]
    made.pictures[b] = [Picture(name="rocket.jpg", slot=7, original=b"no png", reconstruction=b"")]
    assert 'aria-label="What the attack made of coffee.png: not available"' in made.html
    assert 'aria-label="Original of rocket.jpg: not available"' in made.html


def test_plots_take_any_name() -> None:
    """Underscores hide legend entries, long names overflow the layout, and no font here has every script."""
    cases = (
        Case("_hidden", defense="noise(sigma=1e999)"),
        Case("攻撃" * 40, defense='clip(norm=1) id="a" url(#b) <metadata>', model="x" * 300),
        Case("dlg($a$, $$)", defense="noise(sigma=0.1)"),
        Case("dlg($a$, $$)", defense="noise(sigma=0.2)"),
    )
    html = fixture(cases).html
    assert html.count('<svg class="plot"') == 1
    ids = re.findall(r"<[^>]*\bid=\"([^\"]+)\"[^>]*>", html)
    assert len(ids) == len(set(ids))


def test_plots_are_labelled_and_take_their_colours_from_the_page(html: str) -> None:
    plots = re.findall(r'<svg class="plot".*?</svg>', html, flags=re.S)
    assert len(plots) == 1
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


def opened(browser: Any, path: Path) -> None:
    """Opens a page and waits until all of it is there: on a busy machine a large one is still being parsed."""
    browser.get(path.as_uri())
    wait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait(browser, 60)
    wait.until(lambda b: b.execute_script("return document.readyState") == "complete")


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
    opened(browser, path)
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
    events = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
    own = [one["request"]["url"] for one in asked if one["documentURL"] == page.current_url]  # not the browser's
    assert own
    assert {url.split(":")[0] for url in own} <= {"file", "data"}
    broken = "return [...document.images].filter(i => !i.complete || i.naturalWidth === 0).length"
    assert page.execute_script("return document.images.length") > 20
    assert page.execute_script(broken) == 0
    assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.page
def test_words_stay_in_their_column(browser: Any, full: Fixture, tmp_path: Path) -> None:
    """ "identified, as by chance" ran over the next picture at 390 px, and one long flag pushed seven columns away."""
    finding = next(f for f in full.verdict.findings if not f.control)
    flagged = replace(finding, flags=(Flag("NoGradient", "its pictures are guesswork " * 12),))
    findings = tuple(flagged if f is finding else f for f in full.verdict.findings)
    verdict = replace(full.verdict, level=Level.INCONCLUSIVE, findings=findings)
    (tmp_path / "report.html").write_text(replace(full, verdict=verdict).html, encoding="utf-8")
    size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened(browser, tmp_path / "report.html")
    wide = "return [...document.querySelectorAll('.gallery li')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert browser.execute_script("return document.querySelectorAll('.gallery li').length") > 0
    assert browser.execute_script(wide) == 0
    flag = "return Math.max(...[...document.querySelectorAll('.flag')].map(e => e.offsetWidth))"
    assert 0 < browser.execute_script(flag) < 400


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


def many_cases(n: int) -> Fixture:
    """One case n times, under other defences."""
    made = fixture((Case("auto", names=("coffee.png",)),))
    (trial,), (finding,), shown = made.trials, made.verdict.findings, next(iter(made.pictures.values()))
    label = [f"noise(sigma={i / 1000})" for i in range(1, n + 1)]
    trials = tuple(replace(trial, id=d, scenario=replace(trial.scenario, defense=d)) for d in label)
    findings = tuple(replace(finding, scenario=replace(finding.scenario, defense=d)) for d in label)
    verdict = replace(made.verdict, findings=findings)
    return Fixture(made.told, verdict, trials, dict.fromkeys(label, shown))


def test_a_thousand_cases_are_paged_and_drawn_in_part() -> None:
    html = many_cases(1000).html
    table = html[html.index('id="table"') : html.index('id="labels"')]
    first, further = table.split('<template id="further-rows">')
    assert (first.count("<tr>"), further.count("<tr>")) == (101, 900)
    assert "1000 cases; 100 at a time" in text_of(further)
    assert "Pictures of the worst 120 of 1000 cases" in text_of(html)
    assert len(html) < 6_000_000


@pytest.mark.page
def test_pages_of_the_table_turn_and_sort_as_one(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_text(many_cases(250).html, encoding="utf-8")
    opened(browser, path)
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


def test_a_store_is_asked_for_its_number_of_pictures_a_few_times_however_many_trials(full: Fixture) -> None:
    """A database counts them anew each time: 340 s for the page of 10 000 trials."""

    class Counted(dict[str, list[Picture]]):
        asked = 0

        def __len__(self) -> int:
            self.asked += 1
            return super().__len__()

    counted = Counted(full.pictures)
    render(full.told, full.verdict, full.trials * 20, counted)
    assert counted.asked <= 5
