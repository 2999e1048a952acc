"""Ticks: clients that write a clock value to each row of a table, again and again, and store when each write was
answered."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from contextlib import suppress
from dataclasses import replace
from typing import Final, Self

from cassandra import ConsistencyLevel
from cassandra.cluster import ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import FallthroughRetryPolicy, WhiteListRoundRobinPolicy

from tests.fault_kit.contact import Contact
from tests.fault_kit.sessions import open_session

__all__ = ["TABLE", "Ticks", "tick_statements"]

_KEYSPACE: Final = "faults"
TABLE: Final = "ticks"
_TIMEOUT_S: Final = 10.0
_ROWS: Final = 40


def tick_statements(nodes: int) -> list[str]:
    """CQL that creates the table, with a replica on every node."""
    return [
        f"CREATE KEYSPACE {_KEYSPACE} WITH replication ="
        f" {{'class': 'NetworkTopologyStrategy', 'datacenter1': {nodes}}}",
        f"CREATE TABLE {_KEYSPACE}.{TABLE} (pk int PRIMARY KEY, tick bigint) WITH cdc = true",
    ]


class Ticks:
    """A client for each node. The node coordinates at ONE: an answer means that at least one replica, any of them, has
    the write."""

    def __init__(self, contact: Contact, *, rate: float) -> None:
        """`rate`: writes a second of each client."""
        self._contact: Final = contact
        self._pause_s: Final = 1 / rate
        self._stop: Final = threading.Event()
        # By row: when its writes were answered (nanoseconds since the epoch), in order, and the values of these writes.
        self._answered: Final[dict[int, tuple[list[int], list[int]]]] = {}
        self._threads: Final = [
            threading.Thread(target=self._write, args=(number, address), daemon=True)
            for number, address in enumerate(contact.addresses)
        ]
        self.answered = 0
        self.failed = 0
        self.is_sure = True
        """False from a failed write to the only node until the client has found which writes the node lost."""
        self.lost: Final[set[tuple[int, int]]] = set()
        """Rows and values of writes that the only replica answered and then lost: a kill loses what was not synced."""

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def last_before(self, time_ms: int) -> dict[int, int]:
        """By row: the last value whose write was answered before this time."""
        found: dict[int, int] = {}
        for row, (times, values) in list(self._answered.items()):
            # The client appends a value before its time, so each time has its value.
            count = bisect_left(times, time_ms * 1_000_000)
            if count:
                found[row] = values[count - 1]
        return found

    def _write(self, number: int, address: str) -> None:
        rows = range(number * _ROWS, (number + 1) * _ROWS)
        profile = ExecutionProfile(
            load_balancing_policy=WhiteListRoundRobinPolicy([address]),
            request_timeout=_TIMEOUT_S,
            consistency_level=ConsistencyLevel.ONE,
            # An unanswered write is never repeated: that would be a second write with the same value.
            retry_policy=FallthroughRetryPolicy(),
        )
        with suppress(NoHostAvailable), open_session(replace(self._contact, addresses=[address]), profile) as session:
            insert = session.prepare(f"INSERT INTO {_KEYSPACE}.{TABLE} (pk, tick) VALUES (?, ?)")
            count = 0
            while not self._stop.is_set():
                if not self.is_sure:
                    self.is_sure = self._looks_back(session)
                    continue
                row = rows[count % _ROWS]
                count += 1
                value = time.time_ns()
                try:
                    session.execute(insert, (row, value))
                except Exception:  # noqa: BLE001  # the driver raises its connections' own errors, too
                    self.failed += 1
                    self.is_sure = len(self._contact.addresses) > 1
                    self._stop.wait(0.2)
                    continue
                times, values = self._answered.setdefault(row, ([], []))
                values.append(value)
                times.append(time.time_ns())
                self.answered += 1
                self._stop.wait(self._pause_s)

    def _looks_back(self, session: Session) -> bool:
        """Find the writes that the node has lost, before the rows are written again. Return False if the node does not
        answer."""
        try:
            there = {row.pk: row.tick for row in session.execute(f"SELECT pk, tick FROM {_KEYSPACE}.{TABLE}")}
        except Exception:  # noqa: BLE001  # as above
            self._stop.wait(0.2)
            return False
        for row, (_, values) in self._answered.items():
            self.lost.update((row, value) for value in values if value > there.get(row, 0))
        return True
