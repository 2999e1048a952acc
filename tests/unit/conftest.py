"""What every unit test needs: the log as pytest has set it up."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """Restore the root logger after each test: an agent that runs in the test's process sets up its level and handlers."""
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
