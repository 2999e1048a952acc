"""A data topic gets more partitions: records of one key are in two of them, and their ledgers have no common order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import MakeTopic
from tests.topics.table_records import WIDE, row, row_deletion

pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]


def test_a_later_update_or_deletion_of_a_moved_key_wins(data_topic: MakeTopic, mirror_of: MirrorOf) -> None:
    topic = data_topic(*WIDE, partitions=2)
    mirror = mirror_of(topic)
    old, new = (replace(topic, name=f"{topic.name}-partition-{number}") for number in (0, 1))
    # The old partition's ledger is the younger one, as after a rollover while records of the key still come to it.
    new.write(row("p", 9, "", 9))
    old.write(*[row("p", a, "", 1) for a in (1, 2, 3, 4, 5)])
    new.write(row("p", 1, "", 2), row_deletion("p", 2, ""))
    mirror.run()
    assert _values(mirror.rows()) == {1: 2, 3: 1, 4: 1, 5: 1, 9: 9}
    new.write(row("p", 2, "", 3), row("p", 3, "", 2), row_deletion("p", 4, ""))
    mirror.run()
    assert _values(mirror.rows()) == {1: 2, 2: 3, 3: 2, 5: 1, 9: 9}
    assert mirror.rows() == mirror.wanted() == mirror.replayed() == mirror.open_versions()


def _values(rows: Sequence[str]) -> dict[int, int]:
    return {each["a"]: each["v"] for each in map(json.loads, rows)}
