"""How reports of nodes about a truncation or a drop become one record, and the reads that wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, cast
from uuid import UUID

import pytest

from schemas.mutation_event import Clearing, ClearingKind, MutationEvents
from schemas.truncation import Truncation
from source_connector.events.events_message import EventsMessage
from source_connector.events.pulsar_access import PulsarConnection
from source_connector.tables.clearing_record import ClearingRecord, covers, node_clearings, without_earlier
from source_connector.tables.schema_changes import ClearingToPublish, SchemaChangeTopic
from source_connector.tables.schema_queries import SchemaAnswer
from tests.unit.source_connector.events import NODE, event, table
from tests.unit.source_connector.table_line_case import GOOD, NEW, OLD, Case, Neighbours, _Origin

_OTHER = UUID(int=77)
_NOTED = Truncation(7, 500, 1_000_000)
_TRUNCATION = Clearing(ClearingKind.TRUNCATION, 500, 1_000_000)


def _tell(
    case: Case, clearing: Clearing = _TRUNCATION, node: UUID = NODE, table_id: UUID = OLD, segment_id: int = 7
) -> None:
    content = MutationEvents(
        node_id=node,
        segment_id=segment_id,
        keyspace="ks",
        table="t",
        table_id=table_id,
        key_schema="",
        events=(),
        clearing=clearing,
    )
    message_id: Any = "(1,2,3,4)"
    origin = _Origin(case.around)
    case.line.receive(
        EventsMessage(identity=b"", message_id=message_id, content=content, topic="events", origin=origin)
    )
    case.line.work()


def _record(told: ClearingToPublish) -> ClearingRecord:
    return ClearingRecord(
        kind="truncation",
        table_id=str(told.table_id),
        table_generation=None,
        nodes=told.nodes,
        data_topic="",
        positions=[],
        time_ms=max(each["time_ms"] for each in told.nodes),
    )


def _stored(case: Case) -> ClearingRecord:
    """The record for the last report, as the topic of schema changes has stored it."""
    told = case.around.clearings[-1]
    told.then(record := _record(told))
    case.line.work()
    return record


def _settle(case: Case) -> None:
    """Store the record for the last report, after the pause."""
    case.timers.run_due()
    case.line.work()
    _stored(case)


def test_nothing_is_read_from_a_truncation_until_its_record_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads in progress come first, and later events wait; then they are read again, although published before."""
    case = Case(monkeypatch)
    before, behind = event(1), event(2)
    case.receive(before, behind)
    case.answer(GOOD)
    case.taken(1)
    case.answer(GOOD, key=2)  # Published, but not acknowledged.
    case.around.noted = {NODE: _NOTED, _OTHER: Truncation(7, 9, 1_000_400)}
    _tell(case)
    case.receive(before)
    case.timers.run_due()
    case.line.work()
    assert (case.around.reads, case.around.clearings) == ([], [])  # A record is not acknowledged yet.
    case.taken(2)
    (told,) = case.around.clearings
    assert [(each["node"], each["segment_id"], each["time_ms"]) for each in told.nodes] == [
        (str(node), place.segment_id, place.time_ms)
        for node, place in sorted(case.around.noted.items(), key=lambda each: each[0].bytes)
        if place is not None
    ]
    assert case.around.reads == []
    settled = len(case.around.settled)
    record = _stored(case)
    assert record["time_ms"] == 1_000_400
    assert len(case.around.settled) == settled + 1
    (read,) = case.around.reads
    assert read.request.partition_key == before.partition_key  # Its digest is forgotten.
    _tell(case)
    _tell(case, Clearing(ClearingKind.TRUNCATION, 9, 1_000_400), _OTHER)
    assert len(case.around.clearings) == 1  # Other partitions and nodes report the same truncation.
    assert len(case.around.settled) == settled + 3


