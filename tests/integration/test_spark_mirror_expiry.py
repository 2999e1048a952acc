"""Rows of a mirror expire without records: after a run that failed midway, and while no record comes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame

from spark_bridge.jobs.mirror import MirrorSummary, _Steps
from spark_bridge.jobs.mirror_batch import MirrorBatch
from tests.fixtures.mirror import MirrorOf, stopped_after
from tests.fixtures.spark import MakeTopic, Record
from tests.topics.table_records import PLAIN

# Spark plans dozens of small jobs for a micro-batch, which take minutes on a busy machine and seconds on an idle one.
pytestmark = [pytest.mark.timeout(2_400), pytest.mark.spark_line(">=4.1")]

_WITHIN_S: Final = 600


def _set_clock(monkeypatch: pytest.MonkeyPatch, later_s: int) -> None:
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + later_s)


def _until(is_so: Callable[[], bool], job: Future[MirrorSummary]) -> None:
    end = time.monotonic() + _WITHIN_S
    while not is_so():
        assert not job.done(), "the job has ended"
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.extended
def test_rows_and_columns_expire_once_whatever_fails_midway(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed run is finished before new records are read, and each row and column expires exactly once.

    The batch with the rows fails after its last table, one expiry after the history, and the next one after the rows.
    Records after an expiry have another epoch in change log and history, so none of them is taken for a change of the
    expiry. A column expires separately, and a row with its last column.
    """
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    now_s = int(time.time())
    said = {"writetime": "5"}
    passing, later = ({**said, "expires_at": str(now_s + time_s)} for time_s in (3_600, 9_000))
    column = {**said, "columns_expire_at": json.dumps({"name": now_s + 3_600})}
    with_row = {**column, **later, "cells_expire_at": str(now_s + 9_000), "row_marker": "expires"}
    topic.write(
        Record(key={"id": 1}, value={"name": "stays"}, properties=said),
        Record(key={"id": 2}, value={"name": "goes"}, properties=passing),
        Record(key={"id": 3}, value={"name": "column goes"}, properties=column),
        Record(key={"id": 4}, value={"name": "row goes later"}, properties=with_row),
        Record(key={"id": 5}, value={"name": "goes later"}, properties=later),
    )
    with stopped_after("kept"):
        kept.run()
    kept.run()
    names = ["stays", "goes", "column goes", "row goes later", "goes later"]
    assert kept.rows() == [f'{{"id":{number},"name":"{name}"}}' for number, name in enumerate(names, start=1)]
    for later_s, table, new, rows in (
        (7_200, "history", 6, ['{"id":3}', '{"id":4}', '{"id":5,"name":"goes later"}', '{"id":6,"name":"new"}']),
        (10_000, "rows", 7, ['{"id":3}', '{"id":6,"name":"new"}', '{"id":7,"name":"new"}']),
    ):
        _set_clock(monkeypatch, later_s)
        with stopped_after(table):
            kept.run()
        changed = f"changed after {later_s}"
        topic.write(
            Record(key={"id": new}, value={"name": "new"}, properties={"writetime": "6"}),
            Record(key={"id": 1}, value={"name": changed}, properties={"writetime": str(later_s)}),
        )
        kept.run()
        assert kept.rows() == [f'{{"id":1,"name":"{changed}"}}', *rows]
        assert kept.replayed() == kept.open_versions() == kept.rows()
    gone = kept.table("changes").where("op = 'delete'").selectExpr("before.id", "before.name").collect()
    assert sorted(map(tuple, gone)) == [(2, "goes"), (4, None), (5, "goes later")]


def test_rows_expire_while_a_followed_topic_is_silent(
    mirror_of: MirrorOf, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows expire without records, and thus without micro-batches; the job ends with its summary when told to stop.

    A micro-batch that failed midway is finished before rows expire. This also holds when an expiry waits for the
    micro-batch that fails, and when the query that repeats the micro-batch takes longer to start than the interval.
    """
    topic = data_topic(*PLAIN)
    kept = mirror_of(topic)
    now_s = int(time.time())
    passing, later = ({"expires_at": str(now_s + time_s)} for time_s in (3_600, 9_000))
    topic.write(
        Record(key={"id": 1}, value={"name": "stays"}),
        Record(key={"id": 2}, value={"name": "goes"}, properties=passing),
    )
    kept.run()
    topic.write(Record(key={"id": 3}, value={"name": "goes later"}, properties=later))
    _set_clock(monkeypatch, 7_200)
    apply, apply_batch = _Steps.apply, MirrorBatch.apply

    def apply_slowly(batch: MirrorBatch, records: DataFrame) -> Mapping[str, int]:
        time.sleep(3)
        return apply_batch(batch, records)

    with monkeypatch.context() as patched, stopped_after("history"):
        patched.setattr(MirrorBatch, "apply", apply_slowly)
        kept.run(follow_interval_s=1)

    def apply_late(steps: _Steps, *given: Any) -> None:
        time.sleep(3)
        apply(steps, *given)

    monkeypatch.setattr(_Steps, "apply", apply_late)
    stopping, pool = threading.Event(), ThreadPoolExecutor(1)
    job = pool.submit(kept.run, follow_interval_s=1, stopping=stopping)
    pool.shutdown(wait=False)  # Its thread ends with the job.
    try:
        _until(lambda: kept.applied().next_expiry_s == now_s + 9_000, job)
        assert kept.rows() == ['{"id":1,"name":"stays"}', '{"id":3,"name":"goes later"}']
        assert kept.replayed() == kept.open_versions() == kept.rows()
        _set_clock(monkeypatch, 10_000)
        _until(lambda: kept.applied().next_expiry_s is None, job)
        assert kept.rows() == ['{"id":1,"name":"stays"}']
    finally:
        stopping.set()
        summary = job.result(_WITHIN_S)  # This raises the job's error if it has failed.
    assert (summary.records, summary.inserted, summary.deleted) == (1, 1, 2)
    assert kept.replayed() == kept.open_versions() == kept.rows()
