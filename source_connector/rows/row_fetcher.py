"""Reads current rows: groups reads into statements, and chooses the next consistency level when one fails.

`start` queues a read, and `flush` sends what may be sent. The driver's answers are posted to the owner's inbox and
come back through `answered`, in the owner's thread: the rows or the error of each read that is finished. The module has
more than 500 lines because it decides what follows each kind of error, which needs the state of all statements.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cassandra import InvalidRequest, OperationTimedOut, ReadFailure, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage, ServerError

from clients.node_errors import node_errors
from runtime.notices import Notices
from schemas.cql_identifier import quoted
from schemas.errors import CdcError
from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.encoding.projection import Projection, RawValues
from source_connector.encoding.row_sizes import BUDGET_BYTES
from source_connector.errors import FetchError, UnexpectedError
from source_connector.metrics import Metrics
from source_connector.rows.cassandra_client import RowRead, reason_of
from source_connector.rows.group_limits import GroupLimits
from source_connector.rows.level_breaker import LevelBreaker
from source_connector.rows.raw_page import RawPage
from source_connector.rows.read_groups import (
    LOOK_AHEAD,
    WaitingRead,
    group_condition,
    is_exact_by_bytes,
    take_group,
)
from source_connector.rows.read_lane import ReadLane, Statement
from source_connector.rows.read_request import RawRow, ReadLevel, ReadRequest, Rows
from source_connector.rows.refused_levels import RefusedLevels, is_refusal_of_level
from source_connector.rows.task import Task

if TYPE_CHECKING:
    from cassandra.query import PreparedStatement

    from source_connector.rows.cassandra_client import CassandraClient

__all__ = ["Answer", "ReadOver", "RowFetcher", "range_condition"]

ReadOver = tuple[WaitingRead, Rows | CdcError]
"""A finished read: its rows, or the error."""

_log = logging.getLogger(__name__)

_FIRST: Final = ReadLevel.FIRST
_HIGHER: Final = ReadLevel.HIGHER
# If answers have more rows than this for each requested key, products of keys cost more than they save.
_MAX_SURPLUS: Final = 3.0
_SURPLUS_FADES: Final = 0.98
# Nodes that are down or have too much to do. The last three are the answer when a node has forgotten the statement, and
# was asked to prepare it again.
_OUTAGES: Final = (
    NoHostAvailable,
    Unavailable,
    ConnectionException,
    OverloadedErrorMessage,
    IsBootstrappingErrorMessage,
)
# How often to look for statements that must give up their slots.
_SLOTS_CHECK_S: Final = 0.25
# How many texts a statement may have in turn. Cassandra keeps every prepared text for a while.
_WORDINGS: Final = 16


class Answer(NamedTuple):
    """The driver's answer to a statement."""

    statement: Statement
    outcome: RawPage | Exception


