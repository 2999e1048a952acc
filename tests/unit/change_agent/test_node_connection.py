"""NodeConnection: reading the schema while it changes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast
from uuid import UUID

import pytest
from cassandra.cluster import Cluster
from cassandra.connection import ConnectionException, ProtocolError
from cassandra.policies import LoadBalancingPolicy, SimpleConvictionPolicy
from cassandra.pool import Host
from cassandra.protocol import (
    ConfigurationException,
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    ProtocolException,
    ProtocolHandler,
    ResultMessage,
    ServerError,
)

from change_agent.schema.node_connection import NodeConnection, NodeUnavailableError
from schemas.system_schema import Row

_TABLE: Row = {"keyspace_name": "ks", "table_name": "t", "id": UUID(int=7), "written_us": 1}
_COLUMN: Row = {"keyspace_name": "ks", "table_name": "t", "column_name": "k", "kind": "partition_key"}


class _Node:
    """The lists of a node by name. `between` is called with the name of a list before it is returned."""

    def __init__(self, between: Callable[[_Node, str], None]) -> None:
        self.lists: dict[str, list[Row]] = {"tables": [_TABLE], "columns": [_COLUMN]}
        self.asked: list[str] = []
        self._between = between

    def execute(self, query: str, timeout: float) -> Sequence[Row]:
        if " FROM system.local" in query:
            return [{"host_id": UUID(int=9)}]
        name = query.rpartition("system_schema.")[2]
        self._between(self, name)
        self.asked.append(name)
        return list(self.lists.get(name, ()))


def _connected_to(node: _Node) -> NodeConnection:
    connection = NodeConnection(contact_points=["127.0.0.1"], port=9042, username=None, password=None)
    connection._session = node
    return connection


def test_a_table_that_is_dropped_while_the_schema_is_read_is_whole_or_not_there() -> None:
    """The lists are read one after the other. A row of `tables` without its columns would be a table without a key."""

    def drop(node: _Node, name: str) -> None:
        if name == "columns" and "columns" not in node.asked:
            node.lists = {}

    read = _connected_to(_Node(drop)).read_schema()
    assert (read.schema["tables"], read.schema["columns"]) == ([], [])
    assert read.node_id == UUID(int=9)


def test_a_table_that_is_altered_while_the_schema_is_read_is_as_it_is_then() -> None:
    """Its columns match the write time of its row."""
    added = {**_COLUMN, "column_name": "v", "kind": "regular"}

    def alter(node: _Node, name: str) -> None:
        if name == "columns" and "columns" not in node.asked:
            node.lists = {"tables": [{**_TABLE, "written_us": 2}], "columns": [_COLUMN, added]}

    read = _connected_to(_Node(alter)).read_schema()
    assert [row["written_us"] for row in read.schema["tables"]] == [2]
    assert [row["column_name"] for row in read.schema["columns"]] == ["k", "v"]


def test_a_schema_that_never_rests_is_an_error_that_says_so() -> None:
    """The agent tries again. Meanwhile it uses the changes that it finds in the log."""

    def alter(node: _Node, name: str) -> None:
        if name == "columns":
            [row] = node.lists["tables"]
            node.lists["tables"] = [{**row, "written_us": cast("int", row["written_us"]) + 1}]

    with pytest.raises(
        NodeUnavailableError, match=r"127\.0\.0\.1 port 9042: its schema changed 10 times while it was read"
    ):
        _connected_to(_Node(alter)).read_schema()


class _Joined:
    """A node whose list of the others has two rows: Cassandra has just begun to write the columns of each."""

    def execute(self, query: str, timeout: float) -> Sequence[Row]:
        empty: Row = dict.fromkeys(("host_id", "release_version", "data_center", "rpc_address", "truncated_at"))
        if " FROM system.local" in query:
            return [{**empty, "schema_version": UUID(int=5), "host_id": UUID(int=9), "data_center": "dc1"}]
        return [{**empty, "rpc_address": "10.0.0.2"}, {**empty, "host_id": UUID(int=2)}]


def test_a_node_whose_data_center_is_not_known_yet_has_none() -> None:
    """A name such as `None` would be another data center, whose nodes do not count for resolved timestamps."""
    connection = NodeConnection(contact_points=["127.0.0.1"], port=9042, username=None, password=None)
    connection._session = _Joined()
    assert [(each.host_id.int, each.data_center, each.address) for each in connection.nodes()] == [
        (9, "dc1", ""),
        (2, "", ""),
    ]


def test_all_queries_of_a_connection_go_to_the_same_contact_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is the one that the connection gives to the driver. Nothing connects here."""
    found: list[LoadBalancingPolicy] = []

    def connect(cluster: Cluster) -> _Node:
        found.append(cluster.profile_manager.default.load_balancing_policy)
        return _Node(lambda node, name: None)

    monkeypatch.setattr(Cluster, "connect", connect)
    addresses = ["127.0.0.2", "127.0.0.1"]
    connection = NodeConnection(contact_points=addresses, port=9042, username=None, password=None)
    connection.read_schema()
    connection.close()
    (policy,) = found
    hosts = [Host(address, SimpleConvictionPolicy) for address in addresses]
    policy.populate(None, hosts)

    first = [next(policy.make_query_plan()).address for _ in range(4)]
    policy.on_down(hosts[1])

    # In turns, the cluster's nodes would be one node's `system.local` and another one's `system.peers`.
    assert first == ["127.0.0.1"] * 4
    assert next(policy.make_query_plan()).address == "127.0.0.2"


