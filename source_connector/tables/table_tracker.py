"""TableTracker: knows a table's projection, when its definition must be read again, and which events belong to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final
from uuid import UUID

from schemas.errors import CdcError
from schemas.hidden_columns import HiddenColumns
from schemas.table_metadata import TableMetadata, is_earlier, is_earlier_life
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.errors import FetchError, TableNotFoundError
from source_connector.tables.table_schema import VersionedTable

__all__ = ["Standing", "TableTracker"]

_log = logging.getLogger(__name__)


# After so many refreshes, some seconds apart, a table that is not found counts as foreign, and an earlier table than
# the known one is accepted.
_PATIENCE: Final = 10
# If the nodes disagree for so long, the reason is not a node that lags: a node is down, or is being upgraded.
_BELIEVED_AFTER_S: Final = 50.0
# If no read has seen a disagreement for this time, the next disagreement counts as a new one.
_UNSEEN_S: Final = 15.0


class Standing(Enum):
    """Tells to which table the events of a table id belong."""

    CURRENT = "current"
    UNKNOWN = "unknown"
    """Not known yet. Ask again after the next `refresh`."""
    DROPPED = "dropped"
    """An earlier table. A read that began after its events came did not find it, and the nodes agreed on the schema."""
    FOREIGN = "foreign"
    """Several reads have not found it. It may be a table of another cluster, or of a node that cannot be reached."""


class TableTracker:
    """Updates the projection by Cassandra's answers. While `is_stale`, no row should be read.

    `on_projection` is called with each new projection before anything else uses it, and may raise FetchError.
    """

    def __init__(
        self,
        keyspace: str,
        name: str,
        columns: str,
        data_format: DataFormat,
        on_projection: Callable[[Projection, bool], None],
        hidden: HiddenColumns | None = None,
    ) -> None:
        self.keyspace: Final = keyspace
        self.name: Final = name
        self._columns = columns
        self._data_format = data_format
        self._hidden = hidden
        self._on_projection = on_projection
        self._projection: Projection | None = None
        self._version: UUID | None = None
        self._sought_columns: dict[str, int] = {}
        """Columns that events named, with the value of `stale_marks` from which on a read tells if they exist."""
        self._absent_columns: set[str] = set()
        """Columns that events named and that the table does not have in the known version."""
        self._disagreeing_since: float | None = None
        """When the present series of reads with disagreeing nodes began: the end of its first read."""
        self._disagreed_at = 0.0
        """When the last read ended."""
        self._past_ids: set[UUID] = set()
        self._foreign_ids: set[UUID] = set()
        self._asked_ids: dict[UUID, int] = {}
        self._read_marks = 0
        self._agreed = 0
        self._earlier_reads = 0
        self._known = 0
        self.stale_marks = 1
        """Grows with each reason to read again. A read settles the reasons from before it began."""
        self.is_believed = True
        """False while the last read may come from a node that lags. True again after a long disagreement."""
        self.is_there = False
        """False when Cassandra had no such table at the last read that was answered."""
        self.schema_id = 0

    @property
    def projection(self) -> Projection:
        """The table as it was found last. Exists after the first `refresh`."""
        if self._projection is None:
            raise AssertionError("refresh comes first")
        return self._projection

    @property
    def is_stale(self) -> bool:
        """True while there is a reason to read again."""
        return self._known < self.stale_marks

    def mark_stale(self) -> None:
        """Note that the known definition may be outdated."""
        self.stale_marks += 1

    def refresh(self, found: VersionedTable | CdcError, stale_marks: int) -> None:
        """Use the result of this schema check from now on. `stale_marks` is the number when the check began.

        Raises the error of the check. Raises TableNotFoundError also if a later table is known than Cassandra shows:
        from events or, while the nodes disagree, from an earlier check that another node answered. Raises FetchError
        while the nodes disagree and a column that an event names is not found. Raises DeploymentError if nothing of the
        table is to be replicated.
        """
        if isinstance(found, CdcError):
            self.is_there &= not isinstance(found, TableNotFoundError)
            raise found
        self.is_there = True
        version, table, is_agreed = found
        self._expect_no_earlier(table, is_agreed)
        if self._projection is not None:
            self._note_past(self._projection.table, table)
        if self._projection is None or table != self._projection.table:
            projection = Projection(table, self._columns, self._data_format, self._hidden)
            is_new_schema = self._projection is None or not projection.schema_equals(self._projection)
            self.schema_id += is_new_schema
            self._on_projection(projection, is_new_schema)
            self._projection = projection
            _log.info("%s: table id %s, schema %d", table.full_name, table.table_id, self.schema_id)
            if projection.hidden:
                told = ", ".join(f"{each.value} {name}" for name, each in sorted(projection.hidden.items()))
                _log.info("%s: not published as they are: %s", table.full_name, told)
        self._note_agreement(version, is_agreed)
        self._read_marks = stale_marks
        self._agreed = stale_marks if is_agreed else self._agreed
        for of_others in (self._past_ids, self._foreign_ids):
            of_others.discard(table.table_id)
        self._asked_ids.pop(table.table_id, None)
        for table_id in list(self._asked_ids):
            self._asked_ids[table_id] += 1
            if self._asked_ids[table_id] >= _PATIENCE:
                self._foreign_ids.add(table_id)
            if table_id in self._foreign_ids or (is_agreed and self._is_of_before(table_id)):
                del self._asked_ids[table_id]
        if self._asked_ids:
            raise TableNotFoundError(f"{table.full_name} with id {min(self._asked_ids)}")
        self._look_for_columns(stale_marks)
        self._known = stale_marks

    @property
    def is_agreed(self) -> bool:
        """False when the nodes disagreed about the schema during the last read."""
        return self._disagreeing_since is None

    @property
    def is_waiting(self) -> bool:
        """True while events wait for a table that more than one read has not found."""
        return any(looks > 1 for looks in self._asked_ids.values())

    def standing(self, table_id: UUID, asked: int | None = None) -> Standing:
        """The table to which the events of this id belong.

        `asked` is the number of `stale_marks` when they were found to be unknown; None for events that have just come.
        An id that is not the current one is unknown at first and makes the tracker stale, because a table may come back
        under its old id. Only a read that began after the events came shows that it has not.
        """
        if self._projection is not None and table_id == self._projection.table.table_id:
            return Standing.CURRENT
        if asked is not None and asked <= self._agreed and self._is_of_before(table_id):
            return Standing.DROPPED
        if asked is not None and asked <= self._read_marks and table_id in self._foreign_ids:
            return Standing.FOREIGN
        self._asked_ids.setdefault(table_id, 0)
        if asked is None:
            self.mark_stale()
        return Standing.UNKNOWN

    def meet_columns(self, names: Collection[str]) -> bool:
        """Check the columns that an event names. An unknown column was added or dropped after the table was read.

        It makes the tracker stale until a read has been made. If that read does not find the column, True is returned
        for later events that name it: the caller must check by `meet_version` if the column was added since, with a
        version that was requested after the event came.
        """
        if self.projection.column_names.issuperset(names):
            return False
        missing = set(names) - self.projection.column_names
        if missing <= self._absent_columns:
            return True
        self.mark_stale()
        for name in missing:
            self._sought_columns.setdefault(name, self.stale_marks)
        return False

    def meet_version(self, version: UUID) -> None:
        """Become stale if any schema of the cluster has changed since the table was read last."""
        if version != self._version:
            self._absent_columns.clear()
            self.mark_stale()

    def _note_agreement(self, version: UUID, is_agreed: bool) -> None:
        """Note if the nodes agreed during a read.

        While they disagree, the version may be newer than the table. So no version is kept, and each check reads again.
        """
        now = time.monotonic()
        if is_agreed:
            self._disagreeing_since = None
        elif self._disagreeing_since is None or now - self._disagreed_at > _UNSEEN_S:
            self._disagreeing_since = now
        self._disagreed_at = now
        self._version = version if is_agreed else None
        since = self._disagreeing_since
        self.is_believed = since is None or now - since >= _BELIEVED_AFTER_S

    def _look_for_columns(self, stale_marks: int) -> None:
        """Look for the columns that events named before the read began. A missing one was dropped, or a node lags."""
        known = self.projection.column_names
        self._absent_columns -= known
        self._sought_columns = {name: mark for name, mark in self._sought_columns.items() if name not in known}
        absent = [name for name, mark in self._sought_columns.items() if mark <= stale_marks]
        if absent and not self.is_believed:
            reason = (
                f"an event names its column {min(absent)}, which is not found while the nodes disagree about the schema"
            )
            raise FetchError(self.projection.table.full_name, reason)
        for name in absent:
            self._absent_columns.add(name)
            del self._sought_columns[name]

    def _expect_no_earlier(self, table: TableMetadata, is_agreed: bool) -> None:
        """Raise TableNotFoundError if a node that lags shows the table of before it was dropped and created again.

        The node gets the time of some reads to catch up. If all nodes agree, none lags: then the earlier id has come
        back (`CREATE TABLE ... WITH ID`).
        """
        known = None if self._projection is None else self._projection.table
        if is_agreed or known is None or not is_earlier_life(table, known) or self._earlier_reads >= _PATIENCE:
            self._earlier_reads = 0
            return
        self._earlier_reads += 1
        raise TableNotFoundError(f"{table.full_name} with id {known.table_id}")

    def _note_past(self, before: TableMetadata, table: TableMetadata) -> None:
        if before.table_id != table.table_id:
            self._past_ids.add(before.table_id)
        elif is_earlier_life(before, table):
            _log.error(
                "%s was dropped and created again under its own id %s, or every column that it was created with was renamed or"
                " dropped: Spark starts an empty table here, and what was written seconds ago may not be in it; publish its rows"
                " again by `cdc spark backfill`",
                table.full_name,
                table.table_id,
            )

    def _is_of_before(self, table_id: UUID) -> bool:
        """True for an earlier table's id. Cassandra's ids contain their time. Others (`WITH ID`) are remembered."""
        return table_id in self._past_ids or is_earlier(table_id, self.projection.table.table_id)
