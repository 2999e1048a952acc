"""The cluster's time, when the machine's clock is wrong."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from cassandra.util import uuid_from_time

from source_connector.rows.cluster_clock import ClusterClock


def test_a_wrong_clock_of_the_machine_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's time counts from its answer on, so this clock is never ahead of the node's."""
    clock, node_s = ClusterClock(), datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    now = time.monotonic()
    clock.observe(uuid_from_time(node_s), now)
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600)
    passed_s = time.monotonic() - now
    assert node_s + passed_s <= clock.time_s() + 1e-3 < node_s + 1


def test_before_a_node_has_told_it_is_the_machines() -> None:
    """No row is read before that."""
    assert abs(ClusterClock().time_s() - time.time()) < 1
