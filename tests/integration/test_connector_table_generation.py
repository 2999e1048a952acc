"""The generation of a table in a real Cassandra: each CREATE gives a new one, which is greater."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cassandra.cluster import Session

from schemas.table_metadata import TableMetadata
from source_connector.rows.cassandra_client import CassandraClient, CassandraOptions
from source_connector.tables.table_schema import TableSchemaReader
from tests.servers.cassandra_session import answered
from tests.servers.interface import CassandraServer


@pytest.fixture
def client(cassandra_node: CassandraServer) -> Iterator[CassandraClient]:
    """The connector's own client."""
    options = CassandraOptions(
        contact_points=(cassandra_node.address,),
        port=cassandra_node.native_port,
        local_dc="datacenter1",
        read_timeout_s=60,
    )
    client = CassandraClient(options)
    answered(client.connect)
    yield client
    client.close()


def test_each_create_has_a_later_generation_and_alter_keeps_it(
    cql: Session, keyspace: str, client: CassandraClient
) -> None:
    """The generation does not depend on the table's id. Columns that ALTER adds are later, and one remaining column
    keeps the generation."""
    reader = TableSchemaReader(client, keyspace, "t")

    def read() -> TableMetadata:
        return answered(reader.read)

    create = f"CREATE TABLE {keyspace}.t (id int, ck int, a int, PRIMARY KEY (id, ck))"
    cql.execute(create)
    first = read()
    for change in ("ADD b int", "DROP a", "RENAME id TO pk", "WITH comment = 'x'"):
        cql.execute(f"ALTER TABLE {keyspace}.t {change}")
        assert read().generation == first.generation
    lives = [first]
    for with_id in ("", f" WITH ID = {first.table_id}", f" WITH ID = {first.table_id}"):
        cql.execute(f"DROP TABLE {keyspace}.t")
        cql.execute(create + with_id)
        lives.append(read())
    assert [each.table_id == first.table_id for each in lives] == [True, False, True, True]
    generations = [each.generation for each in lives if each.generation is not None]
    assert len(generations) == 4
    assert generations == sorted(set(generations))