class RowFetcher:
    """Owns the queue of reads and the prepared statements; the connection belongs to the client."""

    def __init__(
        self,
        client: CassandraClient,
        *,
        consistency: str,
        higher_consistency: str,
        fallback_consistency: str | None = "LOCAL_ONE",
        max_in_flight: int,
        metrics: Metrics | None = None,
        post: Callable[[Answer], None],
    ) -> None:
        self._client = client
        self._post = post
        self._metrics = metrics or Metrics()
        self._notices = Notices(_log)
        self._first, self._higher = ReadLane(max_in_flight), ReadLane(max_in_flight)
        self._waiting_bytes = 0.0
        self._next_slots_check = 0.0
        self._breaker = LevelBreaker()
        self._statements: dict[str, dict[str, PreparedStatement]] = {}
        self._refused: dict[str, set[str]] = {}  # grouped statements that the server does not take, by table
        self._wordings: dict[str, int] = {}
        self._surplus = 1.0
        self._group_limits = GroupLimits()
        self._refused_levels = RefusedLevels()
        last_resort = () if fallback_consistency is None else (fallback_consistency,)
        self._levels: Final = {
            _FIRST: _without_repetition(consistency, *last_resort),
            _HIGHER: _without_repetition(higher_consistency, consistency, *last_resort),
        }
        self._highest: Final = self._levels[_HIGHER][0]

    @property
    def has_room(self) -> bool:
        """False when enough reads wait to fill the next statements, or when their rows may be too large together."""
        return len(self._first.waiting) < LOOK_AHEAD and self.has_bytes

    @property
    def has_bytes(self) -> bool:
        """False when the rows of the waiting reads may be too large together."""
        return self._waiting_bytes < BUDGET_BYTES

    @property
    def in_flight_limit(self) -> int:
        """How many statements may be under way now for reads at the first level."""
        return self._first.limit.value

    def prepare(self, projection: Projection) -> None:
        """Prepare for a projection; forgets the statements of the table's earlier ones. Raises FetchError."""
        table = projection.table.full_name
        self._statements[table], self._refused[table] = {}, set()
        self._group_limits.forget(table)
        self._statement(projection, projection.select(projection.row_selection, projection.row_where))

    def start(self, task: Task, request: ReadRequest) -> None:
        """Queue a read for the task's current attempt."""
        read = WaitingRead(task, request)
        read.bytes = request.projection.row_size.value
        self._waiting_bytes += read.bytes
        (self._first if request.level is _FIRST else self._higher).waiting.append(read)

    def flush(self) -> list[ReadOver]:
        """Send queued reads, up to the limits in flight. Return the reads that failed before they were sent."""
        now = time.monotonic()
        if now >= self._next_slots_check:
            self._check_slots(now)
        failed: list[ReadOver] = []
        for lane in (self._first, self._higher):
            while lane.may_send:
                reads = self._take(lane, now)
                if not reads:
                    break
                levels, attempt = self._levels_now(lane, now)
                if attempt:
                    self._metrics.counters["reads_at_fallback"] += len(reads)
                failed += self._send(Statement(reads, lane, levels, attempt, is_first=True))
        return failed

    def _check_slots(self, now: float) -> None:
        """Free the slots of statements that have no answer, so that others can be sent."""
        self._next_slots_check = now + _SLOTS_CHECK_S
        for lane in (self._first, self._higher):
            for late in lane.give_up_slots(now):
                self._metrics.counters["slots_given_up"] += 1
                # A page of many rows may take longer, so it says nothing about the level.
                if lane is self._higher and not late.reads[0].request.is_of_many_rows:
                    self._leave_out(late, now)

    def _take(self, lane: ReadLane, now: float) -> list[WaitingRead]:
        """Take the reads of the next statement; none while the statements under way may return too many bytes."""
        request = lane.next.request
        size = request.projection.row_size
        room = BUDGET_BYTES - self._first.bytes - self._higher.bytes
        if lane is self._higher:  # it gets at most half of the budget, so that reads at the first level go on
            room = min(room, BUDGET_BYTES / 2 - lane.bytes)
        if room < _rows_of(request) * size.value and not lane.is_idle:
            return []
        if lane.is_turn_of_alone:
            return [lane.take_alone()]
        lane.turn_of_waiting()
        largest = self._group_limits.of(request.projection.table.full_name)
        largest = min(largest, size.rows_of_group(), int(room / size.value))
        if lane is self._higher and self._breaker.is_probe_due(now):
            largest = 1
        reads = take_group(lane.waiting, allow_product=self._surplus < _MAX_SURPLUS, largest=largest)
        self._surplus = 1 + (self._surplus - 1) * _SURPLUS_FADES
        for read in reads:
            self._waiting_bytes -= read.bytes
        if not lane.waiting and lane is self._first and not self._higher.waiting:
            self._waiting_bytes = 0.0  # the sum of fractions may differ from 0
        return reads

    def _levels_now(self, lane: ReadLane, now: float) -> tuple[tuple[str, ...], int]:
        """The levels for the lane's next statement, and the index of the level to ask for."""
        if lane is self._first:
            return self._refused_levels.without(self._levels[_FIRST]), 0
        levels = self._refused_levels.without(self._levels[_HIGHER])
        is_left_out = self._may_be_left_out(levels[0], levels) and not self._breaker.may_ask(now)
        return levels, 1 if is_left_out else 0

    def _may_be_left_out(self, level: str, levels: tuple[str, ...]) -> bool:
        """True when the level asks for more than reads at the first level do, and a lower level can replace it."""
        return level == self._highest and level != self._levels[_FIRST][0] and len(levels) > 1

    def _leave_out(self, late: Statement, now: float) -> None:
        """Leave out the statement's level for a while: a replica does not answer, so its reads would only time out."""
        if late.lane is self._first or not self._may_be_left_out(late.consistency, late.levels):
            return
        if self._breaker.silent(now):
            self._metrics.counters["levels_left_out"] += 1
            self._notices.say(
                "left out",
                f"a read at {late.consistency} has no answer after {now - late.sent_at:.1f} s: reads use "
                f"{late.levels[1]} instead, and one read every {self._breaker.pause_s:.0f} s tries {late.consistency} again; see "
                "which node does not answer (`nodetool status`)",
            )

    def answered(self, answer: Answer) -> list[ReadOver]:
        """Return the reads that this answer finishes. A read that is sent again is not among them."""
        statement, outcome = answer
        lane, reads = statement.lane, statement.reads
        if not lane.over(statement):
            return []
        self._measure(statement, outcome)
        if isinstance(outcome, RawPage):
            self._refused_levels.take(statement.consistency)
            try:
                return self._deliver(statement, outcome)
            except Exception as malformed:  # noqa: BLE001  # rows that cannot be parsed concern their reads only
                return self._without_the_group(statement, malformed)
        if is_refusal_of_level(outcome):
            return self._without_the_level(statement, outcome)
        if statement.attempt + 1 < len(statement.levels) and self._allows_next_level(statement, outcome):
            lower = statement.levels[statement.attempt + 1]
            self._metrics.counters["reads_at_fallback"] += len(reads)
            table = reads[0].request.projection.table.full_name
            self._notices.say(
                lower, f"{table} is read at {lower} instead of {statement.consistency}: {reason_of(outcome)}"
            )
            return self._send(Statement(reads, lane, statement.levels, statement.attempt + 1, is_first=False))
        table = reads[0].request.projection.table.full_name
        failed_inside = [isinstance(each, ServerError) for each in node_errors(outcome, NoHostAvailable)]
        if any(failed_inside):
            self._prepare_as_others(table, statement.wording)
        is_outage = isinstance(outcome, _OUTAGES) and not all(failed_inside)
        if isinstance(outcome, InvalidRequest):
            self._invalid(table, len(reads), outcome)
        if len(reads) > 1 and (not is_outage or any(failed_inside)):
            lane.alone.extend(reads)
            return []
        is_invalid = isinstance(outcome, InvalidRequest)
        of_key = all(failed_inside) or isinstance(outcome, ReadFailure | ReadTimeout | OperationTimedOut)
        error = FetchError(
            table,
            reason_of(outcome),
            refresh_schema=is_invalid or any(failed_inside),
            is_invalid=is_invalid,
            is_outage=is_outage,
            is_of_key=of_key and len(reads) == 1,
        )
        return [(read, error) for read in reads]

    def _invalid(self, table: str, keys: int, error: InvalidRequest) -> None:
        """Learn how many keys of the table a statement may have."""
        if keys == 1:
            self._group_limits.single_refused(table)
            return
        fewer = self._group_limits.refused(table, keys)
        self._notices.say(
            f"{table} keys",
            f"{table}: Cassandra refuses a statement for {keys} keys; statements for at most {fewer} are sent for ten "
            "minutes, and a row costs more CPU; if a guardrail is the reason, a higher "
            "partition_keys_in_select_fail_threshold or in_select_cartesian_product_fail_threshold in cassandra.yaml "
            f"helps ({reason_of(error)})",
        )

    def _prepare_as_others(self, table: str, wording: int) -> None:
        """Give the table's statements another text than that with `wording`, so that Cassandra prepares them anew.

        Cassandra keeps a prepared statement by its text until the table is altered. A statement that it prepared while
        a field was added to a user type may have the old type. Then each execution fails for rows with the new field.
        """
        if wording == self._wordings.get(table, 0):  # otherwise another failure has changed the text already
            self._statements[table], self._refused[table] = {}, set()
            self._wordings[table] = (wording + 1) % _WORDINGS

    def _without_the_level(self, statement: Statement, refusal: Exception) -> list[ReadOver]:
        """Send the reads at the next level, because Cassandra refuses this level. That does not count as a fallback."""
        refused, reads, attempt = statement.consistency, statement.reads, statement.attempt
        levels = tuple(each for each in statement.levels if each != refused)
        self._metrics.counters["levels_refused"] += 1
        if self._refused_levels.refuse(refused):
            instead = f"{levels[attempt]} is asked for" if attempt < len(levels) else "reads wait"
            _log.warning(
                "Cassandra refuses reads at %s; %s instead, and %s again each minute. To change that, take it out of "
                "read_consistency_levels_disallowed in cassandra.yaml, or name another level by query.consistencyLevel "
                "and query.higherConsistencyLevel (%s)",
                refused,
                instead,
                refused,
                reason_of(refusal),
            )
        if attempt < len(levels):
            return self._send(Statement(reads, statement.lane, levels, attempt, is_first=statement.is_first))
        table = reads[0].request.projection.table.full_name
        reason = f"no consistency level is left that Cassandra takes; {refused} is refused: {reason_of(refusal)}"
        error = FetchError(table, reason, is_outage=True)
        return [(read, error) for read in reads]

    def _allows_next_level(self, statement: Statement, error: Exception) -> bool:
        """True when the next lower level may be asked after this error.

        Always if too few replicas are alive. If replicas failed or were late, only after a read at the highest level,
        because that level asks more replicas than are needed.
        """
        if isinstance(error, Unavailable):
            return True
        beyond_need = statement.lane is self._higher and statement.consistency == self._highest
        return beyond_need and isinstance(error, ReadTimeout | ReadFailure | OperationTimedOut)

    def _deliver(self, statement: Statement, page: RawPage) -> list[ReadOver]:
        reads = statement.reads
        request = reads[0].request
        projection = request.projection
        if request.kind is not MutationKind.STATIC_ROW:  # its size says nothing about the other rows
            projection.row_size.answered(page.size, len(page))
        if len(reads) == 1:
            return [(reads[0], _rows(statement, reads[0], page.rows(), page, page.paging_state))]
        width = len(projection.table.primary_key)
        found = page.rows_by_key(width)
        self._surplus += (len(page) / len(reads) - self._surplus) * (1 - _SURPLUS_FADES)
        is_exact = is_exact_by_bytes(projection)
        over: list[ReadOver] = []
        alone: list[WaitingRead] = []
        for read in reads:
            row = found.get(read.partition + read.request.clustering)
            if row is None and not is_exact:
                alone.append(read)  # the row may be stored under another form of the same clustering value
            else:
                over.append((read, _rows(statement, read, () if row is None else (row,), page, None)))
        statement.lane.alone.extend(alone)  # only now: after an error above, the caller adds all reads of the statement
        return over

    def _measure(self, statement: Statement, outcome: RawPage | Exception) -> None:
        """Update limits and metrics from an answer.

        Only the first statement of its reads shows how busy Cassandra is, and only if it reads no page of many rows.
        """
        lane = statement.lane
        if isinstance(outcome, OperationTimedOut | ReadTimeout):
            lane.limit.overloaded()
            self._leave_out(statement, time.monotonic())
            return
        if isinstance(outcome, Exception) and any(
            isinstance(each, OverloadedErrorMessage) for each in node_errors(outcome, NoHostAvailable)
        ):
            lane.limit.overloaded()
            return
        if statement.has_slot and lane is self._higher and statement.consistency == self._highest:
            self._breaker.answered(time.monotonic())
        if isinstance(outcome, RawPage):
            latency_s = time.monotonic() - statement.sent_at
            self._metrics.observe("query_latency", latency_s * 1000)
            if statement.is_first and not statement.reads[0].request.is_of_many_rows:
                lane.limit.answered(latency_s, lane.slots)

    def _without_the_group(self, statement: Statement, error: Exception) -> list[ReadOver]:
        """Queue the reads of a group to be sent one by one. A read that was alone has failed, and is returned."""
        reads = statement.reads
        if len(reads) > 1:
            statement.lane.alone.extend(reads)
            return []
        return [(reads[0], error if isinstance(error, CdcError) else UnexpectedError(error))]

    def _send(self, statement: Statement) -> list[ReadOver]:
        """Send the statement. If it cannot be prepared as a group, its reads are queued to be sent one by one.

        Return the reads that failed before they were sent.
        """
        reads, lane = statement.reads, statement.lane
        request = reads[0].request
        try:
            prepared, values = self._single(reads[0]) if len(reads) == 1 else self._grouped(reads)
        except Exception as error:  # noqa: BLE001  # bytes of one event must not stop the others
            # These reads go before the next group, which may fail in the same way and take as long.
            lane.alone_first += len(reads) if len(reads) > 1 else 0
            return self._without_the_group(statement, error)
        is_highest = lane is self._higher and statement.consistency == self._highest
        read = RowRead(
            statement=prepared,
            values=values,
            consistency=statement.consistency,
            # A statement that failed with that node as coordinator is not sent to it again: the node may be the reason.
            event_node=request.node if statement.is_first else None,
            paging_state=request.paging_state,
            page_size=request.projection.row_size.rows_of_page() if request.is_of_many_rows else None,
            may_be_asked_twice=not is_highest,
        )

        def post(outcome: RawPage | Exception) -> None:
            self._post(Answer(statement, outcome))

        rows = _rows_of(request) if len(reads) == 1 else len(reads)
        statement.bytes = rows * request.projection.row_size.value
        statement.wording = self._wordings.get(request.projection.table.full_name, 0)
        lane.sent(statement, time.monotonic())
        self._client.read(read, post, post)
        return []

    def _single(self, read: WaitingRead) -> tuple[PreparedStatement, RawValues]:
        where, values = _condition(read)
        projection = read.request.projection
        selection = projection.selection_for(read.request.kind)
        return self._statement(projection, projection.select(selection, where)), values

    def _grouped(self, reads: Sequence[WaitingRead]) -> tuple[PreparedStatement, RawValues]:
        where, values = group_condition(reads)
        projection = reads[0].request.projection
        select, refused = (
            projection.select(projection.group_selection, where),
            self._refused[projection.table.full_name],
        )
        if select in refused:
            raise FetchError(select, "this server does not take the statement")
        try:
            return self._statement(projection, select), values
        except FetchError as error:
            # Only a refusal counts: a server that is down may take the statement later.
            if error.is_invalid:
                refused.add(select)
            raise

    def _statement(self, projection: Projection, select: str) -> PreparedStatement:
        statements = self._statements[projection.table.full_name]
        statement = statements.get(select)
        if statement is None:
            wording = self._wordings.get(projection.table.full_name)
            statement = statements[select] = self._client.prepare(f"{select} /* {wording} */" if wording else select)
        return statement


