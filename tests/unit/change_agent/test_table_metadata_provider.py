"""TableMetadataProvider: when a definition counts as confirmed by the node. The node's answers are in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.publishing.dropped_tables import TableOfNode, have_gone
from change_agent.schema.node_connection import LocalState, Node, NodeConnection, NodeUnavailableError
from change_agent.schema.schema_history import NodeSchema, SchemaHistory
from change_agent.schema.schema_store import read_definitions
from change_agent.schema.table_metadata import KnownTables, TableMetadataProvider
from tests.topics.events_topic import wait_until

_TABLE = UUID(int=1)


class _Answers(NodeConnection):
    """A node with one table. `alter` turns on its `cdc`, and adds many columns; meanwhile another node joins."""

    def __init__(self) -> None:
        super().__init__(contact_points=[], port=0, username=None, password=None)
        self._altered = False
        self.asked = 0
        self.further: list[UUID] = []
        """Ids of further tables. The version of the schema does not tell of them."""

    def alter(self) -> None:
        self._altered = True

    def local(self) -> LocalState:
        self.asked += 1
        own = Node(host_id=UUID(int=9), address="", version="", data_center="")
        return LocalState(UUID(int=self._altered), {}, own)

    def read_schema(self) -> NodeSchema:
        name = {"keyspace_name": "ks", "table_name": "t"}
        column = {**name, "clustering_order": "none", "type": "int"}
        columns = [{**column, "column_name": "k", "kind": "partition_key", "position": 0}]
        columns += [
            {**column, "column_name": f"c{each}", "kind": "regular", "position": -1}
            for each in range(500 * self._altered)
        ]
        table = {
            **name,
            "id": str(_TABLE),
            "flags": ["compound"],
            "cdc": self._altered,
            "written_us": 1 + self._altered,
        }
        others = [{**table, "table_name": f"t{each.int}", "id": str(each)} for each in self.further]
        columns += [{**columns[0], "table_name": each["table_name"]} for each in others]
        lists = {"keyspaces": [{"keyspace_name": "ks"}], "tables": [table, *others], "columns": columns}
        return NodeSchema(node_id=UUID(int=9), schema={**lists, "types": [], "views": [], "dropped_columns": []})

    def others(self) -> list[Node]:
        return [Node(host_id=UUID(int=7), address="", version="", data_center="")] if self._altered else []


@pytest.fixture
def node() -> _Answers:
    """A node that answers."""
    return _Answers()


@pytest.fixture
def history(tmp_path: Path) -> SchemaHistory:
    """The history of an empty working directory."""
    return SchemaHistory(tmp_path)


@pytest.fixture
def provider(node: _Answers, history: SchemaHistory) -> Iterator[TableMetadataProvider]:
    """A running provider."""
    made = TableMetadataProvider(node, history, 10.0)
    made.start()
    yield made
    made.stop()


def _now(provider: TableMetadataProvider) -> KnownTables | None:
    return provider.as_of(time.time_ns() // 1_000_000, 5.0)


def test_what_cannot_be_stored_is_not_confirmed(
    provider: TableMetadataProvider, node: _Answers, history: SchemaHistory
) -> None:
    """ALTER TABLE ...

    WITH cdc = true while the disk is full. The earlier definition must not count as the present one. But the nodes of
    the same answer are known: a resolved timestamp waits for the agent of a node that has joined.
    """
    before = _now(provider)
    assert before is not None and not before.tables[_TABLE].cdc
    database = history._opened()._database
    database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
    altered_at = time.monotonic()
    node.alter()
    time.sleep(0.002)
    assert _now(provider) is None
    assert [each.host_id.int for each in provider.nodes] == [9, 7]
    assert provider.nodes_asked_at > altered_at
    assert provider.known == before
    assert "cannot be written" in str(provider.problem)
    database.execute("PRAGMA max_page_count = 10000")
    wait_until(lambda: _now(provider) is not None, "there is room again", 10)
    after = provider.known
    assert after is not None and after.tables[_TABLE].cdc


@pytest.mark.parametrize("restart", [False, True], ids=["while it runs", "between two runs"])
def test_after_a_clock_that_was_ahead_the_node_is_asked_as_ever(
    node: _Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """The clock is a day ahead, then right. An earlier definition must not count for today, or for the next day."""
    real, ahead_ns = time.time_ns, 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: real() + ahead_ns)
    provider = TableMetadataProvider(node, SchemaHistory(tmp_path), 10.0)
    provider.start()
    known = _now(provider)
    assert known is not None and not known.tables[_TABLE].cdc
    if restart:
        provider.stop()
        provider = TableMetadataProvider(node, SchemaHistory(tmp_path), 10.0)
    node.alter()
    ahead_ns = 0
    if restart:
        provider.start()
    known = _now(provider)
    assert known is not None and known.tables[_TABLE].cdc
    assert known.confirmed_at_ms <= real() // 10**6
    [gone] = [each for each in read_definitions(tmp_path / "schema.sqlite") if not each.present]
    assert gone.confirmed_ms <= real() // 10**6
    asked = node.asked
    time.sleep(0.3)
    assert node.asked <= asked + 1
    known = provider.as_of((real() + 86_400 * 10**9) // 10**6, 5.0)
    assert known is not None
    provider.stop()


def test_a_table_is_gone_only_by_a_new_answer_of_the_node_that_wrote_its_events(
    node: _Answers, provider: TableMetadataProvider
) -> None:
    """A table may have been made a moment ago, and the version of the schema may not tell of it yet."""
    own, other, new, gone = UUID(int=9), UUID(int=7), UUID(int=2), UUID(int=3)
    assert _now(provider) is not None
    assert have_gone(provider, {TableOfNode(own, _TABLE)}) is False
    assert have_gone(provider, {TableOfNode(own, gone)}) is True
    node.further.append(new)
    assert provider.present is not None and new not in provider.present
    assert have_gone(provider, {TableOfNode(own, new)}) is False
    assert have_gone(provider, {TableOfNode(own, gone), TableOfNode(own, new)}) is False
    assert have_gone(provider, {TableOfNode(other, gone)}) is False
    assert have_gone(provider, {TableOfNode(own, gone)}) is True


def test_nothing_is_gone_while_the_node_does_not_answer(
    node: _Answers, provider: TableMetadataProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last answer may be an old one."""

    def refuse() -> LocalState:
        raise NodeUnavailableError("is away")

    assert have_gone(provider, {TableOfNode(UUID(int=9), UUID(int=3))}) is True
    monkeypatch.setattr(node, "local", refuse)
    assert have_gone(provider, {TableOfNode(UUID(int=9), UUID(int=3))}) is None
