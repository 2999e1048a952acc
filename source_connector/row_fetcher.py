"""Reads of current rows: prepared statements per projection, consistency levels and what follows when one fails.

A read is started with `start`; what came of it is handed to `answered` in the caller's own thread, which gives the rows,
goes on at the next level by itself (None), or raises FetchError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from cassandra import InvalidRequest, OperationTimedOut, ReadFailure, ReadTimeout, Unavailable

from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.cassandra_client import RawPage, RowRead
from source_connector.errors import FetchError
from source_connector.projection import Projection, RawValues, quoted

if TYPE_CHECKING:
    from cassandra.query import PreparedStatement

    from source_connector.cassandra_client import CassandraClient

__all__ = ["Answer", "ReadLevel", "ReadRequest", "RowFetcher", "Rows", "range_condition"]

_LAST_RESORT: Final = "LOCAL_ONE"
_PAGE_ROWS: Final = 500


class ReadLevel(Enum):
    """`FIRST` is what most reads need; `HIGHER` asks all replicas where the first could not prove anything."""

    FIRST = "first"
    HIGHER = "higher"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """What is read for an event: a row, a static row, or a page of the rows in a deletion's scope."""

    projection: Projection
    kind: MutationKind
    partition_key: bytes
    clustering: tuple[bytes | None, ...] = ()
    bounds: RangeBounds | None = None
    level: ReadLevel
    node: UUID
    paging_state: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one page and how far they can be trusted."""

    request: ReadRequest
    page: RawPage
    consistency: str
    is_fallback: bool
    """True when a lower level than the one asked for answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the driver said to one attempt of a read; `ticket` is the caller's."""

    ticket: object
    request: ReadRequest
    attempt: int
    outcome: RawPage | Exception


class RowFetcher:
    """Statements and levels; the connection belongs to the client. `post` is called in threads of the driver."""

    def __init__(
        self, client: CassandraClient, *, consistency: str, higher_consistency: str, post: Callable[[Answer], None]
    ) -> None:
        self._client = client
        self._post = post
        self._statements: dict[str, PreparedStatement] = {}
        self._levels: Final = {
            ReadLevel.FIRST: _without_repetition(consistency, _LAST_RESORT),
            ReadLevel.HIGHER: _without_repetition(higher_consistency, consistency, _LAST_RESORT),
        }

    def prepare(self, projection: Projection) -> None:
        """Prepare the statements of a projection afresh; forgets those of earlier ones. Raises FetchError."""
        self._statements.clear()
        self._statement(projection.select(projection.row_selection, projection.row_where))

    def start(self, ticket: object, request: ReadRequest) -> None:
        """Start a read. Raises FetchError, RowConversionError when it cannot even be asked."""
        self._attempt(ticket, request, 0)

    def answered(self, answer: Answer) -> Rows | None:
        """The rows; None when the read goes on at the next level. Raises FetchError."""
        request, outcome = answer.request, answer.outcome
        levels = self._levels[request.level]
        if isinstance(outcome, RawPage):
            return Rows(
                request=request,
                page=outcome,
                consistency=levels[answer.attempt],
                is_fallback=answer.attempt > 0,
            )
        if answer.attempt + 1 < len(levels) and self._allows_next_level(request.level, outcome, answer.attempt):
            self._attempt(answer.ticket, request, answer.attempt + 1)
            return None
        changed = isinstance(outcome, InvalidRequest)
        raise FetchError(request.projection.table.full_name, _one_line(outcome), refresh_schema=changed) from outcome

    @staticmethod
    def _allows_next_level(level: ReadLevel, error: Exception, attempt: int) -> bool:
        """Too few live replicas always; an answer that is late or failed only where more was asked than is needed."""
        if isinstance(error, Unavailable):
            return True
        beyond_need = level is ReadLevel.HIGHER and attempt == 0
        return beyond_need and isinstance(error, ReadTimeout | ReadFailure | OperationTimedOut)

    def _attempt(self, ticket: object, request: ReadRequest, attempt: int) -> None:
        where, values = _condition(request)
        selection = request.projection.selection_for(request.kind)
        read = RowRead(
            statement=self._statement(request.projection.select(selection, where)),
            values=values,
            consistency=self._levels[request.level][attempt],
            event_node=request.node,
            paging_state=request.paging_state,
            page_size=_PAGE_ROWS,
        )

        def post(outcome: RawPage | Exception) -> None:
            self._post(Answer(ticket=ticket, request=request, attempt=attempt, outcome=outcome))

        self._client.read(read, post, post)

    def _statement(self, select: str) -> PreparedStatement:
        statement = self._statements.get(select)
        if statement is None:
            statement = self._statements[select] = self._client.prepare(select)
        return statement


def _condition(request: ReadRequest) -> tuple[str, RawValues]:
    """The WHERE clause of a request and the values of its markers."""
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


def next_page(request: ReadRequest, paging_state: bytes) -> ReadRequest:
    """The request for the page behind this one."""
    return replace(request, paging_state=paging_state)


def _without_repetition(*levels: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(levels))


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
