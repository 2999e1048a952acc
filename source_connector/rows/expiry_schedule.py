"""ExpirySchedule: stores the seconds in which parts of a table's published rows expire, before their tasks are settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from runtime.notices import Notices
from schemas.mutation_event import EXPIRY_SEGMENT_ID, MutationKind
from source_connector.encoding.projection import Projection
from source_connector.events.due_rows import DueRow
from source_connector.events.events_message import PendingEvent
from source_connector.events.expiry_topics import ExpiryTopics
from source_connector.metrics import Metrics
from source_connector.rows.read_request import OF_MANY_ROWS
from source_connector.rows.row_expiry import NextExpiry
from source_connector.rows.task import Task

__all__ = ["ExpirySchedule"]


class ExpirySchedule:
    """Stores the expiries of one table; none without `expiries`.

    `settle` gets a task that is otherwise done whenever one of its expiries is stored. It waits for the others itself.
    """

    def __init__(
        self,
        expiries: ExpiryTopics | None,
        topic: str,
        metrics: Metrics,
        notices: Notices,
        settle: Callable[[Task, Sequence[PendingEvent]], None],
    ) -> None:
        self._due_rows = None if expiries is None else expiries.due_rows
        self._topic = topic
        self._counters = metrics.counters
        self._notices = notices
        self._settle = settle

    def store(
        self,
        task: Task,
        pending: PendingEvent,
        clustering: tuple[bytes | None, ...],
        expiry: NextExpiry,
        projection: Projection,
    ) -> None:
        """Store the second in which a part of a row expires. The task is not settled before the broker has it."""
        due_rows, message = self._due_rows, pending.message
        if due_rows is None:
            return
        if message.raw is not None:
            self._notices.say(
                "expiry",
                f"{message.topic}: expiries of rows whose events a DataStax agent wrote are not published: its topics take no others",
            )
            return
        due = _due_row(pending, clustering, expiry, projection)
        if due_rows.is_known(message.table_id_bytes, due) and not _has_come(task, due):
            return
        task.unstored += 1
        due_rows.add(partial(self._stored, task), self._topic, message, due)

    def _stored(self, task: Task) -> None:
        self._counters["expiries_stored"] += 1
        task.unstored -= 1
        if task.settles_with is not None:
            proven, task.settles_with = task.settles_with, None
            self._settle(task, proven)


def _has_come(task: Task, due: DueRow) -> bool:
    """True when the task settles an expiry of this second. Its read came too early, so the expiry is stored again."""
    return any(
        each.message.segment_id == EXPIRY_SEGMENT_ID and each.event.expiry_time_s == due.second
        for each in task.work.events
    )


def _due_row(
    pending: PendingEvent, clustering: tuple[bytes | None, ...], expiry: NextExpiry, projection: Projection
) -> DueRow:
    event = pending.event
    key, kind = event.key, event.kind
    if kind in OF_MANY_ROWS or not projection.has_keys_of(pending.message.key_schema):
        key = projection.event_key_of(projection.row_key_values(event.partition_key, clustering))
    return DueRow(
        is_static=kind is MutationKind.STATIC_ROW,
        key=key,
        partition_key=event.partition_key,
        clustering=clustering,
        second=expiry.second,
        columns=expiry.columns,
        digest=expiry.digest,
    )
