"""Numbers that users pass to jobs in Python: wrong ones are refused at once, with the name of the argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn, cast

import pytest
from pyspark.sql import SparkSession

from schemas.errors import ConfigError
from spark_bridge.jobs.arguments import (
    MOST_DAYS,
    MOST_SECONDS,
    refuse_home,
    refuse_interval,
    refuse_rate,
    refuse_retention,
)
from spark_bridge.jobs.backfill import backfill
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.jobs.publish import publish
from spark_bridge.jobs.resolved import resolved_timestamp, wait_until_complete
from spark_bridge.jobs.resync import resync
from spark_bridge.jobs.verify import verify

_OPTIONS = {"serviceUrl": "pulsar://h:1", "adminUrl": "http://h:2", "topic": "t"}
_ACCESS = CassandraAccess(contact_points=("h",))
_NO_SPARK = cast("SparkSession", None)


@pytest.mark.parametrize("rate", [0, -5, math.inf, math.nan])
def test_a_rate_is_above_0(rate: float) -> None:
    """None means no limit."""
    with pytest.raises(ConfigError, match=f"rows_per_second: {rate} is no rate"):
        backfill(_NO_SPARK, _OPTIONS, _ACCESS, "k", "t", rows_per_second=rate)
    with pytest.raises(ConfigError, match=f"rows_per_second: {rate} is no rate"):
        resync(_NO_SPARK, _OPTIONS, _ACCESS, rows_per_second=rate)
    for good in (None, 0.001, 1e9):
        refuse_rate("rows_per_second", good)


@pytest.mark.parametrize("seconds", [-1, MOST_SECONDS + 1, math.inf, math.nan])
def test_an_interval_is_a_time_that_ends(seconds: float) -> None:
    """An interval of 0 is allowed, too: micro-batches without a pause."""
    with pytest.raises(ConfigError, match=r"follow_interval_s: .* is no interval: give seconds from 0 to 31,536,000"):
        mirror(_NO_SPARK, _OPTIONS, "/lake", follow_interval_s=seconds)
    with pytest.raises(ConfigError, match=r"follow_interval_s: .* is no interval"):
        publish(_NO_SPARK, _OPTIONS, "/lake", {"rows": None}, follow_interval_s=seconds)
    for name in ("settle_s", "give_up_s"):
        with pytest.raises(ConfigError, match=f"{name}: .* is no interval"):
            verify(_NO_SPARK, _OPTIONS, _ACCESS, "k", "t", **{name: seconds})
    for good in (None, 0, 0.5, MOST_SECONDS):
        refuse_interval("follow_interval_s", good)


@pytest.mark.parametrize("days", [MOST_DAYS + 1, math.inf, -math.inf, math.nan])
def test_a_retention_has_a_limit(days: float) -> None:
    """An unlimited one would have ended the mirror after an hour, and then each later run."""
    with pytest.raises(ConfigError, match=r"tombstone_retention_days: .* is no retention: give days up to 36,500"):
        mirror(_NO_SPARK, _OPTIONS, "/lake", tombstone_retention_days=days)
    for good in (-1, 0, 7, MOST_DAYS):
        refuse_retention("tombstone_retention_days", good)


@pytest.mark.parametrize("folder", ["~", "~/lake"])
def test_a_folder_does_not_begin_with_the_home(folder: str) -> None:
    """Spark would make a folder of the name `~` in the working directory. `./~` names such a folder."""
    with pytest.raises(ConfigError, match=r"target: ~.* begins with ~, .*; give the folder's full path"):
        MirrorTables(_NO_SPARK, folder)
    for good in ("./~/lake", "~lake", "/home/~/lake", "s3a://lake/~"):
        refuse_home(good)


@pytest.mark.parametrize(
    ("first_step", "job"),
    [
        ("publish.own_session", lambda options: publish(_NO_SPARK, options, "/lake", {"rows": None})),
        ("verify.table_metadata", lambda options: verify(_NO_SPARK, options, _ACCESS, "k", "t")),
        ("resync.GapsTopic", lambda options: resync(_NO_SPARK, options, _ACCESS)),
        ("resolved.ResolvedTimestamps", lambda options: resolved_timestamp(_NO_SPARK, options)),
        ("resolved.table_of", lambda options: wait_until_complete(_NO_SPARK, options)),
    ],
    ids=["publish", "verify", "resync", "resolved_timestamp", "wait_until_complete"],
)
def test_jobs_beside_a_mirror_take_its_options(
    first_step: str, job: Callable[[dict[str, str | int]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit of micro-batches does not apply to these jobs: they accept it with every version of PySpark."""

    class Begun(Exception):  # noqa: N818
        pass

    def begin(*given: object) -> NoReturn:
        raise Begun

    monkeypatch.setattr(f"spark_bridge.jobs.{first_step}", begin)
    for more in ({"maxRowsPerTrigger": 5}, {"maxbytespertrigger": "5000", "checkpointLocation": "/lake/checkpoint"}):
        with pytest.raises(Begun):
            job({**_OPTIONS, **more})
