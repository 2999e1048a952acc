"""One table of the shared agent: short methods for its statements, and the events on its topic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from uuid import UUID

from cassandra.cluster import Session

from cdc.agent_process import AgentProcess
from tests.topics.events_topic import EventsTopic, wait_until

__all__ = ["KEYED", "AgentTable", "log_from_now", "wait_for_metrics"]

_numbers = itertools.count(1)
KEYED = "pk int, ck int, v int, PRIMARY KEY (pk, ck)"


class AgentTable:
    """One table, its events topic, and the shared agent.

    All rows that it writes are in one partition, so that their events are in the order of the commit log: when the last
    event is on the topic, all events before it are there, too.
    """

    def __init__(
        self, session: Session, agent: AgentProcess, keyspace: str, open_topic: Callable[[str, str], EventsTopic]
    ) -> None:
        self._session, self._agent, self._keyspace, self._open_topic = session, agent, keyspace, open_topic
        self.name = f"{keyspace}.t"

    def create(self, definition: str = KEYED, *, cdc: bool = True, table: str = "t") -> None:
        self._session.execute(f"CREATE TABLE {self._keyspace}.{table} ({definition}) WITH cdc = {cdc}")

    def cdc(self, flag: bool) -> None:
        self._session.execute(f"ALTER TABLE {self.name} WITH cdc = {flag}")

    def alter(self, change: str) -> None:
        self._session.execute(f"ALTER TABLE {self.name} {change}")

    def write(self, *cks: int) -> None:
        for ck in cks:
            self._session.execute(f"INSERT INTO {self.name} (pk, ck, v) VALUES (1, {ck}, {ck})")

    def end_segment(self) -> None:
        """Let Cassandra begin a new segment, which it does when a table is dropped."""
        filler = f"{self._keyspace}.filler_{next(_numbers)}"
        self._session.execute(f"CREATE TABLE {filler} (pk int PRIMARY KEY) WITH cdc = true")
        self._session.execute(f"INSERT INTO {filler} (pk) VALUES (1)")
        self._session.execute(f"DROP TABLE {filler}")

    def table_id(self) -> UUID:
        query = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 't'"
        row = self._session.execute(query, (self._keyspace,)).one()
        assert row is not None
        found: UUID = row.id
        return found

    def published(self) -> list[int]:
        """The clustering keys of all events that are on the topic now."""
        topic = self._open_topic(self._keyspace, "t")
        return [int.from_bytes(each.event.clustering[0] or b"", "big") for each in topic.read()]

    def wait_for_last(self, ck: int) -> list[int]:
        """Wait for the event of row `ck`, and return the clustering keys of all events."""
        wait_until(lambda: ck in self.published(), f"row {ck} of {self.name} is on the topic")
        return self.published()

    def catch_up(self) -> None:
        """Wait until the agent has published all changes that are in the commit log now."""
        marker = f"marker_{next(_numbers)}"
        self.create("pk int PRIMARY KEY", table=marker)
        self._session.execute(f"INSERT INTO {self._keyspace}.{marker} (pk) VALUES (1)")
        self._open_topic(self._keyspace, marker).wait_for(1)
        # The marker is on another topic: events that were read before it may still be in flight.
        wait_for_metrics(self._agent, "nothing is on its way", inflight_events=0)


def log_from_now(agent: AgentProcess) -> Callable[[], str]:
    """Return a function that returns the agent's log since this call."""
    size = agent.log.stat().st_size if agent.log.exists() else 0  # before the first start there is no log
    return lambda: agent.log.read_bytes()[size:].decode(errors="replace")


def wait_for_metrics(agent: AgentProcess, what: str, **wanted: int) -> None:
    """Wait until metrics of the agent have these values, measured after this call.

    The current status file was written before the call, and the next one may have been measured before it. So only the
    third file and later ones count.
    """
    times: set[str] = set()

    def holds() -> bool:
        status = agent.status()
        times.add(status["time"])
        return len(times) >= 3 and all(status["metrics"][name] == value for name, value in wanted.items())

    wait_until(holds, what)
