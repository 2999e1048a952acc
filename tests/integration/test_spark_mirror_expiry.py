"""Rows of a mirror expire without records: when a run failed midway, and while the topic is silent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest
from pyspark.sql import SparkSession

from tests.fix_mirror import MirrorOf, stopped_after
from tests.fix_spark import PY4J_LEAVES_SOCKETS_OPEN, MakeTopic, Record
from tests.spark_settings import PATIENCE_S
from tests.table_records import PLAIN

# Spark plans dozens of small jobs a micro-batch: a busy machine takes minutes where a quiet one takes seconds.
pytestmark = [
    pytest.mark.filterwarnings(PY4J_LEAVES_SOCKETS_OPEN),
    pytest.mark.timeout(1_500),
    pytest.mark.spark_line(">=4.1"),
]


def _clock(later_s: int) -> float:
    return time.time_ns() / 1e9 + later_s


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize("table", ["history", "rows"])
def test_an_expiry_that_failed_midway_is_finished_before_the_next_records(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """They have another epoch in change log and history: none of them is taken for what the expiry has written."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    passing = {"expires_at": str(int(time.time()) + 3_600), "writetime": "5"}
    topic.write(
        Record(key={"id": 1}, value={"name": "stays"}, properties={"writetime": "5"}),
        Record(key={"id": 2}, value={"name": "goes"}, properties=passing),
    )
    kept.run()
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 7_200)
    with stopped_after(table):
        kept.run()
    topic.write(
        Record(key={"id": 3}, value={"name": "new"}, properties={"writetime": "6"}),
        Record(key={"id": 1}, value={"name": "changed"}, properties={"writetime": "6"}),
    )
    kept.run()
    assert kept.rows() == ['{"id":1,"name":"changed"}', '{"id":3,"name":"new"}']
    assert kept.replayed() == kept.open_versions() == kept.rows()
    gone = kept.table("changes").where("op = 'delete'").selectExpr("before.name").collect()
    assert [each.name for each in gone] == ["goes"]


def test_rows_expire_whose_batch_failed_midway(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When they are merged already the batch, run again, changes none of them; when they expire must not be forgotten."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    passing = {"expires_at": str(int(time.time()) + 3_600)}
    topic.write(Record(key={"id": 1}, value={"name": "goes"}, properties=passing))
    with stopped_after("records"):
        kept.run()
    kept.run()
    assert kept.rows() == ['{"id":1,"name":"goes"}']
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 7_200)
    kept.run()
    assert kept.rows() == kept.replayed() == kept.open_versions() == []


def test_a_column_goes_by_itself_and_the_row_with_its_last(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a record: the change log and the history tell of both."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    now_s = int(time.time())
    columns = {"columns_expire_at": json.dumps({"name": now_s + 3_600}), "writetime": "5"}
    row = {"expires_at": str(now_s + 9_000), "cells_expire_at": str(now_s + 9_000), "row_marker": "expires"}
    topic.write(
        Record(key={"id": 1}, value={"name": "goes"}, properties=columns),
        Record(key={"id": 2}, value={"name": "goes"}, properties={**columns, **row}),
    )
    kept.run()
    assert kept.rows() == ['{"id":1,"name":"goes"}', '{"id":2,"name":"goes"}']
    for later_s, rows in ((7_200, ['{"id":1}', '{"id":2}']), (10_000, ['{"id":1}'])):
        monkeypatch.setattr(time, "time", partial(_clock, later_s))
        kept.run()
        assert kept.rows() == kept.replayed() == kept.open_versions() == rows


def test_rows_expire_while_a_followed_topic_is_silent(
    mirror_of: MirrorOf, data_topic: MakeTopic, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without records there are no micro-batches, but time goes on; the job ends when its query is stopped."""
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    passing = {"expires_at": str(int(time.time()) + 3_600)}
    topic.write(
        Record(key={"id": 1}, value={"name": "stays"}),
        Record(key={"id": 2}, value={"name": "goes"}, properties=passing),
    )
    known = {query.id for query in spark.streams.active}
    job = threading.Thread(target=kept.run, kwargs={"follow_interval_s": 1})
    job.start()
    try:
        _until(lambda: kept.has_rows() and kept.rows() == ['{"id":1,"name":"stays"}', '{"id":2,"name":"goes"}'])
        monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 7_200)
        _until(lambda: kept.rows() == ['{"id":1,"name":"stays"}'])
    finally:
        _until(lambda: any(query.id not in known for query in spark.streams.active))
        for query in spark.streams.active:
            if query.id not in known:
                query.stop()
        job.join(PATIENCE_S)
    assert not job.is_alive()
    assert kept.replayed() == kept.open_versions() == kept.rows()
