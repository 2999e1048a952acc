"""What the fetcher does after an answer of Cassandra: the next level, single reads, an error, or rows by their keys."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, cast

import pytest
from cassandra import InvalidRequest, OperationTimedOut, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage, ServerError

from schemas.errors import CdcError
from schemas.mutation_event import MutationKind
from source_connector.encoding.projection import Projection
from source_connector.errors import FetchError
from source_connector.rows.cassandra_client import CassandraClient, RowRead
from source_connector.rows.group_limits import GroupLimits
from source_connector.rows.raw_page import RawPage
from source_connector.rows.read_groups import GROUP_SIZE, LOOK_AHEAD
from source_connector.rows.read_request import RawRow, ReadLevel, ReadRequest, Rows
from source_connector.rows.refused_levels import RefusedLevels
from source_connector.rows.row_fetcher import Answer, ReadOver, RowFetcher
from source_connector.rows.task import Task
from tests.unit.source_connector.events import NODE, int32, table
from tests.unit.source_connector.task_owner import a_task


def page(*rows: RawRow, columns: int) -> RawPage:
    """A page of rows as they come from the wire."""
    data = b"".join(
        struct.pack(">i", -1) if each is None else struct.pack(">i", len(each)) + each for row in rows for each in row
    )
    return RawPage(data, len(rows), columns, None)


_GROUPS_OF_20 = 256 * 1024 / 20


class Client:
    """Keeps reads in memory, and lets a test answer them."""

    def __init__(self, refused: str = "(never)") -> None:
        self.reads: list[RowRead] = []
        self.callbacks: list[Callable[[Any], None]] = []
        self.prepared: list[str] = []
        self.is_away = False
        self._refused = refused

    def prepare(self, select: str) -> str:
        self.prepared.append(select)
        if self.is_away:
            raise FetchError(select, "no host", refresh_schema=True)
        if self._refused in select:
            raise FetchError(select, "refused", refresh_schema=True, is_invalid=True)
        return select

    def read(self, read: RowRead, on_page: Callable[[Any], None], on_error: Callable[[Any], None]) -> None:
        self.reads.append(read)
        self.callbacks.append(on_page)

    def knows(self, node: object) -> bool:
        return True


class Case:
    """A fetcher whose statements a test answers, in the order in which they were sent."""

    def __init__(self, projection: Projection | None = None, refused: str = "(never)") -> None:
        self.client = Client(refused)
        self._over: list[ReadOver] = []
        self._keys: dict[Task, object] = {}
        self._projection = projection = projection or Projection(table())
        projection.row_size.value = _GROUPS_OF_20
        self._answers: list[Answer] = []
        self.fetcher = RowFetcher(
            cast("CassandraClient", self.client),
            consistency="LOCAL_QUORUM",
            higher_consistency="ALL",
            max_in_flight=2,
            post=self._answers.append,
        )
        self.fetcher.prepare(projection)

    def start(self, *keys: tuple[int, ...], level: ReadLevel = ReadLevel.FIRST) -> None:
        for partition, *clustering in keys:
            request = ReadRequest(
                projection=self._projection,
                kind=MutationKind.ROW,
                partition_key=int32(partition),
                clustering=tuple(map(int32, clustering)),
                level=level,
                node=NODE,
            )
            task = a_task()
            self._keys[task] = (partition, *clustering)
            self.fetcher.start(task, request)
        self.flush()

    def flush(self) -> None:
        self._over += self.fetcher.flush()

    @property
    def over(self) -> list[tuple[object, Rows | CdcError]]:
        """The result of each read, by its key."""
        return [(self._keys[read.task], outcome) for read, outcome in self._over]

    def answer(self, outcome: RawPage | Exception) -> None:
        """Answer the oldest open statement, and send the statements that may be sent then."""
        self.client.callbacks.pop(0)(outcome)
        self._over += self.fetcher.answered(self._answers.pop())
        self.flush()

    @property
    def consistencies(self) -> list[str]:
        return [read.consistency for read in self.client.reads]

    def found(self) -> dict[object, RawRow | None]:
        """The rows by key."""
        rows = [(key, outcome) for key, outcome in self.over if isinstance(outcome, Rows)]
        return {key: outcome.rows[0] if outcome.rows else None for key, outcome in rows}


UNAVAILABLE = Unavailable("too few", consistency=1, required_replicas=2, alive_replicas=1)
TIMEOUT = ReadTimeout("late", consistency=1, required_responses=2, received_responses=1)


def test_rows_of_a_group_come_back_by_their_keys() -> None:
    """The order of the rows does not matter; a key without a row has none."""
    case = Case()
    case.start((1,), (2,), (3,))
    case.answer(page((int32(3), int32(30), None), (int32(1), int32(10), None), columns=3))
    assert case.found() == {(1,): (int32(10), None), (2,): None, (3,): (int32(30), None)}


def test_too_few_live_replicas_lead_to_the_next_level() -> None:
    """DataStax's connector does so at the first level; below the highest level there are two more."""
    case = Case()
    case.start((1,))
    case.answer(UNAVAILABLE)
    case.start((2,), level=ReadLevel.HIGHER)
    case.client.callbacks.insert(0, case.client.callbacks.pop())
    case.answer(UNAVAILABLE)
    assert case.consistencies == ["LOCAL_QUORUM", "LOCAL_ONE", "ALL", "LOCAL_QUORUM"]
    case.answer(page((int32(5), None), columns=2))
    ((key, rows),) = case.over
    assert isinstance(rows, Rows)
    assert (key, rows.consistency, rows.is_fallback) == ((1,), "LOCAL_ONE", True)