def test_records_of_other_instances_are_waited_for_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may come so late, with rows that were read before the truncation."""
    case = Case(monkeypatch, is_shared=True)
    case.around.noted = {NODE: _NOTED}
    _tell(case)
    for case.now in (0.0, 4.9):
        case.timers.run_due()
        case.line.work()
        assert case.around.clearings == []
    case.now = 5.1
    case.timers.run_due()
    case.line.work()
    assert len(case.around.clearings) == 1


def test_all_nodes_are_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has not truncated yet would still return its rows. After some time the table continues."""
    case = Case(monkeypatch)
    case.around.noted = {NODE: _NOTED, _OTHER: Truncation(3, 1, 5)}
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: case.now)
    _tell(case)
    case.now += 1
    case.timers.run_due()
    case.line.work()
    assert case.around.clearings == []
    case.around.noted[_OTHER] = Truncation(3, 9, 999_000)
    case.now += 1
    case.timers.run_due()
    case.timers.run_due()
    case.line.work()
    assert [len(each.nodes) for each in case.around.clearings] == [2]
    _stored(case)
    later = Clearing(ClearingKind.TRUNCATION, 900, 2_000_000)
    case.around.noted[NODE] = Truncation(7, 900, 2_000_000)
    _tell(case, later)
    for _ in range(40):
        case.now += 1
        case.timers.run_due()
        case.line.work()
    assert [len(each.nodes) for each in case.around.clearings] == [2, 1]


def test_a_node_that_has_done_only_the_truncation_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic's writer reports a node that repeats a record: it is asked again, and nothing is read meanwhile."""
    case = Case(monkeypatch)
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: case.now)
    case.around.noted = {NODE: _NOTED, _OTHER: Truncation(3, 9, 990_000)}
    _tell(case)
    case.receive(event(1))
    case.timers.run_due()
    for count in (1, 2):
        case.line.work()
        assert len(case.around.clearings) == count and not case.around.clearings[-1].is_final
        case.around.clearings[-1].then(None)
        case.now += 1
        case.timers.run_due()
        case.timers.run_due()
    assert (case.around.reads, case.around.settled) == ([], [])
    case.around.noted[_OTHER] = Truncation(3, 10, 1_000_100)
    for _ in range(20):
        if not case.around.clearings[-1].is_final:
            case.around.clearings[-1].then(None)
        case.now += 1
        case.timers.run_due()
        case.timers.run_due()
        case.line.work()
    assert case.around.clearings[-1].is_final
    assert {each["time_ms"] for each in case.around.clearings[-1].nodes} == {1_000_000, 1_000_100}


def test_nodes_that_repeat_an_earlier_record() -> None:
    """Such nodes have not done the later truncation, however close the two are."""
    first = node_clearings(_TRUNCATION, NODE, 7, {NODE: _NOTED, _OTHER: Truncation(3, 9, 1_000_400)})
    record = ClearingRecord(
        kind="truncation",
        table_id=str(OLD),
        table_generation=1,
        time_ms=1_000_400,
        nodes=first,
        data_topic="",
        positions=[],
    )
    later = _TRUNCATION._replace(position=900, time_ms=1_008_000)
    second = node_clearings(later, NODE, 7, {_OTHER: Truncation(3, 9, 1_000_400)})
    assert len(second) == 2
    assert without_earlier(second, [record]) == [
        {"node": str(NODE), "segment_id": 7, "position": 900, "time_ms": 1_008_000}
    ]
    done = node_clearings(later, NODE, 7, {_OTHER: Truncation(3, 10, 1_008_300)})
    assert without_earlier(done, [record]) == done


def test_a_clearing_of_another_life_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases: a table that was created again and whose new id is known, and a drop of a table that exists."""
    case = Case(monkeypatch)
    case.create_again()
    _tell(case, Clearing(ClearingKind.DROP, 1, 5), table_id=OLD)
    case.pass_time()
    assert (case.around.clearings, case.around.settled) == ([], [1])
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: case.now)
    _tell(case, Clearing(ClearingKind.DROP, 1, 6), table_id=NEW)
    case.pass_time()
    assert (case.around.clearings, case.around.settled) == ([], [1, 1])


def test_what_a_record_covers() -> None:
    """The node's own position counts; for a node that is not in the record, the time within a tolerance."""
    nodes = node_clearings(_TRUNCATION, NODE, 7, {NODE: Truncation(7, 900, 1_500_000), _OTHER: None})
    assert nodes == [{"node": str(NODE), "segment_id": 7, "position": 900, "time_ms": 1_500_000}]
    record = ClearingRecord(
        kind="truncation",
        table_id=str(OLD),
        table_generation=1,
        time_ms=1_500_000,
        nodes=nodes,
        data_topic="",
        positions=[],
    )
    assert covers(record, OLD, _TRUNCATION, NODE, 7)
    assert not covers(record, OLD, _TRUNCATION._replace(time_ms=1_500_001), NODE, 7)
    assert not covers(record, OLD, _TRUNCATION._replace(position=901), NODE, 7)
    assert not covers(record, OLD, _TRUNCATION._replace(position=1), NODE, 8)
    assert covers(record, OLD, _TRUNCATION._replace(position=1_000), NODE, 6)
    assert covers(record, OLD, _TRUNCATION._replace(time_ms=1_500_001), _OTHER, 1)
    assert not covers(record, OLD, _TRUNCATION._replace(time_ms=1_530_001), _OTHER, 1)
    assert not covers(record, NEW, _TRUNCATION, NODE, 7)
    assert not covers(record, OLD, _TRUNCATION._replace(kind=ClearingKind.DROP), NODE, 7)


