"""Warnings that may repeat."""

from __future__ import annotations

import logging

import pytest

from source_connector.notices import Notices


def test_a_warning_is_logged_once_and_its_hint_is_asked_for_then_only(caplog: pytest.LogCaptureFixture) -> None:
    """A hint may look at the network: what is not logged must not cost it."""
    asked = []

    def hint() -> str:
        asked.append(1)
        return " (its certificate has ended)"

    notices = Notices(logging.getLogger("test"))
    for _ in range(3):
        notices.say("broker", "waiting for the broker", hint)
    notices.say("table", "shop.orders waits")
    assert caplog.messages == ["waiting for the broker (its certificate has ended)", "shop.orders waits"]
    assert len(asked) == 1
