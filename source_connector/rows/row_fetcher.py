"""Reads of current rows: grouped into statements, at consistency levels with what follows when one fails.

`start` queues a read and `flush` sends what may be sent. What the driver answers is posted to the owner's inbox and
comes back through `answered`, in the owner's thread: the rows or the error of each read that is over now.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from cassandra import InvalidRequest, OperationTimedOut, ReadFailure, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable

from schemas.errors import CdcError
from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.errors import FetchError, UnexpectedError
from source_connector.metrics import Metrics
from source_connector.notices import Notices
from source_connector.rows.cassandra_client import RowRead, reason_of
from source_connector.rows.in_flight_limit import InFlightLimit
from source_connector.rows.projection import Projection, RawValues
from source_connector.rows.raw_page import RawPage
from source_connector.rows.read_groups import GROUP_SIZE, WaitingRead, group_condition, is_exact_by_bytes, take_group
from source_connector.rows.read_request import RawRow, ReadLevel, ReadRequest, Rows
from source_connector.rows.refused_levels import RefusedLevels, is_refusal_of_level
from source_connector.rows.selection import quoted

if TYPE_CHECKING:
    from cassandra.query import PreparedStatement

    from source_connector.rows.cassandra_client import CassandraClient

__all__ = ["Answer", "RowFetcher", "range_condition"]

_log = logging.getLogger(__name__)

_PAGE_ROWS: Final = 500
_OF_MANY_ROWS: Final = (MutationKind.RANGE_DELETION, MutationKind.PARTITION_DELETION)
# More than this many rows for each key that was asked for: products of keys cost more than they save.
_MAX_SURPLUS: Final = 3.0
_SURPLUS_FADES: Final = 0.98
# Bytes that the answer of one statement may have, by the rows of the table's last answers.
_GROUP_BYTES: Final = 256 * 1024
_ROW_BYTES_FADE: Final = 0.98
_UNKNOWN_ROW_BYTES: Final = _GROUP_BYTES / 20


class Answer(NamedTuple):
    """What the driver said to one attempt of one statement."""

    reads: Sequence[WaitingRead]
    levels: tuple[str, ...]
    """The consistency levels that may be asked for; the attempt is the place of the one that was."""
    attempt: int
    outcome: RawPage | Exception
    sent_at: float = 0.0

    @property
    def consistency(self) -> str:
        """The level that was asked for."""
        return self.levels[self.attempt]


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
        self._limit = InFlightLimit(max_in_flight)
        self._metrics = metrics or Metrics()
        self._in_flight = 0
        self._notices = Notices(_log)
        self._waiting: deque[WaitingRead] = deque()
        self._alone: deque[WaitingRead] = deque()  # of groups that failed
        self._alone_first = 0
        self._is_turn_of_alone = False
        self._statements: dict[str, dict[str, PreparedStatement]] = {}
        self._refused: dict[str, set[str]] = {}  # grouped statements
        self._surplus = 1.0
        self._row_bytes: dict[str, float] = {}
        self._refused_levels = RefusedLevels()
        last_resort = () if fallback_consistency is None else (fallback_consistency,)
        self._levels: Final = {
            ReadLevel.FIRST: _without_repetition(consistency, *last_resort),
            ReadLevel.HIGHER: _without_repetition(higher_consistency, consistency, *last_resort),
        }
        self._highest: Final = self._levels[ReadLevel.HIGHER][0]

    @property
    def has_room(self) -> bool:
        """False when enough reads wait to fill the next statements."""
        return len(self._waiting) < 4 * GROUP_SIZE

    @property
    def in_flight_limit(self) -> int:
        """How many statements may be under way now."""
        return self._limit.value

    def prepare(self, projection: Projection) -> None:
        """Prepare for a projection; forgets the statements of the table's earlier ones. Raises FetchError."""
        table = projection.table.full_name
        self._statements[table], self._refused[table] = {}, set()
        self._statement(projection, projection.select(projection.row_selection, projection.row_where))

    def start(self, ticket: object, request: ReadRequest) -> None:
        """Queue a read."""
        self._waiting.append(WaitingRead(ticket, request))

    def flush(self) -> list[tuple[object, Rows | CdcError]]:
        """Send queued reads as far as may be in flight; returns those that failed before they were sent."""
        failed: list[tuple[object, Rows | CdcError]] = []
        while (self._waiting or self._alone) and self._in_flight < self._limit.value:
            reads = self._take_alone() if self._is_for_alone() else self._take_group()
            failed += self._send(reads, self._refused_levels.without(self._levels[reads[0].request.level]), 0)
        return failed

    def _is_for_alone(self) -> bool:
        """By turns: neither the keys of a bad group nor a long queue holds the others up."""
        is_first = self._alone_first > 0 or not (self._is_turn_of_alone and self._waiting)
        self._is_turn_of_alone = bool(self._alone) and is_first
        return self._is_turn_of_alone

    def _take_alone(self) -> list[WaitingRead]:
        self._alone_first = max(0, self._alone_first - 1)
        return [self._alone.popleft()]

    def _take_group(self) -> list[WaitingRead]:
        table = self._waiting[0].request.projection.table.full_name
        largest = min(GROUP_SIZE, int(_GROUP_BYTES / self._row_bytes.get(table, _UNKNOWN_ROW_BYTES)))
        reads = take_group(self._waiting, allow_product=self._surplus < _MAX_SURPLUS, largest=largest)
        self._surplus = 1 + (self._surplus - 1) * _SURPLUS_FADES
        return reads

    def answered(self, answer: Answer) -> list[tuple[object, Rows | CdcError]]:
        """The reads that are over with this answer, by their tickets; a read that goes on is not among them."""
        self._in_flight -= 1
        reads, outcome = answer.reads, answer.outcome
        self._measure(answer)
        if isinstance(outcome, RawPage):
            self._refused_levels.take(answer.consistency)
            try:
                return self._deliver(answer, outcome)
            except Exception as malformed:  # noqa: BLE001  # rows that cannot be parsed concern their reads only
                return self._without_the_group(reads, malformed)
        if is_refusal_of_level(outcome):
            return self._without_the_level(answer, outcome)
        if answer.attempt + 1 < len(answer.levels) and self._allows_next_level(answer, outcome):
            lower = answer.levels[answer.attempt + 1]
            self._metrics.counters["reads_at_fallback"] += len(reads)
            table = reads[0].request.projection.table.full_name
            self._notices.say(
                lower, f"{table} is read at {lower} instead of {answer.consistency}: {reason_of(outcome)}"
            )
            return self._send(reads, answer.levels, answer.attempt + 1)
        is_outage = isinstance(outcome, NoHostAvailable | Unavailable)
        if len(reads) > 1 and not is_outage:
            self._alone += reads
            return []
        changed = isinstance(outcome, InvalidRequest)
        table = reads[0].request.projection.table.full_name
        error = FetchError(table, reason_of(outcome), refresh_schema=changed, is_invalid=changed, is_outage=is_outage)
        return [(read.ticket, error) for read in reads]

    def _without_the_level(self, answer: Answer, refusal: Exception) -> list[tuple[object, Rows | CdcError]]:
        """The level is refused, not what is read: the next one takes its place, which is no fallback."""
        refused, reads = answer.consistency, answer.reads
        levels = tuple(each for each in answer.levels if each != refused)
        self._metrics.counters["levels_refused"] += 1
        if self._refused_levels.refuse(refused):
            instead = f"{levels[answer.attempt]} is asked for" if answer.attempt < len(levels) else "reads wait"
            _log.warning(
                "Cassandra refuses reads at %s; %s instead, and %s again each minute. To change that, take it out of "
                "read_consistency_levels_disallowed in cassandra.yaml, or name another level by query.consistencyLevel "
                "and query.higherConsistencyLevel (%s)",
                refused, instead, refused, reason_of(refusal),
            )  # fmt: skip
        if answer.attempt < len(levels):
            return self._send(reads, levels, answer.attempt)
        table = reads[0].request.projection.table.full_name
        reason = f"no consistency level is left that Cassandra takes; {refused} is refused: {reason_of(refusal)}"
        error = FetchError(table, reason, is_outage=True)
        return [(read.ticket, error) for read in reads]

    def _allows_next_level(self, answer: Answer, error: Exception) -> bool:
        """Too few live replicas always; an answer that is late or failed only where more was asked than is needed."""
        if isinstance(error, Unavailable):
            return True
        beyond_need = answer.reads[0].request.level is ReadLevel.HIGHER and answer.consistency == self._highest
        return beyond_need and isinstance(error, ReadTimeout | ReadFailure | OperationTimedOut)

    def _deliver(self, answer: Answer, page: RawPage) -> list[tuple[object, Rows | CdcError]]:
        consistency = answer.consistency
        self._weigh(answer, page)
        if len(answer.reads) == 1:
            return [(answer.reads[0].ticket, _rows(answer, answer.reads[0], page.rows(), consistency, page))]
        projection = answer.reads[0].request.projection
        width = len(projection.table.primary_key)
        found: dict[RawRow, RawRow] = {row[:width]: row[width:] for row in page.rows()}
        has_one_component = len(projection.table.partition_key) == 1
        self._surplus += (len(page) / len(answer.reads) - self._surplus) * (1 - _SURPLUS_FADES)
        is_exact = is_exact_by_bytes(projection)
        over: list[tuple[object, Rows | CdcError]] = []
        alone: list[WaitingRead] = []
        for read in answer.reads:
            request = read.request
            if has_one_component:
                key: RawRow = (request.partition_key, *request.clustering)
            else:
                key = tuple(projection.row_key_values(request.partition_key, request.clustering))
            row = found.get(key)
            if row is None and not is_exact:
                alone.append(read)  # it may be there under another form of the same clustering value
            else:
                over.append((read.ticket, _rows(answer, read, () if row is None else (row,), consistency, None)))
        self._alone += alone  # not before: what goes wrong here sends all of them there
        return over

    def _weigh(self, answer: Answer, page: RawPage) -> None:
        """How large the rows of the table are: a larger one counts at once, smaller ones little by little."""
        if len(page):
            table = answer.reads[0].request.projection.table.full_name
            now, before = page.size / len(page), self._row_bytes.get(table, _UNKNOWN_ROW_BYTES)
            self._row_bytes[table] = max(1.0, now, before * _ROW_BYTES_FADE)

    def _measure(self, answer: Answer) -> None:
        """Only usual reads tell how busy Cassandra is: of rows, at the first level."""
        request = answer.reads[0].request
        if isinstance(answer.outcome, OperationTimedOut | ReadTimeout):
            self._limit.overloaded()
        elif isinstance(answer.outcome, RawPage):
            latency_s = time.monotonic() - answer.sent_at
            self._metrics.observe("query_latency", latency_s * 1000)
            if request.level is ReadLevel.FIRST and request.kind not in _OF_MANY_ROWS and answer.attempt == 0:
                self._limit.answered(latency_s, self._in_flight)

    def _without_the_group(
        self, reads: Sequence[WaitingRead], error: Exception
    ) -> list[tuple[object, Rows | CdcError]]:
        """One by one, in line; a single read that fails by itself has failed."""
        if len(reads) > 1:
            self._alone += reads
            return []
        return [(reads[0].ticket, error if isinstance(error, CdcError) else UnexpectedError(error))]

    def _send(
        self, reads: Sequence[WaitingRead], levels: tuple[str, ...], attempt: int
    ) -> list[tuple[object, Rows | CdcError]]:
        """One statement, or none where the server does not take the grouped form; the reads that failed before it was sent."""
        request = reads[0].request
        try:
            statement, values = self._single(request) if len(reads) == 1 else self._grouped(reads)
        except Exception as error:  # noqa: BLE001  # bytes of one event must not stop the others
            # Another group may fail the same way, and take as long for it.
            self._alone_first += len(reads) if len(reads) > 1 else 0
            return self._without_the_group(reads, error)
        read = RowRead(
            statement=statement,
            values=values,
            consistency=levels[attempt],
            # What failed by way of that node is not asked of it again: it may be the reason.
            event_node=request.node if attempt == 0 else None,
            paging_state=request.paging_state,
            page_size=_PAGE_ROWS if request.kind in _OF_MANY_ROWS else None,
        )

        sent_at = time.monotonic()

        def post(outcome: RawPage | Exception) -> None:
            self._post(Answer(reads, levels, attempt, outcome, sent_at))

        self._in_flight += 1
        self._client.read(read, post, post)
        return []

    def _single(self, request: ReadRequest) -> tuple[PreparedStatement, RawValues]:
        where, values = _condition(request)
        projection = request.projection
        return self._statement(projection, projection.select(projection.selection_for(request.kind), where)), values

    def _grouped(self, reads: Sequence[WaitingRead]) -> tuple[PreparedStatement, RawValues]:
        where, values = group_condition([read.request for read in reads])
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
            # Only the server's word: one that is away will take it when it is back.
            if error.is_invalid:
                refused.add(select)
            raise

    def _statement(self, projection: Projection, select: str) -> PreparedStatement:
        statements = self._statements[projection.table.full_name]
        statement = statements.get(select)
        if statement is None:
            statement = statements[select] = self._client.prepare(select)
        return statement


