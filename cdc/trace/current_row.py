"""The row as Cassandra has it now, read and encoded as the connector does: its newest record should be equal."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from cdc.health.line_config import LineConfig
from cdc.trace.avro_values import read_avro, value_reader_of
from cdc.trace.row_key import RowKey
from change_agent.configuration.connections import cassandra_tls
from change_agent.schema.node_connection import Node, NodeConnection
from schemas.errors import CdcError, ConfigError
from schemas.similar_tables import missing_table_text
from schemas.system_schema import tables_of
from schemas.table_metadata import TableMetadata
from source_connector.data_format import DataFormat
from source_connector.encoding.projection import Projection
from source_connector.rows.cassandra_client import CassandraClient, CassandraOptions, RowRead, reason_of
from source_connector.rows.raw_page import RawPage

__all__ = ["CurrentRow", "RowReadError", "current_row", "table_named"]

_TIMEOUT_S: Final = 20.0


class RowReadError(CdcError):
    """Cassandra does not return the row; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentRow:
    """The row. `values`: in readable form. `records`: the encoded value by format. Both are None if there is no row."""

    values: Mapping[str, object] | None
    records: Mapping[DataFormat, bytes] | None
    writetime_us: int | None
    consistency: str


def table_named(config: LineConfig, name: str) -> tuple[TableMetadata, list[Node]]:
    """The table as the cluster has it now, and the cluster's nodes. Raises ConfigError, NodeUnavailableError."""
    keyspace, dot, table = name.partition(".")
    if not dot or not table:
        raise ConfigError.of("TABLE", f"{name!r} is not KEYSPACE.TABLE")
    with closing(NodeConnection.of(config)) as connection:
        tables = tables_of(connection.read_schema().schema).values()
        nodes = connection.nodes()
    for each in tables:
        if (each.keyspace, each.name) == (keyspace, table):
            return each, nodes
    names = [f"{each.keyspace}.{each.name}" for each in tables]
    raise ConfigError.of("TABLE", missing_table_text(name, "in Cassandra", names))


def current_row(config: LineConfig, key: RowKey, data_center: str, consistency: str) -> CurrentRow:
    """Read the row of a complete key. Raises RowReadError, FetchError, DeploymentError."""
    projection = Projection(key.table)
    selection = projection.row_selection
    client = CassandraClient(
        CassandraOptions(
            contact_points=config.contact_points,
            port=config.port,
            local_dc=data_center,
            read_timeout_s=_TIMEOUT_S,
            username=config.username,
            ssl_context=cassandra_tls(config),
            password=None if config.password is None else config.password.get_secret_value(),
        )
    )
    client.connect()
    answers: queue.SimpleQueue[RawPage | Exception] = queue.SimpleQueue()
    with closing(client):
        statement = client.prepare(projection.select(selection, projection.row_where))
        read = RowRead(statement=statement, values=key.parts, consistency=consistency, event_node=None)
        client.read(read, answers.put, answers.put)
        answer = answers.get(timeout=2 * _TIMEOUT_S)
    if isinstance(answer, Exception):
        raise RowReadError(f"the row cannot be read at {consistency} ({reason_of(answer)})") from answer
    rows = answer.rows()
    if not rows:
        return CurrentRow(values=None, records=None, writetime_us=None, consistency=consistency)
    [row] = rows
    records = {
        each: Projection(key.table, data_format=each).record_value(selection, row, key.parts) for each in DataFormat
    }
    schema = value_reader_of(projection.value_schema)
    assert schema is not None, "the connector's own schema"
    values = read_avro(schema, records[DataFormat.KEY_VALUE_AVRO])
    times = selection.writetimes_us(row) if selection.timed_columns else {}
    return CurrentRow(
        values=values, records=records, writetime_us=max(times.values(), default=None), consistency=consistency
    )
