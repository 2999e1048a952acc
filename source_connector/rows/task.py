"""A task settles the events of one key, or one deletion of many rows. These are the states of its life.

                           Cassandra refused the read
      start ──> WORKING ──────────────────────────────> ASKING
                 │  ^  │                                 │   │
        settled  │  │  │ failed                          │   │ it is the event's fault, and was the last attempt
                 │  │  └──────────────> RETRYING <───────┘   │
                 │  └── the pause ends ─┘                    v
                 │        the last attempt of WORKING ─> SETTING_ASIDE
                 v                                           │
              SETTLED <──────── the dead letters are written ┘

    DISMISSED follows every state but SETTLED: the table was dropped, or created again.

`Task.become` is the only place where the state changes. `source_connector.attempts` decides what follows a failure.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, final
from uuid import UUID

from schemas.errors import CdcError
from source_connector.compiled import mypyc_attr
from source_connector.encoding.projection import Projection
from source_connector.events.events_message import PendingEvent
from source_connector.host.record import SourceRecord
from source_connector.rows.last_rows import LastRows
from source_connector.rows.partition_lanes import Work
from source_connector.rows.read_request import ReadRequest, Rows
from source_connector.rows.row_expiry import NextExpiry
from source_connector.rows.write_times import WriteTimes

__all__ = ["Reading", "Task", "TaskOwner", "TaskState"]


class TaskState(Enum):
    """Where a task is in its life."""

    WORKING = "working"
    """It reads, waits for its next step, or has records with the broker."""
    ASKING = "asking"
    """Cassandra refused its read. The nodes are asked if they agree about the schema."""
    RETRYING = "retrying"
    """Its attempt failed. The next one starts after a pause."""
    SETTING_ASIDE = "setting aside"
    """Its last attempt failed. Its dead letters are being written."""
    SETTLED = "settled"
    """Its events are acknowledged."""
    DISMISSED = "dismissed"
    """Its events are acknowledged, because their table does not exist any more."""


_WORKING: Final = TaskState.WORKING
# Any other state may follow WORKING. It has no entry: every row passes here, and a lookup by an enum's member is slow.
_NEXT: Final = {
    TaskState.ASKING: (TaskState.RETRYING, TaskState.SETTING_ASIDE, TaskState.DISMISSED),
    TaskState.RETRYING: (TaskState.WORKING, TaskState.DISMISSED),
    TaskState.SETTING_ASIDE: (TaskState.SETTLED, TaskState.DISMISSED),
    TaskState.SETTLED: (),
    TaskState.DISMISSED: (),
}


class Task(ABC):
    """Work under way. All calls come from one thread. An error that a call raises ends the attempt.

    A base class, not a protocol: compiled code calls its methods at a fraction of the cost.
    """

    def __init__(self, work: Work, owner: TaskOwner) -> None:
        self.work = work
        self.owner: Final = owner
        self.epoch: Final[int] = owner.epoch
        """The life of the table to which its events belong."""
        self.state: TaskState = _WORKING
        self.attempts = 0
        """How many attempts have ended. Answers to an ended attempt are ignored."""
        self.failures = 0
        """How many of the attempts failed because of the event itself."""
        self.reads_answered = 0
        self.unanswered = 0
        """Records that were handed to the host and are neither acknowledged nor refused yet."""
        self.unstored = 0
        """Expiries that were handed over and are not stored yet."""
        self.settles_with: Sequence[PendingEvent] | None = None
        """The proven events, if the task only waits for its expiries to be stored; else None."""
        self.refused_bytes = 0
        """Size of the last record of this attempt that was refused, as a frame to the host; 0 if none was refused."""

    def become(self, state: TaskState) -> None:
        """Enter the next state. The attempt ends when the task leaves WORKING."""
        before = self.state
        if before is _WORKING:
            self.attempts += 1
        if state is before or (before is not _WORKING and state not in _NEXT[before]):
            raise AssertionError(f"a task that is {before.value} cannot become {state.value}")
        self.state = state

    @abstractmethod
    def start(self) -> None:
        """Begin, or begin again."""

    @abstractmethod
    def on_rows(self, rows: Rows) -> None:
        """Take the rows that a read of this task found."""

    @abstractmethod
    def on_all_acknowledged(self) -> None:
        """Go on, because the data topic has every record that was handed over."""


@mypyc_attr(allow_interpreted_subclasses=True)  # those of tests
class TaskOwner(ABC):
    """The table of a task, as the task and the stages that answer it see the table.

    A base class, as `Task`: each row makes some twenty of these calls.
    """

    @property
    @abstractmethod
    def projection(self) -> Projection:
        """The table as it is known now."""

    @property
    @abstractmethod
    def schema_id(self) -> int:
        """The id of the projection's schemas."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """The number of the table's life. It grows when the table is created again."""

    @property
    @abstractmethod
    def may_read_waiting(self) -> bool:
        """False while a truncation is recorded, or the table's definition may be old: no waiting event is read then."""

    @abstractmethod
    def read(self, task: Task, request: ReadRequest) -> None:
        """Queue a read. `task.on_rows` gets the rows once, unless the attempt is over by then."""

    @abstractmethod
    def publish(self, task: Task, record: SourceRecord) -> None:
        """Hand a record to the host. `task.on_all_acknowledged` follows when all of the task's are acknowledged."""

    @abstractmethod
    def settle(self, task: Task, proven: Sequence[PendingEvent]) -> None:
        """End the task when its expiries are stored. Its events are acknowledged, the proven ones are remembered."""

    @abstractmethod
    def schedule(
        self, task: Task, pending: PendingEvent, clustering: tuple[bytes | None, ...], expiry: NextExpiry
    ) -> None:
        """Let a row of the event's partition be read again in the second in which a part of it expires."""

    @abstractmethod
    def is_published(self, pending: PendingEvent) -> bool:
        """True when the data topic has the event's change already, from another replica's copy of the event."""

    @abstractmethod
    def knows(self, node: UUID) -> bool:
        """True when the node is part of the cluster."""

    @abstractmethod
    def cluster_time_s(self) -> float:
        """Seconds since the epoch, by Cassandra's clock."""

    @abstractmethod
    def later(
        self, task: Task, delay_s: float, step: Callable[[], None], *, counted_as: str = "", is_long: bool = False
    ) -> None:
        """Take this step of the attempt after the delay. `counted_as` names a metric that counts it.

        A truncation does not wait for a step that `is_long`. The step waits for the truncation's record instead.
        """

    @property
    @abstractmethod
    def reading(self) -> Reading:
        """The requirements of a read."""

    @property
    @abstractmethod
    def last_rows(self) -> LastRows | None:
        """The rows that were published last; None unless unchanged rows are suppressed."""

    @property
    @abstractmethod
    def write_times(self) -> WriteTimes:
        """The write times of the changes that were settled last."""

    @abstractmethod
    def deliver(self, task: Task, attempt: int, outcome: Rows | CdcError) -> None:
        """Take the result of a read of this attempt."""

    @abstractmethod
    def answered(self, task: Task, *, refused: bool) -> None:
        """Note that the data topic has taken or refused a record of the task."""


@final
class Reading:
    """The requirements of reads: if they must be proven, and if only the event's own node may prove them."""

    __slots__ = ("only_by_event_node", "proves")

    def __init__(self, *, proves: bool = True, only_by_event_node: bool = False) -> None:
        self.proves: Final = proves
        self.only_by_event_node: Final = only_by_event_node
