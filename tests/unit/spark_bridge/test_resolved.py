"""Resolved timestamps while the agents go on: pinned checkpoints and dead letters. Pulsar's answers are given."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from uuid import UUID

import pytest

from schemas.progress_record import (
    Checkpoint,
    Peer,
    ProgressRecord,
    TableProgress,
    TopicPosition,
    encode_progress,
)
from spark_bridge.topics.resolved import ResolvedTimestamps
from tests.servers.http_brokers import Request, broker
from tests.unit.spark_bridge.test_admin import options

_NODE, _TABLE, _LEDGER = UUID(int=1), "ks.t", 7


class Pulsar:
    """The progress topic, one events topic with one partition, and the dead-letter topic `dead`.

    `consumed` is the last acknowledged entry, `end` the last entry. `letters` are entries that are dead letters.
    """

    def __init__(self) -> None:
        self.consumed, self.end = -1, -1
        self.letters: Sequence[int] = ()
        self.progress: list[bytes] = []

    def answer(self, request: Request) -> tuple[int, Mapping[str, str], object]:
        path = request.path
        if "/dead/" in path:
            return self._of_dead_letters(path)
        if path.endswith("/internalStats"):
            cursors = {"sub": {"markDeletePosition": f"{_LEDGER}:{self.consumed}"}}
            ledgers = [{"ledgerId": _LEDGER, "entries": self.end + 1, "size": 1}]
            return 200, {}, {"ledgers": ledgers, "cursors": cursors, "currentLedgerEntries": 0, "currentLedgerSize": 0}
        return 200, {}, {"partitions": 0}

    def _of_dead_letters(self, path: str) -> tuple[int, Mapping[str, str], object]:
        if "/position/" not in path:
            return 200, {}, {"partitions": 0, "subscriptions": {"resend": {"msgBacklog": len(self.letters)}}}
        entry = self.letters[int(path.rpartition("/")[2]) - 1]
        topic = "persistent://public/default/cdc-events-ks.t"
        properties = {"topic": topic, "message_id": f"({_LEDGER},{entry},-1,-1)"}
        return 200, {"X-Pulsar-Property": json.dumps(properties)}, None

    def report(self, *checkpoints: Checkpoint) -> None:
        """Publish the node's progress, with its newest checkpoints."""
        table = TableProgress(keyspace="ks", table="t", table_id=UUID(int=9), checkpoints=checkpoints)
        strategy = {"class": "org.apache.cassandra.locator.SimpleStrategy", "replication_factor": "1"}
        record = ProgressRecord(
            node_id=_NODE,
            published_ms=int(time.time() * 1000),
            tables=(table,),
            peers=(Peer(_NODE, "10.0.0.1", "dc1"),),
            replication={"ks": strategy},
        )
        self.progress.append(encode_progress(record))

    # The client and its reader.

    def create_reader(self, topic: str, *_: object, **__: object) -> Pulsar:
        return self

    def has_message_available(self) -> bool:
        return bool(self.progress)

    def read_next(self, timeout_millis: int) -> object:
        data = self.progress.pop(0)
        return SimpleNamespace(data=lambda: data, partition_key=lambda: str(_NODE))

    def close(self) -> None:
        pass


@pytest.fixture
def pulsar(monkeypatch: pytest.MonkeyPatch) -> Pulsar:
    found = Pulsar()
    monkeypatch.setattr("spark_bridge.topics.resolved.open_client", lambda options: found)
    return found


@pytest.fixture
def timestamps(pulsar: Pulsar) -> Iterator[ResolvedTimestamps]:
    with broker(pulsar.answer) as server, ResolvedTimestamps(options(server, deadLettersTopic="dead")) as opened:
        yield opened


def _at(number: int) -> Checkpoint:
    """The checkpoint of this time, which is passed with the entry of this number."""
    return Checkpoint(number, (TopicPosition(_LEDGER, number),))


def test_a_passed_checkpoint_counts_until_a_newer_one_is_passed(pulsar: Pulsar, timestamps: ResolvedTimestamps) -> None:
    """The agent's newest record may have only checkpoints that the connector has not reached."""
    pulsar.consumed = pulsar.end = 10
    pulsar.report(_at(5))
    assert timestamps.read(_TABLE).resolved_ms == 5
    pulsar.end = 90
    for number in (70, 80, 90):
        pulsar.report(_at(number))
        assert timestamps.read(_TABLE).resolved_ms == 5
    pulsar.consumed = 80
    assert timestamps.read(_TABLE).resolved_ms == 80


def test_passed_checkpoints_take_no_room_from_those_that_wait(pulsar: Pulsar, timestamps: ResolvedTimestamps) -> None:
    """At most 64 are kept. With more, every second one is dropped, and the timestamp is late."""
    for number in range(1, 61):
        pulsar.consumed = pulsar.end = number
        pulsar.report(_at(number))
        assert timestamps.read(_TABLE).resolved_ms == number
    for pulsar.end in range(61, 101):
        pulsar.report(_at(pulsar.end))
        assert timestamps.read(_TABLE).resolved_ms == 60
    for pulsar.consumed in range(61, 101):
        assert timestamps.read(_TABLE).resolved_ms == pulsar.consumed


@pytest.mark.parametrize("letters", [(7, 3, 9), (3, 7), (9, 7, 3)])
def test_no_event_after_the_first_dead_letter_counts_as_consumed(
    pulsar: Pulsar, timestamps: ResolvedTimestamps, letters: Sequence[int]
) -> None:
    """Dead letters may be in any order: an event is tried many times before it becomes one."""
    pulsar.consumed = pulsar.end = 12
    assert [each.consumed for each in timestamps.cursors(_TABLE)] == [TopicPosition(_LEDGER, 12)]
    pulsar.letters = letters
    (cursor,) = timestamps.cursors(_TABLE)
    assert (cursor.consumed, cursor.is_held) == (TopicPosition(_LEDGER, 2), True)
    pulsar.report(_at(12), _at(2))
    assert timestamps.read(_TABLE).resolved_ms == 2