@pytest.mark.parametrize("later_ms", [-3_600_000, -20_000, 3_600_000])
def test_a_clock_that_is_set_between_two_truncations_hides_none(monkeypatch: pytest.MonkeyPatch, later_ms: int) -> None:
    """The later position in the node's log decides. If both are stored when the first one is reported, one record
    covers both."""
    later = Truncation(7, 900, _NOTED.time_ms + later_ms)
    told = Clearing(ClearingKind.TRUNCATION, later.position, later.time_ms)
    case = Case(monkeypatch)
    case.around.noted = {NODE: _NOTED}
    _tell(case)
    _settle(case)
    case.around.noted = {NODE: later}
    _tell(case, told)
    _settle(case)
    nodes = [each.nodes for each in case.around.clearings]
    assert [(each["position"], each["time_ms"]) for (each,) in nodes] == [_NOTED[1:], later[1:]]
    assert without_earlier(nodes[1], [_record(case.around.clearings[0])]) == nodes[1]
    for each in (_TRUNCATION, told):  # From another partition, and from a start that repeats the report.
        assert any(covers(_record(record), OLD, each, NODE, 7) for record in case.around.clearings)

    both = node_clearings(_TRUNCATION, NODE, 7, {NODE: later})
    record = _record(replace(case.around.clearings[0], nodes=both))
    is_one = later_ms >= -30_000
    assert covers(record, OLD, _TRUNCATION, NODE, 7)
    assert covers(record, OLD, told, NODE, 7) == is_one
    lagging = node_clearings(told._replace(position=1_000), UUID(int=1), 7, {NODE: later})
    assert len(without_earlier(lagging, [record])) == len(lagging) - is_one


def test_a_drop_whose_table_is_back_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes and partitions report the same drop, also later ones, so it is waited for only once. Another drop is
    waited for again."""
    case = Case(monkeypatch)
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: case.now)

    def pass_seconds(seconds: int) -> None:
        for _ in range(2 * seconds):
            case.now += 0.5
            case.timers.run_due()
            case.line.work()

    for time_ms in (1_000_000, 1_002_000):
        for _ in range(4):
            _tell(case, Clearing(ClearingKind.DROP, 1, time_ms), UUID(int=time_ms))
    case.receive(event(1))
    pass_seconds(14)
    assert (case.around.reads, case.around.settled) == ([], [])
    pass_seconds(2)
    assert (len(case.around.reads), len(case.around.settled)) == (1, 8)
    _tell(case, Clearing(ClearingKind.DROP, 1, 1_003_000))
    case.receive(event(2))
    assert (len(case.around.reads), len(case.around.settled)) == (2, 9)
    for key in (1, 2):
        case.answer(GOOD, key=key)
        case.taken(key)
    _tell(case, Clearing(ClearingKind.DROP, 9, 1_020_000))
    case.receive(event(3))
    assert (case.around.reads, len(case.around.settled)) == ([], 11)
    case.around.current = table(table_id=NEW)
    pass_seconds(1)
    assert [each.clearing.time_ms for each in case.around.clearings] == [1_020_000]


def test_a_drop_that_may_be_that_of_before_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the node that reported the earlier drop is a minute ahead. A later drop is not taken for the earlier
    one without a question."""
    case = Case(monkeypatch)
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: case.now)
    _tell(case, Clearing(ClearingKind.DROP, 1, 1_060_000))
    case.pass_time()
    assert (case.around.clearings, case.around.settled) == ([], [1])
    case.around.current = table(table_id=NEW)
    _tell(case, Clearing(ClearingKind.DROP, 9, 1_040_000), _OTHER)
    assert [each.clearing.time_ms for each in case.around.clearings] == [1_040_000]


