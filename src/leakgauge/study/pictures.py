"""The pictures of a store, none of which is held."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from leakgauge.report.picture import Picture
from leakgauge.study.database import Database
from leakgauge.study.tables import PictureRow, TrialRow, checksum_of


@dataclass(frozen=True)
class Pictures(Mapping[str, Sequence[Picture]]):
    """Trial id → its pictures by slot; of the trials that have any.

    Attributes:
        key: of the audit in the database.
    """

    base: Database
    key: str

    def __getitem__(self, trial: str) -> Sequence[Picture]:
        """Raises `InputError` where one is damaged."""
        of = select(PictureRow).where(PictureRow.audit == self.key, PictureRow.trial == trial)
        with self.base.readable(), Session(self.base.engine) as session:
            found = [self._whole(row) for row in session.scalars(of.order_by(PictureRow.slot))]
        if not found:
            raise KeyError(trial)
        return found

    def __iter__(self) -> Iterator[str]:
        of = select(TrialRow.id).where(TrialRow.audit == self.key, TrialRow.pictures > 0).order_by(TrialRow.id)
        with self.base.readable(), Session(self.base.engine) as session:
            yield from session.scalars(of)

    def __len__(self) -> int:
        of = select(func.count()).select_from(TrialRow).where(TrialRow.audit == self.key, TrialRow.pictures > 0)
        with self.base.readable(), Session(self.base.engine) as session:
            return int(session.scalar(of) or 0)

    def check(self) -> None:
        """Raises `InputError` where one is damaged or missing."""
        mine = PictureRow.audit == self.key
        kept = select(PictureRow.trial, func.count().label("there")).where(mine).group_by(PictureRow.trial).subquery()
        there = func.coalesce(kept.c.there, 0)
        lost = select(TrialRow.id).outerjoin(kept, kept.c.trial == TrialRow.id)
        lost = lost.where(TrialRow.audit == self.key, there != TrialRow.pictures)
        with self.base.readable(), Session(self.base.engine) as session:
            with session.scalars(select(PictureRow).where(mine).execution_options(yield_per=100)) as rows:
                for row in rows:
                    self._whole(row)
                    session.expunge(row)
            name = session.scalars(lost.limit(1)).first()
            if name is not None:
                raise self.base.damaged(f"the pictures of trial {name}")

    def _whole(self, row: PictureRow) -> Picture:
        if row.checksum != checksum_of(row.trial, str(row.slot), row.name, row.original, row.reconstruction):
            raise self.base.damaged(f"a picture of trial {row.trial}")
        return Picture(name=row.name, slot=row.slot, original=row.original, reconstruction=row.reconstruction)
