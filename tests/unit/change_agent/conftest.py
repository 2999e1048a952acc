"""Fixtures: an agent without servers, the tables that it knows, and a publisher with a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.stages import GOLDEN, MemoryTables, StagedAgent
from tests.unit.change_agent.memory_broker import MemoryBroker, PublisherLine


@pytest.fixture
def tables() -> MemoryTables:
    """The tables of the golden segments."""
    return MemoryTables(GOLDEN.tables())


@pytest.fixture
def agent(tmp_path: Path, tables: MemoryTables) -> Iterator[StagedAgent]:
    """A running agent with an empty cdc_raw."""
    made = StagedAgent(tmp_path, tables)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker that is available and accepts every message."""
    return MemoryBroker()


@pytest.fixture
def line(broker: MemoryBroker, tmp_path: Path) -> Iterator[PublisherLine]:
    """A running publisher."""
    made = PublisherLine(broker, tmp_path)
    made.publisher.start()
    yield made
    made.publisher.stop()
    assert made.publisher.failure is None
