"""The dead letters in a trace."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cdc.health.findings import Level
from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import PulsarService
from cdc.trace.report import _letters
from source_connector.events import dead_letters as module
from tests.unit.cdc.test_trace_differences import Topic
from tests.unit.source_connector.test_dead_letters import LETTER, OTHER, Broker, Message


class Service:
    """A Pulsar service on which every topic exists."""

    def stats(self, topic: str) -> dict[str, Any]:
        return {}


def test_a_message_that_is_no_dead_letter_is_not_to_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays until an operator removes it. The error of the reading says so."""
    broker = Broker([Message(0, LETTER), Message(1, OTHER)])
    monkeypatch.setattr(module, "new_client", lambda options: broker)
    config = LineConfig.from_mapping({"pulsarAdminUrl": "http://127.0.0.1:8080"})
    (found,) = _letters(cast("PulsarService", Service()), config, Topic().key, ())
    assert (found.level, found.remedy) == (
        Level.WARNING,
        "follow the advice of this text, or run the command again if it has none",
    )
    assert "`pulsar-admin topics clear-backlog --subscription resend " in found.text
