"""Records that were handed to the host and are neither acknowledged nor refused yet."""

from __future__ import annotations

from typing import Final

from source_connector.host.host_connection import HostConnection
from source_connector.host.record import SourceRecord
from source_connector.host.record_frame import encode_record
from source_connector.rows.row_task import Desk, Task

__all__ = ["Outbox"]

_MAX_UNANSWERED_BYTES: Final = 32 * 1024 * 1024


class Outbox:
    """Numbers records, and knows whose they are."""

    def __init__(self, host: HostConnection) -> None:
        self._host = host
        self._unanswered: dict[int, tuple[Task, int]] = {}
        self._bytes = 0
        self._next_seq = 1

    @property
    def has_room(self) -> bool:
        """False while the broker is behind by more than may wait in memory."""
        return self._bytes < _MAX_UNANSWERED_BYTES

    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        frame = encode_record(seq, record)
        self._unanswered[seq] = task, len(frame)
        self._bytes += len(frame)
        task.unanswered += 1
        self._host.send(frame)

    def tasks_of(self, desk: Desk) -> set[Task]:
        """The tasks of a desk with records that are neither acknowledged nor refused yet."""
        return {task for task, _ in self._unanswered.values() if task.desk is desk}

    def answered(self, seq: int, *, refused: bool) -> Task:
        """The task whose record was answered."""
        task, size = self._unanswered.pop(seq)
        self._bytes -= size
        task.unanswered -= 1
        if refused:
            task.was_refused, task.refused_bytes = True, size
        return task
