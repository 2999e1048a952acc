"""A Spark 3.5 session for tests, in its own environment. Calls and answers are lines of JSON on stdin and stdout.

A call is `{"call": "module:function", "arguments": {...}}`. The function gets the session and the arguments, and its
result must be JSON. This module imports no test library, because the environment has none.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from spark_bridge import current_table, fresh_table, raw_batch, raw_stream, session_builder
from spark_bridge.jobs.batch_session import fit_session, session_of_its_own
from spark_bridge.jobs.delta_tables import DeltaTable
from spark_bridge.jobs.lake_table import update_and_insert
from spark_bridge.jobs.mirror import mirror
from spark_bridge.jobs.mirror_state import MirrorTables
from spark_bridge.reading.count_check import missing_records
from tests.spark.settings import SETTINGS

Options = dict[str, str]


def raw_rows(spark: SparkSession, options: Options) -> dict[str, object]:
    """The schema and the sorted rows of a raw read."""
    frame = raw_batch(spark, options)
    return {"schema": frame.schema.json(), "rows": _shown(frame)}


def stream_rows(spark: SparkSession, options: Options, folder: str, *, fail_after_write: bool = False) -> list[str]:
    """Run a stream to parquet files up to the topic's end, and return the rows of all runs."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/rows/{number}")
        if fail_after_write:
            raise OSError("stopped after the write")

    stream = raw_stream(spark, options).writeStream.foreachBatch(write)
    stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    written = [str(each) for each in Path(folder, "rows").iterdir()]
    return _shown(spark.read.parquet(*written)) if written else []


def table_rows(spark: SparkSession, options: Options) -> list[str]:
    """The current table as JSON."""
    return sorted(current_table(spark, options).toJSON().collect())


def mirrored_rows(spark: SparkSession, options: Options, target: str) -> list[str]:
    """The rows that the mirror below `target` has after a run."""
    mirror(spark, options, target, changelog=True, history=True)
    return _rows(MirrorTables(spark, target))


def fresh_rows(spark: SparkSession, options: Options, target: str) -> list[str]:
    """The rows of the mirror below `target` and the newer records of the topic, without a run."""
    rows = fresh_table(spark, options, target)
    return sorted(rows.drop(*[name for name in rows.columns if name.startswith("_cdc")]).toJSON().collect())


def iceberg_rows(spark: SparkSession, options: Options, target: str) -> list[str]:
    """The same for a mirror in Iceberg tables, compacted, without change log and history."""
    mirror(spark, options, target, table_format="iceberg", compact=True)
    return _rows(MirrorTables(spark, target))


def _rows(tables: MirrorTables) -> list[str]:
    rows = tables.rows.read()
    assert rows is not None
    return sorted(rows.drop(*[name for name in rows.columns if name.startswith("_cdc")]).toJSON().collect())


def changed_rows(spark: SparkSession, folder: str, column: str) -> list[str]:
    """The rows of a Delta table, in a session for large tables, after each kind of change of its rows."""
    session = session_of_its_own(spark)
    fit_session(session, 0, 1 << 30, is_local=True)
    table = DeltaTable(session, folder)
    table.create(session.sql(f"SELECT id, string(id) `{column}` FROM range(6)").coalesce(1))
    changed = session.sql(f"SELECT 1L id, 'merged' `{column}` UNION ALL SELECT 9L, 'merged'")
    update, insert = update_and_insert(changed.columns)
    table.merge(changed, "t.id = s.id", f"WHEN MATCHED THEN {update}", f"WHEN NOT MATCHED THEN {insert}")
    table.delete("id > 2 AND id < 6")
    table.update(f"`{column}` = 'updated'", "id = 2")
    found = table.read()
    assert found is not None
    return sorted(found.toJSON().collect())


def missing(spark: SparkSession, options: Options, left_out: str) -> list[str]:
    """The message ids that the count check reports when one record is left out."""
    frame = raw_batch(spark, options).where(f"message_id <> '{left_out}'")
    return [row.message_id for row in missing_records(frame, options).collect()]


def _shown(frame: DataFrame) -> list[str]:
    # sorted here, because Spark would read the topic twice to sort: first for the bounds of its tasks
    found = frame.selectExpr(
        "to_json(struct(hex(key) key, hex(value) value, op, writetime, event_time, topic, partition, message_id,"
        " schema_version, publish_time, properties)) text",
        "message_id",
    ).collect()
    return [row.text for row in sorted(found, key=lambda row: row.message_id)]


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to stderr: it is no answer
    jars = [Path(each) for each in sys.argv[1:]]
    builder = session_builder(jars, delta=True).master("local[2]")
    for name, value in {**SETTINGS, "spark.driver.memory": "768m"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    print(json.dumps({"answer": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        module, _, function = asked["call"].rpartition(":")
        try:
            called = getattr(importlib.import_module(module) if module else sys.modules[__name__], function)
            answer = {"answer": called(spark, **asked["arguments"])}
        except Exception:  # noqa: BLE001  (whatever it is, the test is told)
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    _serve()
