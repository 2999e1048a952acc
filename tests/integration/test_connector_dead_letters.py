"""Events that can never be published become dead letters while others go on, and a command sends them again."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from contextlib import closing
from typing import Final
from uuid import uuid4

import httpx
import pytest
from click.testing import CliRunner
from pulsar import Client, FileLogger, InitialPosition, LoggerLevel

from cdc.main import cli
from cdc.sandbox import Sandbox
from schemas.mutation_event import MutationKind
from source_connector.encoding.projection import Projection
from source_connector.errors import DeadLettersError
from source_connector.events.dead_letters import RESEND_SUBSCRIPTION
from tests.fixtures.connector import Connector, CreateLine, DeployConnector, wait_until_acknowledged
from tests.servers.interface import PulsarServer
from tests.topics.connector_line import ConnectorLine, int32
from tests.topics.events_topic import wait_until

Deploy = Callable[..., Connector]
_TOMBSTONES: Final = 100


def _urls(pulsar: PulsarServer) -> list[str]:
    return ["--service-url", pulsar.service_url, "--admin-url", pulsar.admin_url]


def _letters(pulsar: PulsarServer, line: ConnectorLine, command: str = "dead-letters") -> list[dict[str, object]]:
    """Output of `cdc connector` about the test's own dead-letter topic, sorted by key because its order is random."""
    arguments = ["connector", command, *_urls(pulsar), "--topic", f"dead-{line.keyspace}"]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return sorted(
        (json.loads(text) for text in done.stdout.splitlines()), key=lambda letter: str(letter.get("key", ""))
    )


@pytest.fixture
def line(connector_line: CreateLine, deploy: Deploy) -> ConnectorLine:
    """A table with its connector, which gives up on an event at its second failure."""
    line = connector_line("id int PRIMARY KEY, a int")
    deploy(line)
    return line


@pytest.fixture
def deploy(deploy_connector: DeployConnector) -> Deploy:
    """The connector of the line's table, with a dead-letter topic of its own."""

    def create(line: ConnectorLine, **options: object) -> Connector:
        own = {"deadLetter__topic": f"dead-{line.keyspace}", "deadLetter__maxAttempts": 2}
        return deploy_connector(line.keyspace, "t", **own, **options)

    return create


def test_what_cannot_be_decoded_or_read_is_set_aside_and_holds_up_nothing(
    line: ConnectorLine, pulsar: PulsarServer
) -> None:
    """Bytes that are no event, and an event with a key that Cassandra refuses, become dead letters with reason and
    message id. All events are acknowledged."""
    good = [
        line.change(f"INSERT INTO {{t}} (id, a) VALUES ({i}, {i}) USING {{ts}}", int32(i), columns=("a",))
        for i in range(3)
    ]
    refused = line.writer.event(int32(9), writetime_us=1)._replace(partition_key=b"\x01\x02")
    line.writer.send_bytes(b"\xff\xfe\xfd")
    line.writer.send(good[0], refused, good[1])
    line.writer.send(good[2])
    assert sorted(record.key["id"] for record in line.topic.next(3)) == [0, 1, 2]
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    unreadable, unread = _letters(pulsar, line)
    assert unreadable["topic"] == unread["topic"] == f"{line.writer.topic}-partition-0"
    assert "3 bytes are no MutationEvents record" in str(unreadable["reason"])
    assert "Expected 4 or 0 byte int (2)" in str(unread["reason"])
    assert (unread["table"], unread["key"]) == (f"{line.keyspace}.t", "0102")
    assert str(unread["place"]).endswith(f" 7:{refused.position}:0")
    first, second = str(unreadable["message_id"]), str(unread["message_id"])
    assert first != second
    assert first.count(",") == second.count(",") == 3


def test_a_row_that_lacks_a_clustering_value_is_set_aside_for_no_select_can_name_it(
    connector_line: CreateLine, deploy: Deploy, pulsar: PulsarServer
) -> None:
    """Tables with COMPACT STORAGE may have such rows. Cassandra takes no null in a condition."""
    key = "id int, a int, b int, v int, PRIMARY KEY (id, a, b)"
    line = connector_line(f"{key}) WITH COMPACT STORAGE AND CLUSTERING ORDER BY (a ASC, b DESC")
    deploy(line)
    whole, lacking = (
        line.change(
            f"INSERT INTO {{t}} ({names}) VALUES ({values}) USING {{ts}}", *map(int32, (1, 2, 3)), columns=("v",)
        )
        for names, values in (("id, a, b, v", "1, 2, 3, 4"), ("id, a, v", "1, 2, 4"))
    )
    lacking = lacking._replace(key=Projection(line.writer.table).avro_key([int32(1), int32(2), None]))
    line.writer.send(lacking._replace(clustering=(int32(2), None)), whole)
    (record,) = line.topic.next(1)
    assert record.key == {"id": 1, "a": 2, "b": 3}
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    (letter,) = _letters(pulsar, line)
    assert "Invalid null value in condition for column b" in str(letter["reason"])


