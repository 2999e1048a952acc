"""An agent whose broker did not answer at its start: no progress before it has the stops in the copy of positions."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from change_agent.agent import ChangeAgent
from change_agent.configuration.config import AgentConfig
from change_agent.errors import PublishError
from change_agent.positions.copied_state import CopiedState, format_copy
from change_agent.positions.offsets import OffsetStore, StoredPositions, StoredSegment
from change_agent.positions.stops import Stop, read_stops
from schemas.table_metadata import TableMetadata
from tests.agent.stages import GOLDEN
from tests.topics.events_topic import wait_until

_STORED = StoredPositions(segments={7: StoredSegment(position=100)})
_REASON = (
    "the copy of this node's positions, which may have stops of another machine, is not read yet (positions: not now)"
)


class _Topic:
    """The topic of the copy. It can be used while `answers` is True."""

    def __init__(self, payload: bytes | None) -> None:
        self.payload, self.answers = payload, False

    def read(self) -> bytes | None:
        if not self.answers:
            raise PublishError("positions", "not now")
        return self.payload

    def store(self, payload: bytes) -> None:
        assert self.answers
        self.payload = payload


@pytest.fixture
def table() -> TableMetadata:
    """The table that the agent publishes."""
    return next(iter(GOLDEN.tables().values()))


def _agent(
    folder: Path, topic: _Topic, table: TableMetadata, monkeypatch: pytest.MonkeyPatch
) -> tuple[ChangeAgent, list[frozenset[tuple[str, str]]]]:
    """An agent with positions of its own, and the tables of each moment that its publisher gets."""
    (folder / "cdc_raw").mkdir()
    store = OffsetStore(folder / "work")
    store.store(_STORED)
    store.close()
    given = {"cdcRawDirectory": folder / "cdc_raw", "cdcWorkingDir": folder / "work", "httpPort": "off"}
    agent = ChangeAgent(AgentConfig.model_validate({**given, "positionsTopicPrefix": "persistent://public/default/p-"}))
    noted: list[frozenset[tuple[str, str]]] = []
    monkeypatch.setattr(agent._publisher, "note_moment", lambda _, tables, __: noted.append(tables))
    monkeypatch.setattr(type(agent._interpreter), "published_tables", property(lambda _: [table]))
    monkeypatch.setattr(agent._copy, "_open_topic", lambda _: topic)
    monkeypatch.setattr(agent._copy, "_node_id", lambda: str(UUID(int=9)))
    monkeypatch.setattr(agent._copy, "_patience_s", 0.0)
    return agent, noted


@pytest.mark.parametrize("has_stop", [True, False])
def test_no_time_passes_the_stops_of_another_machine_while_they_are_not_known(
    tmp_path: Path, table: TableMetadata, monkeypatch: pytest.MonkeyPatch, has_stop: bool
) -> None:
    """Also a moment that is passed before the stops are known would be published after that."""
    stops = {table.full_name: Stop(reason="a gap")} if has_stop else {}
    topic = _Topic(format_copy(CopiedState(positions=_STORED, stops=stops, maker="another")))
    agent, noted = _agent(tmp_path, topic, table, monkeypatch)
    name = (table.keyspace, table.name)
    assert agent._copy is not None
    agent._copy.start()
    assert agent._copy.is_ready.wait(20)
    agent._note_moment(1)
    assert agent._table_stops() == {name: _REASON}
    topic.answers = True
    agent._copy.wake()
    expected = "a gap" if has_stop else None
    wait_until(lambda: agent._table_stops() == {name: expected}, "the copy is read", 20)
    agent._note_moment(2)
    assert noted == [frozenset(), frozenset() if has_stop else frozenset({name})]
    assert read_stops(tmp_path / "work") == {each: stop.reason for each, stop in stops.items()}
    agent._copy.stop()
    agent._watcher.close()
    agent._ending.close()


def test_progress_goes_on_if_there_is_no_copy(
    tmp_path: Path, table: TableMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = _Topic(None)
    agent, noted = _agent(tmp_path, topic, table, monkeypatch)
    assert agent._copy is not None
    agent._copy.start()
    assert agent._copy.is_ready.wait(20)
    agent._note_moment(1)
    topic.answers = True
    agent._copy.wake()
    wait_until(lambda: set(agent._table_stops().values()) == {None}, "it is known that there is none", 20)
    agent._note_moment(2)
    assert noted == [frozenset(), frozenset({(table.keyspace, table.name)})]
    agent._copy.stop()
    agent._watcher.close()
    agent._ending.close()
