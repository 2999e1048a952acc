"""Attempts: after a failed attempt of a task, another attempt after a pause, or a dead letter.

A failure that concerns Cassandra or the broker as a whole is retried without end. A failure that concerns one event
only is retried a limited number of times: a row that cannot be written, a key that Cassandra refuses or cannot read, a
record that the broker refuses, an unexpected exception. Then the event becomes a dead letter.

The states are those of `source_connector.rows.task`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, final
from uuid import UUID

from runtime.backoff import Backoff
from runtime.notices import Notices
from schemas.errors import CdcError
from source_connector.errors import FetchError, UnexpectedError
from source_connector.rows.key_faults import KeyFaults
from source_connector.rows.read_request import Rows
from source_connector.rows.row_task import RowTask
from source_connector.rows.table_life import TableLife
from source_connector.rows.task import Task, TaskState
from source_connector.stages import Stages
from source_connector.tables.followed_table import FollowedTable

__all__ = ["Attempts"]

_log = logging.getLogger(__name__)

_WORKING: Final = TaskState.WORKING
_OUTAGE_LOOK_S: Final = 3.0
_OWN_FAULT: Final = (
    "reads of other keys are answered, so it is this key's partition (too many tombstones, a damaged SSTable): when it is mended, "
    "send the event again (`cdc connector resend`)"
)


@final
class Attempts:
    """The attempts of one table's tasks. `settle` acknowledges the events of a task whose dead letters are written."""

    def __init__(
        self,
        stages: Stages,
        table: FollowedTable,
        life: TableLife,
        notices: Notices,
        settle: Callable[[Task], None],
    ) -> None:
        self._stages = stages
        self._counters = stages.metrics.counters
        self._table = table
        self._life = life
        self._notices = notices
        self._settle = settle
        self._faults = KeyFaults()
        self._taken = 0
        self._taken_at_refusal: dict[Task, int] = {}

    def begin(self, task: Task) -> None:
        """Begin an attempt. An error concerns only this task."""
        if self._life.dismisses(task):
            return
        try:
            task.start()
        except Exception as error:  # noqa: BLE001  # an unexpected error of one event stops no other
            self._ended_by(task, error)

    def step(self, task: Task, attempt: int, step: Callable[[], None]) -> None:
        """Take a step of this attempt, unless the attempt is over. An error concerns only this task."""
        if attempt != task.attempts or self._life.dismisses(task):
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001  # an unexpected error of one event stops no other
            self._ended_by(task, error)

    def read_over(self, task: Task, attempt: int, outcome: Rows | CdcError) -> None:
        """Take the result of a read of this attempt."""
        if attempt != task.attempts:
            return
        if isinstance(outcome, Rows):
            task.reads_answered += 1
            self._faults.answered += 1
        if self._life.dismisses(task):
            return
        try:
            if not isinstance(outcome, Rows):
                raise outcome
            task.on_rows(outcome)
        except Exception as error:  # noqa: BLE001  # an unexpected error of one event stops no other
            self._ended_by(task, error)

    def record_answered(self, task: Task, *, refused: bool) -> None:
        """Note that the data topic has taken or refused a record of the task."""
        self._taken += not refused
        if self._life.dismisses(task) or task.unanswered or task.state is not _WORKING:
            return
        if task.refused_bytes:
            self._refused(task)
            return
        try:
            task.on_all_acknowledged()
        except Exception as error:  # noqa: BLE001  # an unexpected error of one event stops no other
            self._ended_by(task, error)

    def schema_taken(self) -> None:
        """Note that the data topic has taken the table's schema: so it accepts something."""
        self._taken += 1

    def forget(self, task: Task) -> None:
        """Forget the task, because it is settled."""
        if self._taken_at_refusal:
            self._taken_at_refusal.pop(task, None)
        self._faults.forget(task)

    def forget_all(self) -> None:
        """Forget all tasks, because a new epoch has begun."""
        self._taken_at_refusal.clear()
        self._faults.clear()

    def _ended_by(self, task: Task, error: Exception) -> None:
        """Decide what follows an attempt that this error has ended."""
        if isinstance(error, FetchError):
            self._not_read(task, error)
            return
        if not isinstance(error, CdcError):
            _log.debug("unexpected", exc_info=error)
            self._counters["unexpected_errors"] += 1
            self._failed(task, str(UnexpectedError(error)))
            return
        self._table.mark_stale()
        if isinstance(error, UnexpectedError):
            self._counters["unexpected_errors"] += 1
            self._failed(task, str(error))
        else:
            # A user type may have grown since: its values are longer than the known definition.
            self._counters["rows_not_converted"] += 1
            self._failed(task, str(error), type(error).__name__)

    def _not_read(self, task: Task, error: FetchError) -> None:
        if error.refresh_schema:
            self._table.mark_stale()
        if error.is_invalid:
            self._ask_whether_nodes_agree(task, str(error))
        elif error.is_of_key and self._faults.is_fault_of(task):
            self._counters["keys_not_read"] += 1
            if error.refresh_schema:  # a failure inside nodes: they may not have a type's new field yet
                self._ask_whether_nodes_agree(task, f"{error}; {_OWN_FAULT}")
            else:
                self._failed(task, f"{error}; {_OWN_FAULT}")
        else:
            self._retry(task, str(error), _OUTAGE_LOOK_S if error.is_outage else None)

    def _ask_whether_nodes_agree(self, task: Task, reason: str) -> None:
        """Ask for the nodes' schema versions. A refusal by a node with an old schema is not the event's fault."""
        task.become(TaskState.ASKING)
        self._table.ask(self._stages.client.schema_versions, partial(self._refused_by_cassandra, task, reason))

    def _refused_by_cassandra(self, task: Task, reason: str, versions: set[UUID] | CdcError) -> None:
        if self._life.dismisses(task):
            return
        if not isinstance(versions, CdcError) and len(versions) == 1:
            self._failed(task, reason)
            return
        self._counters["reads_refused_in_disagreement"] += 1
        why = f"it is not known whether the nodes agree about the schema ({versions})"
        if not isinstance(versions, CdcError):
            why = f"the nodes have {len(versions)} versions of the schema; see `nodetool describecluster`"
        self._retry(task, f"{reason}; that does not count as the event's fault, for {why}", _OUTAGE_LOOK_S)

    def _refused(self, task: Task) -> None:
        """Retry or fail after the broker refused a record. The broker does not say why.

        If the topic took other records of the table since the last refusal, it is this record's fault. On a quiet table
        there may be none. So the schema is announced again, for which the host creates a producer: a working topic
        accepts that.
        """
        self._counters["records_refused"] += 1
        reason = (
            f"the data topic refused its record of {task.refused_bytes:,} bytes; the instance's log has the reason; brokers "
            "accept 5 MiB unless their maxMessageSize is set"
        )
        before = self._taken_at_refusal.get(task)
        self._taken_at_refusal[task] = self._taken
        self._table.ask_registry_again()
        if before is None or before == self._taken:
            self._retry(task, reason)
        else:
            self._failed(task, reason)

    def _failed(self, task: Task, reason: str, subject: str | None = None) -> None:
        """Count a failure that seems to be the event's fault. After the last one the event becomes a dead letter."""
        task.failures += 1
        if task.failures < self._stages.limits.max_failures:
            self._retry(task, reason, subject=subject)
        else:
            task.become(TaskState.SETTING_ASIDE)
            self._set_aside(task, reason)

    def _set_aside(self, task: Task, reason: str) -> None:
        stages = self._stages
        if self._life.dismisses(task):
            return
        if task.unanswered:  # wait for the answers to its earlier records
            stages.timers.after(stages.limits.backoff_s, partial(self._set_aside, task, reason))
            return
        _log.error(
            "%s: goes to the dead-letter topic after %d failed attempts, %s: %s",
            self._place_of(task),
            task.failures,
            stages.dead_letters.topic,
            reason,
        )
        stages.set_events_aside(task.work.events, reason, partial(self._settle, task))

    def _retry(self, task: Task, reason: str, longest_s: float | None = None, *, subject: str | None = None) -> None:
        """Start the task again after a pause. Its events stay unacknowledged.

        `subject`: for the notice, if the beginning of the reason differs from row to row.
        """
        limits = self._stages.limits
        task.become(TaskState.RETRYING)
        delay_s = Backoff(limits.backoff_s, longest_s or limits.max_backoff_s).pause_s(task.attempts)
        self._counters["retries"] += 1
        self._notices.say(
            subject or reason.partition(":")[0],
            f"{self._place_of(task)}: {reason}; attempt {task.attempts + 1} in {delay_s:.1f} s",
        )
        self._stages.timers.after(delay_s, partial(self._start_again, task))

    def _place_of(self, task: Task) -> str:
        """The task's place for log lines, without its key if keys are hidden."""
        return task.work.log_place if self._table.projection.hides_key else task.work.place

    def _start_again(self, task: Task) -> None:
        if self._life.dismisses(task):
            return
        stages = self._stages
        has_room = stages.fetcher.has_bytes and stages.outbox.has_room(task.owner)
        if task.unanswered or not has_room or not task.owner.may_read_waiting:
            stages.timers.after(stages.limits.backoff_s, partial(self._start_again, task))
            return
        task.become(_WORKING)
        if isinstance(task, RowTask) and task.work.lanes is not None:
            task.work.lanes.take_behind(task.work)  # one read for all events that wait for it
        self.begin(task)
