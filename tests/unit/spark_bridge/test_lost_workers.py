"""How often a mirror continues after Spark has lost a worker."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException

from spark_bridge.jobs import mirror as job


@pytest.fixture(autouse=True)
def _without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_PAUSE_S", 0)


def _losing(times: int, totals: Counter[str], batches: int) -> Callable[[], None]:
    """A step that loses a worker `times` times, each time after this number of micro-batches."""
    left = [times]

    def step() -> None:
        if not left[0]:
            return
        left[0] -= 1
        totals["batches"] += batches
        raise PySparkException("Python worker failed to connect back.")

    return step


def test_a_following_mirror_goes_on_as_long_as_micro_batches_are_applied(caplog: pytest.LogCaptureFixture) -> None:
    """Such a mirror may run for months, so workers that were lost long ago do not count."""
    totals = Counter[str]()
    with caplog.at_level(logging.WARNING):
        job._again_without_worker(_losing(30, totals, batches=1), totals)
    assert {each.getMessage() for each in caplog.records} == {
        "a Python worker of Spark did not start in time; the micro-batch is done again (retry 1 of 9)"
    }


def test_a_micro_batch_is_tried_ten_times() -> None:
    totals = Counter[str]()
    job._again_without_worker(_losing(9, totals, batches=0), totals)
    with pytest.raises(PySparkException, match="failed to connect back"):
        job._again_without_worker(_losing(10, totals, batches=0), totals)


def test_another_error_ends_the_job() -> None:
    def step() -> None:
        raise PySparkException("disk full")

    with pytest.raises(PySparkException, match="disk full"):
        job._again_without_worker(step, Counter[str]())
