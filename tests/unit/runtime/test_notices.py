"""Notices: warnings that may repeat."""

from __future__ import annotations

import logging

import pytest

from runtime.notices import Notices


def test_a_warning_is_logged_once_and_its_hint_is_asked_for_then_only(caplog: pytest.LogCaptureFixture) -> None:
    """A hint may need the network, so it is not computed for a warning that is not logged."""
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


def test_without_an_interval_a_subject_is_logged_again_only_after_it_was_cleared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The end of a warning that was never logged is not logged either."""
    caplog.set_level(logging.INFO)
    notices = Notices(logging.getLogger("test"), again_after_s=None)
    notices.clear("node", "the node answers again")
    for _ in range(3):
        notices.say("node", "waiting for the node", level=logging.ERROR)
    notices.clear("node", "the node answers again")
    notices.say("node", "waiting for the node", level=logging.ERROR)
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("ERROR", "waiting for the node"),
        ("INFO", "the node answers again"),
        ("ERROR", "waiting for the node"),
    ]
