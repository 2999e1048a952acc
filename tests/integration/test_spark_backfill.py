"""The events that a backfill, an initial snapshot and a rebuild write to the events topic of a real table."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cassandra.cluster import Session
from pyspark.sql import SparkSession

from cdc.rest import rest
from schemas.errors import ConfigError
from schemas.mutation_event import SNAPSHOT_SEGMENT_ID
from spark_bridge.errors import ProgressFileError, TopicError
from spark_bridge.jobs.backfill import backfill, initial_snapshot, rebuild
from spark_bridge.jobs.row_keys import token_of
from tests.fixtures.connector import OpenEventsWriter
from tests.fixtures.served_table import access_to
from tests.fixtures.spark import spark_command
from tests.servers.interface import CassandraServer, PulsarServer
from tests.topics.client import client_of
from tests.topics.events_topic import EventsTopic

pytestmark = [
    pytest.mark.timeout(1_500),
    pytest.mark.usefixtures("keep_data_topics"),  # A broker deletes topics without retention that nobody uses.
]
_ROWS = 20


class Table:
    """Table `t` with rows 0 to 19, whose odd numbers have the kind `odd`, and the events that were sent for them."""

    def __init__(self, keyspace: str, pulsar: PulsarServer, node: CassandraServer, events: EventsTopic) -> None:
        self.keyspace = keyspace
        self.data_topic = f"persistent://public/default/data-{keyspace}.t"
        self.servers = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url}
        self.access = access_to(node)
        self._events = events
        self._seen = 0

    @property
    def options(self) -> Mapping[str, str]:
        return {**self.servers, "topic": self.data_topic}

    def sent(self) -> list[int]:
        """Rows whose events have come since the last call."""
        new = self._events.read()[self._seen :]
        self._seen += len(new)
        assert {each.message.segment_id for each in new} <= {SNAPSHOT_SEGMENT_ID}
        return sorted(struct.unpack(">i", each.event.partition_key)[0] for each in new)


@pytest.fixture
def table(
    cql: Session,
    keyspace: str,
    open_events_writer: OpenEventsWriter,
    open_topic: Callable[[str, str], EventsTopic],
    pulsar: PulsarServer,
    cassandra_node: CassandraServer,
) -> Table:
    """The table with its events topic, as an agent makes it, and an empty data topic."""
    cql.execute(f"CREATE TABLE {keyspace}.t (pk int PRIMARY KEY, kind text)")
    for number in range(_ROWS):
        kind = "odd" if number % 2 else "even"
        cql.execute(f"INSERT INTO {keyspace}.t (pk, kind) VALUES ({number}, '{kind}')")
    open_events_writer(keyspace, "t")
    made = Table(keyspace, pulsar, cassandra_node, open_topic(keyspace, "t"))
    rest().put(f"{pulsar.admin_url}/admin/v2/{made.data_topic.replace('://', '/')}").raise_for_status()
    return made


def test_only_rows_of_a_predicate_or_of_a_token_range_are_sent(spark: SparkSession, table: Table) -> None:
    """Only these rows' events are sent. A predicate that Cassandra refuses is an error of one line, before any task."""
    done = backfill(spark, table.servers, table.access, table.keyspace, "t", where="kind = 'odd'", ranges=2)
    assert table.sent() == list(range(1, _ROWS, 2))
    assert (done.rows, done.ranges) == (10, 2)
    tokens = {number: token_of([struct.pack(">i", number)]) for number in range(_ROWS)}
    low, high = sorted(tokens.values())[4], sorted(tokens.values())[9]
    backfill(spark, table.servers, table.access, table.keyspace, "t", tokens=(low, high), ranges=2)
    assert table.sent() == [number for number, token in tokens.items() if low < token <= high]
    for where in ("kind = = 1", "no_such_column = 1", "kind = 1"):
        with pytest.raises(ConfigError, match=f"where: .*{where}.* is refused by Cassandra"):
            backfill(spark, table.servers, table.access, table.keyspace, "t", where=where)
    assert table.sent() == []


def test_an_initial_snapshot_is_sent_once(spark: SparkSession, table: Table) -> None:
    """A second snapshot sends nothing."""
    assert initial_snapshot(spark, table.servers, table.access, table.keyspace, "t", ranges=2) is not None
    assert table.sent() == list(range(_ROWS))
    assert initial_snapshot(spark, table.servers, table.access, table.keyspace, "t", ranges=2) is None
    assert table.sent() == []


def publish(table: Table) -> None:
    """Write a record to the data topic, so that the topic is not empty."""
    with client_of(table.servers["serviceUrl"]) as client:
        client.create_producer(table.data_topic).send(b"a record")


def empty(table: Table) -> None:
    """Empty the data topic as docs/spark.md describes."""
    url = f"{table.servers['adminUrl']}/admin/v2/{table.data_topic.replace('://', '/')}"
    rest().put(f"{url}/unload").raise_for_status()
    rest().delete(f"{url}/truncate").raise_for_status()


def test_a_rebuild_asks_for_an_empty_topic_and_fills_it_whatever_was_sent_before(
    spark: SparkSession, table: Table, tmp_path: Path
) -> None:
    """A finished rebuild's progress file does not skip ranges, whether the topic is full or emptied; a rebuild that was
    killed is continued."""
    progress = tmp_path / "progress.json"

    def run() -> int:
        return rebuild(
            spark, table.options, table.access, table.keyspace, "t", ranges=4, progress_file=str(progress)
        ).rows

    assert run() == _ROWS
    assert table.sent() == list(range(_ROWS))
    publish(table)
    with pytest.raises(TopicError, match="still holds 1 entries of a rebuild that is done: empty it first"):
        run()
    empty(table)
    assert run() == _ROWS
    assert table.sent() == list(range(_ROWS))
    publish(table)
    progress.write_text(progress.read_text().replace("[0, 1, 2, 3]", "[0, 2]"))
    assert 0 < run() < _ROWS
    progress.unlink()
    with pytest.raises(TopicError, match="still holds 1 entries: empty it first"):
        run()
    backfill(spark, table.servers, table.access, table.keyspace, "t", ranges=4, progress_file=str(progress))
    with pytest.raises(ProgressFileError, match="is of another backfill"):
        run()


def test_a_backfill_that_is_done_is_told(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    """A progress file with every range: nothing is sent, and the summary says why."""
    name, (host,) = f"{table.keyspace}.t", table.access.contact_points
    progress = str(tmp_path / "progress.json")
    command = ["backfill", "--service-url", table.servers["serviceUrl"], "--admin-url", table.servers["adminUrl"]]
    command += ["--table", name, "--contact-point", host, "--port", str(table.access.port), "--consistency", "ONE"]
    command += ["--ranges", "2", "--progress-file", progress]
    first = spark_command(spark, *command)
    assert f"{name}: 20 events in 2 token ranges, " in first.output
    again = spark_command(spark, *command)
    said = (
        f"{name}: all 2 token ranges were sent before, as {progress} says: nothing to do (delete it to send them again)"
    )
    assert (again.exit_code, again.output.splitlines()[-1]) == (0, said)
    assert table.sent() == list(range(_ROWS))
