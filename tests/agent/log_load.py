"""A load of all kinds of changes on a node, and these changes as judge and topics show them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from cassandra import DriverException
from cassandra.cluster import NoHostAvailable, ResponseFuture, Session

from tests.servers.background import Background
from tests.servers.cassandra_session import make_keyspace
from tests.topics.events_topic import EventsTopic, TopicEvent, wait_until

__all__ = [
    "TABLES",
    "Change",
    "LogLoad",
    "change_of",
    "changes_of",
    "create_tables",
    "published_in_order",
    "wait_for_the_end",
]

TABLES: Final = ("plain", "clustered", "Mixed")
"""The tables of :func:`create_tables`."""
# Errors of a node that was killed, or is not back yet.
_AWAY: Final = (NoHostAvailable, DriverException)

Change = tuple[int, int, int, str, str, tuple[str | None, ...]]
"""The identity of a change for agent and judge: segment, end of its entry, ordinal, table, partition key,
clustering."""


def create_tables(session: Session, keyspace: str) -> None:
    """The keyspace and its tables, with CDC."""
    make_keyspace(session, keyspace)
    for definition in (
        "plain (pk int PRIMARY KEY, v text)",
        "clustered (pk int, ck int, s text static, v text, PRIMARY KEY (pk, ck))",
        '"Mixed" ("Pk" int, "Ck" text, "V" text, PRIMARY KEY ("Pk", "Ck"))',
    ):
        session.execute(f"CREATE TABLE {keyspace}.{definition} WITH cdc = true")


class LogLoad(Background):
    """Inserts, updates, deletes and batches of several tables: some hundred mutations a second, until stopped.

    With `node_may_go`, failed writes are not errors, because the node is killed meanwhile.
    """

    def __init__(self, session: Session, keyspace: str, seed: int, *, node_may_go: bool = False) -> None:
        super().__init__("load")
        self._session, self._random = session, random.Random(seed)
        self._failure: BaseException | None = None
        self.answered = 0
        """Number of writes that the node has acknowledged."""
        self._forgiven: Final = _AWAY if node_may_go else ()
        prepare = lambda cql: session.prepare(cql.replace("{k}", keyspace))  # noqa: E731
        self._plain = prepare("INSERT INTO {k}.plain (pk, v) VALUES (?, ?)")
        self._row = prepare("INSERT INTO {k}.clustered (pk, ck, v) VALUES (?, ?, ?)")
        self._static = prepare("UPDATE {k}.clustered SET s = ? WHERE pk = ?")
        self._delete = prepare("DELETE FROM {k}.clustered WHERE pk = ? AND ck = ?")
        self._range = prepare("DELETE FROM {k}.clustered WHERE pk = ? AND ck > ?")
        self._partition = prepare("DELETE FROM {k}.clustered WHERE pk = ?")
        self._mixed = prepare('INSERT INTO {k}."Mixed" ("Pk", "Ck", "V") VALUES (?, ?, ?)')
        self._batch = prepare(
            "BEGIN UNLOGGED BATCH INSERT INTO {k}.clustered (pk, ck, v) VALUES (?, 1, ?)"
            " INSERT INTO {k}.clustered (pk, ck, v) VALUES (?, 2, ?)"
            ' INSERT INTO {k}."Mixed" ("Pk", "Ck", "V") VALUES (?, \'b\', ?) APPLY BATCH'
        )

    def __exit__(self, *raised: object) -> None:
        self._end()
        assert self._failure is None, self._failure

    def wait_for(self, answers: int) -> None:
        """Wait until the node has acknowledged this number of writes in all."""

        def are_answered() -> bool:
            assert self._failure is None, self._failure
            return self.answered >= answers

        wait_until(are_answered, f"{answers} writes are answered")

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.08):
                try:
                    for pending in [
                        self._write(self._random.randrange(8), self._random.randrange(500)) for _ in range(16)
                    ]:
                        pending.result()
                        self.answered += 1
                except self._forgiven:
                    continue
        except BaseException as error:  # noqa: BLE001  # told by the test's thread
            self._failure = error

    def _write(self, which: int, pk: int) -> ResponseFuture:
        value, ck = "x" * self._random.randrange(50, 900), self._random.randrange(20)
        statement, values = (
            (self._plain, (pk, value)),
            (self._plain, (pk, value)),
            (self._row, (pk, ck, value)),
            (self._mixed, (pk, str(ck), value)),
            (self._batch, (pk, value, pk, value, pk, value)),
            (self._static, (value, pk)),
            (self._delete, (pk, ck)),
            ((self._range, (pk, ck)) if ck % 2 else (self._partition, (pk,))),
        )[which]
        return self._session.execute_async(statement, values)


def change_of(table: str, each: TopicEvent) -> Change:
    """The change of an event on a topic."""
    event = each.event
    clustering = tuple(None if value is None else value.hex() for value in event.clustering)
    return each.message.segment_id, event.position, event.ordinal, table, event.partition_key.hex(), clustering


def changes_of(keyspace: str, mutation: dict[str, object]) -> Iterator[Change]:
    """The changes of a mutation in the contract's order: deletions of many rows, the static row, the rows."""
    if mutation["keyspace"] != keyspace:
        return
    segment_id = int(str(mutation["segment"]).removesuffix(".log").rpartition("-")[2])
    position, ordinal = int(str(mutation["position"])), 0
    updates = mutation["updates"]
    assert isinstance(updates, list)
    for update in updates:
        wide = [()] * ((update["partition_deletion"] is not None) + len(update["range_tombstones"]))
        static = [()] if update["static_row"] is not None else []
        for clustering in (*wide, *static, *(tuple(row["clustering"]) for row in update["rows"])):
            yield segment_id, position, ordinal, update["table"], update["partition_key"], clustering
            ordinal += 1


def wait_for_the_end(session: Session, topics: dict[str, EventsTopic]) -> None:
    """Write a last row to each table of the keyspace `kills`, and wait until it is on the table's topic."""
    session.execute("INSERT INTO kills.plain (pk, v) VALUES (-1, '')")
    session.execute("INSERT INTO kills.clustered (pk, ck, v) VALUES (-1, 0, '')")
    session.execute("""INSERT INTO kills."Mixed" ("Pk", "Ck", "V") VALUES (-1, '', '')""")
    for table, topic in topics.items():
        wait_until(
            lambda topic=topic: any(each.event.partition_key == b"\xff" * 4 for each in topic.read()),  # type: ignore[misc]
            f"the last row of {table} is on its topic",
        )


def published_in_order(topics: dict[str, EventsTopic]) -> list[tuple[str, TopicEvent]]:
    """Read and close the topics of these tables. Check that each partition has its events in the order of the log.

    Copies of events may come later.
    """
    published = [(table, each) for table, topic in topics.items() for each in topic.read()]
    for topic in topics.values():
        topic.close()
    first_seen: dict[tuple[str, int], dict[tuple[int, int, int], None]] = {}
    for table, each in published:
        first_seen.setdefault((table, each.partition), {})[each.place[1:]] = None
    for places in first_seen.values():
        assert list(places) == sorted(places)
    return published
