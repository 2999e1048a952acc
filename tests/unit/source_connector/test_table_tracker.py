"""What is known of a table, and when its schema is read again."""

from __future__ import annotations

from uuid import UUID

import pytest

from schemas.table_metadata import TableMetadata
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.errors import FetchError, TableNotFoundError
from source_connector.tables.table_schema import VersionedTable
from source_connector.tables.table_tracker import Standing, TableTracker
from tests.unit.source_connector.events import table

# Time UUIDs in ascending order of time.
OLD, NOW, LATER = (UUID(f"0000000{number}-0000-11f0-8000-000000000000") for number in (1, 2, 3))
RANDOM = UUID("11111111-1111-4111-8111-111111111111")


class Schema:
    """The server's schema, as a test sets it."""

    def __init__(self, current: TableMetadata) -> None:
        self.current = current
        self.number = 1

    @property
    def version(self) -> UUID:
        return UUID(int=self.number)

    def change(self, current: TableMetadata) -> None:
        self.current, self.number = current, self.number + 1


class Tracked:
    """A tracker that has read its table once, and its projections."""

    def __init__(self) -> None:
        self.schema = Schema(table(table_id=NOW))
        self.seen: list[tuple[Projection, bool]] = []
        self.tracker = TableTracker("ks", "t", ".*", DataFormat.KEY_VALUE_AVRO, self._take)
        self.refresh()

    def refresh(self, *, is_agreed: bool = True) -> None:
        """Look at the table in its current state."""
        look = VersionedTable(self.schema.version, self.schema.current, is_agreed)
        self.tracker.refresh(look, self.tracker.stale_marks)

    def _take(self, projection: Projection, is_new_schema: bool) -> None:
        self.seen.append((projection, is_new_schema))


def test_a_projection_that_cannot_be_used_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement could not be prepared. The known projection stays, so the next read finds the change once more."""
    tracked = Tracked()
    known, taken = tracked.tracker.projection, tracked._take

    def refuse(projection: Projection, is_new_schema: bool) -> None:
        raise FetchError("ks.t", "no node answers")

    monkeypatch.setattr(tracked.tracker, "_on_projection", refuse)
    tracked.schema.change(table(columns=("v", "new"), table_id=NOW))
    tracked.tracker.mark_stale()
    with pytest.raises(FetchError):
        tracked.refresh()
    assert tracked.tracker.projection is known and tracked.tracker.is_stale
    monkeypatch.setattr(tracked.tracker, "_on_projection", taken)
    tracked.refresh()
    assert [each.table.regular_columns[-1].name for each, _ in tracked.seen] == ["v", "new"]
    assert [is_new for _, is_new in tracked.seen] == [True, True]


def test_a_column_that_an_event_names_makes_the_schema_stale_once() -> None:
    """If the column was added, it is found; if it was dropped, another look does not find it."""
    tracked = Tracked()
    tracked.tracker.meet_columns(["v"])
    assert not tracked.tracker.is_stale
    tracked.tracker.meet_columns(["v", "new"])
    assert tracked.tracker.is_stale
    tracked.schema.change(table(columns=("v", "new"), table_id=NOW))
    tracked.refresh()
    assert (tracked.tracker.schema_id, [is_new for _, is_new in tracked.seen]) == (2, [True, True])
    tracked.tracker.meet_columns(["dropped"])
    tracked.refresh()
    tracked.tracker.meet_columns(["dropped"])
    assert not tracked.tracker.is_stale


def test_a_column_that_a_node_does_not_show_yet_is_waited_for() -> None:
    """The version may come from a node that is ahead, and the columns from one that lags: no row is read meanwhile."""
    tracked = Tracked()
    tracker = tracked.tracker
    tracker.meet_columns(["v", "new"])
    tracked.schema.number += 1
    for _ in range(3):
        with pytest.raises(
            FetchError, match=r"ks\.t: an event names its column new, which is not found while the nodes disagree"
        ):
            tracked.refresh(is_agreed=False)
        tracker.meet_version(tracked.schema.version)
        assert tracker.is_stale
    tracked.schema.current = table(columns=("v", "new"), table_id=NOW)
    tracked.refresh(is_agreed=False)
    assert (tracker.is_stale, tracker.schema_id) == (False, 2)


def test_a_column_is_not_waited_for_where_the_nodes_go_on_disagreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The column was dropped, and some node has another version for hours, as during an upgrade."""
    now = [100.0]
    monkeypatch.setattr("source_connector.tables.table_tracker.time.monotonic", lambda: now[0])
    tracked = Tracked()
    tracker = tracked.tracker
    tracker.meet_columns(["dropped"])
    for _ in range(20):  # However many reads there are.
        with pytest.raises(FetchError):
            tracked.refresh(is_agreed=False)
        now[0] += 2.5
    tracked.refresh(is_agreed=False)
    assert not tracker.is_stale
    tracker.meet_columns(["other"])
    tracked.refresh(is_agreed=False)
    assert not tracker.is_stale


