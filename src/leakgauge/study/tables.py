"""Tables of an audit's store. Every row carries a checksum of its contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


def checksum_of(*parts: str | bytes | None) -> str:
    digest = hashlib.sha256()
    for part in parts:
        raw = b"-" if part is None else part.encode() if isinstance(part, str) else part
        digest.update(f"{len(raw)}:".encode() + raw)
    return digest.hexdigest()[:32]


class Base(DeclarativeBase):
    # Without a row id a table has no second copy of its keys, which damage could make to differ.
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012 - as SQLAlchemy wants it


class AuditRow(Base):
    __tablename__ = "audits"
    digest: Mapped[str] = mapped_column(String, primary_key=True)
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
            self.digest, self.name, self.config, self.environment, self.contents, str(bool(self.counts_only)),
            self.version, self.created_at, self.planned,
        )  # fmt: skip


class PlannedRow(Base):
    __tablename__ = "planned"
    id: Mapped[str] = mapped_column(String, primary_key=True)


class TrialRow(Base):
    __tablename__ = "trials"
    id: Mapped[str] = mapped_column(String, primary_key=True)
    record: Mapped[str]
    pictures: Mapped[int]
    created_at: Mapped[str]
    checksum: Mapped[str]


class PictureRow(Base):
    __tablename__ = "pictures"
    trial: Mapped[str] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    slot: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    original: Mapped[bytes | None] = mapped_column(LargeBinary)
    reconstruction: Mapped[bytes | None] = mapped_column(LargeBinary)
    checksum: Mapped[str]


@dataclass(frozen=True)
class Asked:
    """What an audit is to do: identity and text of its plan, what it rests on, and its trials.

    Attributes:
        digest: of the plan's text, the gate left out.
        config: the plan as written.
        contents: see `leakgauge.study.contents`.
        planned: ids of all trials.
    """

    digest: str
    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    contents: Mapping[str, str]
    planned: Iterable[str]
    counts_only: bool