@pytest.mark.parametrize("late", [TIMEOUT, OperationTimedOut()])
def test_a_late_answer_lowers_only_what_is_more_than_needed(late: Exception) -> None:
    """One hanging node must not stop the table, but reads never go below the configured level after a late answer."""
    case = Case()
    case.start((1,), level=ReadLevel.HIGHER)
    case.answer(late)
    assert case.consistencies == ["ALL", "LOCAL_QUORUM"]
    case.answer(late)
    ((_, error),) = case.over
    assert isinstance(error, FetchError) and not error.is_outage and not error.refresh_schema


def _refusal(level: str) -> InvalidRequest:
    """The error of Cassandra 4.1 and 5.0."""
    return InvalidRequest(
        'Error from server: code=2200 [Invalid query] message="Guardrail read_consistency_levels violated: Provided values '
        f'[{level}] are not allowed for read consistency levels (disallowed values are: [{level}])"'
    )


def test_a_level_that_cassandra_refuses_is_left_out_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """The next level answers, which is no fallback. Keys of a group stay together. One log line names the guardrail."""
    now = [0.0]
    case = Case()
    case.fetcher._refused_levels = RefusedLevels(lambda: now[0])
    case.start((1,), (2,), level=ReadLevel.HIGHER)
    case.answer(_refusal("ALL"))
    case.answer(page((int32(1), int32(5), None), columns=3))
    assert case.consistencies == ["ALL", "LOCAL_QUORUM"]
    assert [(rows.consistency, rows.is_fallback) for _, rows in case.over if isinstance(rows, Rows)] == [
        ("LOCAL_QUORUM", False)
    ] * 2
    case.start((3,), level=ReadLevel.HIGHER)
    case.answer(TIMEOUT)  # Now at the configured level, which a late answer does not lower.
    ((_, error),) = case.over[2:]
    assert isinstance(error, FetchError) and not error.is_invalid
    now[0] = 61.0
    case.start((4,), level=ReadLevel.HIGHER)
    case.answer(_refusal("ALL"))
    assert case.consistencies[2:] == ["LOCAL_QUORUM", "ALL", "LOCAL_QUORUM"]
    assert [record.getMessage().count("read_consistency_levels_disallowed") for record in caplog.records] == [1]