def test_agents_that_notice_a_drop_much_later_share_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent looks at the schema in its own interval."""
    case = Case(monkeypatch)
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: case.now)
    for node in (1, 2, 3):
        for _ in range(4):
            _tell(case, Clearing(ClearingKind.DROP, 1, 1_000_000 + 20_000 * node), UUID(int=node))
    case.receive(event(1))
    while not case.around.reads and case.now < 100:
        case.now += 0.5
        case.timers.run_due()
        case.line.work()
    assert case.now < 17
    assert len(case.around.settled) == 12


def test_a_drop_that_comes_during_the_question_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer may be older than that drop."""
    answers: list[object] = []

    def current_id(_: Neighbours) -> object:
        answers.append(OLD if len(answers) < 2 else None)
        if len(answers) == 2:
            _tell(case, Clearing(ClearingKind.DROP, 1, 1_001_000), _OTHER)
        return answers[-1]

    monkeypatch.setattr(Neighbours, "current_id", current_id)
    case = Case(monkeypatch)
    monkeypatch.setattr("source_connector.tables.table_clearings.time.monotonic", lambda: case.now)
    _tell(case, Clearing(ClearingKind.DROP, 1, 1_000_000))
    case.now = 15.5
    case.timers.run_due()
    case.line.work()
    assert (answers, case.around.settled) == ([OLD, OLD, None], [1])
    assert [each.node_id for each in case.around.clearings] == [_OTHER]


class _RecordsTopic:
    """The topic of schema changes in memory, as connection, client, producer and reader."""

    hint = None

    def __init__(self, stored: list[tuple[str, bytes]]) -> None:
        self.stored, self._read = stored, 0

    def client(self) -> _RecordsTopic:
        return self

    def create_reader(self, topic: str, start: object) -> _RecordsTopic:
        return _RecordsTopic(self.stored)

    def create_producer(self, topic: str, **settings: object) -> _RecordsTopic:
        return self

    def get_topic_partitions(self, topic: str) -> list[str]:
        return []

    def send(self, data: bytes, *, partition_key: str, **settings: object) -> None:
        self.stored.append((partition_key, data))

    def has_message_available(self) -> bool:
        return self._read < len(self.stored)

    def read_next(self, timeout_millis: int) -> _Stored:
        self._read += 1
        return _Stored(*self.stored[self._read - 1])


class _Stored:
    def __init__(self, key: str, data: bytes) -> None:
        self._key, self._data = key, data

    def partition_key(self) -> str:
        return self._key

    def data(self) -> bytes:
        return self._data


def _publish_told(case: Case, stored: list[tuple[str, bytes]], noted: Mapping[UUID, Truncation | None]) -> None:
    """Store the record for the last report with the real writer of an instance that has just started."""
    case.around.noted = dict(noted)
    case.timers.run_due()
    case.line.work()
    answers: SimpleQueue[SchemaAnswer | Exception] = SimpleQueue()
    writer = SchemaChangeTopic(cast("PulsarConnection", _RecordsTopic(stored)), "changes", answers.put)
    writer.publish_clearing(case.around.clearings[-1])
    writer.start()
    answer = answers.get(timeout=20)
    writer.stop()
    assert isinstance(answer, SchemaAnswer)
    answer.deliver()
    case.line.work()


@pytest.mark.parametrize("has_later", [True, False])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_truncation_that_two_machines_of_a_node_publish_has_one_record(
    monkeypatch: pytest.MonkeyPatch, has_later: bool, is_restarted: bool
) -> None:
    """The second machine has an older copy of the positions. Its report is the same, and comes any time later."""
    stored: list[tuple[str, bytes]] = []
    case = Case(monkeypatch)
    later = Truncation(9, 100, 5_000_000)
    reports = [_TRUNCATION] + [Clearing(ClearingKind.TRUNCATION, later.position, later.time_ms)] * has_later
    for told, place in zip(reports, (_NOTED, later), strict=False):
        case.around.noted = {NODE: place}
        _tell(case, told, segment_id=place.segment_id)
        _publish_told(case, stored, {NODE: place})
    assert len(stored) == len(reports)
    if is_restarted:
        case = Case(monkeypatch)
        case.around.noted = {NODE: later if has_later else _NOTED}
    settled = len(case.around.settled)
    _tell(case)
    if is_restarted:
        _publish_told(case, stored, case.around.noted)
    assert len(stored) == len(reports)
    assert len(case.around.settled) == settled + 1
    case.receive(event(1))
    assert len(case.around.reads) == 1
