"""The demo's comparison of Cassandra's rows with Spark's rows, in any time zone of the machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from cdc.demo.comparison import differences

_MICROSECONDS = 1_795_453_200_123_000


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the time zone of this process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_zone")
def test_times_of_spark_are_in_the_zone_of_this_process() -> None:
    """PySpark converts microseconds to the local time zone, also in keys and in nested values."""
    seconds, rest = divmod(_MICROSECONDS, 1_000_000)
    of_spark = datetime.fromtimestamp(seconds).replace(microsecond=rest)  # noqa: DTZ006
    of_driver = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest, tzinfo=None)
    cassandra = {"at": of_driver, "times": [of_driver], "by_name": {"first": of_driver}}
    spark = {"at": of_spark, "times": [of_spark], "by_name": {"first": of_spark}}
    assert differences("shop.orders", ["at"], [cassandra], [spark]) == []
    later = {**spark, "times": [of_spark.replace(microsecond=0)]}
    [line] = differences("shop.orders", ["at"], [cassandra], [later])
    assert "times is [" in line
