"""One table beside the shared agent: statements by few words, and what of it is on its events topic."""

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

    All rows that it writes are in one partition, so that their events are in the order of the log: when the last one is
    there, nothing that stands before it is still to come.
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
        """Cassandra begins a new segment when a table is dropped."""
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
        """Clustering keys of all events on the topic now."""
        topic = self._open_topic(self._keyspace, "t")
        return [int.from_bytes(each.event.clustering[0] or b"", "big") for each in topic.read()]

    def wait_for_last(self, ck: int) -> list[int]:
        """Clustering keys of all events as soon as the last row's is there."""
        wait_until(lambda: ck in self.published(), f"row {ck} of {self.name} is on the topic")
        return self.published()

    def catch_up(self) -> None:
        """Wait until the agent has published all that is in the log now."""
        marker = f"marker_{next(_numbers)}"
        self.create("pk int PRIMARY KEY", table=marker)
        self._session.execute(f"INSERT INTO {self._keyspace}.{marker} (pk) VALUES (1)")
        self._open_topic(self._keyspace, marker).wait_for(1)
        # The marker's topic is another one: what was read before it may still be on its way.
        wait_for_metrics(self._agent, "nothing is on its way", inflight_events=0)


def log_from_now(agent: AgentProcess) -> Callable[[], str]:
    """Gives what the agent has logged since this call."""
    size = agent.log.stat().st_size if agent.log.exists() else 0  # before the first start there is no log
    return lambda: agent.log.read_bytes()[size:].decode(errors="replace")


def wait_for_metrics(agent: AgentProcess, what: str, **wanted: int) -> None:
    """Wait until metrics of the agent have these values, which were measured after this call.

    The status file that is there now was written before it, and the next one may have been measured before it: the third is new.
    """
    times: set[str] = set()

    def holds() -> bool:
        status = agent.status()
        times.add(status["time"])
        return len(times) >= 3 and all(status["metrics"][name] == value for name, value in wanted.items())

    wait_until(holds, what)
