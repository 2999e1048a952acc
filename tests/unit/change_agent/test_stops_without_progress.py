"""Agents with `progressIntervalMs: 0`: a later run that publishes the progress knows which tables were left out."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from change_agent.agent import ChangeAgent
from change_agent.configuration.config import AgentConfig
from change_agent.positions.stops import read_stops
from change_agent.private_files import replace_private
from change_agent.schema.node_connection import LocalState, Node, NodeConnection
from change_agent.schema.schema_history import NodeSchema
from schemas.progress_record import Checkpoint, ProgressRecord, TableProgress, TopicPosition, encode_progress

_TABLE = UUID(int=1)
_NODE = UUID(int=9)


class _Node(NodeConnection):
    """A node with the table ks.t. Its answers are in memory."""

    def __init__(self, *, is_logged: bool) -> None:
        super().__init__(contact_points=[], port=0, username=None, password=None)
        self._is_logged = is_logged

    def local(self) -> LocalState:
        return LocalState(UUID(int=5), {}, Node(host_id=_NODE, address="", version="", data_center=""))

    def read_schema(self) -> NodeSchema:
        name = {"keyspace_name": "ks", "table_name": "t"}
        column = {**name, "column_name": "k", "kind": "partition_key", "position": 0, "clustering_order": "none"}
        table = {**name, "id": str(_TABLE), "flags": ["compound"], "cdc": True, "written_us": 1}
        lists = {
            "keyspaces": [{"keyspace_name": "ks", "durable_writes": self._is_logged}],
            "tables": [table],
            "columns": [{**column, "type": "int"}],
        }
        return NodeSchema(node_id=_NODE, schema={**lists, "types": [], "views": [], "dropped_columns": []})

    def others(self) -> list[Node]:
        return []


def _run(folder: Path, *, is_logged: bool = True, **options: object) -> ChangeAgent:
    """Run an agent without progress until its first status. It has read the node's schema."""
    (folder / "cdc_raw").mkdir(exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    given = {
        "cdcRawDirectory": folder / "cdc_raw",
        "cdcWorkingDir": folder / "work",
        "progressIntervalMs": 0,
        "httpPort": "off",
    }
    agent = ChangeAgent(AgentConfig.model_validate({**given, **options}))
    agent._provider._connection = _Node(is_logged=is_logged)
    agent._apply(agent._config)
    agent._provider._history.load()
    agent._provider._ask()
    agent._interpreter.use_schema_of(0)
    agent._writer._try_to_write_status()
    agent._provider._history.close()
    agent._watcher.close()
    agent._ending.close()
    return agent


def _note_progress(folder: Path) -> None:
    """Store the progress of the table as an earlier run with progress leaves it."""
    (folder / "work").mkdir()
    checkpoints = (Checkpoint(5000, (TopicPosition(5, 1),)),)
    table = TableProgress(keyspace="ks", table="t", table_id=_TABLE, checkpoints=checkpoints, stopped=None)
    record = ProgressRecord(node_id=_NODE, published_ms=5000, tables=(table,), peers=(), replication={}, behind=None)
    replace_private(folder / "work" / "progress.avro", encode_progress(record))


def test_a_table_that_a_run_without_progress_left_out_stands_still(tmp_path: Path) -> None:
    """Otherwise a later run with both would claim that the topic has the changes of that time."""
    _note_progress(tmp_path)
    _run(tmp_path, excludeTables="ks.t")
    assert read_stops(tmp_path / "work")["ks.t"].startswith("includeTables or excludeTables left it out")


def test_writes_that_are_not_logged_during_a_run_without_progress_stop_the_table(tmp_path: Path) -> None:
    _run(tmp_path, is_logged=False)
    assert read_stops(tmp_path / "work")["ks.t"].startswith("keyspace ks has durable_writes = false")


def test_a_run_without_progress_publishes_none_and_stops_no_table_without_a_reason(tmp_path: Path) -> None:
    _note_progress(tmp_path)
    agent = _run(tmp_path)
    assert read_stops(tmp_path / "work") == {}
    assert agent._progress.record is None
    assert not agent._progress.is_started
