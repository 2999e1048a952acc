"""Markers and static columns in a mirror: they apply to rows of other micro-batches, too."""

from __future__ import annotations

import json
import random
import time

import pytest

from spark_bridge.jobs import kept_records
from tests.fixtures.mirror import MirrorOf
from tests.fixtures.spark import MakeTopic, Record
from tests.topics.table_records import (
    BEFORE_T,
    WIDE,
    partition_deletion,
    range_deletion,
    row,
    row_deletion,
    static_row,
    write_an_added_static_column,
)

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = [pytest.mark.timeout(1_500), pytest.mark.spark_line(">=4.1")]


# So late that no row expires while a slow machine compares.
_LATER_S = 86_400


def random_record(chance: random.Random, number: int) -> Record:
    pk, a, b = chance.choice("pq"), chance.randrange(3), chance.choice("xy")
    made = row(pk, a, b, number, s=f"s{number}")
    records = [
        made,
        row(pk, a, b, None),
        Record(
            key=made.key,
            value=made.value,
            properties={**made.properties, "expires_at": str(int(time.time()) + _LATER_S)},
        ),
        Record(key=made.key, value=made.value, properties={**made.properties, "expires_at": "1000"}),
        row_deletion(pk, a, b),
        static_row(pk, s=f"static {number}", t=number),
        partition_deletion(pk) if number % 3 == 0 else made,
        range_deletion(pk, start={"a": a}),
        range_deletion(pk, end={"a": a, "b": b}, end_inclusive=False),
    ]
    return chance.choice(records)


def test_a_static_column_that_is_added_is_in_every_row_of_a_mirror(mirror_of: MirrorOf, data_topic: MakeTopic) -> None:
    """The change log has each row that gets the column, and the history has a version with it."""
    topic = data_topic(*BEFORE_T)
    kept = mirror_of(topic)
    write_an_added_static_column(topic, is_added=False)
    kept.run()
    write_an_added_static_column(topic, is_added=True)
    kept.run()
    log = kept.table("changes").where("op = 'update'").selectExpr("after.pk", "after.a", "before.t", "after.t")
    assert sorted(map(tuple, log.collect())) == [("p", 1, None, "x"), ("p", 2, None, "x"), ("q", None, None, "y")]
    closed = kept.table("history").where("valid_to IS NOT NULL").select("pk", "a", "s", "t").collect()
    assert sorted(map(tuple, closed)) == [("p", 1, "1", None), ("p", 2, "1", None), ("q", None, "2", None)]
    assert kept.replayed() == kept.open_versions() == kept.rows()
    # In a mirror, the added column comes last.
    assert [json.loads(each) for each in kept.rows()] == [json.loads(each) for each in kept.wanted()]


@pytest.mark.extended
def test_markers_static_columns_and_expiry_over_many_batches(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are those of the whole topic, independent of the division into micro-batches.

    A mirror of an earlier version continues with the records that it kept, and kept records are merged into one file
    again and again. Rows that a marker deleted stay deleted when the marker is forgotten. A row that is written again
    with a TTL expires. Static columns are those of the newest record, or gone.
    """
    topic = data_topic(*WIDE)
    kept = mirror_of(topic)
    chance = random.Random(20261121)

    def expiring(a: int, time_s: int) -> Record:
        made = row("3", a, "x", a)
        return Record(key=made.key, value=made.value, properties={**made.properties, "expires_at": str(time_s)})

    topic.write(
        *[expiring(1, int(time.time()) + _LATER_S), range_deletion("3", start={"a": 1}), expiring(1, 1000)],
        *[static_row("4", s="old"), row("4", 1, "x", 1, s="new"), row_deletion("4", 1, "x")],
        *[static_row("5", s="gone"), row("5", 1, "x", 1, s="gone"), partition_deletion("5")],
    )
    monkeypatch.setattr(kept_records, "_MOST_RUNS", 1)
    for stage in range(3):
        topic.write(*[random_record(chance, stage * 30 + n) for n in range(30)], batch=3)
        kept.run(compact=stage == 1, tombstone_retention_days=-1 if stage == 0 else 7)
        assert (rows := kept.rows()) == kept.wanted()
        if stage == 0:
            assert kept.kept().where("scope IN ('partition', 'range')").isEmpty()
            topic.write(*[row_deletion(pk, 9, "x") for pk in "345"])
        if stage == 1:
            runs = kept.applied().runs
            assert runs
            assert len(runs) <= runs[-1].number  # Each merge of kept records made one run.
            kept.as_earlier_version()
            assert kept.fresh() == rows
    assert not (kept.folder / "records").exists()
    assert [each for each in rows if not each.startswith(('{"pk":"p"', '{"pk":"q"'))] == ['{"pk":"4","s":"new"}']
    assert rows == kept.replayed() == kept.open_versions()
