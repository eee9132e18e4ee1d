"""A team's database: the same report as from a file, results once whoever brings them, audits apart."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text

from leakgauge.errors import InputError
from leakgauge.study.plan import resolve_plan
from leakgauge.study.run import Running, run
from leakgauge.study.session import PAGE, write_reports
from leakgauge.study.store import OWN, Store
from leakgauge.workers import Jobs, LocalPool
from study.plans import document, tiny
from study.postgres import cluster


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with cluster() as found:
        yield found


def small(**changes: Any) -> dict[str, Any]:
    data = {"source": "samples", "size": 16, "batches": 2}
    return tiny(**{"attacks": ["closed-form"], "defenses": ["none"], "data": data, "gallery": 5} | changes)


def stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items() if k not in ("seconds", "created_at")}
    return [stripped(v) for v in value] if isinstance(value, list) else value


class Refuses:
    """No work is left to do."""

    elsewhere = False

    def run_all(self, jobs: Jobs[Any, Any, Any]) -> None:
        assert not list(jobs.each)


def test_a_teams_report_is_that_of_a_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, url)
    plan = resolve_plan(small())
    alone = run(plan, tmp_path / "file", Running(executor=LocalPool(1)))
    shared = run(plan, tmp_path / "shared", Running(url=url))
    assert stripped(document(shared)) == stripped(document(alone))
    shared.close()
    alone.close()

    # Another of the team finds it finished, and the folder alone finds the database again.
    other = run(plan, tmp_path / "other", Running(url=url, executor=Refuses()))
    other.close()
    again = Store.open(tmp_path / "other")
    write_reports(again)
    page = again.folder / PAGE
    assert page.stat().st_size > 10_000
    assert "team@" in (tmp_path / "other" / "store.json").read_text()

    # What two bring lands once; what is brought second changes nothing.
    before = list(again.each())
    again.add(before[0]["id"], before[0] | {"message": "second"})
    assert list(again.each()) == before
    again.close()

    # Another plan is another audit; a new beginning leaves the old rows where they are.
    apart = run(resolve_plan(small(seeds=[1])), tmp_path / "apart", Running(url=url))
    assert len(apart.finished()) == 2
    assert json.loads(apart.audit.config)["seeds"] == [1]
    apart.close()
    anew = run(plan, tmp_path / "other", Running(url=url, anew=True))
    assert anew.key.endswith("-2")
    with create_engine(url, poolclass=NullPool).connect() as connection:
        counts = connection.execute(text("select audit, count(*) from trials group by audit")).all()
    assert sorted(count for _, count in counts) == [2, 2, 2]
    with pytest.raises(InputError, match="belongs to another plan"):
        run(resolve_plan(small(seeds=[1])), tmp_path / "shared", Running(url=url))

    # Damage is seen here too.
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text("update trials set record = replace(record, '\"seed\": 0', '\"seed\": 7')"))
    with pytest.raises(InputError, match="is damaged"):
        list(anew.each())
    anew.close()


@pytest.mark.parametrize("own", ["", "postgresql+psycopg://u@127.0.0.1:2/x"])
def test_a_folder_that_somebody_sent_names_no_database(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`leakgauge gate FOLDER` logged in wherever the folder's store.json said, with the reader's own password."""
    pytest.importorskip("psycopg")
    monkeypatch.setenv(OWN, own)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        address = f"postgresql+psycopg://u@127.0.0.1:{server.getsockname()[1]}/x?connect_timeout=1"
        (tmp_path / "store.json").write_text(json.dumps({"store": address, "audit": "a-1"}))
        with pytest.raises(InputError, match="nothing was sent there"):
            Store.open(tmp_path)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///x.db", "no PostgreSQL"),
        ("nonsense", "no URL"),
        ("postgresql+psycopg://u:secret@127.0.0.1:1/x", "does not answer"),
    ],
)
def test_a_wrong_database_is_one_line(url: str, said: str, tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(InputError, match=said) as error:
        run(resolve_plan(small()), tmp_path, Running(url=url))
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)
