"""One Spark session for all tests, and a writer of KEY_VALUE records: real topics with real records, no connector."""

from __future__ import annotations

import base64
import contextlib
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from uuid import UUID

import httpx
import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc.sandbox import artifacts
from cdc.sandbox.prerequisites import java_home
from schemas.cql_type import UserType, parse_cql_type
from schemas.cql_value import AvroValue
from schemas.row_record import AvroSchema, data_key_schema, data_value_schema, record_writer, schema_text
from schemas.table_metadata import ColumnKind, ColumnMetadata, TableMetadata
from spark_bridge import register, session_builder
from spark_bridge.spark_line import LINE
from tests.servers import REPOSITORY, PulsarServer
from tests.spark_environment import line_jars
from tests.spark_settings import PATIENCE_S, SETTINGS

_SOURCE = Path(__file__).parent / "java" / "KeyValueWriter.java"
_NAMESPACE = "public/spark"
_DRIVER_PATIENCE_S: Final = 500
# py4j closes its connections when they are collected as garbage: every test that uses Spark is marked with this.
PY4J_LEAVES_SOCKETS_OPEN: Final = "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session of two cores with `cassandra_cdc` registered, and the jars of this line of Spark from the cache."""
    os.environ["SPARK_AUTH_SOCKET_TIMEOUT"] = str(PATIENCE_S)  # of Spark's Python processes
    builder = session_builder(line_jars(LINE), delta=True).master("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # what py4j left, so that no later test is blamed for it


def json_lines(rows: DataFrame) -> list[str]:
    """Rows as JSON text in an order; `toJSON` warns on newer lines of Spark."""
    return sorted(row.line for row in rows.selectExpr("to_json(struct(*)) AS line").collect())


def tasks_of_jobs(spark: SparkSession) -> dict[int, int]:
    """How many tasks each Spark job of this application was planned with, by the job's number; of the newest 100 jobs."""
    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty()
    jobs = context.statusStore().jobsList(None)
    return {jobs.apply(at).jobId(): jobs.apply(at).numTasks() for at in range(jobs.size())}


def killed_driver(what: str, master: str, arguments: Mapping[str, object], folder: Path) -> int:
    """Run `tests/spark_kill_driver.py` until it is dead; its exit code, -9 when it was killed. `folder` takes its log.

    Its JVM, which would end by itself a while later, is killed, too.
    """
    folder.mkdir()
    jars = [str(each) for each in artifacts.ensure("spark-avro")]
    command = [sys.executable, "-m", "tests.spark_kill_driver", what, master, json.dumps(jars), json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYSPARK_PYTHON": sys.executable}
    log = folder / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=REPOSITORY,
            start_new_session=True,
        )  # fmt: skip
    try:
        ended = driver.wait(timeout=_DRIVER_PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert ended < 0, log.read_text(errors="replace")[-3000:]
    return ended


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record of a data topic: Avro values by column; a value of None is a tombstone."""

    key: Mapping[str, AvroValue]
    value: Mapping[str, AvroValue] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int | None = None


class RecordWriter:
    """Publishes records through `tests/java/KeyValueWriter.java`, a Java program that lives as long as the session."""

    def __init__(self, service_url: str, classes: Path) -> None:
        jars = artifacts.pulsar_distribution() / "lib" / "*"
        self.classes = classes
        if not (classes / "KeyValueWriter.class").exists():
            subprocess.run(
                [str(java_home() / "bin" / "javac"), "-d", str(classes), "-cp", str(jars), str(_SOURCE)],
                check=True, capture_output=True, timeout=120,
            )  # fmt: skip
        command = [str(java_home() / "bin" / "java"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m"]
        self._log = classes / "writer.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "-cp", f"{classes}{os.pathsep}{jars}", "KeyValueWriter", service_url],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self._answer()

    def write(
        self,
        topic: str,
        key_schema: AvroSchema,
        value_schema: AvroSchema,
        records: Sequence[Record],
        *,
        batch: int = 1,
    ) -> list[str]:
        """Publish in order, `batch` records an entry; answers `ledger:entry:partition:batch index` of each."""
        write_key, write_value = record_writer(key_schema), record_writer(value_schema)
        messages: list[Mapping[str, object]] = [
            {
                "key": base64.b64encode(write_key(each.key)).decode(),
                "value": None if each.value is None else base64.b64encode(write_value(each.value)).decode(),
                "properties": dict(each.properties),
                "event_time": each.event_time_ms,
            }
            for each in records
        ]
        return self.write_bytes(topic, schema_text(key_schema), schema_text(value_schema), messages, batch=batch)

    def write_bytes(
        self,
        topic: str,
        key_schema: str,
        value_schema: str,
        messages: Sequence[Mapping[str, object]],
        *,
        batch: int = 1,
    ) -> list[str]:
        """Publish messages whose keys and values are base64 of Avro: `key`, `value` (or null), `properties`."""
        request = {
            "topic": topic,
            "batch": batch,
            "key_schema": key_schema,
            "value_schema": value_schema,
            "records": messages,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return cast("list[str]", self._answer()["ids"])

    def close(self) -> None:
        """Ends the Java program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(timeout=30)

    def _answer(self) -> Mapping[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = cast("Mapping[str, object]", json.loads(line or '{"error": "the writer ended"}'))
        if "error" in answer:
            raise AssertionError(f"{answer['error']}\n{self._log.read_text()[-2000:]}")
        return answer


def keep_everything(pulsar: PulsarServer, namespace: str) -> None:
    """Make a namespace, if it is not there, in which nothing is trimmed."""
    with httpx.Client(base_url=f"{pulsar.admin_url}/admin/v2/namespaces/{namespace}", timeout=30) as admin:
        made = admin.put("")
        if made.status_code != httpx.codes.CONFLICT:
            made.raise_for_status()
        admin.post("/retention", json={"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}).raise_for_status()


@pytest.fixture(scope="session")
def record_writer_process(pulsar: PulsarServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordWriter]:
    """The session's writer, and the namespace `public/spark`, which keeps everything."""
    keep_everything(pulsar, _NAMESPACE)
    writer = RecordWriter(pulsar.service_url, tmp_path_factory.mktemp("key_value_writer"))
    yield writer
    writer.close()


Columns = Mapping[str, str]
"""CQL types by column name."""
NO_COLUMNS: Columns = {}


def table_schemas(
    *,
    partition_key: Columns,
    clustering: Columns = NO_COLUMNS,
    regular: Columns = NO_COLUMNS,
    static: Columns = NO_COLUMNS,
    user_types: Mapping[str, UserType] | None = None,
) -> tuple[AvroSchema, AvroSchema]:
    """Avro key and value schema of the data topic of a table `shop.t`."""

    def columns(kind: ColumnKind, given: Columns) -> tuple[ColumnMetadata, ...]:
        return tuple(
            ColumnMetadata(name=name, kind=kind, type=parse_cql_type(text, user_types or {}), position=position)
            for position, (name, text) in enumerate(given.items())
        )

    table = TableMetadata(
        keyspace="shop",
        name="t",
        table_id=UUID("a5559b20-e53e-11f1-a9d7-973e92e688cb"),
        partition_key=columns(ColumnKind.PARTITION_KEY, partition_key),
        clustering_key=columns(ColumnKind.CLUSTERING, clustering),
        static_columns=columns(ColumnKind.STATIC, dict(sorted(static.items()))),
        regular_columns=columns(ColumnKind.REGULAR, dict(sorted(regular.items()))),
    )
    return data_key_schema(table), data_value_schema(table)


@dataclass(frozen=True, kw_only=True)
class DataTopic:
    """A topic of one test."""

    name: str
    options: Mapping[str, str]
    admin: httpx.Client
    key_schema: AvroSchema
    value_schema: AvroSchema
    writer: RecordWriter

    def write(self, *records: Record, batch: int = 1, value_schema: AvroSchema | None = None) -> list[str]:
        """Publish records by the topic's schemas, or another value schema."""
        return self.writer.write(self.name, self.key_schema, value_schema or self.value_schema, records, batch=batch)


MakeTopic = Callable[..., DataTopic]
"""What the fixture `data_topic` is."""


@pytest.fixture
def data_topic(pulsar: PulsarServer, record_writer_process: RecordWriter) -> Iterator[MakeTopic]:
    """Makes a topic with the given Avro schemas: `data_topic(key_schema, value_schema, partitions=0)`."""
    admin = httpx.Client(base_url=f"{pulsar.admin_url}/admin/v2", timeout=30)

    def make(key_schema: AvroSchema, value_schema: AvroSchema, *, partitions: int = 0) -> DataTopic:
        name = f"persistent://{_NAMESPACE}/data-{os.getpid()}-{next(_numbers)}"
        path = name.replace("://", "/")
        if partitions:
            admin.put(f"/{path}/partitions", json=partitions).raise_for_status()
        else:
            admin.put(f"/{path}").raise_for_status()
        options = {"serviceUrl": pulsar.service_url, "adminUrl": pulsar.admin_url, "topic": name}
        return DataTopic(
            name=name,
            options=options,
            admin=admin,
            key_schema=key_schema,
            value_schema=value_schema,
            writer=record_writer_process,
        )

    yield make
    admin.close()


_numbers = itertools.count(1)
