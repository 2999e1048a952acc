"""When a resync may close a gap: all sent rows must be on the data topic. Also advice for rows that were not sent."""

from __future__ import annotations

import pytest

from schemas.progress_record import UNKNOWN_POSITION, TopicPosition
from schemas.resolved import PartitionCursor
from spark_bridge.jobs.resync import _unwritable_reason, is_passed


def _at(ledger: int, entry: int) -> PartitionCursor:
    return PartitionCursor(consumed=TopicPosition(ledger, entry), end=TopicPosition(99, 99))


@pytest.mark.parametrize(
    ("cursors", "ends", "passed"),
    [
        ([_at(7, 4), _at(9, 0)], [TopicPosition(7, 4), TopicPosition(8, 5)], True),
        ([_at(7, 3), _at(9, 0)], [TopicPosition(7, 4), TopicPosition(8, 5)], False),
        ([_at(8, -1)], [UNKNOWN_POSITION], True),  # Nothing was ever in this partition.
        ([_at(-2, -1)], [UNKNOWN_POSITION], False),  # The partition has no such subscription.
        ([], [], False),  # The topic was deleted.
        ([], [TopicPosition(7, 4)], False),
        ([_at(9, 9)], [TopicPosition(7, 4), TopicPosition(7, 4)], False),
    ],
)
def test_everything_is_passed_only_where_each_partition_is(
    cursors: list[PartitionCursor], ends: list[TopicPosition], passed: bool
) -> None:
    """Later events on the topic do not matter."""
    assert is_passed(cursors, ends) == passed


@pytest.mark.parametrize(
    ("is_mirror", "when"),
    [
        (False, "when the connector has published that, run this again"),
        (True, "when the connector has published that and the mirror has it, run this again"),
    ],
)
def test_a_deleted_row_that_cannot_be_sent_is_deleted_again(is_mirror: bool, when: str) -> None:
    """A mirror must also get the deletion: otherwise the next run would find the same row in it."""
    told = _unwritable_reason(['{"k": 1}', '{"k": 2}'], is_mirror=is_mirror)
    assert told == (
        "2 deleted rows cannot be sent, because the data topic does not have their CQL keys; the first is "
        f'{{"k": 1}}: delete them in Cassandra again, and {when}'
    )
