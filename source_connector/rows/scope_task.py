"""Deletions of many rows: first a marker, then page by page every row in its scope that still exists.

One thing is in flight at a time: the marker, the read of a page, or the records of a page. So the rows are read when
the data topic has the marker. An instance that was suspended may publish a marker that erases what another instance
has published since. Those rows were written before the read, so they are published again after the marker.

If the records of a page took long, they may follow newer records of their rows, or the records of their deletions. Such
a page is read again, and the differences are published: a row that changed, and a null for a row that is gone. It is
read again only once, because later changes have their own events. So the task ends even for a busy partition on a slow
topic.

If a row has a cell that the deletion removes, it was read before the deletion was applied, so its page is read again
(`source_connector.rows.early_reads`). If no write time tells, the whole task is repeated when the deletion must have
been applied.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.errors import RowConversionError
from source_connector.host.record import SourceRecord
from source_connector.rows.early_reads import WITHIN_S, Outcome, is_young, outcome_of_scope, pause_s
from source_connector.rows.partition_lanes import Work
from source_connector.rows.publication import event_time_ms, gone_properties, marker_properties, survivor_properties
from source_connector.rows.range_bounds import expressible
from source_connector.rows.raw_page import RowKey
from source_connector.rows.read_request import RawRow, ReadLevel, ReadRequest, Rows
from source_connector.rows.row_expiry import add_expiry
from source_connector.rows.row_task import may_be_overtaken
from source_connector.rows.task import Task, TaskOwner

__all__ = ["ScopeTask"]


class ScopeTask(Task):
    """A partition deletion or a range deletion.

    A row that cannot be converted holds up no other row: the others are published, then only this row is tried again.
    """

    def __init__(self, work: Work, owner: TaskOwner) -> None:
        super().__init__(work, owner)
        self._pending: Final = work.newest
        self._projection = owner.projection
        self._schema_id = owner.schema_id
        self._next: ReadRequest | None = None
        self._published: ReadRequest | None = None
        self._published_hashes: dict[RowKey, int] = {}
        """Hashes of the page's rows by key. The rows are not kept: a page may be large and wait long for the broker."""
        self._pushed_off: dict[RowKey, int] = {}
        """Hashes of rows that were published and then missing from their page when it was read again.

        They may be on a later page.
        """
        self._is_second_read = False
        self._is_proven = True
        self._read_at = self._started_at = 0.0
        self._early_reads = 0
        self._is_unsure = False
        self._unconverted: list[tuple[bytes | None, ...]] = []
        self._retried: list[tuple[bytes | None, ...]] = []
        self._error: RowConversionError | None = None
        self._lacks_unconverted_only = False

    def start(self) -> None:
        """Publish the marker. If only rows that could not be converted are left, read those instead."""
        self._projection, self._schema_id = self.owner.projection, self.owner.schema_id
        only_unconverted = self._lacks_unconverted_only and not self.refused_bytes
        self._lacks_unconverted_only, self.refused_bytes = False, 0
        if only_unconverted:
            self._retried, self._unconverted, self._error = self._unconverted, [], None
            self._read_retried()
            return
        self._started_at, self._early_reads = time.monotonic(), 0
        self._begin()

    def _begin(self) -> None:
        self._is_proven, self._is_unsure, self._published = True, False, None
        self._published_hashes, self._pushed_off, self._is_second_read = {}, {}, False
        self._unconverted, self._retried, self._error = [], [], None
        if self.owner.last_rows is not None:
            self.owner.last_rows.forget()
        event = self._pending.event
        self._next = ReadRequest(
            projection=self._projection,
            kind=event.kind,
            partition_key=event.partition_key,
            bounds=None if event.bounds is None else expressible(self._projection.table, event.bounds),
            level=ReadLevel.HIGHER,
            node=self._pending.message.node_id,
        )
        key = self._projection.event_key(event, self._pending.message.key_schema)
        self._publish(key, self._projection.deleted, marker_properties(self._projection, self._pending))

    def on_rows(self, rows: Rows) -> None:
        """Publish the rows of a page. When a page is read again, publish only the differences."""
        outcome = self._outcome(rows)
        if outcome is Outcome.IMPOSSIBLE:
            self._early_reads += 1
            again = partial(self._read, rows.request)
            self.owner.later(self, pause_s(self._early_reads), again, counted_as="reads_too_early")
            return
        self._is_unsure |= outcome is Outcome.UNKNOWN
        self._is_proven &= rows.consistency == "ALL" and not rows.is_fallback
        state = rows.paging_state
        self._next = None if state is None else rows.request.next_page(state)
        self._is_second_read = rows.request is self._published
        self._published = rows.request
        self._publish_what_differs(rows)
        if not self.unanswered:
            self._go_on()

    def _publish_what_differs(self, rows: Rows) -> None:
        """Publish each row of the page that is not published in this state, and a null for each row that is gone."""
        before = self._pushed_off
        if self._is_second_read:
            before = self._published_hashes | before
        selection = self._projection.scope_selection
        width = len(selection.key_columns)
        # Without the TTLs, which differ at each read: a new TTL also means a new write time.
        now = {tuple(row[:width]): hash(tuple(row[: selection.ttls_at])) for row in rows.rows}
        # Inserted rows push the last rows of a page onto the next one. Such rows are gone only if no later page has
        # them.
        still_there = [at for at, key in enumerate(before) if key in now]
        passed = len(before) if rows.paging_state is None else max(still_there, default=-1)
        missing = [(at, key) for at, key in enumerate(before) if key not in now]
        self._published_hashes = now
        self._pushed_off = {key: before[key] for at, key in missing if at > passed}
        for at, key in missing:
            if at <= passed:
                self._publish_gone(key, has_rows=bool(now))
        for row in rows.rows:
            key = tuple(row[:width])
            if before.get(key) != now[key]:
                self._publish_survivor(row)

    def on_all_acknowledged(self) -> None:
        """Go on when the marker or the page is on the data topic. A page that was late is read again first."""
        is_late = may_be_overtaken(self.work, self._read_at)
        if self._published is not None and is_late and not self._is_second_read:
            self._read(self._published)
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self._next is not None:
            self._read(self._next)
        elif self._retried:
            self._read_retried()
        elif self._error is not None:
            self._lacks_unconverted_only = True
            raise self._error
        elif self._is_unsure:
            self.owner.later(self, WITHIN_S, self._begin)
        else:
            if self.owner.last_rows is not None:
                self.owner.last_rows.forget()
            proven = self._is_proven and self.owner.knows(self._pending.message.node_id)
            self.owner.settle(self, [self._pending] if proven else [])

    def _outcome(self, rows: Rows) -> Outcome:
        """Judge whether the rows of a page can have survived. They can when the deletion is surely visible by now."""
        # The time of the read counts, not that of its answer: the answer may be late.
        read_s = self.owner.cluster_time_s() - (time.monotonic() - self._read_at)
        if self._read_at - self._started_at > WITHIN_S or not is_young(self._pending, read_s):
            return Outcome.POSSIBLE
        if not self.owner.reading.proves:
            return Outcome.POSSIBLE
        return outcome_of_scope(self._pending.event, self._projection.scope_selection, rows.rows)

    def _publish_survivor(self, row: RawRow) -> None:
        projection, selection = self._projection, self._projection.scope_selection
        key_values = tuple(row[: len(selection.key_columns)])
        is_static = self._is_static(key_values)
        try:
            key = projection.record_key(key_values)
            if is_static:
                value = projection.static_value(selection, row, key_values)
            else:
                value = projection.record_value(selection, row, key_values)
        except RowConversionError as error:
            self._unconverted.append(key_values[len(projection.table.partition_key) :])
            self._error = error
            return
        writetime_us = max(selection.writetimes_us(row).values(), default=None)
        properties = survivor_properties(projection, self._pending, writetime_us, is_static=is_static)
        if not is_static:
            clustering = key_values[len(projection.table.partition_key) :]
            for expiry in add_expiry(properties, projection, selection, row, [self._pending]):
                self.owner.schedule(self, self._pending, clustering, expiry)
        self._publish(key, value, properties)

    def _publish_gone(self, key_values: RowKey, *, has_rows: bool) -> None:
        """Publish a null for a published row that is gone. A static row is not gone if its partition has rows now."""
        is_static = self._is_static(key_values)
        if is_static and has_rows:
            return
        projection = self._projection
        properties = gone_properties(projection, self._pending, is_static=is_static)
        self._publish(projection.record_key(key_values), projection.deleted, properties)

    def _is_static(self, key_values: RowKey) -> bool:
        """True for a static row: a partition without other rows is answered as one row without clustering values."""
        return bool(self._projection.static_selection.value_columns) and None in key_values

    def _publish(self, key: bytes, value: bytes | None, properties: dict[str, str]) -> None:
        record = SourceRecord(
            schema_id=self._schema_id,
            key=key,
            value=value,
            properties=properties,
            event_time_ms=event_time_ms(properties),
        )
        self.owner.publish(self, record)

    def _read_retried(self) -> None:
        """Read one row that could not be converted, as a range of one row, so that the answer has its key."""
        clustering = self._retried.pop()
        self._read(
            ReadRequest(
                projection=self._projection,
                kind=MutationKind.RANGE_DELETION,
                partition_key=self.work.partition_key,
                bounds=_only(clustering),
                level=ReadLevel.HIGHER,
                node=self._pending.message.node_id,
            )
        )

    def _read(self, request: ReadRequest) -> None:
        self._read_at = time.monotonic()
        self.owner.read(self, request)


def _only(clustering: tuple[bytes | None, ...]) -> RangeBounds:
    prefix = tuple(each for each in clustering if each is not None)
    return RangeBounds(start=prefix, start_inclusive=True, end=prefix, end_inclusive=True)