def test_an_event_is_never_at_fault_for_levels_that_are_all_refused() -> None:
    """The event is retried, and the first allowed level answers."""
    case = Case()
    case.start((1,))
    case.answer(_refusal("LOCAL_QUORUM"))
    case.answer(_refusal("LOCAL_ONE"))
    ((_, error),) = case.over
    assert isinstance(error, FetchError) and error.is_outage and not error.is_invalid
    assert "no consistency level is left" in str(error)
    case.start((2,))
    case.answer(page((int32(5), None), columns=2))
    assert case.consistencies == ["LOCAL_QUORUM", "LOCAL_ONE", "LOCAL_ONE"]
    assert case.found() == {(2,): (int32(5), None)}


def test_a_second_answer_to_a_statement_is_left_out() -> None:
    """A second node was asked while the first one was silent, and both have answered now, with rows or an error."""
    case = Case()
    case.start((1,))
    again = case.client.callbacks[0]
    case.answer(page((int32(5), None), columns=2))
    for late in (page((int32(6), None), columns=2), TIMEOUT):
        again(late)
        assert case.fetcher.answered(case._answers.pop()) == []
    assert case.found() == {(1,): (int32(5), None)}


def test_a_group_that_fails_is_read_one_by_one() -> None:
    """So one bad row does not make the others fail."""
    case = Case()
    case.start((1,), (2,))
    case.answer(TIMEOUT)
    case.answer(page((int32(5), None), columns=2))
    case.answer(TIMEOUT)
    assert [list(read.values) for read in case.client.reads[1:]] == [[int32(1)], [int32(2)]]
    assert case.found() == {(1,): (int32(5), None)}
    assert isinstance(dict(case.over)[2,], FetchError)


def test_the_reads_of_groups_that_fail_wait_in_line() -> None:
    """Cassandra is already slow: no more statements are in flight than before, and each key gets its answer."""
    case = Case()
    case.start(*((number,) for number in range(40)))
    assert [keys_of(each) for each in case.client.reads] == [20, 20]
    case.answer(TIMEOUT)
    case.answer(TIMEOUT)
    while case.client.callbacks:
        assert len(case.client.callbacks) <= case.fetcher.in_flight_limit
        case.answer(page((int32(5), None), columns=2))
    assert [keys_of(each) for each in case.client.reads[2:]] == [1] * 40
    assert case.found() == {(number,): (int32(5), None) for number in range(40)}


def test_the_reads_of_a_group_that_failed_and_the_others_take_turns() -> None:
    """Neither the keys of one bad group nor a long queue delays the other reads."""
    case = Case()
    case.start(*((number,) for number in range(100)))
    case.answer(TIMEOUT)
    while case.client.callbacks:
        case.answer(page(columns=3))
    is_alone = [keys_of(each) == 1 for each in case.client.reads]
    assert is_alone[:8] == [False, False, True, False, True, False, True, False]
    assert len(case.over) == 100


def test_an_outage_fails_a_group_as_a_whole() -> None:
    """No node is available for single reads."""
    case = Case()
    case.start((1,), (2,))
    case.answer(NoHostAvailable("none", {}))
    errors = [outcome for _, outcome in case.over]
    assert [isinstance(error, FetchError) and error.is_outage for error in errors] == [True, True]
    assert len(case.client.reads) == 1


def test_nodes_that_say_they_are_overloaded_have_fewer_statements_in_flight() -> None:
    """The driver asks the next node, and gives up when all nodes refuse. Their answers are fast, so none is late."""
    case = Case()
    before = case.fetcher.in_flight_limit
    case.start((1,))
    case.answer(NoHostAvailable("none", {"node": OverloadedErrorMessage(0, "Too many in flight", {})}))
    assert case.fetcher.in_flight_limit < before
    (error,) = (outcome for _, outcome in case.over)
    assert isinstance(error, FetchError) and error.is_outage


