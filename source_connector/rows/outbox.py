"""Records that were handed to the host and are neither acknowledged nor refused yet."""

from __future__ import annotations

from typing import Final, final

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


@final
class _Share:
    """The memory that one owner's records use, in bytes."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


@final
class _Sent:
    """A record that is not answered yet."""

    __slots__ = ("share", "size", "task")

    def __init__(self, task: Task, share: _Share, size: int) -> None:
        self.task: Final = task
        self.share: Final = share
        self.size: Final = size


class Outbox:
    """Numbers the records, and knows the task of each."""

    def __init__(self, host: HostConnection) -> None:
        self._host = host
        self._unanswered: dict[int, _Sent] = {}
        self._bytes = 0
        self._shares: dict[TaskOwner, _Share] = {}
        self._next_seq = 1

    def has_room(self, owner: TaskOwner) -> bool:
        """False while the records that wait for the broker use all the memory that the owner may use."""
        own = self._share_of(owner).bytes
        return self._bytes < _SHARED_BYTES or own < _KEPT_BYTES // len(self._shares)

    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host."""
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        frame = encode_record(seq, record)
        size = len(frame) + _BESIDE_ITS_BYTES
        share = self._share_of(task.owner)
        self._unanswered[seq] = _Sent(task, share, size)
        self._bytes += size
        share.bytes += size
        task.unanswered += 1
        self._host.send(frame)

    def tasks_of(self, owner: TaskOwner) -> set[Task]:
        """The tasks of an owner with records that are neither acknowledged nor refused yet."""
        return {sent.task for sent in self._unanswered.values() if sent.task.owner is owner}

    def answered(self, seq: int, *, refused: bool) -> Task:
        """Take the answer for a record, and return the record's task."""
        sent = self._unanswered.pop(seq)
        self._bytes -= sent.size
        sent.share.bytes -= sent.size
        task = sent.task
        task.unanswered -= 1
        if refused:
            task.refused_bytes = sent.size - _BESIDE_ITS_BYTES
        return task

    def _share_of(self, owner: TaskOwner) -> _Share:
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = _Share()
        return share
