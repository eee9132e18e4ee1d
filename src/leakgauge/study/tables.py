"""Tables of an audit's store. Every row carries a checksum of its contents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, ForeignKey, ForeignKeyConstraint, LargeBinary, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from leakgauge.observation import Status


def checksum_of(*parts: str | bytes | None) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = b"-" if part is None else part.encode() if isinstance(part, str) else part
        digest.update(f"{len(raw)}:".encode() + raw)
    return digest.hexdigest()[:32]


class Base(DeclarativeBase):
    # Without a row id a table has no second copy of its keys, which damage could make to differ.
    __table_args__: Any = {"sqlite_with_rowid": False}  # noqa: RUF012 - as SQLAlchemy wants it


TEXT = String().with_variant(String(collation="C"), "postgresql")
"""Sorted as Python sorts."""


class AuditRow(Base):
    __tablename__ = "audits"
    key: Mapped[str] = mapped_column(TEXT, primary_key=True)
    digest: Mapped[str]
    name: Mapped[str]
    config: Mapped[str]
    environment: Mapped[str]
    contents: Mapped[str]
    counts_only: Mapped[bool]
    version: Mapped[str]
    created_at: Mapped[str]
    planned: Mapped[str]
    checksum: Mapped[str]

    @property
    def true_checksum(self) -> str:
        return checksum_of(
            self.key, self.digest, self.name, self.config, self.environment, self.contents, str(bool(self.counts_only)),
            self.version, self.created_at, self.planned,
        )  # fmt: skip

    @property
    def identity(self) -> str:
        """As that of the `PlannedAudit`."""
        return identity_of(self.digest, json.loads(self.contents))


class PlannedRow(Base):
    __tablename__ = "planned"
    audit: Mapped[str] = mapped_column(ForeignKey("audits.key"), primary_key=True)
    id: Mapped[str] = mapped_column(TEXT, primary_key=True)


class TrialRow(Base):
    __tablename__ = "trials"
    audit: Mapped[str] = mapped_column(ForeignKey("audits.key"), primary_key=True)
    id: Mapped[str] = mapped_column(TEXT, primary_key=True)
    record: Mapped[str]
    pictures: Mapped[int]
    created_at: Mapped[str]
    checksum: Mapped[str]


DIED = json.dumps({"status": Status.DIED.value})[1:-1]
"""In the record of a trial that gave no answer; inside a text its quotation marks would be escaped."""


def died() -> ColumnElement[bool]:
    """Condition on a `TrialRow`: the trial gave no answer."""
    return TrialRow.record.contains(DIED)


class PictureRow(Base):
    __tablename__ = "pictures"
    audit: Mapped[str] = mapped_column(TEXT, primary_key=True)
    trial: Mapped[str] = mapped_column(TEXT, primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    original: Mapped[bytes | None] = mapped_column(LargeBinary)
    reconstruction: Mapped[bytes | None] = mapped_column(LargeBinary)
    checksum: Mapped[str]
    __table_args__ = (
        ForeignKeyConstraint(["audit", "trial"], ["trials.audit", "trials.id"]),
        {"sqlite_with_rowid": False},
    )


@dataclass(frozen=True)
class PlannedAudit:
    """What an audit is to do: identity and text of its plan, what it rests on, and its trials.

    Attributes:
        digest: of the plan's text, the gate left out.
        config: the plan as written.
        contents: see `leakgauge.study.identity`.
        planned: ids of all trials.
    """

    digest: str
    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    contents: Mapping[str, str]
    planned: Iterable[str]
    counts_only: bool

    @property
    def identity(self) -> str:
        """Hash of the plan and all that it rests on: equal audits of a team are one."""
        return identity_of(self.digest, self.contents)


def identity_of(digest: str, contents: Mapping[str, str]) -> str:
    """Hash of a plan's digest and the identities of all that its audit rests on."""
    return checksum_of(digest, *(part for item in sorted(contents.items()) for part in item))