def _rows(answer: Answer, read: WaitingRead, rows: Sequence[RawRow], consistency: str, page: RawPage | None) -> Rows:
    outcome = answer.outcome
    coordinator = outcome.coordinator if isinstance(outcome, RawPage) else None
    paging_state = None if page is None else page.paging_state
    received_s = int(time.time()) if page is None else page.received_s
    return Rows(read.request, rows, consistency, answer.attempt > 0, coordinator, paging_state, received_s)


def _condition(request: ReadRequest) -> tuple[str, RawValues]:
    """The WHERE clause of a single request and the values of its markers."""
    projection, kind = request.projection, request.kind
    partition = projection.row_key_values(request.partition_key, ())
    if kind in (MutationKind.ROW, MutationKind.ROW_DELETION):
        return projection.row_where, [*partition, *request.clustering]
    if kind is MutationKind.STATIC_ROW:
        return projection.partition_where + " LIMIT 1", partition
    if request.bounds is None:
        return projection.partition_where, partition
    condition, values = range_condition(projection, request.bounds)
    return " AND ".join([projection.partition_where, *condition]), [*partition, *values]


def range_condition(projection: Projection, bounds: RangeBounds) -> tuple[list[str], list[bytes]]:
    """Conditions that hold for every row within the bounds, and for few others.

    The prefix that both bounds share becomes equalities, the first column behind it inequalities: what lies deeper
    only narrows further. Columns in descending order have their start at the greater value.
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
