"""When a table's metadata is read again: as soon as it is known to be stale, and when the cluster's schema changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from runtime.backoff import Backoff
from runtime.notices import Notices
from schemas.errors import CdcError
from source_connector.errors import DeploymentError, TableNotFoundError
from source_connector.tables.schema_looks import SchemaLooks
from source_connector.tables.table_schema import TableLook, TableSchemaReader
from source_connector.tables.table_tracker import TableTracker
from source_connector.timers import Timers

__all__ = ["SchemaWatch"]

_LONGEST_PAUSE_S: Final = 5.0


class SchemaWatch:
    """Refreshes the tracker in the thread of the timers, by looks from elsewhere. `on_refresh` follows each attempt.

    Of a table that is alone in its source DeploymentError gets out; any other is tried again.
    """

    def __init__(
        self,
        table: TableTracker,
        schema: TableSchemaReader,
        looks: SchemaLooks,
        timers: Timers,
        notices: Notices,
        *,
        is_alone: bool,
        shortest_pause_s: float,
        on_refresh: Callable[[], None],
    ) -> None:
        self._table = table
        self._schema = schema
        self._looks = looks
        self._timers = timers
        self._notices = notices
        self._is_alone = is_alone
        self._backoff = Backoff(shortest_pause_s, _LONGEST_PAUSE_S)
        self._on_refresh = on_refresh
        self._failed = 0
        self._is_planned = False
        self._is_looking = False
        self.is_open = False
        """True once the table has been found."""

    def plan(self, delay_s: float = 0) -> None:
        """Refresh soon."""
        if not self._is_planned:
            self._is_planned = True
            self._timers.after(delay_s, self._look_at_table)

    def look(self) -> None:
        """Whether any schema of the cluster has changed."""
        if self.is_open and not self._is_looking:
            self._is_looking = True
            self.ask_version(self._looked)

    def ask_version(self, then: Callable[[UUID | CdcError], None]) -> None:
        """The version of the cluster's schema."""
        self._looks.ask(self._schema.version, then)

    def _looked(self, version: UUID | CdcError) -> None:
        self._is_looking = False
        if isinstance(version, CdcError):
            self._notices.say("schema", str(version))
        else:
            self._table.meet_version(version)

    def _look_at_table(self) -> None:
        stale_marks = self._table.stale_marks
        self._looks.ask(self._schema.look, lambda found: self._refresh(found, stale_marks))

    def _refresh(self, found: TableLook | CdcError, stale_marks: int) -> None:
        self._is_planned = False
        try:
            self._table.refresh(found, stale_marks)
            self._failed = 0
            self.is_open = True
        except CdcError as error:
            if self._is_alone and isinstance(error, DeploymentError):
                raise
            what = "waiting" if isinstance(error, TableNotFoundError) else "nothing is read until the schema is known"
            self._notices.say("schema", f"{what}: {error}")
            self._failed += 1
            self.plan(self._backoff.pause_s(self._failed))
        self._on_refresh()