@pytest.mark.parametrize("command", ["dead-letters", "resend", "expiries"])
def test_a_command_does_not_make_the_topic_that_it_asks_for(command: str, pulsar: PulsarServer) -> None:
    """Pulsar made the empty topic when the command read it."""
    name = f"nothing-{uuid4().hex}"
    where = ["--table", f"{name}.t"] if command == "expiries" else ["--topic", name]
    done = CliRunner().invoke(cli, ["connector", command, *_urls(pulsar), *where], catch_exceptions=False)
    assert (done.exit_code, "does not exist" in done.output) == (0, True), done.output
    listed = httpx.get(f"{pulsar.admin_url}/admin/v2/persistent/public/default").json()
    assert [each for each in listed if name in each] == []


def test_a_dead_letter_that_is_sent_again_leads_to_the_row_as_it_is_by_then(
    line: ConnectorLine, pulsar: PulsarServer
) -> None:
    """`cdc connector resend` empties the dead-letter topic; an event that fails again becomes a dead letter again."""
    refused = line.writer.event(int32(9), writetime_us=1)._replace(partition_key=b"\x01\x02")
    line.writer.send(refused)
    wait_until(lambda: bool(_letters(pulsar, line)), "the dead letter")
    (sent,) = _letters(pulsar, line, "resend")
    wait_until(lambda: bool(_letters(pulsar, line)), "the letter that came back")
    (again,) = _letters(pulsar, line)
    assert (again["key"], again["place"]) == (sent["key"], sent["place"])
    assert again["message_id"] != sent["message_id"]
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)


def test_what_cassandra_refuses_waits_while_the_nodes_disagree_about_the_schema(
    connector_line: CreateLine, deploy: Deploy, pulsar: PulsarServer
) -> None:
    """While the nodes' schemas differ, a node that is behind may cause the refusal. Once they agree, an event that is
    still refused becomes a dead letter."""
    line = connector_line("id int PRIMARY KEY, a int")
    line.cql.execute(f"INSERT INTO system.peers (peer, schema_version) VALUES ('127.0.0.99', {uuid4()})")
    try:
        connector = deploy(line)
        refused = line.writer.event(int32(9), writetime_us=1)._replace(partition_key=b"\x01\x02")
        line.writer.send(refused)
        line.writer.send(line.change("INSERT INTO {t} (id, a) VALUES (1, 1) USING {ts}", int32(1), columns=("a",)))
        assert line.topic.next()[0].key == {"id": 1}
        wait_until(lambda: connector.metric("reads_refused_in_disagreement") >= 3, "three refusals, not counted")
        assert _letters(pulsar, line) == []
    finally:
        line.cql.execute("DELETE FROM system.peers WHERE peer = '127.0.0.99'")
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    (letter,) = _letters(pulsar, line)
    assert letter["key"] == "0102"


def test_a_message_larger_than_the_broker_takes_at_once_is_set_aside_whole(
    line: ConnectorLine, pulsar: PulsarServer
) -> None:
    """A message in chunks becomes a dead letter in chunks; others do not wait for it, and it can be sent again."""
    junk = random.Random(5).randbytes(6 * 1024 * 1024)
    refused = line.writer.event(int32(9), writetime_us=1)._replace(partition_key=b"\x01\x02")
    line.writer.send_in_chunks(junk)
    line.writer.send(refused)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    large, small = _letters(pulsar, line)
    assert (large["bytes"], small["key"]) == (len(junk), "0102")
    assert f"{len(junk)} bytes are no MutationEvents record" in str(large["reason"])
    assert [each["bytes"] for each in _letters(pulsar, line, "resend")] == [len(junk), small["bytes"]]
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    assert {each["bytes"] for each in _letters(pulsar, line)} == {len(junk), small["bytes"]}


def test_one_reader_of_the_letters_at_a_time_and_the_connector_writes_meanwhile(
    line: ConnectorLine, pulsar: PulsarServer
) -> None:
    """A second reader waits, then gets an error; the connector's first dead letter does not wait for a reader."""
    topic = f"dead-{line.keyspace}"
    refused = line.writer.event(int32(9), writetime_us=1)._replace(partition_key=b"\x01\x02")
    arguments = ["connector", "dead-letters", *_urls(pulsar), "--topic", topic]
    log = FileLogger(LoggerLevel.Error, "/dev/null")
    with closing(Client(pulsar.service_url, operation_timeout_seconds=120, logger=log)) as client:
        consumer = client.subscribe(topic, RESEND_SUBSCRIPTION, initial_position=InitialPosition.Earliest)
        line.writer.send(refused)
        wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
        with pytest.raises(DeadLettersError, match="somebody else lists or resends these dead letters"):
            CliRunner().invoke(cli, arguments, catch_exceptions=False)
        consumer.close()
    (letter,) = _letters(pulsar, line)
    assert letter["key"] == "0102"


