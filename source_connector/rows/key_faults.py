"""Decides if a failed or unanswered read is its key's fault: too many tombstones, or a damaged SSTable.

An overloaded cluster gives the same errors. So a failure is its key's fault if, since the last failure of the same
task, more reads of other keys were answered than failed. If nothing else was read meanwhile, the last verdict stands,
because a key that fails for its own sake may delay all other keys of its topic. Failures that were found to be a
key's own fault do not count against the cluster.
"""

from __future__ import annotations

from typing import NamedTuple, final

from source_connector.rows.task import Task

__all__ = ["KeyFaults"]


class _Seen(NamedTuple):
    """The state at a task's last failure."""

    answered: int
    own: int
    failed: int
    is_its_fault: bool


@final
class KeyFaults:
    """Judges the failed reads of one table."""

    def __init__(self) -> None:
        self.answered = 0
        """Answered reads of all tasks. `Task.reads_answered` counts those of one task."""
        self._failed = 0
        self._seen: dict[Task, _Seen] = {}

    def is_fault_of(self, task: Task) -> bool:
        """Note that a read of the task has failed. True when that is its key's fault."""
        before = self._seen.get(task)
        is_its_fault = False
        if before is not None:
            answered = self.answered - before.answered - (task.reads_answered - before.own)
            failed = self._failed - before.failed
            is_its_fault = before.is_its_fault if answered == failed == 0 else answered > failed
        self._failed += not is_its_fault
        self._seen[task] = _Seen(self.answered, task.reads_answered, self._failed, is_its_fault)
        return is_its_fault

    def forget(self, task: Task) -> None:
        """Forget the task, because it is done."""
        if self._seen:
            self._seen.pop(task, None)

    def clear(self) -> None:
        """Forget all tasks, because the table was created again."""
        self._seen.clear()
