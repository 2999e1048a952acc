"""The cost of a silent replica for other reads, and of rows of unknown size for memory, in simulated time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
from cassandra import ReadTimeout

from schemas.mutation_event import MutationKind
from source_connector.encoding.projection import Projection
from source_connector.encoding.row_sizes import BUDGET_BYTES
from source_connector.rows.cassandra_client import CassandraClient, RowRead
from source_connector.rows.raw_page import RawPage
from source_connector.rows.read_request import ReadLevel, ReadRequest, Rows
from source_connector.rows.row_fetcher import Answer, RowFetcher
from tests.unit.source_connector.events import NODE, int32, table
from tests.unit.source_connector.task_owner import a_task

_LATENCY_S = 0.2
_READ_REQUEST_TIMEOUT_S = 5.0
_MOST_WAITING = 4_000


class Cluster:
    """Answers each statement after some simulated time; while a replica is silent, it answers no statement at ALL."""

    def __init__(self, row: bytes = b"") -> None:
        self.now = 1_000.0
        self.stands_still = False
        self.asked_at_all = 0
        self.under_way = 0
        self.most_under_way = 0
        self._row = row
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def prepare(self, select: str) -> str:
        return select

    def read(self, read: RowRead, on_page: Callable[[Any], None], on_error: Callable[[Any], None]) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        hangs = self.stands_still and read.consistency == "ALL"
        self.asked_at_all += read.consistency == "ALL"

        def answer() -> None:
            self.under_way -= 1
            if hangs:
                on_error(ReadTimeout("late", consistency=5, required_responses=3, received_responses=2))
            else:
                on_page(RawPage(self._row, 1 if self._row else 0, 2, None))

        delay_s = _READ_REQUEST_TIMEOUT_S if hangs else _LATENCY_S
        heapq.heappush(self._due, (self.now + delay_s, next(self._numbers), answer))

    def step(self) -> None:
        """Advance to the next answer."""
        self.now, _, answer = heapq.heappop(self._due)
        answer()


class Line:
    """Endless reads, every second one at the higher level; as many wait as a connector has events in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
        monkeypatch.setattr("source_connector.rows.row_fetcher.time.monotonic", lambda: cluster.now)
        self.cluster = cluster
        self.done = self.waiting = 0
        self._answers: list[Answer] = []
        self._keys = itertools.count()
        self._task = a_task()
        # Two columns in the partition key, so each statement reads one row.
        self.projection = Projection(table(partition_key=("p", "q")))
        self.fetcher = RowFetcher(
            cast("CassandraClient", cluster),
            consistency="LOCAL_QUORUM",
            higher_consistency="ALL",
            max_in_flight=32,
            post=self._answers.append,
        )
        for lane in (self.fetcher._first, self.fetcher._higher):
            lane.limit._clock = lambda: cluster.now
        self.fetcher.prepare(self.projection)

    def run(self, seconds: float) -> float:
        """Run for this time, and return the rows per second."""
        began, before = self.cluster.now, self.done
        while self.cluster.now < began + seconds:
            while self.fetcher.has_room and self.waiting < _MOST_WAITING:
                self._start(next(self._keys))
            self._over(self.fetcher.flush())
            self.cluster.step()
            self._over(self.fetcher.answered(self._answers.pop()))
        return (self.done - before) / seconds

    def _start(self, key: int) -> None:
        part = int32(key)
        request = ReadRequest(
            projection=self.projection,
            kind=MutationKind.ROW,
            partition_key=b"\0\4" + part + b"\0\0\4" + part + b"\0",
            level=ReadLevel.HIGHER if key % 2 else ReadLevel.FIRST,
            node=NODE,
        )
        self.waiting += 1
        self.fetcher.start(self._task, request)

    def _over(self, over: list[Any]) -> None:
        assert all(isinstance(outcome, Rows) for _, outcome in over)
        self.done += len(over)
        self.waiting -= len(over)


def test_a_replica_that_does_not_answer_takes_no_more_than_a_tenth_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are compared for 40 s each: with all replicas, with one silent, and after it is back."""
    line = Line(monkeypatch, Cluster())
    line.run(5)
    sound = line.run(40)
    line.cluster.stands_still, asked = True, line.cluster.asked_at_all
    assert line.run(40) > 0.9 * sound
    assert line.cluster.asked_at_all - asked < 100
    assert line.fetcher._metrics.counters["levels_left_out"] == 1
    line.cluster.stands_still, asked = False, line.cluster.asked_at_all
    assert line.run(40) > 0.9 * sound
    assert line.cluster.asked_at_all - asked > 0.6 * 20 * sound


def test_statements_without_an_answer_are_not_sent_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nothing answers within 5 s, the cluster is overloaded, and more statements would make it worse."""
    cluster = Cluster()
    line = Line(monkeypatch, cluster)
    line.run(5)
    monkeypatch.setattr("tests.unit.source_connector.test_read_lanes._LATENCY_S", 5.0)
    line.run(120)
    assert cluster.most_under_way <= 2 * 4 * 32


def test_rows_of_unknown_size_are_never_asked_for_by_the_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have 4 MiB from the first statement on: statements in flight and waiting reads stay within the limit."""
    value = bytes(4 * 1024 * 1024)
    cluster = Cluster(len(value).to_bytes(4, "big") + value + b"\xff\xff\xff\xff")
    line = Line(monkeypatch, cluster)
    line.run(1)
    assert cluster.most_under_way <= BUDGET_BYTES / 2**20
    cluster.most_under_way = 0
    line.run(2)
    assert cluster.most_under_way * len(value) <= BUDGET_BYTES
    assert line.waiting <= 3 * BUDGET_BYTES / len(value)
