"""The states of a task."""

from __future__ import annotations

import pytest

from source_connector.rows.task import TaskState
from tests.unit.source_connector.task_owner import a_task

WORKING, ASKING, RETRYING, SETTING_ASIDE, SETTLED, DISMISSED = TaskState

LIVES = [
    ((SETTLED,), 1),
    ((RETRYING, WORKING, SETTLED), 2),
    ((ASKING, RETRYING, WORKING, RETRYING, WORKING, SETTING_ASIDE, SETTLED), 3),
    ((ASKING, SETTING_ASIDE, DISMISSED), 1),
    ((RETRYING, DISMISSED), 1),
]


@pytest.mark.parametrize(("states", "attempts"), LIVES)
def test_each_attempt_ends_when_working_is_left(states: tuple[TaskState, ...], attempts: int) -> None:
    """Late answers of an ended attempt are recognised by this number."""
    task = a_task()
    for state in states:
        task.become(state)
    assert (task.state, task.attempts) == (states[-1], attempts)


@pytest.mark.parametrize("after", [SETTLED, DISMISSED])
@pytest.mark.parametrize("state", list(TaskState))
def test_no_state_follows_the_last_one(after: TaskState, state: TaskState) -> None:
    """Its events are acknowledged: to settle them again would acknowledge other events."""
    task = a_task()
    task.become(after)
    with pytest.raises(AssertionError, match=f"that is {after.value} cannot become {state.value}"):
        task.become(state)