def test_a_record_larger_than_the_broker_takes_is_set_aside_on_a_quiet_table(
    connector_line: CreateLine, deploy_connector: DeployConnector, pulsar: PulsarServer
) -> None:
    """No other event shows that the topic works, but the record becomes a dead letter whose reason gives its size. A
    resend publishes the row once it is smaller."""
    blobs = [f"b{number}" for number in range(12)]
    line = connector_line(f"id int PRIMARY KEY, {', '.join(f'{each} blob' for each in blobs)}")
    options = {"deadLetter__topic": f"dead-{line.keyspace}", "deadLetter__maxAttempts": 2}
    deploy_connector(line.keyspace, "t", **options)
    noise = random.Random(5)  # Random bytes, because Pulsar compresses.
    for name in blobs:  # Together more than 5 MiB; each write is smaller than Cassandra's limit here.
        update = line.cql.prepare(f"UPDATE {line.keyspace}.t USING TIMESTAMP 5 SET {name} = ? WHERE id = 1")
        line.cql.execute(update, [noise.randbytes(460_000)])
    large = line.writer.event(int32(1), writetime_us=5, columns=blobs)
    line.writer.send(large)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    line.topic.expect_silence()
    (letter,) = _letters(pulsar, line)
    assert str(letter["reason"]).startswith("the data topic refused its record of 5,520,")
    assert letter["key"] == "00000001"
    line.writer.send(line.change("INSERT INTO {t} (id, b0) VALUES (2, 0x00) USING {ts}", int32(2), columns=("b0",)))
    assert line.topic.next()[0].key == {"id": 2}
    line.run("DELETE b0, b1 FROM {t} USING {ts} WHERE id = 1")
    _letters(pulsar, line, "resend")
    (record,) = line.topic.next()
    assert record.value is not None
    assert (record.key, record.value["b0"], len(record.value["b2"])) == ({"id": 1}, None, 460_000)


def test_a_partition_that_cannot_be_read_is_set_aside_while_others_are_read(
    connector_line: CreateLine, deploy: Deploy, pulsar: PulsarServer, sandbox: Sandbox
) -> None:
    """A static row is behind more tombstones than a read may meet. All events that wait for it become dead letters with
    the first one."""
    line = connector_line("p int, c int, s int STATIC, v int, PRIMARY KEY (p, c)")
    for c in range(2 * _TOMBSTONES):
        line.run(f"DELETE FROM {{t}} USING {{ts}} WHERE p = 1 AND c = {c}")
    static = [
        line.change(
            f"UPDATE {{t}} USING {{ts}} SET s = {value} WHERE p = 1",
            int32(1),
            kind=MutationKind.STATIC_ROW,
            columns=("s",),
        )
        for value in range(5)
    ]
    behind = line.change(
        "INSERT INTO {t} (p, c, v) VALUES (1, 9999, 1) USING {ts}", int32(1), int32(9999), columns=("v",)
    )
    before = _tombstone_threshold(sandbox, _TOMBSTONES)
    try:
        deploy(line, query__maxBackoffInSec=1)
        line.writer.send(*static[:3], behind, *static[3:])
        others = itertools.count(2)

        def is_set_aside() -> bool:
            other = next(others)
            insert = f"INSERT INTO {{t}} (p, c, v) VALUES ({other}, 1, 1) USING {{ts}}"
            line.writer.send(line.change(insert, int32(other), int32(1), columns=("v",)), partition=1)
            line.topic.wait_for(len(line.topic.records) + 1)
            return any(record.key["p"] == 1 for record in line.topic.records)

        wait_until(is_set_aside, "the row behind the events that are set aside")
    finally:
        _tombstone_threshold(sandbox, before)
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)
    letters = _letters(pulsar, line)
    assert len(letters) == len(static)
    assert "READ_TOO_MANY_TOMBSTONES" in str(letters[0]["reason"])
    assert "reads of other keys are answered" in str(letters[0]["reason"])
    _letters(pulsar, line, "resend")
    wait_until_acknowledged(line.writer.topic, pulsar.admin_url)

    def is_published() -> bool:
        line.topic.poll(0.5)
        statics = [record.value for record in line.topic.records if record.key == {"p": 1, "c": None}]
        return any(value is not None and value["s"] == 4 for value in statics)

    wait_until(is_published, "the static row of the letters that were sent again")


def _tombstone_threshold(sandbox: Sandbox, rows: int) -> int:
    """Set how many tombstones a read may meet, and return the number that was set before."""
    about = {"mbean": "org.apache.cassandra.db:type=StorageService", "attribute": "TombstoneFailureThreshold"}
    before = sandbox.node._ask({"type": "read", **about})
    sandbox.node._ask({"type": "write", "value": rows, **about})
    assert isinstance(before, int)
    return before
