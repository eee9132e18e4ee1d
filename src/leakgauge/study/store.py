"""Where finished trials live: a SQLite file an audit, or a team's PostgreSQL. One transaction, one checksum a trial."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from sqlalchemy import delete, func, select, true
from sqlalchemy.orm import Session

from leakgauge.errors import refusing, require
from leakgauge.files import PRIVATE_FILE, private_folder, read_json, refuse_foreign, write_whole
from leakgauge.study import database
from leakgauge.study.database import FILE as FILE
from leakgauge.study.database import AuditRow, Database, Picture, PictureRow, Pictures, PlannedRow, TrialRow
from leakgauge.study.identity import ANEW, refuse_other
from leakgauge.study.judging.records import Trial, read_trial

LOCK = ".audit.lock"
SHARED = "store.json"  # file that says where a folder's audit lies in PostgreSQL. It holds no password.
OWN = "LEAKGAUGE_STORE"
"""In the environment, the URL of the database that is yours: a folder that somebody sent cannot name another, to which
the reader's password would go."""
RESULTS = (FILE, SHARED, "report.json", "report.html")


class Store:
    """The finished trials of one audit.

    In SQLite one process writes. In PostgreSQL several may, for one audit too: what two of them have run lands once.
    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.key = ""
        self._lock = FileLock(folder / LOCK, 0, PRIVATE_FILE, thread_local=False)
        self._base = Database.of(folder, url)

    @staticmethod
    def create(
        folder: Path, asked: AuditRow, planned: Sequence[str], *, url: str | None = None, anew: bool = False
    ) -> "Store":
        """Opens the folder for this plan, new or begun, and locks it until the store is closed. `url`: of a PostgreSQL
        database, by default SQLite in the folder; `anew` sets results of another plan or other contents aside, in a
        folder of their own, and begins again. Raises `InputError`: the folder belongs to another audit, or to one of
        other contents (each is named), is in use, damaged, cannot be written, or holds something else."""
        refuse_foreign(folder, RESULTS)
        store = Store(folder, url)
        private_folder(folder)
        denied = refusing("output", f"{folder} cannot be written", "give a folder that you may write to", OSError)
        hint = "wait until it has ended, or give another folder with -o"
        with denied, refusing("output", f"{folder}: another audit is writing into it", hint, Timeout):
            store._lock.acquire()
        try:
            if anew:
                store._set_aside()
            store._begin(asked, planned, anew)
        except BaseException:
            store.close()
            raise
        return store

    @property
    def shared(self) -> bool:
        """Whether others may write into it meanwhile."""
        return self._base.shared

    def _begin(self, asked: AuditRow, planned: Sequence[str], anew: bool) -> None:
        identity = asked.identity
        for left in self.folder.glob(".report.*.part"):  # of a run that was killed while it wrote
            left.unlink(missing_ok=True)
        other = (self.folder / (FILE if self.shared else SHARED)).exists()
        require(not other, "output", f"{self.folder} belongs to an audit with another --store", ANEW)
        with self._base.beginning() as session:
            # The folder's audit; in a database of several the last of this plan and these contents.
            own = AuditRow.key.startswith(f"{identity}-") if self.shared else true()
            rows = {int(row.key.rpartition("-")[2]): row for row in session.scalars(select(AuditRow).where(own))}
            last = max(rows, default=0)
            if not rows or (anew and self.shared):
                self.key = asked.key = f"{identity}-{last + 1}"
                asked.checksum = asked.true_checksum
                session.add(asked)
                session.flush()
                session.execute(self._base.insert(PlannedRow), [{"audit": self.key, "id": id_} for id_ in planned])
            else:
                self._check(session, rows[last])
                refuse_other(rows[last], asked, self.folder)
                rows[last].config = asked.config  # the gate may be another
                rows[last].checksum = rows[last].true_checksum
        if self.shared:  # the folder says where its audit is, so that `report` and `gate` need it alone
            note = self.folder / SHARED
            mine = not note.exists() or _read_note(note)["audit"].rpartition("-")[0] == identity
            require(mine, "output", f"{self.folder} belongs to another plan, or to other contents of its data", ANEW)
            write_whole(note, json.dumps({"store": self._base.address, "audit": self.key}) + "\n")

    def _set_aside(self) -> None:
        there = [name for name in RESULTS if (self.folder / name).exists()]
        if not there:
            return
        names = (self.folder / f"before-{n}" for n in itertools.count(1))
        old = private_folder(next(name for name in names if not name.exists()))
        for name in (*there, f"{FILE}-journal"):
            if (self.folder / name).exists():
                (self.folder / name).replace(old / name)

    @staticmethod
    def open(folder: Path) -> "Store":
        """Opens an audit that exists, to read it. Raises `InputError` where there is none, it is damaged, or it lies in
        a database that `OWN` does not name."""
        hint = "run `leakgauge audit -o` into it first"
        note = _read_note(folder / SHARED) if (folder / SHARED).is_file() else None
        require(note is not None or (folder / FILE).is_file(), "folder", f"{folder} holds no audit", hint)
        url = None
        if note is not None:  # the reader's own database alone gets the reader's password
            url, named = os.environ.get(OWN, ""), note["store"]
            mine = bool(url) and Database.of(folder, url).address == named
            hint = f"nothing was sent there: set {OWN} to the URL if that database is yours"
            require(mine, "folder", f"{folder} says that its audit lies in {named}", hint)
        store = Store(folder, url)
        with store._base.readable(), Session(store._base.engine) as session:
            store._base.check(session)
            row = session.scalars(select(AuditRow)).first() if note is None else session.get(AuditRow, note["audit"])
            require(row is not None, "folder", f"{folder} holds no audit", "run `leakgauge audit` first")
            assert row is not None
            store._check(session, row)
        return store

    def _check(self, session: Session, row: AuditRow) -> None:
        """Takes the audit of that row for its own. Raises `InputError` where plan or list of trials are not whole."""
        self.key = row.key
        if not row.whole:
            raise self._base.damaged("the record of the plan")
        ids = session.scalars(select(PlannedRow.id).where(PlannedRow.audit == self.key).order_by(PlannedRow.id)).all()
        if database.checksum_of(*ids) != row.planned:
            raise self._base.damaged("the list of trials")

    @property
    def audit(self) -> AuditRow:
        with self._base.readable(), Session(self._base.engine) as session:
            return session.scalars(select(AuditRow).where(AuditRow.key == self.key)).one()

    def finished(self) -> set[str]:
        """Ids of the trials that need no more work: one that gave no answer is tried again by the next run."""
        answered = select(TrialRow.id).where(TrialRow.audit == self.key, ~database.died())
        with self._base.readable(), Session(self._base.engine) as session:
            return set(session.scalars(answered))

    def missing(self) -> int:
        """How many planned trials have not run."""
        ran = select(TrialRow.id).where(TrialRow.audit == self.key)
        left = select(func.count()).select_from(PlannedRow).where(PlannedRow.audit == self.key)
        with self._base.readable(), Session(self._base.engine) as session:
            return int(session.scalar(left.where(PlannedRow.id.not_in(ran))) or 0)

    def add(self, name: str, found: Mapping[str, Any], shown: Sequence[Picture] = ()) -> None:
        """Keeps the record of a trial and its pictures, all or nothing. A trial that is there already stays as it is,
        unless it had given no answer and now does."""
        record, of = json.dumps(found, allow_nan=False), self.key
        row = TrialRow.sealed(audit=of, id=name, record=record, pictures=len(shown), created_at=database.now())
        pictures = [PictureRow.sealed(audit=of, trial=name, **vars(picture)) for picture in shown]
        with self._base.readable(), Session(self._base.engine) as session, session.begin():
            before = select(TrialRow.id).where(TrialRow.audit == self.key, TrialRow.id == name, database.died())
            if database.DIED not in record and session.scalar(before) is not None:
                for table, key in ((PictureRow, PictureRow.trial), (TrialRow, TrialRow.id)):
                    session.execute(delete(table).where(table.audit == self.key, key == name))
            entered = session.execute(self._base.insert(TrialRow).values(row).returning(TrialRow.id))
            if entered.first() is not None and pictures:
                session.execute(self._base.insert(PictureRow), pictures)

    def each(self) -> Iterator[dict[str, Any]]:
        """Finished trials one by one, by id."""
        mine = select(TrialRow).where(TrialRow.audit == self.key).order_by(TrialRow.id).execution_options(yield_per=100)
        with self._base.readable(), Session(self._base.engine) as session, session.scalars(mine) as rows:
            for row in rows:
                if not row.whole:
                    raise self._base.damaged(f"trial {row.id}")
                session.expunge(row)
                yield json.loads(row.record)

    def trials(self) -> Iterator[Trial]:
        """The same, typed."""
        return map(read_trial, self.each())

    def pictures(self) -> Pictures:
        """Trial id → its pictures by slot, each read when it is asked for."""
        return Pictures(self._base, self.key)

    def close(self) -> None:
        self._base.engine.dispose()
        self._lock.release()


def _read_note(file: Path) -> dict[str, str]:
    """Where a folder's audit is. Raises `InputError` where the file does not say."""
    hint = "run the audit again with its --store"
    with refusing("folder", f"{file} cannot be read", hint, OSError, ValueError, KeyError, TypeError):
        found = read_json(file)
        return {"store": str(found["store"]), "audit": str(found["audit"])}
