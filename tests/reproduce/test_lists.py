"""The frozen lists: typed, whole, and asking for rows that the items make."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from reproduce.claims import quantity  # noqa: E402
from reproduce.claims.frozen import SHORT, ClaimList, asked, claims_of, digest, file_of  # noqa: E402
from reproduce.item import Inputs  # noqa: E402
from reproduce.tables import cells  # noqa: E402

from reproduce import command, queue  # noqa: E402

LISTS = [pytest.param(paper, id=paper) for paper in command.PAPERS]


def claim(**changes: Any) -> dict[str, Any]:
    plain = {"id": "a", "place": "T1", "says": "s", "line": "l", "metric": "m", "margin": "none", "sample": "x"}
    plain |= {"rule": {"reaches": "i | s | a", "value": 1.0, "margin": 0.0}, "units": 3}
    return {key: value for key, value in (plain | changes).items() if value is not None}


def listed(**changes: Any) -> dict[str, Any]:
    plain = {"paper": "p", "words": "w", "metrics": {"m": {"name": "M", "better": "higher"}}}
    return plain | {"cost": {"i": {"hours": 1.0, "how": "so"}}, "claims": [claim(**changes)]}


def test_a_list_that_is_whole_loads_and_its_rows_are_named_in_words() -> None:
    found = ClaimList.model_validate(listed())
    (row,) = found.claims[0].rows
    assert (row.item, row.setting, row.attack, row.metric) == ("i", "s", "a", "")
    assert row.text == "i | s | a"


@pytest.mark.parametrize(
    "wrong",
    [
        listed(rule=None),
        listed(untestable="and a rule"),
        listed(rule={"reaches": "i | s | a", "value": 1.0, "margin": 0.0, "tolerance": 1}),
        listed(rule={"reaches": "no row", "value": 1.0, "margin": 0.0}),
        listed(rule={"near": "i | s | a", "value": 1.0, "margin": -1.0}),
        listed(metric="unknown"),
        listed(margin=""),
        listed(units=0),
        listed(published=[1.0, 2.0, 3.0]),
        listed() | {"cost": {"j": {"hours": 1.0, "how": "so"}}},
        listed() | {"claims": [claim(), claim()]},
    ],
)
def test_a_list_that_is_not_whole_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClaimList.model_validate(wrong)


@pytest.mark.parametrize("paper", LISTS)
def test_every_claim_of_a_list_is_whole(paper: str) -> None:
    found = claims_of(paper)
    assert found.paper == paper
    assert len(found.claims) >= 15
    known = command.items()
    for item in found.cost:
        assert known[f"{paper}/{item}"].measure is not None


@pytest.mark.parametrize("paper", LISTS)
def test_published_numbers_are_printed_by_the_paper(paper: str) -> None:
    every = [cell for item in command.items().values() if item.paper == paper for cell in cells(paper, item.name)]
    printed = {value for cell in every for value in (cell.claimed, cell.spread) if value is not None}
    said = {value for claim in claims_of(paper).claims for value in claim.published}
    assert said - printed <= {1.0, 14.0}, "what the text says in words"
    for claim in claims_of(paper).claims:
        if len(claim.published) == 1 and hasattr(claim.rule, "value"):
            assert claim.rule.value == claim.published[0]


def test_a_digest_is_of_the_file_and_any_change_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file_of("mkor").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["paper"] == "mkor"
    before = digest("mkor")
    monkeypatch.setattr("reproduce.claims.frozen.LISTS", tmp_path)
    digest.cache_clear()
    for change, same in (("", True), (" ", False)):
        file_of("mkor").write_text(text + change, encoding="utf-8")
        digest.cache_clear()
        assert (digest("mkor") == before) == same
    digest.cache_clear()


def test_the_plan_has_every_item_twice_cheap_ones_first_and_fits_a_day() -> None:
    found = queue.jobs()
    assert {(job.paper, job.item) for job in found} == {(p, i) for p in command.PAPERS for i in claims_of(p).cost}
    assert [job.start for job in found] == sorted(job.start for job in found)
    first = [job.hours for job in found if job.start == 0]
    assert first == sorted(first)
    assert sum(job.hours for job in found) <= 26
    lines = list(queue.plan(found))
    assert len(lines) == len(found) + 1
    assert all(job.decides for job in found), "an item that decides nothing is not run"


def test_the_commit_that_made_a_row_had_the_list_that_the_row_carries() -> None:
    """A list is written before its rows: git has it, byte for byte, at their commit."""
    checked = 0
    for path in sorted((ROOT / "reproduce" / "results").glob("*-listed?-*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        told = run["circumstances"]
        place = f"{told['commit']}:reproduce/claims/{run['paper']}.yaml"
        found = subprocess.run(["git", "show", place], cwd=ROOT, capture_output=True, check=False)
        if found.returncode:
            continue  # a shallow clone, or no git
        assert hashlib.sha256(found.stdout).hexdigest()[:SHORT] == told["list"], path.name
        checked += 1
    if not checked:
        pytest.skip("git does not know the commits of the rows")


def test_rows_from_before_the_lists_say_so_and_stand_below_those_of_a_list() -> None:
    marked = [row for row in command.last(command.items()["mkor/table3"]) if "before the list" in row["doubt"]]
    assert marked or quantity.listed_rows("mkor", "table3")
    for name, item in command.items().items():
        for row in command.last(item):
            judging = quantity.judges(row, item.paper)
            assert judging != row["doubt"].startswith("before the list of claims ("), name


@dataclass(frozen=True)
class Dry(Inputs):
    """Runs nothing that can be left out, and notes what would have been made."""

    seen: set[tuple[str, str]] = field(default_factory=set)

    def wants(self, setting: str, attack: str) -> bool:
        self.seen.add((setting, attack))
        return False


UNGUARDED = ("grey", "time", "ranks", "proposition31", "figure6", "changes", "proposition1", "regulariser")
"""Items that make all their rows in seconds, or none."""


@pytest.mark.parametrize("paper", LISTS)
def test_every_row_that_a_list_asks_for_is_made_by_its_item(paper: str, shared: Path) -> None:
    """Without this a name that differs shows after an hour of work."""
    for item, wanted in asked(paper).items():
        if item in UNGUARDED:
            continue
        measure = command.items()[f"{paper}/{item}"].measure
        assert measure is not None
        inputs = Dry(shared / "data", False, print)
        made = {(row.setting, row.attack) for row in measure(inputs)}
        assert wanted <= inputs.seen | made, item
