"""Records that were handed to the host and are neither acknowledged nor refused yet."""

from __future__ import annotations

from typing import Final

from source_connector.host.host_connection import HostConnection
from source_connector.host.record import SourceRecord
from source_connector.host.record_frame import encode_record
from source_connector.rows.task import Task, TaskOwner

__all__ = ["Outbox"]

# Together 32 MiB. All tables share the first part. The second part is divided equally among the tables, so that a table
# whose data topic accepts nothing does not stop the others.
_SHARED_BYTES: Final = 24 * 1024 * 1024
_KEPT_BYTES: Final = 8 * 1024 * 1024
# Memory that a record needs in addition to its bytes, in this process and the host: task, events, message, properties.
_BESIDE_ITS_BYTES: Final = 2048


class Outbox:
    """Numbers the records, and knows the task of each."""

    def __init__(self, host: HostConnection) -> None:
        self._host = host
        self._unanswered: dict[int, tuple[Task, int]] = {}
        self._bytes = 0
        self._bytes_of: dict[TaskOwner, int] = {}
        self._next_seq = 1

    def has_room(self, owner: TaskOwner) -> bool:
        """False while the records that wait for the broker use all the memory that the owner may use."""
        own = self._bytes_of.setdefault(owner, 0)
        return self._bytes < _SHARED_BYTES or own < _KEPT_BYTES // len(self._bytes_of)

    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        frame = encode_record(seq, record)
        size = len(frame) + _BESIDE_ITS_BYTES
        self._unanswered[seq] = task, size
        self._bytes += size
        self._bytes_of[task.owner] = self._bytes_of.get(task.owner, 0) + size
        task.unanswered += 1
        self._host.send(frame)

    def tasks_of(self, owner: TaskOwner) -> set[Task]:
        """The tasks of an owner with records that are neither acknowledged nor refused yet."""
        return {task for task, _ in self._unanswered.values() if task.owner is owner}

    def answered(self, seq: int, *, refused: bool) -> Task:
        """Take the answer for a record, and return the record's task."""
        task, size = self._unanswered.pop(seq)
        self._bytes -= size
        self._bytes_of[task.owner] -= size
        task.unanswered -= 1
        if refused:
            task.refused_bytes = size - _BESIDE_ITS_BYTES
        return task