class _Refusing:
    """A node that answers every query with the same error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def execute(self, query: str, timeout: float) -> Sequence[Row]:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        ProtocolException(0x0A, "Invalid message", None),
        ServerError(0, "java.lang.NullPointerException", None),
        OverloadedErrorMessage(0x1001, "Too many in flight", None),
        IsBootstrappingErrorMessage(0x1002, "Cannot read from a bootstrapping node", None),
        ConfigurationException(0x2300, "Unrecognized strategy option", None),
        ErrorMessage(0x7777, "an error of a later version", None),
        ConnectionException("Got unexpected message"),
        ProtocolError("Received negative body length"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_any_error_that_a_node_answers_means_that_it_does_not_answer_now(error: Exception) -> None:
    """The driver raises these as they are. They ended the thread that reads the schema, and so the agent."""
    connection = NodeConnection(contact_points=["127.0.0.1"], port=9042, username=None, password=None)
    connection._session = _Refusing(error)
    with pytest.raises(NodeUnavailableError, match=r"^Cassandra at 127\.0\.0\.1 port 9042: ") as raised:
        connection.local()
    assert str(error) in str(raised.value)
    assert not raised.value.is_refusal


_PROTOCOL: Final = 5


def _rows() -> bytes:
    """The body of an answer with one row: a text and an int. Native protocol v5, 4.2.5.2."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    def cell(value: bytes) -> bytes:
        return struct.pack(">i", len(value)) + value

    columns = text("a") + struct.pack(">H", 0x0D) + text("b") + struct.pack(">H", 0x09)
    metadata = struct.pack(">ii", 1, 2) + text("system") + text("local") + columns
    return struct.pack(">i", 2) + metadata + struct.pack(">i", 1) + cell(b"Murmur3") + cell(bytes(4))


def _decoded(body: bytes) -> object:
    """What the driver makes of a body."""
    return ProtocolHandler.decode_message(_PROTOCOL, {}, 1, 0, ResultMessage.opcode, body, None, None)


def _errors_of_damaged_answers() -> Iterator[Exception]:
    """What the driver raises for the answer if it is cut at every byte, and if each byte is another one."""
    whole = _rows()
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [
        whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :]
        for at in range(len(whole))
        for flipped in (1, 16, 128, 255)
    ]
    for body in damaged:
        try:
            _decoded(body)
        except Exception as error:  # noqa: BLE001  # all of them are what is tested
            yield error


def test_an_answer_that_cannot_be_decoded_means_that_the_node_does_not_answer_now() -> None:
    """The driver hands its errors of decoding to who asked. They ended the thread that reads the schema."""
    assert isinstance(_decoded(_rows()), ResultMessage)
    found = {type(error): error for error in _errors_of_damaged_answers()}
    assert len(found) > 3
    for error in found.values():
        connection = NodeConnection(contact_points=["127.0.0.1"], port=9042, username=None, password=None)
        connection._session = _Refusing(error)
        with pytest.raises(NodeUnavailableError) as raised:
            connection.local()
        if type(error).__module__ in ("builtins", "struct"):
            said = f"Cassandra at 127.0.0.1 port 9042: its answer cannot be decoded ({type(error).__name__}: "
            assert str(raised.value).startswith(said)
            assert "\n" not in str(raised.value)
