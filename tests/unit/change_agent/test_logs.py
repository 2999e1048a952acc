"""The agent's log as JSON: one object a line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from change_agent.reporting.logs import set_up_log


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The stream of a JSON log of level INFO."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    stream = io.StringIO()
    set_up_log("info", "json", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_each_line_is_an_object(log: io.StringIO) -> None:
    """Line breaks in a message or a traceback are escaped."""
    logging.getLogger("change_agent.test").info("two\nlines of %s", "ks.t")
    try:
        raise ValueError("geht nicht")
    except ValueError:
        logging.getLogger("change_agent.test").exception("failed")
    logging.getLogger("change_agent.test").debug("not at this level")
    first, second = map(json.loads, log.getvalue().splitlines())
    assert (first["level"], first["module"], first["message"]) == ("info", "change_agent.test", "two\nlines of ks.t")
    assert (second["level"], second["message"]) == ("error", "failed")
    assert "geht nicht" in second["traceback"]


def test_a_node_that_is_away_does_not_fill_the_log(log: io.StringIO) -> None:
    """The clients' own messages are not logged, because the agent reports the problem in one line."""
    logging.getLogger("cassandra.pool").error("connection refused")
    logging.getLogger("httpx").info("GET ...")
    assert log.getvalue() == ""
