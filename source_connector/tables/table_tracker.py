"""What is known of the table: its projection, when that has to be looked at again, and whose events are whose."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final
from uuid import UUID

from schemas.errors import CdcError
from schemas.table_metadata import TableMetadata, is_earlier
from source_connector.errors import TableNotFoundError
from source_connector.rows.projection import Projection
from source_connector.rows.row_encoder import DataFormat
from source_connector.tables.table_schema import TableLook

__all__ = ["Standing", "TableTracker"]

_log = logging.getLogger(__name__)


# Refreshes, some seconds apart.
_PATIENCE: Final = 10


class Standing(Enum):
    """Whose events a table id stands for."""

    CURRENT = "current"
    UNKNOWN = "unknown"
    """To be asked again after the next `refresh`."""
    DROPPED = "dropped"


class TableTracker:
    """Keeps the projection in step with what looks at Cassandra have shown. While `is_stale`, no row should be read.

    `on_projection` is called with each new projection before anything else uses it, and may raise FetchError.
    """

    def __init__(
        self,
        keyspace: str,
        name: str,
        columns: str,
        data_format: DataFormat,
        on_projection: Callable[[Projection, bool], None],
    ) -> None:
        self.keyspace: Final = keyspace
        self.name: Final = name
        self._columns = columns
        self._data_format = data_format
        self._on_projection = on_projection
        self._projection: Projection | None = None
        self._version: UUID | None = None
        self._missing_columns: set[str] = set()
        self._dropped_ids: set[UUID] = set()
        self._asked_ids: dict[UUID, int] = {}
        self._earlier_looks = 0
        self._known = 0
        self.doubts = 1
        """Grows with each reason to look again; a look settles those that it began behind."""
        self.is_there = False
        """False when Cassandra had no such table at the last look that it answered."""
        self.schema_id = 0

    @property
    def projection(self) -> Projection:
        """The table as it was found last; there is one after the first `refresh`."""
        if self._projection is None:
            raise AssertionError("refresh comes first")
        return self._projection

    @property
    def is_stale(self) -> bool:
        """True while there is a reason to look again."""
        return self._known < self.doubts

    def doubt(self) -> None:
        """What is known may be no longer so."""
        self.doubts += 1

    def refresh(self, found: TableLook | CdcError, doubts: int) -> None:
        """Go by this look, which began when there were so many `doubts`, from now on.

        Raises the look's error; TableNotFoundError also when a later table is known than Cassandra shows: by events, or by an
        earlier look, which another node has answered; and DeploymentError when nothing of the table is to be replicated.
        """
        if isinstance(found, CdcError):
            self.is_there &= not isinstance(found, TableNotFoundError)
            raise found
        self.is_there = True
        version, table = found
        self._expect_no_earlier(table)
        if self._projection is None or table != self._projection.table:
            projection = Projection(table, self._columns, self._data_format)
            is_new_schema = self._projection is None or not projection.schema_equals(self._projection)
            self.schema_id += is_new_schema
            self._on_projection(projection, is_new_schema)
            self._projection = projection
            _log.info("%s: table id %s, schema %d", table.full_name, table.table_id, self.schema_id)
        self._version = version
        self._asked_ids.pop(table.table_id, None)
        self._dropped_ids.discard(table.table_id)
        for table_id in list(self._asked_ids):
            self._asked_ids[table_id] += 1
            if self._is_dropped(table_id, table.table_id):
                self._dropped_ids.add(table_id)
                del self._asked_ids[table_id]
        if self._asked_ids:
            raise TableNotFoundError(f"{table.full_name} with id {min(self._asked_ids)}")
        self._known = doubts

    def standing(self, table_id: UUID) -> Standing:
        """Whether events of a table id are today's; an unknown id makes the tracker stale."""
        if self._projection is not None and table_id == self._projection.table.table_id:
            return Standing.CURRENT
        if table_id in self._dropped_ids:
            return Standing.DROPPED
        self._asked_ids.setdefault(table_id, 0)
        self.doubt()
        return Standing.UNKNOWN

    def meet_columns(self, names: Collection[str]) -> None:
        """Columns that an event names: one that is not known was added since, or dropped since.

        Either makes the tracker stale, but once: asking again does not bring a dropped column back.
        """
        if self.projection.column_names.issuperset(names):
            return
        missing = set(names) - self.projection.column_names - self._missing_columns
        if missing:
            self._missing_columns |= missing
            self.doubt()

    def meet_version(self, version: UUID) -> None:
        """Become stale when any schema of the cluster has changed since the last look at the table."""
        if version != self._version:
            self._missing_columns.clear()
            self.doubt()

    def _expect_no_earlier(self, table: TableMetadata) -> None:
        """A node that lags shows the table as it was before it was dropped and created again. It gets some looks' time."""
        known = None if self._projection is None else self._projection.table.table_id
        if known is None or not is_earlier(table.table_id, known) or self._earlier_looks >= _PATIENCE:
            self._earlier_looks = 0
            return
        self._earlier_looks += 1
        raise TableNotFoundError(f"{table.full_name} with id {known}")

    def _is_dropped(self, table_id: UUID, current: UUID) -> bool:
        """Ids that Cassandra makes tell their time: an earlier one is gone, a later one will show.

        Of others (`WITH ID = ...`) only patience can tell; nodes agree on a schema in seconds.
        """
        if table_id.version == 1 == current.version:
            return is_earlier(table_id, current)
        return self._asked_ids[table_id] >= _PATIENCE