def test_a_table_that_was_read_while_the_nodes_disagreed_is_read_again_at_the_next_check() -> None:
    """The version of that read does not show which table was found."""
    tracked = Tracked()
    tracked.schema.number += 1
    tracked.tracker.meet_version(tracked.schema.version)
    tracked.refresh(is_agreed=False)
    assert not tracked.tracker.is_stale
    tracked.tracker.meet_version(tracked.schema.version)
    assert tracked.tracker.is_stale
    tracked.refresh()
    tracked.tracker.meet_version(tracked.schema.version)
    assert not tracked.tracker.is_stale


def test_a_table_of_a_long_disagreement_is_read_again_until_the_nodes_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come from a node that lagged all the time, and no later change of the schema would cause another read."""
    now = [100.0]
    monkeypatch.setattr("source_connector.tables.table_tracker.time.monotonic", lambda: now[0])
    tracked = Tracked()
    tracker = tracked.tracker
    tracked.schema.number += 1
    believed = []
    for _ in range(13):
        tracker.meet_version(tracked.schema.version)
        assert tracker.is_stale
        tracked.refresh(is_agreed=False)
        believed.append(tracker.is_believed)
        now[0] += 5
    assert (believed, tracker.is_agreed) == ([False] * 10 + [True] * 3, False)
    tracked.schema.current = table(columns=("v", "new"), table_id=NOW)
    tracker.meet_version(tracked.schema.version)
    assert tracker.is_stale
    tracked.refresh()
    assert (tracker.schema_id, tracker.is_agreed, tracker.is_believed) == (2, True, True)
    tracker.meet_version(tracked.schema.version)
    assert not tracker.is_stale
    tracked.refresh(is_agreed=False)
    assert not tracker.is_believed


def test_a_disagreement_that_nobody_has_seen_for_long_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table was dropped for an hour: after CREATE and ALTER, the first node that is asked may lag."""
    now = [100.0]
    monkeypatch.setattr("source_connector.tables.table_tracker.time.monotonic", lambda: now[0])
    tracked = Tracked()
    tracked.refresh(is_agreed=False)
    now[0] += 3_600
    tracked.refresh(is_agreed=False)
    assert not tracked.tracker.is_believed


def test_an_event_of_a_column_that_was_not_there_asks_whether_it_was_added_since() -> None:
    """The column was dropped and added again, which the version shows."""
    tracked = Tracked()
    tracker = tracked.tracker
    assert not tracker.meet_columns(["x"])
    tracked.refresh()
    assert tracker.meet_columns(["v", "x"])
    tracker.meet_version(tracked.schema.version)
    assert (tracker.is_stale, tracker.meet_columns(["x"])) == (False, True)
    tracked.schema.change(table(columns=("v", "x"), table_id=NOW))
    tracker.meet_version(tracked.schema.version)
    assert (tracker.is_stale, tracker.meet_columns(["x"])) == (True, False)
    tracked.refresh()
    assert tracker.is_stale is False
    assert not tracker.meet_columns(["x"])


def test_a_change_that_leaves_records_as_they_are_keeps_the_schema() -> None:
    """Statements are prepared again, but the data topic gets no new version."""
    tracked = Tracked()
    tracked.schema.change(table(table_id=LATER))
    tracked.refresh()
    assert (tracked.tracker.schema_id, [is_new for _, is_new in tracked.seen]) == (1, [True, False])


def test_a_changed_schema_of_the_cluster_is_noticed() -> None:
    """The version shows it, which costs one small read."""
    tracked = Tracked()
    tracked.tracker.meet_version(tracked.schema.version)
    assert not tracked.tracker.is_stale
    tracked.schema.number += 1
    tracked.tracker.meet_version(tracked.schema.version)
    assert tracked.tracker.is_stale


def test_an_earlier_table_is_known_to_be_dropped_after_one_look() -> None:
    """Cassandra's table ids contain their time."""
    tracked = Tracked()
    tracker = tracked.tracker
    assert tracker.standing(NOW) is Standing.CURRENT
    assert tracker.standing(OLD) is Standing.UNKNOWN
    assert tracker.is_stale
    asked = tracker.stale_marks
    tracked.refresh()
    assert tracker.standing(OLD, asked) is Standing.DROPPED
    assert not tracker.is_stale


def test_nothing_counts_as_dropped_while_the_nodes_disagree() -> None:
    """After some looks such an event becomes a dead letter, which loses nothing and holds nothing up."""
    tracked = Tracked()
    tracker = tracked.tracker
    tracker.standing(OLD)
    asked = tracker.stale_marks
    for _ in range(9):
        with pytest.raises(TableNotFoundError, match=f"with id {OLD}"):
            tracked.refresh(is_agreed=False)
        assert tracker.standing(OLD, asked) is Standing.UNKNOWN
    assert tracker.is_waiting
    tracked.refresh(is_agreed=False)
    assert (tracker.standing(OLD, asked), tracker.is_waiting, tracker.is_stale) == (Standing.FOREIGN, False, False)


