"""Mirrors of real topics: what they keep, read as the tests compare it, and how a run of one is stopped midway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_bridge import current_table, fresh_table
from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.iceberg_tables import IcebergTable
from spark_bridge.jobs.lake_table import LakeTable
from spark_bridge.jobs.mirror import MirrorSummary, mirror
from spark_bridge.jobs.mirror_state import Applied, MirrorTables
from tests.fix_spark import DataTopic, json_lines

Rows = list[str]
MirrorOf = Callable[..., "Mirror"]
"""What the fixture `mirror_of` is."""


def texts(rows: DataFrame) -> Rows:
    """Rows as JSON text without what the mirror adds, in an order."""
    own = [name for name in rows.columns if name.startswith("_cdc")]
    return json_lines(rows.drop(*own, "valid_from", "valid_to", "opened", "closed"))


class Mirror:
    """A mirror of one topic with all it can keep, and what the tests look at."""

    def __init__(
        self,
        spark: SparkSession,
        topic: DataTopic,
        folder: Path,
        options: Mapping[str, str],
        *,
        target: str | None = None,
    ) -> None:
        """`target`: what the job calls the folder, if not by its path."""
        self.spark = spark
        self._topic = topic
        self.folder = folder
        self._target = target or str(folder)
        self._options = {**topic.options, **options}

    def run(self, **more: object) -> MirrorSummary:
        return mirror(
            self.spark,
            self._options,
            self._target,
            **{"changelog": True, "history": True, **more},  # type: ignore[arg-type]
        )

    def table(self, name: Literal["rows", "records", "changes", "history"]) -> DataFrame:
        found: DataFrame | None = getattr(MirrorTables(self.spark, str(self.folder)), name).read()
        assert found is not None
        return found

    def applied(self) -> Applied:
        """How far it has come: one small file, where a look at a table takes seconds."""
        return MirrorTables(self.spark, str(self.folder)).applied()

    def wanted(self) -> Rows:
        return texts(current_table(self.spark, self._topic.options))

    def rows(self) -> Rows:
        return texts(self.table("rows"))

    def fresh(self) -> Rows:
        """The mirror and the topic's tail, in which columns have the topic's order."""
        return texts(fresh_table(self.spark, self._topic.options, str(self.folder)))

    def replayed(self) -> Rows:
        """The rows that the change log leaves when it is run from the start."""
        names = [each for each in self.table("rows").columns if not each.startswith("_cdc")]
        changes = self.table("changes")
        images = {field.name for field in changes.schema["after"].dataType.fields}  # type: ignore[attr-defined]
        row = ", ".join(f"after.`{each}` AS `{each}`" for each in names if each in images)
        rows: dict[str, str] = {}
        log = changes.selectExpr("epoch", "step", "op", "_cdc_id", f"to_json(struct({row})) AS row")
        for each in sorted(log.collect(), key=lambda each: (each.epoch, each.step)):
            match each.op:
                case "insert":
                    assert each._cdc_id not in rows
                case "update" | "delete":
                    assert each._cdc_id in rows
            rows.pop(each._cdc_id, None)
            if each.op != "delete":
                rows[each._cdc_id] = each.row
        return sorted(rows.values())

    def open_versions(self) -> Rows:
        return texts(self.table("history").where("valid_to IS NULL"))


@contextmanager
def stopped_after(table: str, kind: type[DeltaTable | IcebergTable] = DeltaTable) -> Iterator[None]:
    """A run within fails as soon as this table of the mirror was merged into, or made with its first rows."""

    def stopping(write: Callable[..., None]) -> Callable[..., None]:
        def stop_after(self: LakeTable, *args: object) -> None:
            write(self, *args)
            if self.path.endswith(table):
                raise OSError(f"stopped after {table}")

        return stop_after

    with pytest.MonkeyPatch.context() as patched:
        for each in ("merge", "create"):
            patched.setattr(kind, each, stopping(getattr(kind, each)))
        # a micro-batch's error comes through Spark, that of an expiry at the end of a run does not
        with pytest.raises((PySparkException, OSError), match=f"stopped after {table}"):
            yield


@pytest.fixture
def mirror_of(spark: SparkSession, tmp_path: Path) -> MirrorOf:
    """`mirror_of(topic, **options)`: a mirror in a folder of the test's own."""
    return lambda topic, **options: Mirror(spark, topic, tmp_path / "mirror", options)
