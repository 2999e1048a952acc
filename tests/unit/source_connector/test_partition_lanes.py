"""The order in which events may be processed."""

from __future__ import annotations

from schemas.mutation_event import MutationKind
from source_connector.rows.partition_lanes import PartitionLanes, Work
from tests.unit.source_connector.events import event, pending


def started(lanes: PartitionLanes) -> list[Work]:
    found = []
    while lanes.startable:
        found.append(lanes.next_startable())
    return found


def shown(works: list[Work]) -> list[list[int]]:
    """The positions of the events of each work."""
    return [[each.event.position for each in work.events] for work in works]


def add(lanes: PartitionLanes, *events: tuple[int, int | None, MutationKind]) -> None:
    """Events as (partition, clustering, kind), with positions counting from 0."""
    for each in pending(*(event(pk, ck, kind, position=at) for at, (pk, ck, kind) in enumerate(events))):
        lanes.add(each)


ROW, STATIC, PARTITION = MutationKind.ROW, MutationKind.STATIC_ROW, MutationKind.PARTITION_DELETION


def test_different_keys_go_on_side_by_side() -> None:
    """This holds in one partition and across partitions."""
    lanes = PartitionLanes()
    add(lanes, (1, 1, ROW), (1, 2, ROW), (2, 1, ROW))
    assert shown(started(lanes)) == [[0], [1], [2]]


def test_events_of_a_key_wait_for_its_work_and_are_then_settled_together() -> None:
    """One read gives the current row for all events that have gathered."""
    lanes = PartitionLanes()
    add(lanes, (1, 1, ROW), (1, 1, ROW), (1, 1, MutationKind.ROW_DELETION))
    (first,) = started(lanes)
    assert shown([first]) == [[0]]
    lanes.finished(first)
    (second,) = started(lanes)
    assert shown([second]) == [[1, 2]]
    assert second.newest.event.kind is MutationKind.ROW_DELETION
    lanes.finished(second)
    assert (started(lanes), len(lanes)) == ([], 0)


def test_a_deletion_of_a_partition_waits_for_all_before_it_and_holds_back_all_after_it() -> None:
    """Other partitions are not affected."""
    lanes = PartitionLanes()
    add(lanes, (1, 1, ROW), (1, 2, ROW), (1, None, PARTITION), (1, 1, ROW), (1, 3, ROW), (2, 1, ROW))
    first, second, other = started(lanes)
    assert shown([first, second, other]) == [[0], [1], [5]]
    lanes.finished(first)
    assert started(lanes) == []
    lanes.finished(second)
    (deletion,) = started(lanes)
    assert shown([deletion]) == [[2]]
    lanes.finished(deletion)
    assert shown(started(lanes)) == [[3], [4]]


def test_what_waits_behind_a_key_comes_before_a_later_deletion_of_its_partition() -> None:
    """The second event of the key came before the deletion."""
    lanes = PartitionLanes()
    add(lanes, (1, 1, ROW), (1, 1, ROW), (1, None, PARTITION))
    (first,) = started(lanes)
    lanes.finished(first)
    (second,) = started(lanes)
    assert shown([second]) == [[1]]
    lanes.finished(second)
    assert shown(started(lanes)) == [[2]]


def test_static_rows_are_published_one_at_a_time_between_the_rows_around_them() -> None:
    """A row's record has the static columns, so its order relative to a static record matters."""
    lanes = PartitionLanes()
    add(lanes, (1, None, STATIC), (1, None, STATIC), (1, 1, ROW))
    (first,) = started(lanes)
    assert not first.is_of_one_row
    lanes.finished(first)
    (second,) = started(lanes)
    assert shown([second]) == [[1]]
    lanes.finished(second)
    assert shown(started(lanes)) == [[2]]


def test_ten_thousand_changes_of_a_hundred_keys_are_a_hundred_reads_a_round() -> None:
    """In a hot partition, one read settles all events that wait for a key when its turn comes."""
    lanes = PartitionLanes()
    for change in range(100):
        for key in range(100):
            lanes.add(pending(event(1, key, position=change))[0])
    rounds = []
    while lanes.startable:
        works = [lanes.next_startable()]
        while lanes.startable:
            works.append(lanes.next_startable())
        rounds.append((len(works), sum(len(work.events) for work in works)))
        for work in works:
            lanes.finished(work)
    assert rounds == [(100, 100), (100, 9_900)]


def test_static_events_of_a_partition_are_settled_together_up_to_the_next_deletion() -> None:
    """One read gives the current static row for all of them; rows between them keep their positions after it."""
    lanes = PartitionLanes()
    add(
        lanes,
        (1, None, STATIC),
        (1, 1, ROW),
        (1, None, STATIC),
        (1, 2, ROW),
        (1, None, STATIC),
        (1, None, PARTITION),
        (1, None, STATIC),
    )
    (first,) = started(lanes)
    assert shown([first]) == [[0]]
    lanes.take_behind(first)  # The read has failed and is to be repeated.
    assert shown([first]) == [[0, 2, 4]]
    lanes.finished(first)
    rows = started(lanes)
    assert shown(rows) == [[1], [3]]
    for work in rows:
        lanes.finished(work)
    (deletion,) = started(lanes)
    lanes.finished(deletion)
    (last,) = started(lanes)
    assert shown([deletion, last]) == [[5], [6]]
    lanes.finished(last)
    assert len(lanes) == 0


def test_static_events_that_waited_for_one_of_their_own_are_one_read() -> None:
    """They gather while the earlier static event is processed."""
    lanes = PartitionLanes()
    add(lanes, (1, None, STATIC), (1, None, STATIC), (1, 1, ROW), (1, None, STATIC))
    (first,) = started(lanes)
    lanes.finished(first)
    (second,) = started(lanes)
    assert shown([first, second]) == [[0], [1, 3]]
    lanes.finished(second)
    assert shown(started(lanes)) == [[2]]
