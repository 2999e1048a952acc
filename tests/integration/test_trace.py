"""`cdc trace` and `cdc resend`, beside real servers, an agent and a source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from cassandra.cluster import Session
from click.testing import CliRunner

from cdc.main import cli
from change_agent.schema.node_connection import NodeUnavailableError
from tests.fixtures.connector import DeployConnector
from tests.topics.agent_table import AgentTable
from tests.topics.events_topic import wait_until

# Sections with a finding that is not ok if a server does not answer within ten seconds, or if a topic does not exist
# yet.
_OF_SERVERS: Final = ("events", "records", "dead letters", "row")


def _traced(line_yaml: Path, *words: str) -> dict[str, list[dict[str, Any]]]:
    """Findings by section, once each server has answered in time."""
    arguments = ["trace", "--config", str(line_yaml), "--json", *words]
    found: dict[str, list[dict[str, Any]]] = {}

    def is_answered() -> bool:
        try:
            done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        except NodeUnavailableError:
            return False
        said = json.loads(done.stdout)
        assert done.exit_code == int(said["level"] == "failure")
        found.update({section["title"]: section["findings"] for section in said["sections"]})
        return all(each["level"] == "ok" for title in _OF_SERVERS for each in found[title])

    wait_until(is_answered, f"the servers answer about {' '.join(words)}")
    return found


@pytest.mark.usefixtures("keep_data_topics")
def test_a_row_is_found_on_its_whole_way_and_published_again(
    line_yaml: Path, cql: Session, keyspace: str, table: AgentTable, deploy_connector: DeployConnector
) -> None:
    """`cdc trace` shows a row in each part, a row that was written without CDC, and a deleted row; `cdc resend`
    publishes the latter two."""
    table.create("id int, day date, v text, n decimal, PRIMARY KEY (id, day)")
    deploy_connector(keyspace, "t")
    # The agent deletes a finished segment, so the segment of the row must not become full before the trace.
    table.end_segment()
    cql.execute(f"INSERT INTO {table.name} (id, day, v, n) VALUES (-1, '2026-11-24', 'amber', 7.50)")

    def differs(*key: str) -> str:
        return str(_traced(line_yaml, table.name, *key)["what differs"][0]["text"])

    equal = "nothing: the newest record is the row as Cassandra has it"
    wait_until(lambda: differs("-1", "2026-11-24") == equal, "the record of the row")
    found = _traced(line_yaml, table.name, "-1", "2026-11-24")
    assert [each["text"].partition(" ")[0] for each in found["commit log"]] == ["written"]
    [event], [record], [row] = found["events"], found["records"], found["row"]
    assert event["subject"].startswith(f"cdc-events-{table.name}-partition-")
    assert event["text"].startswith("written ")
    assert record["text"].startswith('row; {"n": "7.50", "v": "amber"}; written ')
    assert row["text"].startswith('{"n": "7.50", "v": "amber"}; written ')
    assert found["dead letters"] == [{"level": "ok", "subject": "", "text": "none", "remedy": ""}]
    assert [each["text"].partition(" ")[0] for each in _traced(line_yaml, table.name, "-1")["events"]] == ["written"]

    cql.execute(f"ALTER TABLE {table.name} WITH cdc = false")
    cql.execute(f"INSERT INTO {table.name} (id, day, v) VALUES (2, '2026-11-24', 'beryl')")
    assert differs("2", "2026-11-24") == "Cassandra has the row, and the data topic has no record of it"
    sent = CliRunner().invoke(
        cli, ["resend", "--config", str(line_yaml), table.name, "2", "2026-11-24"], catch_exceptions=False
    )
    assert (sent.exit_code, "sent as cdc-events-" in sent.stdout) == (0, True)
    wait_until(lambda: differs("2", "2026-11-24") == equal, "the record of the row that was sent again")
    cql.execute(f"DELETE FROM {table.name} WHERE id = -1 AND day = '2026-11-24'")
    assert differs("-1", "2026-11-24") == "Cassandra has no row, and the newest record has one"
    CliRunner().invoke(
        cli, ["resend", "--config", str(line_yaml), table.name, "-1", "2026-11-24"], catch_exceptions=False
    )
    gone = "nothing: the row is gone, and the newest record says so"
    wait_until(lambda: differs("-1", "2026-11-24") == gone, "the record of the row that is gone")


@pytest.mark.usefixtures("keep_data_topics")
def test_records_that_a_truncation_or_a_ttl_has_removed_do_not_differ(
    line_yaml: Path, cql: Session, keyspace: str, table: AgentTable, deploy_connector: DeployConnector
) -> None:
    """The topic still has them. A row that is written after the truncation counts."""
    table.create("id int PRIMARY KEY, v text, w text")
    deploy_connector(keyspace, "t")

    def differs(key: str) -> str:
        return str(_traced(line_yaml, table.name, key)["what differs"][0]["text"])

    def write(key: int) -> None:
        cql.execute(f"INSERT INTO {table.name} (id, v) VALUES ({key}, 'amber')")
        cql.execute(f"UPDATE {table.name} USING TTL 20 SET w = 'gone soon' WHERE id = {key}")

    equal = "nothing: the newest record is the row as Cassandra has it"
    write(1)
    wait_until(lambda: "columns_expire_at" in _traced(line_yaml, table.name, "1")["records"][-1]["text"], "the records")
    wait_until(lambda: '"w": null' in _traced(line_yaml, table.name, "1")["row"][0]["text"], "the end of the TTL")
    assert '"w": "gone soon"' in _traced(line_yaml, table.name, "1")["records"][-1]["text"]
    assert differs("1") == equal
    cql.execute(f"TRUNCATE {table.name}")
    write(2)
    wait_until(lambda: differs("1") == "nothing: there is no row, and no record that counts", "the truncation")
    removed = _traced(line_yaml, table.name, "1")["records"][-1]["text"]
    assert "; removed by the truncation of " in removed
    wait_until(lambda: differs("2") == equal, "the record behind the truncation")
