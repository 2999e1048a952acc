"""An agent without servers for these tests, and the tables that it knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stages import GOLDEN, MemoryTables, StagedAgent


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
