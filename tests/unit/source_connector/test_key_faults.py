"""Whether a failed read is the fault of its key or of the cluster."""

from __future__ import annotations

from source_connector.rows.key_faults import KeyFaults
from tests.unit.source_connector.task_owner import a_task


def test_reads_of_the_key_itself_say_nothing_of_the_cluster() -> None:
    """Such reads are an earlier page before the one that fails, or the first level before the higher one."""
    faults, task = KeyFaults(), a_task()
    verdicts = []
    for _ in range(5):
        verdicts.append(faults.is_fault_of(task))
        task.reads_answered += 1
        faults.answered += 1
    assert verdicts == [False] * 5
    faults.answered += 1
    assert faults.is_fault_of(task)


def test_a_verdict_ends_when_more_reads_fail_than_are_answered() -> None:
    """The verdict holds while nothing is read."""
    faults = KeyFaults()
    bad, sound = (a_task() for _ in range(2))
    faults.is_fault_of(bad)
    faults.answered += 3
    assert [faults.is_fault_of(bad) for _ in range(3)] == [True] * 3
    assert not faults.is_fault_of(sound)
    assert not faults.is_fault_of(bad)