@pytest.mark.parametrize(
    "away",
    [
        OverloadedErrorMessage(0x1001, "Too many in flight", None),
        IsBootstrappingErrorMessage(0x1002, "Cannot read from a bootstrapping node", None),
        ConnectionException("Got unexpected response when preparing statement"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_node_that_cannot_prepare_a_statement_again_is_an_outage(away: Exception) -> None:
    """The driver raises its answer as it is, and asks no other node. Single reads would only be more work for it."""
    case = Case()
    before = case.fetcher.in_flight_limit
    case.start((1,), (2,))
    case.answer(away)
    errors = [outcome for _, outcome in case.over]
    assert [isinstance(error, FetchError) and error.is_outage for error in errors] == [True, True]
    assert (case.fetcher.in_flight_limit < before) == isinstance(away, OverloadedErrorMessage)


_FAILED_INSIDE = ServerError(0, "java.lang.ArrayIndexOutOfBoundsException", {})


def test_after_a_failure_inside_cassandra_statements_have_another_text() -> None:
    """Cassandra keeps prepared statements; one prepared while a type grew fails for ever. This is no outage."""
    case = Case()
    case.start((1,), (2,))
    case.answer(NoHostAvailable("none", {"node": _FAILED_INSIDE}))
    case.answer(page((int32(5), None), columns=2))
    case.answer(NoHostAvailable("none", {"node": _FAILED_INSIDE}))
    assert case.found() == {(1,): (int32(5), None)}
    error = dict(case.over)[2,]
    assert isinstance(error, FetchError)
    assert (error.is_outage, error.is_of_key, error.refresh_schema) == (False, True, True)
    assert "ArrayIndexOutOfBounds" in str(error)
    case.start((2,))
    case.answer(page((int32(6), None), columns=2))
    alone, again = [each.statement for each in case.client.reads[2:]]
    assert (str(alone).partition(" /* ")[2], str(again).partition(" /* ")[2]) == ("1 */", "2 */")
    assert case.found()[2,] == (int32(6), None)


def test_statements_of_one_text_that_fail_inside_cassandra_change_it_once() -> None:
    """Else later failures would discard new prepared statements. Groups are divided, whatever other nodes answer."""
    case = Case()
    case.start(*((number,) for number in range(40)))
    assert len(case.client.callbacks) == 2
    case.answer(NoHostAvailable("none", {"node": _FAILED_INSIDE}))
    case.answer(NoHostAvailable("none", {"a": _FAILED_INSIDE, "b": OSError("no connection")}))
    while case.client.callbacks:
        case.answer(page((int32(5), None), columns=2))
    assert {str(each.statement).partition(" /* ")[2] for each in case.client.reads[2:]} == {"1 */"}
    assert len(case.found()) == 40


def test_where_other_nodes_are_down_a_failure_inside_one_is_an_outage() -> None:
    """The other nodes may answer when they are back; the node that failed then gets a statement with another text."""
    case = Case()
    case.start((1,))
    case.answer(NoHostAvailable("none", {"a": _FAILED_INSIDE, "b": OSError("refused")}))
    ((_, error),) = case.over
    assert isinstance(error, FetchError)
    assert (error.is_outage, error.is_of_key) == (True, False)
    case.start((1,))
    assert str(case.client.reads[-1].statement).endswith("/* 1 */")


def test_a_statement_that_no_longer_fits_asks_for_the_schema() -> None:
    """A column was dropped."""
    case = Case()
    case.start((1,))
    case.answer(InvalidRequest("Undefined column name a"))
    ((_, error),) = case.over
    assert isinstance(error, FetchError) and error.refresh_schema


def test_a_server_that_refuses_a_grouped_statement_is_asked_one_by_one() -> None:
    """Older versions refuse IN on clustering columns together with collections; they are asked in a group only once."""
    case = Case(Projection(table(clustering_key=("c",))), refused=" IN ")
    case.start((1, 1), (1, 2))
    assert [list(read.values) for read in case.client.reads] == [[int32(1), int32(1)], [int32(1), int32(2)]]
    assert case.over == []
    case.answer(page(columns=2))
    case.answer(page(columns=2))
    case.start((1, 3), (1, 4))
    assert sum(" IN " in select for select in case.client.prepared) == 1


def test_a_statement_that_is_first_needed_while_cassandra_is_away_is_taken_when_it_is_back() -> None:
    """It was not refused: a node that is down or slow has not judged the statement."""
    case = Case(Projection(table(clustering_key=("c",))))
    case.client.is_away = True
    request = ReadRequest(
        projection=case._projection,
        kind=MutationKind.PARTITION_DELETION,
        partition_key=int32(1),
        level=ReadLevel.HIGHER,
        node=NODE,
    )
    case.fetcher.start(a_task(), request)
    ((_, error),) = case.fetcher.flush()
    assert isinstance(error, FetchError) and "no host" in str(error)
    case.client.is_away = False
    case.fetcher.start(a_task(), request)
    assert (case.fetcher.flush(), len(case.client.reads)) == ([], 1)


def test_a_group_that_is_first_needed_while_cassandra_is_away_is_one_when_it_is_back() -> None:
    """Meanwhile its rows are read one by one."""
    case = Case(Projection(table(clustering_key=("c",))))
    case.client.is_away = True
    case.start((1, 1), (1, 2))
    case.client.is_away = False
    case.answer(page(columns=2))
    case.answer(page(columns=2))
    case.start((1, 3), (1, 4))
    assert len(case.client.reads) == 3


def test_one_statement_that_cannot_be_prepared_is_tried_once_for_all_that_may_be_sent_instead() -> None:
    """Each try may take half a minute while Cassandra does not answer, and blocks the whole source."""
    case = Case(Projection(table(clustering_key=("c",))))
    case.client.is_away = True
    case.start(*((partition, number) for partition in range(3) for number in range(30)))
    assert sum(" IN " in select for select in case.client.prepared) == 1
    assert [len(read.values) for read in case.client.reads] == [2, 2]


def test_a_row_that_may_be_stored_under_another_form_of_its_key_is_asked_for_alone() -> None:
    """If a row is found as 1.00, 1.0 is not missing: otherwise a false deletion would be published."""
    case = Case(Projection(table(clustering_key=("c",), clustering_type="decimal")))
    case.start((1, 1), (1, 2))
    case.answer(page((int32(1), b"\0\0\0\2\x64", int32(5), None), columns=4))
    assert case.over == []
    assert [list(read.values) for read in case.client.reads[1:]] == [[int32(1), int32(1)], [int32(1), int32(2)]]


def test_products_that_return_too_many_rows_are_given_up_for_a_while() -> None:
    """If partitions have many of the requested clusterings, two statements cost less than a hundred rows."""
    case = Case(Projection(table(clustering_key=("c",))))
    for _ in range(30):
        case.start((1, 1), (2, 2))
        if len(case.client.callbacks) > 1:
            break
        case.answer(page(*((int32(9), int32(each), None, None) for each in range(200)), columns=4))
    assert len(case.client.callbacks) == 2


def keys_of(read: RowRead) -> int:
    """The number of partition keys in a statement."""
    value = read.values[0]
    assert value is not None
    return int.from_bytes(value[:4], "big") if " IN ?" in str(read.statement) else 1


def test_an_answer_of_large_rows_makes_the_next_statements_smaller() -> None:
    """An answer is held in memory as a whole, once for each statement in flight. Small rows make statements larger
    again, slowly."""
    case = Case()
    case.start(*((number,) for number in range(50)))
    assert [keys_of(each) for each in case.client.reads] == [20, 20]
    case.answer(page((int32(0), bytes(100_000), None), columns=3))
    case.answer(page((int32(20), int32(1), None), columns=3))
    case.flush()
    assert [keys_of(each) for each in case.client.reads[2:]] == [2, 2]
    while case.client.callbacks:
        case.answer(page((int32(0), int32(1), None), columns=3))
        case.flush()
    for _ in range(300):
        case.start((1,))
        case.answer(page((int32(1), None), columns=2))
    case.start(*((number,) for number in range(2 * GROUP_SIZE)))
    assert [keys_of(each) for each in case.client.reads[-2:]] == [GROUP_SIZE, GROUP_SIZE]


def _too_many_keys(guardrail: str) -> InvalidRequest:
    return InvalidRequest(f"Guardrail {guardrail} violated: the query exceeds fail threshold of 6")


def _sizes_until_all_are_found(case: Case, most_keys: int) -> list[int]:
    """Let Cassandra refuse statements for more keys, and return the keys of all statements from then on."""
    before = len(case.client.reads)
    while case.client.callbacks:
        keys = keys_of(case.client.reads[-len(case.client.callbacks)])
        case.answer(_too_many_keys("partition_keys_in_select") if keys > most_keys else page(columns=3))
        case.flush()
    return [keys_of(each) for each in case.client.reads[before:]]


def test_a_guardrail_for_the_keys_of_a_statement_makes_statements_smaller(caplog: pytest.LogCaptureFixture) -> None:
    """Each refusal halves the next statements. Keys of a refused one are asked for one by one, and none is lost. One
    log line names the guardrail."""
    case = Case()
    case.start(*((number,) for number in range(200)))
    _sizes_until_all_are_found(case, most_keys=6)
    assert sorted(case.found()) == [(number,) for number in range(200)]
    case.start(*((number,) for number in range(12)))
    assert [keys_of(each) for each in case.client.reads[-2:]] == [5, 5]
    told = [
        each.getMessage() for each in caplog.records if "partition_keys_in_select_fail_threshold" in each.getMessage()
    ]
    assert len(told) == 1 and "statements for at most 10 are sent for ten minutes" in told[0]


def test_a_guardrail_for_products_also_makes_statements_without_a_product_smaller() -> None:
    """It counts the values of one list: `pk IN (...)` is refused although all keys have the same clustering."""
    case = Case(Projection(table(clustering_key=("c",))))
    sizes: list[int] = []
    for _ in range(3):
        before = len(case.client.reads)
        case.start(*((number, 1) for number in range(20)))
        while case.client.callbacks:
            asked = keys_of(case.client.reads[-len(case.client.callbacks)])
            case.answer(_too_many_keys("in_select_cartesian_product") if asked > 6 else page(columns=2))
        sizes = [keys_of(each) for each in case.client.reads[before:]]
    assert sizes == [5, 5, 5, 5]


def test_a_refusal_of_one_key_shows_that_groups_are_not_too_large() -> None:
    """A column was dropped, for example: the next statements are as large as before."""
    case = Case()
    case.start((1,), (2,))
    while case.client.callbacks:
        case.answer(InvalidRequest("Undefined column name a"))
        case.flush()
    case.start(*((number,) for number in range(20)))
    assert keys_of(case.client.reads[-1]) == 20


def test_larger_groups_are_tried_again_after_a_while() -> None:
    """An operator may have changed the guardrail. Other tables are not concerned."""
    now = [0.0]
    limits = GroupLimits(lambda: now[0])
    assert limits.refused("ks.t", 40) == 20
    assert limits.refused("ks.t", 20) == 10
    assert limits.refused("ks.t", 40) == 10  # it was sent before the limit was known
    assert limits.of("ks.t") == 10
    assert limits.of("ks.other") == GROUP_SIZE
    now[0] = 601.0
    assert limits.of("ks.t") == GROUP_SIZE


def test_no_more_statements_are_under_way_than_allowed() -> None:
    """The others wait, and the fetcher reports when enough of them wait."""
    case = Case()
    case.start(*((number,) for number in range(2 * 20 + LOOK_AHEAD)))
    assert len(case.client.reads) == 2
    assert not case.fetcher.has_room
    case.answer(page(columns=3))
    case.flush()
    assert len(case.client.reads) == 3
    assert case.fetcher.has_room
