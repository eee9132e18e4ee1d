"""Where finished trials live: one SQLite file per audit, one transaction per trial."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ForeignKey, LargeBinary, String, create_engine, event, select
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from leakgauge.errors import InputError, require
from leakgauge.report.picture import Picture
from leakgauge.study.trial import TrialResult
from leakgauge.version import __version__

FILE = "audit.sqlite"


class _Base(DeclarativeBase):
    pass


class AuditRow(_Base):
    __tablename__ = "audits"
    digest: Mapped[str] = mapped_column(String, primary_key=True)
    name: Mapped[str]
    config: Mapped[str]
    environment: Mapped[str]
    counts_only: Mapped[bool]
    version: Mapped[str]
    created_at: Mapped[str]


class TrialRow(_Base):
    __tablename__ = "trials"
    id: Mapped[str] = mapped_column(String, primary_key=True)
    record: Mapped[str]
    created_at: Mapped[str]


class PictureRow(_Base):
    __tablename__ = "pictures"
    trial: Mapped[str] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    original: Mapped[bytes | None] = mapped_column(LargeBinary)
    reconstruction: Mapped[bytes | None] = mapped_column(LargeBinary)


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Turns database trouble into one line. What was stored before stays."""
    try:
        yield
    except OperationalError as error:
        reason = str(error.orig)
        if "full" in reason or "disk I/O" in reason:
            raise InputError(
                "output",
                f"the disk of {folder} is full ({reason})",
                "free space and run the same command: finished trials are kept",
            ) from error
        raise InputError(
            "output", f"{folder} cannot be written ({reason})", "give a folder that you may write to"
        ) from error
    except DatabaseError as error:
        raise InputError("output", f"{folder / FILE} is not an audit ({error.orig})", "give another folder") from error


class Store:
    """The finished trials of one audit. Only the main process writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._engine = create_engine(f"sqlite:///{folder / FILE}")
        event.listen(self._engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON"))

    @staticmethod
    def create(
        folder: Path, *, digest: str, name: str, config: dict[str, Any], environment: dict[str, Any], counts_only: bool
    ) -> Store:
        """Opens the folder for this plan, new or begun.

        Raises:
            InputError: the folder belongs to another audit, or cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                "output", f"{folder} cannot be made ({error.strerror})", "give a folder that you may write to"
            ) from error
        store = Store(folder)
        with _readable(folder):
            _Base.metadata.create_all(store._engine)
            with Session(store._engine) as session, session.begin():
                row = session.scalars(select(AuditRow)).first()
                if row is None:
                    session.add(
                        AuditRow(
                            digest=digest,
                            name=name,
                            config=json.dumps(config),
                            environment=json.dumps(environment),
                            counts_only=counts_only,
                            version=__version__,
                            created_at=_now(),
                        )
                    )
                    return store
                require(
                    row.digest == digest,
                    "output",
                    f"{folder} belongs to the audit '{row.name}' with another plan",
                    "give another folder with -o",
                )
                row.config = json.dumps(config)  # the gate may be another
                require(
                    row.counts_only or not counts_only,
                    "--counts-only",
                    f"{folder} was begun with images",
                    "give another folder with -o",
                )
        return store

    @staticmethod
    def open(folder: Path) -> Store:
        """Opens an audit that exists.

        Raises:
            InputError: there is none.
        """
        require(
            (folder / FILE).is_file(), "folder", f"{folder} holds no audit", "run `leakgauge audit -o` into it first"
        )
        store = Store(folder)
        with _readable(folder), Session(store._engine) as session:
            require(
                session.scalars(select(AuditRow)).first() is not None,
                "folder",
                f"{folder} holds no audit",
                "run `leakgauge audit` first",
            )
        return store

    @property
    def audit(self) -> AuditRow:
        """What was asked."""
        with _readable(self.folder), Session(self._engine) as session:
            return session.scalars(select(AuditRow)).one()

    def finished(self) -> set[str]:
        """Ids of the trials that need no more work."""
        with _readable(self.folder), Session(self._engine) as session:
            return set(session.scalars(select(TrialRow.id)))

    def add(self, result: TrialResult) -> None:
        """Keeps a trial and its pictures, both or neither."""
        with _readable(self.folder), Session(self._engine) as session, session.begin():
            session.add(TrialRow(id=result.id, record=json.dumps(result.record, allow_nan=False), created_at=_now()))
            session.flush()
            for p in result.pictures:
                session.add(
                    PictureRow(
                        trial=result.id, slot=p.slot, name=p.name, original=p.original, reconstruction=p.reconstruction
                    )
                )

    def records(self) -> list[dict[str, Any]]:
        """All finished trials, by id."""
        with _readable(self.folder), Session(self._engine) as session:
            rows = session.scalars(select(TrialRow).order_by(TrialRow.id))
            return [json.loads(row.record) for row in rows]

    def pictures(self) -> dict[str, list[Picture]]:
        """Trial id → its pictures by slot."""
        found: dict[str, list[Picture]] = {}
        with _readable(self.folder), Session(self._engine) as session:
            for row in session.scalars(select(PictureRow).order_by(PictureRow.trial, PictureRow.slot)):
                found.setdefault(row.trial, []).append(
                    Picture(name=row.name, slot=row.slot, original=row.original, reconstruction=row.reconstruction)
                )
        return found

    def close(self) -> None:
        """Lets go of the file."""
        self._engine.dispose()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