def _rows_of(request: ReadRequest) -> int:
    """How many rows the answer to one read may have."""
    return request.projection.row_size.rows_of_page() if request.is_of_many_rows else 1


def _rows(
    statement: Statement, read: WaitingRead, rows: Sequence[RawRow], page: RawPage, paging_state: bytes | None
) -> Rows:
    return Rows(read.request, rows, statement.consistency, statement.attempt > 0, page.coordinator, paging_state)


def _condition(read: WaitingRead) -> tuple[str, RawValues]:
    """The WHERE clause of a single read and the values of its markers."""
    request, partition = read.request, read.partition
    projection, kind = request.projection, request.kind
    if kind in (MutationKind.ROW, MutationKind.ROW_DELETION):
        return projection.row_where, [*partition, *request.clustering]
    if kind is MutationKind.STATIC_ROW:
        return projection.partition_where + " LIMIT 1", partition
    if request.bounds is None:
        return projection.partition_where, partition
    condition, values = range_condition(projection, request.bounds)
    return " AND ".join([projection.partition_where, *condition]), [*partition, *values]


def range_condition(projection: Projection, bounds: RangeBounds) -> tuple[list[str], list[bytes]]:
    """Conditions that hold for every row within the bounds, and for few others, and the values of their markers.

    The prefix that both bounds share becomes equalities, and the column after it becomes inequalities. Later columns
    are left out: they would only narrow the range further. For a column in descending order the start is the greater
    value.
    """
    conditions: list[str] = []
    values: list[bytes] = []
    start, end = bounds.start, bounds.end
    depth = 0
    while depth < min(len(start), len(end)) and start[depth] == end[depth]:
        conditions.append(f"{quoted(projection.table.clustering_key[depth].name)} = ?")
        values.append(start[depth])
        depth += 1
    if depth >= len(projection.table.clustering_key):
        return conditions, values
    column = projection.table.clustering_key[depth]
    sides: Sequence[tuple[tuple[bytes, ...], bool, str]] = (
        (start, bounds.start_inclusive, "<" if column.reversed else ">"),
        (end, bounds.end_inclusive, ">" if column.reversed else "<"),
    )
    for prefix, inclusive, operator in sides:
        if len(prefix) > depth:
            strict = len(prefix) == depth + 1 and not inclusive
            conditions.append(f"{quoted(column.name)} {operator}{'' if strict else '='} ?")
            values.append(prefix[depth])
    return conditions, values


def _without_repetition(*levels: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(levels))
