"""An owner of tasks in memory, for unit tests of tasks and of the stages that know their tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

from schemas.errors import CdcError
from source_connector.encoding.projection import Projection
from source_connector.events.events_message import PendingEvent
from source_connector.host.record import SourceRecord
from source_connector.rows.last_rows import LastRows
from source_connector.rows.partition_lanes import Work
from source_connector.rows.read_request import ReadRequest, Rows
from source_connector.rows.row_expiry import NextExpiry
from source_connector.rows.row_task import RowTask
from source_connector.rows.task import Reading, Task, TaskOwner
from source_connector.rows.write_times import WriteTimes
from tests.unit.source_connector.events import NODE, event, pending, table

__all__ = ["MemoryOwner", "a_task"]

PROJECTION = Projection(table())


class MemoryOwner(TaskOwner):
    """An owner in memory that keeps the requests of a task."""

    # Here they are no properties.
    projection: Projection = PROJECTION
    schema_id: int = 1
    epoch: int = 0
    may_read_waiting: bool = True
    reading: Reading = Reading()
    last_rows: LastRows | None = None
    write_times: WriteTimes = WriteTimes()

    def __init__(self, projection: Projection = PROJECTION, known: UUID = NODE) -> None:
        self.projection = projection
        self.reads: list[ReadRequest] = []
        self.records: list[SourceRecord] = []
        self.settled: list[Sequence[PendingEvent]] = []
        self.write_times = WriteTimes()
        self.steps: list[tuple[float, Callable[[], None]]] = []
        self.expiries: list[tuple[tuple[bytes | None, ...], NextExpiry]] = []
        self.published: set[bytes] = set()
        self._known = known

    def is_published(self, pending: PendingEvent) -> bool:
        return pending.event.digest in self.published

    def read(self, task: Task, request: ReadRequest) -> None:
        self.reads.append(request)

    def publish(self, task: Task, record: SourceRecord) -> None:
        self.records.append(record)
        task.unanswered += 1

    def acknowledge(self, task: Task) -> None:
        """Acknowledge all published records of the task."""
        assert task.unanswered
        task.unanswered = 0
        task.on_all_acknowledged()

    def settle(self, task: Task, proven: Sequence[PendingEvent]) -> None:
        self.settled.append(proven)

    def schedule(
        self, task: Task, pending: PendingEvent, clustering: tuple[bytes | None, ...], expiry: NextExpiry
    ) -> None:
        self.expiries.append((clustering, expiry))

    def knows(self, node: UUID) -> bool:
        return node == self._known

    def cluster_time_s(self) -> float:
        return time.time()

    def later(
        self, task: Task, delay_s: float, step: Callable[[], None], *, counted_as: str = "", is_long: bool = False
    ) -> None:
        self.steps.append((delay_s, step))

    def deliver(self, task: Task, attempt: int, outcome: Rows | CdcError) -> None: ...

    def answered(self, task: Task, *, refused: bool) -> None: ...


def a_task(owner: TaskOwner | None = None) -> Task:
    """A task that was not started."""
    return RowTask(Work(pending(event(1))), owner or MemoryOwner())
