"""The open gaps of a gaps topic, without those that an operator has acknowledged. Pulsar's answers are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pulsar
import pytest

from schemas.gap_record import encode_gap
from spark_bridge.topics.gaps import GapsTopic
from tests.servers.http_brokers import broker, owner_of_all
from tests.topics.gaps import GAP
from tests.unit.spark_bridge.test_admin import options

_LEDGER = 7
_GAPS = [replace(GAP, first_segment_id=each, last_segment_id=each) for each in (10, 20, 30)]


class Topic:
    """The gaps topic as a client and its reader see it: one message in each entry."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self._waiting = list(enumerate(payloads))

    def create_reader(self, topic: str, *_: object, **__: object) -> Topic:
        return self

    def has_message_available(self) -> bool:
        return bool(self._waiting)

    def read_next(self, timeout_millis: int) -> object:
        entry, data = self._waiting.pop(0)
        return SimpleNamespace(data=lambda: data, message_id=lambda: pulsar.MessageId(-1, _LEDGER, entry, -1))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("subscription", "acknowledged", "is_open"),
    [
        ("sub", f"{_LEDGER}:-1", [True, True, True]),
        ("sub", f"{_LEDGER}:0", [False, True, True]),
        ("sub", f"{_LEDGER}:1", [False, False, True]),
        ("sub", f"{_LEDGER + 1}:-1", [False, False, False]),
        ("sub", f"{_LEDGER - 1}:9", [True, True, True]),
        ("another", f"{_LEDGER}:2", [True, True, True]),
    ],
)
def test_a_gap_that_an_operator_has_acknowledged_is_not_open(
    monkeypatch: pytest.MonkeyPatch, subscription: str, acknowledged: str, is_open: Sequence[bool]
) -> None:
    """He does so on the connector's subscription, up to and with the gap's record."""
    monkeypatch.setattr("spark_bridge.topics.gaps.open_client", lambda options: Topic(list(map(encode_gap, _GAPS))))
    stats = {"ledgers": [], "cursors": {subscription: {"markDeletePosition": acknowledged}}, "partitions": 0}
    with broker(owner_of_all(stats)) as server:
        found = GapsTopic(options(server)).open_gaps()
    assert found == [gap for gap, is_one in zip(_GAPS, is_open, strict=True) if is_one]


def test_messages_that_are_no_gap_records_are_counted_if_they_are_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They hide no gap."""
    payloads = [b"foreign", b"foreign", encode_gap(GAP)]
    monkeypatch.setattr("spark_bridge.topics.gaps.open_client", lambda options: Topic(payloads))
    stats = {"ledgers": [], "cursors": {"sub": {"markDeletePosition": f"{_LEDGER}:0"}}, "partitions": 0}
    with broker(owner_of_all(stats)) as server:
        topic = GapsTopic(options(server))
        assert (topic.open_gaps(), topic.foreign_messages) == ([GAP], 1)
