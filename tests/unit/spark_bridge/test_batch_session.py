"""Settings of the jobs' own sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from pyspark.sql import SparkSession

from spark_bridge.jobs.batch_session import fit_session, pin_session


class Session:
    """A session with its settings, on a cluster of two cores."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.conf = self.sparkContext = self
        self.defaultParallelism = 2

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def get(self, name: str, default: str | None = None) -> str | None:
        return self.settings.get(name, default)

    def unset(self, name: str) -> None:
        self.settings.pop(name, None)


@pytest.mark.parametrize("fit", [pin_session, lambda session: fit_session(session, 1, 1)])
def test_old_dates_are_stored_and_published_as_they_are(fit: Callable[[SparkSession], None]) -> None:
    """This holds for files and Avro with any calendar of the user: Spark 3.5 refuses 0001-01-01 by default."""
    session = Session()
    fit(cast(SparkSession, session))
    calendars = {name: value for name, value in session.settings.items() if "RebaseMode" in name}
    assert calendars == {
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
    }
