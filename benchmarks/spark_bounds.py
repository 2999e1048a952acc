"""Comparisons for the raw read: the cost of any Python Data Source, and the reader that Spark's users have without us.

`from_memory` is a Python Data Source whose rows are in files of Arrow record batches, without broker, client and
messages. Its time is the time that Spark needs to hand the raw columns from Python to the JVM.

`python -m benchmarks.spark_bounds OPTIONS ROWS JARS...`, by the interpreter of PySpark 3.5, scans the topic by the
pulsar-spark connector and prints a line of JSON: raw, and raw and typed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark_meter import Measured, scan, timed
from benchmarks.spark_session import bench_session
from spark_bridge import raw_batch, typed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource

__all__ = ["COLUMNS", "CONNECTOR_RAW", "CONNECTOR_TYPED", "connector_scans", "from_memory"]

COLUMNS: Final = ("key.*", "op", "value.*", "writetime")
CONNECTOR_RAW: Final = "pulsar-spark connector (3.5), raw"
CONNECTOR_TYPED: Final = "pulsar-spark connector (3.5), raw and typed"
_BATCH_ROWS: Final = 10_000
_TASKS: Final = 4


def from_memory(spark: SparkSession, raw: DataFrame, folder: Path) -> DataFrame:
    """The rows of `raw`, a frame of the raw contract, from files of Arrow record batches in `folder`."""
    import pyarrow as pa

    table = raw.toArrow()
    share = -(-table.num_rows // _TASKS)
    for number in range(_TASKS):
        part = table.slice(number * share, share)
        with pa.ipc.new_file(folder / f"{number}.arrow", table.schema) as file:
            file.write_table(part, max_chunksize=_BATCH_ROWS)
    spark.dataSource.register(_memory_source())
    return spark.read.format("benchmark_memory").schema(raw.schema).option("folder", str(folder)).load()


def _memory_source() -> type[DataSource]:
    """Return the Data Source. It is defined in a function, because PySpark 3.5 has no such base class."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    class Reader(DataSourceReader):
        def __init__(self, folder: Path) -> None:
            self._folder = folder

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(str(each)) for each in sorted(self._folder.glob("*.arrow"))]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            with pa.memory_map(partition.value) as mapped:
                file = pa.ipc.open_file(mapped)
                for number in range(file.num_record_batches):
                    yield file.get_batch(number)

    class Memory(DataSource):
        @classmethod
        def name(cls) -> str:
            return "benchmark_memory"

        def reader(self, schema: StructType) -> DataSourceReader:
            del schema
            return Reader(Path(self.options["folder"]))

    return Memory


def connector_scans(
    python: Path, environment: dict[str, str], jars: list[Path], options: dict[str, str], rows: int
) -> list[Measured]:
    """The pulsar-spark connector's scans, in PySpark 3.5. Raises CalledProcessError."""
    command = [str(python), "-m", "benchmarks.spark_bounds", json.dumps(options), str(rows), *map(str, jars)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, text=True)
    return [Measured(**each) for each in json.loads(ended.stdout.splitlines()[-1])]


def _main(options: dict[str, str], rows: int, jars: list[Path]) -> None:
    with TemporaryDirectory() as folder, bench_session(jars, Path(folder)) as spark:
        raw = raw_batch(spark, options)
        scan(typed(raw, options).select(*COLUMNS))  # the first scan warms the JVM up
        measured = [
            timed(CONNECTOR_RAW, rows, lambda: scan(raw)),
            timed(CONNECTOR_TYPED, rows, lambda: scan(typed(raw, options).select(*COLUMNS))),
        ]
    print(json.dumps([asdict(each) for each in measured]))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), int(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