def test_a_table_that_comes_back_under_its_old_id_is_todays_again() -> None:
    """An event of the table causes a new look, whatever earlier looks found about that id."""
    tracked = Tracked()
    tracker = tracked.tracker
    tracker.standing(OLD)
    asked = tracker.stale_marks
    tracked.refresh()
    assert tracker.standing(OLD, asked) is Standing.DROPPED
    assert tracker.standing(OLD) is Standing.UNKNOWN
    assert tracker.is_stale
    asked = tracker.stale_marks
    tracked.schema.change(table(table_id=OLD))
    tracked.refresh()
    assert tracker.standing(OLD, asked) is Standing.CURRENT
    assert tracker.standing(NOW) is Standing.UNKNOWN
    asked = tracker.stale_marks
    tracked.refresh()
    assert tracker.standing(NOW, asked) is Standing.DROPPED  # The table had this id, whatever the time in the id is.


def test_a_later_table_is_waited_for() -> None:
    """The node that wrote the event knows that table, and the node that was asked will."""
    tracked = Tracked()
    assert tracked.tracker.standing(LATER) is Standing.UNKNOWN
    for _ in range(9):
        with pytest.raises(TableNotFoundError, match=f"with id {LATER}"):
            tracked.refresh()
    assert tracked.tracker.is_stale
    tracked.schema.change(table(table_id=LATER))
    tracked.refresh()
    assert tracked.tracker.standing(LATER) is Standing.CURRENT
    assert tracked.tracker.standing(NOW) is Standing.UNKNOWN


@pytest.mark.parametrize("table_id", [LATER, RANDOM])
def test_an_id_that_never_appears_is_given_some_looks(table_id: UUID) -> None:
    """The id is of another cluster, or forged. Later events with this id need only one look."""
    tracked = Tracked()
    tracker = tracked.tracker
    tracker.standing(table_id)
    asked = tracker.stale_marks
    for _ in range(9):
        with pytest.raises(TableNotFoundError):
            tracked.refresh()
    tracked.refresh()
    assert (tracker.standing(table_id, asked), tracker.is_stale) == (Standing.FOREIGN, False)
    assert tracker.standing(table_id) is Standing.UNKNOWN
    asked = tracker.stale_marks
    tracked.refresh()
    assert tracker.standing(table_id, asked) is Standing.FOREIGN


def test_a_node_that_shows_the_table_as_it_was_before_is_not_believed_at_once() -> None:
    """The node lags behind the one that was asked before. If so for long, the earlier table came back `WITH ID`."""
    tracked = Tracked()
    tracked.schema.change(table(table_id=OLD))
    for _ in range(2):
        with pytest.raises(TableNotFoundError, match=f"with id {NOW}"):
            tracked.refresh(is_agreed=False)
    assert (tracked.tracker.standing(NOW), tracked.tracker.is_there) == (Standing.CURRENT, True)
    tracked.schema.change(table(table_id=NOW))
    tracked.refresh()
    tracked.schema.change(table(table_id=OLD))
    for _ in range(10):
        with pytest.raises(TableNotFoundError, match=f"with id {NOW}"):
            tracked.refresh(is_agreed=False)
    tracked.refresh(is_agreed=False)
    assert tracked.tracker.standing(OLD) is Standing.CURRENT
    assert len(tracked.seen) == 2


def test_a_table_that_came_back_with_a_later_generation_is_believed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """It has an earlier id, and the nodes disagree; a node that still shows the previous table lags."""
    tracked = Tracked()
    tracked.schema.change(table(table_id=NOW, generation=20))
    tracked.refresh()
    assert "under its own id" not in caplog.text
    tracked.schema.change(table(table_id=OLD, generation=30))
    tracked.refresh(is_agreed=False)
    for before in (table(table_id=NOW, generation=20), table(table_id=OLD, generation=10)):
        tracked.schema.change(before)
        with pytest.raises(TableNotFoundError, match=f"with id {OLD}"):
            tracked.refresh(is_agreed=False)
    assert tracked.tracker.projection.table.generation == 30


def test_a_table_that_came_back_under_its_own_id_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Its readers start an empty table."""
    tracked = Tracked()
    for generation in (20, 30):
        tracked.schema.change(table(table_id=NOW, generation=generation))
        tracked.refresh()
    (told,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"ks.t was dropped and created again under its own id {NOW}" in told.getMessage()
    assert tracked.tracker.projection.generation_text == "30"


def test_what_gave_reason_to_look_again_while_a_look_was_under_way_is_looked_for_once_more() -> None:
    """The look may have been answered before the column existed, and nothing else would cause another look."""
    tracked = Tracked()
    tracker = tracked.tracker
    tracker.mark_stale()
    look, stale_marks = (
        VersionedTable(tracked.schema.version, tracked.schema.current, is_agreed=True),
        tracker.stale_marks,
    )
    tracker.meet_columns(["v", "new"])
    tracker.refresh(look, stale_marks)
    assert tracker.is_stale
    tracked.refresh()
    assert not tracker.is_stale


def test_only_an_answer_that_it_is_not_there_makes_a_table_gone() -> None:
    """A node that does not answer gives no information about the table."""
    tracker = Tracked().tracker
    for error, is_there in ((FetchError("ks.t", "timeout"), True), (TableNotFoundError("ks.t"), False)):
        with pytest.raises(type(error)):
            tracker.refresh(error, tracker.stale_marks)
        assert tracker.is_there is is_there
