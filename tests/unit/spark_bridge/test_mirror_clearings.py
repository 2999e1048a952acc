"""The truncations that a mirror has reached, with given answers of an admin service."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import httpx
import pytest

from spark_bridge.jobs.mirror_clearings import PendingClearings
from spark_bridge.jobs.mirror_state import Applied
from spark_bridge.rows.cleared import clears
from spark_bridge.topics import admin
from spark_bridge.topics.patience import patiently
from spark_bridge.topics.table_clearing import TableClearing
from tests.servers.http_brokers import Broker
from tests.unit.spark_bridge.test_admin import options, server

__all__ = ["server"]

TOPIC: Final = "persistent://public/default/t"
CLEARING: Final = TableClearing(
    kind="truncation", table_id="a", table_generation=1, time_ms=5, nodes=(), data_topic=TOPIC, positions=((7, 3),)
)
NO_PARTITIONS: Final = (200, '{"partitions": 0}')


def ledgers(*found: tuple[int, int]) -> tuple[int, str]:
    """An answer of the admin service with these ledgers; the last one is open."""
    told = [{"ledgerId": ledger, "entries": entries, "size": 1} for ledger, entries in found]
    answer = {"ledgers": told, "cursors": {}, "currentLedgerEntries": found[-1][1], "currentLedgerSize": 1}
    return 200, json.dumps(answer)


@pytest.mark.parametrize(
    ("server", "read", "is_reached"),
    [
        ([NO_PARTITIONS, ledgers((7, 4), (9, 1))], (7, 3, -1), True),
        ([NO_PARTITIONS, ledgers((7, 4), (9, 1))], (9, 0, 5), True),
        ([NO_PARTITIONS, ledgers((7, 4), (9, 1))], (7, 2, -1), False),
        ([NO_PARTITIONS, ledgers((9, 1))], (7, 2, -1), True),
        ([NO_PARTITIONS, ledgers((7, 4))], None, False),
        ([NO_PARTITIONS, ledgers((9, 1))], None, True),
    ],
    ids=[
        "all before it is read",
        "more is read",
        "one entry is unread",
        "what is unread was dropped",
        "nothing is read",
        "nothing is read and nothing is there",
    ],
    indirect=["server"],
)
def test_a_truncation_is_reached_when_nothing_before_it_is_unread(
    server: Broker,
    read: tuple[int, int, int] | None,
    is_reached: bool,
) -> None:
    applied = Applied(epoch=1, table_id="a", table_generation=1, positions={} if read is None else {TOPIC: read})
    pending = PendingClearings.of([CLEARING], applied, options(server))
    assert pending.reached(applied) == ([CLEARING] if is_reached else [])


@pytest.mark.parametrize(
    ("server", "read", "cleared", "kept"),
    [
        ([NO_PARTITIONS, ledgers((9, 0)), NO_PARTITIONS], (7, 3, -1), [(7, 3, -1)], [(9, 0, -1)]),
        ([NO_PARTITIONS, ledgers((9, 2), (12, 1)), NO_PARTITIONS], (9, 1, -1), [(7, 3, -1)], [(9, 0, -1), (9, 1, -1)]),
    ],
    ids=["nothing was published since", "what was published since is read already"],
    indirect=["server"],
)
def test_records_that_pulsar_had_deleted_before_a_truncation_are_removed_from_the_mirror_that_read_them(
    server: Broker,
    read: tuple[int, int, int],
    cleared: Sequence[tuple[int, int, int]],
    kept: Sequence[tuple[int, int, int]],
) -> None:
    """The connector found no message in the partition, so its record has no position there."""
    told = replace(CLEARING, positions=(None,), time_ms=5)
    applied = Applied(epoch=1, table_id="a", table_generation=1, positions={TOPIC: read})
    (found,) = PendingClearings.of([told], applied, options(server)).reached(applied)
    assert found.name == told.name
    assert all(clears(found, -1, each, 4_999) for each in cleared)
    assert not any(clears(found, -1, each, 4_999) for each in kept)


@pytest.mark.parametrize("server", [[NO_PARTITIONS]], indirect=True)
def test_what_was_applied_and_what_no_record_names_is_not_asked_for(
    server: Broker,
) -> None:
    """The cases: a mirror without records, one that begins again, and one that has applied the truncation."""
    for applied in (
        Applied(),
        Applied(table_id="a", begins_anew=True),
        Applied(table_id="a", cleared=(CLEARING.name, "of a topic that was trimmed")),
    ):
        pending = PendingClearings.of([CLEARING], applied, options(server))
        assert pending.reached(applied) == []
    assert pending.still_known(applied) == (CLEARING.name,)
    assert server.asked == []


@pytest.mark.parametrize("server", [[(503, "starting"), NO_PARTITIONS]], indirect=True)
def test_a_running_mirror_waits_for_a_broker_that_restarts(server: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits as long as its query: if the micro-batch failed, a following mirror would end."""
    patience = set[float]()

    def wait(ask: Callable[[], httpx.Response], patience_s: float) -> httpx.Response:
        patience.add(patience_s)
        return patiently(ask, patience_s)

    monkeypatch.setattr(admin, "patiently", wait)
    applied = Applied(epoch=1, table_id="a", table_generation=1, positions={TOPIC: (7, 3, -1)})
    given = options(server, operationTimeoutSeconds="17")
    assert PendingClearings.of([CLEARING], applied, given).reached(applied) == [CLEARING]
    assert patience == {17}
