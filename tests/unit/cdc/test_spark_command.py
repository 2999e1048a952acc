"""`cdc spark`: mistakes are reported before Spark starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from cdc.commands import spark as verify_module
from cdc.commands import spark_publish, spark_resync, spark_session, spark_tables
from cdc.commands.hidden_columns import hidden_columns
from cdc.commands.spark import spark
from cdc.commands.spark_folders import check_output, check_writable
from cdc.commands.spark_jars import _SETS, cached_jars
from cdc.commands.spark_log import log_options
from cdc.commands.spark_options import (
    BROKER_OPTIONS,
    check_mirror,
    check_table,
    may_be_iceberg,
)
from cdc.commands.spark_progress import tasks_text
from cdc.commands.spark_resync import report_lines
from cdc.commands.spark_session import SESSION_OPTIONS, SparkJob, SparkJobError, spark_errors
from cdc.commands.spark_top import summary_lines
from cdc.sandbox.artifacts import _POMS
from schemas.errors import ConfigError
from schemas.row_record import data_key_schema
from schemas.table_metadata import TableMetadata
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.resync import Outcome, ResyncReport, TableResync
from spark_bridge.reading.raw_columns import RawRow, to_arrow
from spark_bridge.rows.topic_activity import TopicActivity
from spark_bridge.spark_home import _CONFIGURATION
from spark_bridge.spark_line import _JARS
from tests.cql.tables import table_of
from tests.servers.pages import page, serving

PULSAR = ["--service-url", "pulsar://h:1", "--admin-url", "http://h:2"]
_VERIFY = ["verify", *PULSAR, "--topic", "t", "--table", "k.t", "--contact-point", "h"]


@pytest.fixture(autouse=True)
def _own_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is configured by the commands alone."""
    for name in (*_CONFIGURATION, "SPARK_ENV_LOADED"):
        monkeypatch.delenv(name, raising=False)


def cdc(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc.main", "spark", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["mirror", *PULSAR], "Missing option '--topic'"),
        (
            ["mirror", *PULSAR, "--topic", "t", "--target", "x", "-o", "numbers"],
            "--option: 'numbers' is not NAME=VALUE",
        ),
        (["verify", *PULSAR, "--topic", "t", "--table", "x", "--contact-point", "h"], "'x' is not KEYSPACE.TABLE"),
        (["publish", *PULSAR, "--topic", "t", "--target", "x"], "give --rows, --changes, or both"),
        (["backfill", *PULSAR, "--table", "x", "--contact-point", "h"], "--table: 'x' is not KEYSPACE.TABLE"),
        (
            ["mirror", *PULSAR, "--topic", "t", "--target", "x", "--resync"],
            "--resync: reads Cassandra: give --contact-point",
        ),
        (["resync", *PULSAR, "--table", "x", "--contact-point", "h"], "--table: 'x' is not KEYSPACE.TABLE"),
        (
            ["resync", *PULSAR, "--mirror", "x", "--contact-point", "h"],
            "--mirror: belongs to one table: give one --table",
        ),
        (["top", *PULSAR], "--topic: is missing (or --topics-pattern)"),
        (
            ["top", *PULSAR, "--topic", "t", "--topics-pattern", "p"],
            "--topic: and --topics-pattern are given; give only one of them",
        ),
        (["mirror", *PULSAR, "--topic", "t", "--target", ""], "--target: is empty; give a folder"),
        (
            ["mirror", *PULSAR, "--topic", "t", "--target", "x", "--master", "nope"],
            "--master: 'nope' is no master of Spark, such as local[2], spark://host:7077 or yarn",
        ),
        (
            ["mirror", *PULSAR, "--topic", "t", "--target", "x", "--source-config", "x"],
            "--source-config: is read by --resync, which is not given",
        ),
        ([*_VERIFY, "--port", "99999"], "Invalid value for '--port': 99999 is not in the range"),
        (
            ["backfill", *PULSAR, "--table", "k.t", "--contact-point", "h", "--tokens", "5", "5"],
            "--tokens: 5 to 5 is no range of tokens",
        ),
        (["top", *PULSAR, "--topics-pattern", "a("], "--topics-pattern: 'a(' ends in no regular expression"),
        (["latest", *PULSAR, "--topic", "t", "--as-of", "yesterday"], "--as-of: 'yesterday' is no time with its zone"),
        (
            ["latest", *PULSAR, "--topic", "t", "--output", "x", "--output-format", "nope"],
            "--output-format: 'nope' is no format that Spark can write here; choose one of parquet, json, ",
        ),
        (
            ["latest", *PULSAR, "--topic", "t", "--output", "x", "--output-format", "Iceberg"],
            "use delta or parquet, or keep an Iceberg table by `cdc spark mirror --format iceberg`",
        ),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    """No session is started, and no traceback is shown."""
    done = cdc(*arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "option", "values"),
    [
        (
            ["mirror", *PULSAR, "--topic", "t", "--target", "x"],
            "--tombstone-retention-days",
            ("inf", "nan", "-1", "1e9"),
        ),
        (["mirror", *PULSAR, "--topic", "t", "--target", "x"], "--follow", ("inf", "nan", "-1")),
        (["publish", *PULSAR, "--topic", "t", "--target", "x", "--rows"], "--follow", ("inf", "nan", "-1")),
        (
            ["backfill", *PULSAR, "--table", "k.t", "--contact-point", "h"],
            "--rows-per-second",
            ("inf", "nan", "-5", "0"),
        ),
        (["resync", *PULSAR, "--contact-point", "h"], "--rows-per-second", ("inf", "nan", "-5", "0")),
        (["resync", *PULSAR, "--contact-point", "h"], "--margin", ("inf", "nan", "-5")),
        (["resync", *PULSAR, "--contact-point", "h"], "--connector-timeout", ("inf", "nan", "-5")),
        (_VERIFY, "--settle", ("inf", "nan", "-1", "1e9")),
        (_VERIFY, "--give-up", ("inf", "nan", "-1", "1e9")),
        (_VERIFY, "--sample", ("inf", "nan", "-1", "0", "1.1")),
        (["wait", *PULSAR, "--topic", "t"], "--timeout", ("inf", "nan", "-1")),
        (["top", *PULSAR, "--topic", "t"], "--minutes", ("inf", "nan", "-1", "0", "1e30")),
        (["top", *PULSAR, "--topic", "t"], "--every", ("inf", "nan", "-1", "1e30")),
    ],
)
def test_numbers_that_a_job_cannot_work_with_are_refused(
    command: list[str], option: str, values: tuple[str, ...]
) -> None:
    """They are refused before Spark starts and before anything is sent.

    Some used to fail in the first task, or after an hour.
    """
    for value in values:
        done = CliRunner().invoke(spark, [*command, option, value])
        assert done.exit_code == 2, (value, done.output)
        assert f"Error: Invalid value for '{option}'" in done.output, (value, done.output)


class _JavaException:
    """A Java exception without a class in PySpark.

    The text of py4j's error has Java's stack trace; this text has not.
    """

    _target_id = "o1"

    def __str__(self) -> str:
        return "java.io.IOException: Mkdirs failed to create file:/proc/x\nmore of it"


@pytest.mark.parametrize(
    ("command", "job"),
    [
        (["mirror", *PULSAR, "--topic", "t", "--target", "x"], "mirror.mirror"),
        (["latest", *PULSAR, "--topic", "t"], "latest.latest_on_read"),
        (["publish", *PULSAR, "--topic", "t", "--target", "x", "--rows"], "publish.publish"),
        (["verify", *PULSAR, "--topic", "t", "--table", "k.t", "--contact-point", "h"], "verify.verify"),
        (["backfill", *PULSAR, "--table", "k.t", "--contact-point", "h"], "backfill.backfill"),
        (["resync", *PULSAR, "--contact-point", "h"], "resync.resync"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            Py4JJavaError("An error occurred while calling o1.save.\n", _JavaException()),
            "java.io.IOException: Mkdirs failed to create file:/proc/x",
        ),
        (Py4JNetworkError("Answer from Java side is empty"), "Answer from Java side is empty"),
        (PySparkException(""), "it gives no reason"),
    ],
    ids=["java", "no java", "no text"],
)
def test_an_error_of_java_is_one_line(
    command: list[str], job: str, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark may have a class for the error or not. The session is stopped."""
    stopped: list[bool] = []

    class Session:
        def stop(self) -> None:
            stopped.append(True)

    def fail(*arguments: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(spark_session, "open_session", lambda *arguments, **more: Session())
    for module in (spark_tables, spark_publish, spark_resync, verify_module):
        monkeypatch.setattr(module, "check_topics", lambda options: None, raising=False)
        monkeypatch.setattr(module, "check_table", lambda *asked: None, raising=False)
        monkeypatch.setattr(module, "check_mirror", lambda *asked: None)
        monkeypatch.setattr(module, "check_broker", lambda options, **more: None)
    monkeypatch.setattr(spark_tables, "resolved_ms", lambda options: None)
    monkeypatch.setattr(
        "spark_bridge.topics.gaps.GapsTopic.open_gaps", lambda topic: [SimpleNamespace(table_name="k.t")]
    )
    monkeypatch.setattr("spark_bridge.jobs.backfill.check_backfill", lambda *asked, **more: None)
    monkeypatch.setattr(f"spark_bridge.jobs.{job}", fail)
    done = CliRunner().invoke(spark, command)
    assert (type(done.exception), str(done.exception), stopped) == (SparkJobError, said, [True])


def test_a_snapshot_that_may_send_nothing_fills_no_topic_again() -> None:
    """The emptied topic would stay empty, with exit code 0."""
    command = ["backfill", *PULSAR, "--table", "k.t", "--contact-point", "h", "--snapshot", "initial"]
    done = CliRunner().invoke(spark, [*command, "--rebuild", "data-k.t"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("--rebuild: does not go with --snapshot initial")


@pytest.mark.parametrize(
    ("kept", "needs_iceberg"),
    [("iceberg", True), ("delta", False), (None, False), ("nothing", False), ("out of sight", True)],
)
@pytest.mark.parametrize("command", ["mirror", "verify"])
def test_a_session_has_iceberg_where_the_tables_are(
    command: str, kept: str | None, needs_iceberg: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of a mirror has the format. A folder that only Spark can read may have Iceberg tables."""
    target = "viewfs://only-spark/lake" if kept == "out of sight" else str(tmp_path)
    if kept != "nothing":
        (tmp_path / "applied").mkdir()
        (tmp_path / "applied" / "9.json").write_text('{"table_format": "of an older state"}')
        (tmp_path / "applied" / "10.json").write_text(json.dumps({"epoch": 1, "table_format": kept}))
    asked: list[bool] = []

    def session(jars: tuple[Path, ...], master: str | None, *, iceberg: bool = False, **others: object) -> None:
        asked.append(iceberg)
        raise ConfigError.of("session", "is not started by this test")

    monkeypatch.setattr(spark_session, "open_session", session)
    for module in (spark_tables, verify_module):
        monkeypatch.setattr(module, "check_topics", lambda options: None)
        monkeypatch.setattr(module, "check_table", lambda *asked: None, raising=False)
        monkeypatch.setattr(module, "check_mirror", lambda target: None)
        monkeypatch.setattr(module, "check_broker", lambda options, **more: None)
    where = (
        ["--target", target] if command == "mirror" else ["--mirror", target, "--table", "k.t", "--contact-point", "h"]
    )
    done = CliRunner().invoke(spark, [command, *PULSAR, "--topic", "t", *where])
    assert isinstance(done.exception, ConfigError), done.output
    assert asked == [needs_iceberg]


def test_where_there_is_no_iceberg_tables_out_of_sight_are_taken_for_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 4.2 has no Iceberg. If the tables are Iceberg's, the started session reports it."""
    monkeypatch.setattr("spark_bridge.spark_line.HAS_ICEBERG", False)
    assert may_be_iceberg("viewfs://only-spark/lake") is False


def test_an_admin_service_that_does_not_answer_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Java, so the check must not need it."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = cdc("latest", "--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1", "--topic", "t")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the admin service does not answer" in line
    assert line.endswith("; start it or check the option --admin-url")


def _pages_of_topic(*schemas: Mapping[str, object]) -> Mapping[str, Any]:
    """The pages of the admin service about an empty topic `t` with these versions of its schema."""
    topic = "/admin/v2/persistent/public/default/t"
    return {
        f"{topic}/partitions": page({"partitions": 0}),
        f"{topic}/internalStats": page({"ledgers": [], "cursors": {}}),
        "/admin/v2/schemas/public/default/t/schemas": page({"getSchemaResponses": list(schemas)}),
    }


_READERS = [
    ["latest"],
    ["mirror", "--target", "x"],
    ["publish", "--target", "x", "--rows"],
    ["top"],
    ["wait"],
]


@pytest.mark.parametrize("command", [_READERS[0], _READERS[-1]], ids=lambda each: each[0])
def test_a_broker_that_does_not_answer_is_told_before_spark_starts(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar's client tried for half a minute and more, and logged each attempt."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with serving(_pages_of_topic()) as url:
        done = cdc(*command, "--service-url", "pulsar://127.0.0.1:1", "--admin-url", url, "--topic", "t", timeout_s=25)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line == (
        "cdc: Pulsar at pulsar://127.0.0.1:1: the broker does not answer ([Errno 111] Connection refused); start it or check "
        "the option --service-url"
    )


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("data-shp[.].*", "; did you mean data-shop.items or data-shop.orders_by_customer_and_day?"),
        (
            "shop.*",
            "; the topics there are cdc-events-shop.orders, data-shop.items, data-shop.orders_by_customer_and_day, ...",
        ),
    ],
)
def test_a_pattern_that_no_topic_matches_is_told_with_the_topics_that_there_are(pattern: str, hint: str) -> None:
    """It was `no record`, as for topics where nothing changes."""
    topics = (
        "data-shop.orders_by_customer_and_day",
        "data-shop.items",
        "cdc-events-shop.orders",
        "rows-shop.items",
        "__x",
    )
    listed = [f"persistent://public/default/{each}" for each in topics]
    namespace = "/admin/v2/persistent/public/default"
    pages = {namespace: page([*listed, f"{listed[0]}-partition-0"]), f"{namespace}/partitioned": page([listed[0]])}
    broker = ["--service-url", "pulsar://127.0.0.1:1"]
    with serving(pages) as url:
        done = CliRunner().invoke(spark, ["top", *broker, "--admin-url", url, "--topics-pattern", pattern])
    assert isinstance(done.exception, ConfigError), done.output
    assert str(done.exception) == f"--topics-pattern: no topic of public/default matches {pattern!r}{hint}"


def test_a_namespace_without_topics_is_told() -> None:
    """Pulsar's own topics are not counted."""
    namespace = "/admin/v2/persistent/a/b"
    pages = {namespace: page([]), f"{namespace}/partitioned": page(["persistent://a/b/__change_events"])}
    with serving(pages) as url:
        where = ["--service-url", "pulsar://127.0.0.1:1", "--admin-url", url]
        done = CliRunner().invoke(spark, ["top", *where, "--topics-pattern", "persistent://a/b/data-.*"])
    assert str(done.exception) == "--topics-pattern: no topic of a/b matches 'data-.*', and it has no topic"


def test_an_address_that_is_not_the_brokers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port of the admin service is a common mistake."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with serving(_pages_of_topic()) as url:
        broker = url.replace("http://", "pulsar://")
        done = cdc("latest", "--service-url", broker, "--admin-url", url, "--topic", "t")
    (line,) = done.stderr.splitlines()
    assert line == f"cdc: Pulsar at {broker}: something else than a broker answers; check the option --service-url"


@pytest.mark.parametrize("command", _READERS, ids=lambda each: each[0])
def test_a_topic_of_other_records_is_refused_before_spark_starts(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An events topic. A mirror printed Java's stack trace, and `latest` started Spark for nothing."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with serving(_pages_of_topic({"version": 0, "type": "AVRO", "data": "{}", "properties": {}})) as url:
        done = cdc(*command, "--service-url", "pulsar://127.0.0.1:1", "--admin-url", url, "--topic", "t")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert line.startswith("cdc: topic persistent://public/default/t: has a schema of type AVRO: it is no topic of")


@pytest.mark.parametrize("command", [["latest"], ["wait", "--timeout", "0"]], ids=lambda each: each[0])
def test_a_folder_without_a_mirror_is_told_before_spark_starts(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the option of the command, and not the argument of a function."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setattr(
        f"cdc.commands.spark_{'wait' if command[0] == 'wait' else 'tables'}.check_topics", lambda _: None
    )
    monkeypatch.setattr("cdc.commands.spark_wait.check_broker", lambda _: None)
    resolved = SimpleNamespace(resolved_ms=1)
    monkeypatch.setattr("spark_bridge.topics.resolved.wait_until_resolved", lambda *asked: resolved)
    done = CliRunner().invoke(
        spark, [*command, *PULSAR, "--topic", "data-k.t", "--mirror", str(tmp_path)], catch_exceptions=True
    )
    said = f"--mirror: there is no mirror below {tmp_path}; give the --target of `cdc spark mirror`"
    assert (type(done.exception), str(done.exception)) == (ConfigError, said)


def test_wait_says_at_once_that_there_is_no_mirror_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps waiting for one, and said nothing in all that time. A mirror that exists needs no such line."""
    for name in ("check_topics", "check_broker"):
        monkeypatch.setattr(f"cdc.commands.spark_wait.{name}", lambda _: None)
    monkeypatch.setattr(
        "spark_bridge.topics.resolved.wait_until_resolved", lambda *asked: SimpleNamespace(resolved_ms=1)
    )
    command = ["wait", *PULSAR, "--topic", "data-k.t", "--mirror", str(tmp_path), "--until", "1970-01-01T00:00:01Z"]

    def start_a_mirror(pause_s: float) -> None:
        (tmp_path / "applied").mkdir()
        (tmp_path / "applied" / "1.json").write_text('{"epoch": 1, "resolved_ms": 2000}')

    monkeypatch.setattr("cdc.commands.spark_wait.time.sleep", start_a_mirror)
    done = CliRunner().invoke(spark, command, catch_exceptions=False)
    said = f"there is no mirror below {tmp_path} yet: waiting for the first run of `cdc spark mirror`\n"
    assert (done.stderr, done.stdout) == (said, f"{tmp_path} is complete until 1970-01-01T00:00:02.000Z\n")
    assert CliRunner().invoke(spark, command, catch_exceptions=False).stderr == ""


@pytest.mark.parametrize(
    ("command", "option"),
    [(["mirror"], "--target"), (["publish", "--rows"], "--target"), (["latest"], "--output")],
    ids=["mirror", "publish", "latest"],
)
def test_a_local_folder_that_cannot_be_written_is_told_before_spark_starts(command: list[str], option: str) -> None:
    """Root may write everywhere, but nobody can make a folder there. Nothing of the try is left."""
    for name in ("/proc/nope", "file:///proc/nope/deep"):
        done = CliRunner().invoke(spark, [*command, *PULSAR, "--topic", "t", option, name])
        assert isinstance(done.exception, ConfigError), done.output
        assert str(done.exception).startswith(f"{option}: {name} cannot be written (/proc: "), done.exception


def test_a_folder_in_quotes_that_begins_with_the_home_is_told_before_spark_starts() -> None:
    """The shell has not replaced ~, as in a crontab or a unit file."""
    done = CliRunner().invoke(spark, ["mirror", *PULSAR, "--topic", "t", "--target", "~/lake"])
    assert isinstance(done.exception, ConfigError), done.output
    assert str(done.exception).startswith("--target: ~/lake begins with ~, which only a shell replaces")


def test_a_folder_that_can_be_made_is_not_made_by_the_check(tmp_path: Path) -> None:
    """A file in its place is refused. Paths that only Spark knows are left to Spark."""
    check_writable("--target", str(tmp_path / "a" / "b"))
    for path in ("s3a://bucket/lake", "hdfs:/proc/nope", "file://host/proc/nope"):
        check_writable("--target", path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--target: .*/file cannot be written .* Not a directory"):
        check_writable("--target", str(tmp_path / "file"))


def test_rows_are_written_into_a_new_folder_in_a_format_that_is_there(tmp_path: Path) -> None:
    """Delta Lake itself decides about a folder that exists. Further jars may have further formats."""
    check_output(None, "Parquet", has_own_jars=False)
    check_output(None, "nope", has_own_jars=True)
    check_output(str(tmp_path / "new"), "delta", has_own_jars=False)
    check_output(str(tmp_path), "delta", has_own_jars=False)
    with pytest.raises(ConfigError, match=f"--output: {tmp_path} exists already"):
        check_output(str(tmp_path), "json", has_own_jars=False)


def test_an_argument_of_a_job_is_named_as_the_option_of_the_command() -> None:
    """A job says `format`, and the command has --format."""
    with pytest.raises(ConfigError) as raised, spark_errors():
        raise ConfigError.of("format", "is wrong")
    assert str(raised.value) == "--format: is wrong"


@pytest.mark.parametrize("command", ["verify", "backfill"])
def test_a_cassandra_that_does_not_answer_is_told_before_spark_starts(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no Java, so the check must not need it."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    where = ["--topic", "t"] if command == "verify" else []
    with serving(_pages_of_topic()) as url:
        done = cdc(
            command,
            "--service-url",
            "pulsar://127.0.0.1:1",
            "--admin-url",
            url,
            "--table",
            "shop.orders",
            "--contact-point",
            "127.0.0.1",
            "--port",
            "1",
            *where,
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert "127.0.0.1:1" in done.stderr


def _table(name: str) -> TableMetadata:
    return table_of({"id": "int"}, name=f"shop.{name}")


@pytest.mark.parametrize(
    ("gaps", "is_there"), [([], False), (["shop.orders"], False), (["shop.ordres"], True)], ids=["none", "other", "its"]
)
def test_resync_refuses_a_table_that_does_not_exist_and_has_no_gap(
    gaps: list[str], is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It said that there is nothing to do. A table with a gap may have been dropped: that closes its gap."""
    open_gaps = [SimpleNamespace(table_name=each) for each in gaps]
    monkeypatch.setattr("spark_bridge.topics.gaps.GapsTopic.open_gaps", lambda topic: open_gaps)
    monkeypatch.setattr("spark_bridge.jobs.cassandra_rows.find_table", lambda *asked: None)
    monkeypatch.setattr("spark_bridge.jobs.cassandra_rows._table_names", lambda access: ["shop.orders", "shop.items"])

    def go_on(options: object, *, needs_topic: bool) -> None:
        raise ConfigError.of("broker", "is asked")

    monkeypatch.setattr(spark_resync, "check_broker", go_on)
    done = CliRunner().invoke(spark, ["resync", *PULSAR, "--table", "shop.ordres", "--contact-point", "h"])
    missing = "--table: shop.ordres does not exist at h:9042; did you mean shop.orders?"
    assert str(done.exception) == ("broker: is asked" if is_there else missing)


def _check_orders(record: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the table shop.orders and a topic with this schema of key and value."""
    topic = "/admin/v2/persistent/public/default/t"
    kinds = {"kv.encoding.type": "SEPARATED", "key.schema.type": "AVRO", "value.schema.type": "AVRO"}
    data = json.dumps({"key": record, "value": record})
    schema = {"version": 0, "type": "KEY_VALUE", "data": data, "properties": kinds}
    pages = {
        f"{topic}/partitions": page({"partitions": 0}),
        "/admin/v2/schemas/public/default/t/schemas": page({"getSchemaResponses": [schema]}),
    }
    monkeypatch.setattr("spark_bridge.jobs.cassandra_rows.find_table", lambda *asked: _table("orders"))
    with serving(pages) as url:
        options = {"serviceUrl": "pulsar://h:1", "adminUrl": url, "topic": "t"}
        check_table(CassandraAccess(contact_points=("h",)), "shop", "orders", options)


@pytest.mark.parametrize("changes", [{}, {"doc": "of another connector"}, {"doc": 7}])
def test_a_topic_has_the_records_of_the_table_or_does_not_say_whose(
    changes: Mapping[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connector may have written the schema."""
    _check_orders({**data_key_schema(_table("orders")), **changes}, monkeypatch)


def test_a_topic_with_the_records_of_another_table_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` would report every row, and `--repair` would send them all."""
    with pytest.raises(ConfigError) as error:
        _check_orders(data_key_schema(_table("items")), monkeypatch)
    said = "--topic: persistent://public/default/t has the records of shop.items, not of shop.orders"
    assert str(error.value) == said


@pytest.mark.parametrize(
    "command",
    [
        ["mirror", "--target", "x"],
        ["changelog", "--target", "x"],
        ["latest"],
        ["latest", "--mirror", "x"],
        ["top"],
        ["publish", "--target", "x", "--rows"],
        ["verify", "--mirror", "x", "--table", "k.t", "--contact-point", "h"],
        ["resync", "--mirror", "x", "--table", "k.t", "--contact-point", "h"],
        ["wait", "--mirror", "x"],
    ],
)
def test_a_mirror_may_have_a_limit_for_its_micro_batches(command: list[str]) -> None:
    """A mirror has its checkpoint below the target, with every version of PySpark.

    Other commands ignore a mirror's options.
    """
    where = ["--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1", "--topic", "t"]
    done = cdc(*command, *where, "-o", "maxRowsPerTrigger=5", "-o", "maxBytesPerTrigger=5000")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, "the admin service does not answer" in line) == (1, True), line


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LOG4J_CONFIGURATION_FILE", "/etc/own.xml"),
        ("JAVA_TOOL_OPTIONS", "-Dlog4j2.configurationFile=/etc/own.xml"),
        ("SPARK_SUBMIT_OPTS", "-Dlog4j.configurationFile=/etc/own.xml"),
        ("SPARK_CONF_DIR", "/etc/spark"),
        ("PYSPARK_SUBMIT_ARGS", "--conf spark.driver.extraJavaOptions=-Dx=y pyspark-shell"),
    ],
)
def test_sparks_log_settings_are_ours_unless_the_user_has_some(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master elsewhere keeps Spark's own: it has warnings that do not matter to a local one."""
    (option,) = log_options("local[*]")
    name, _, url = option.partition("=")
    assert (name, Path(url.removeprefix("file://")).is_file()) == ("-Dlog4j2.configurationFile", True)
    assert log_options("spark://master:7077") == ()
    monkeypatch.setenv(variable, value)
    assert log_options("local[*]") == ()


def test_jars_that_nobody_can_fetch_are_left_to_spark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no Maven and the cache is empty, or the line has no Iceberg."""
    monkeypatch.setenv("CDC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MAVEN_HOME", raising=False)
    assert cached_jars("4.1", delta=True, iceberg=False) == ()
    assert cached_jars("4.2", delta=True, iceberg=True) == ()
    assert cached_jars("9.9", delta=False, iceberg=False) == ()


@pytest.mark.parametrize("line", sorted(_SETS))
def test_the_cached_jars_of_a_line_are_those_that_it_needs(line: str) -> None:
    """These are spark-avro, Delta Lake, Iceberg and the reader of topics, as far as the line has them."""
    poms = "".join((_POMS / f"{name}.xml").read_text() for name in _SETS[line] if name is not None)
    for coordinates in asdict(_JARS[line]).values():
        if coordinates is not None:
            _, artifact, version = coordinates.split(":")
            assert re.search(rf"<artifactId>{artifact}</artifactId>\s*<version>{version}</version>", poms)


def test_what_spark_does_is_told_by_its_tasks() -> None:
    """The numbers include all running stages."""
    assert tasks_text([]) == ", planning"
    assert tasks_text([(10, 150), (2, 1_000)]) == ", 12 of 1,150 tasks"


def test_a_topic_of_top_has_lines_for_a_narrow_terminal() -> None:
    """The lag needs records with a write time, and the rate needs two times."""
    last = int(datetime(2026, 11, 24, 22, 0, 56, tzinfo=UTC).timestamp()) * 1_000_000
    found = TopicActivity("persistent://public/default/data-shop.orders")
    live = {"writetime": str(last - 67_000)}
    rows: list[RawRow] = [(b"k", b"v", live, f"1:{n}:0", 0, None, last - 4_000_000) for n in range(8)]
    rows += [
        (b"k", None, live, "1:8:0", 0, None, last),
        (b"k", b"v", {"snapshot": "true", "writetime": "1"}, "1:9:0", 0, None, last),
    ]
    found.add(to_arrow(found.topic, 0, rows[8:]))
    complete = {found.topic: "2026-11-24 22:00:55 UTC"}
    assert list(summary_lines([found], complete))[1:3] == [
        "  2 records: 1 update, 1 delete",
        "  lag 0.067 s, 99 % 0.067 s; last 2026-11-24 22:00:56 UTC",
    ]
    found.add(to_arrow(found.topic, 0, [(*row[:2], {}, *row[3:]) for row in rows[:8]]))
    assert list(summary_lines([found], complete)) == [
        "public/default/data-shop.orders",
        "  10 records: 9 updates, 1 delete; 2.5 a second",
        "  lag 0.067 s, 99 % 0.067 s; last 2026-11-24 22:00:56 UTC",
        "  complete until 2026-11-24 22:00:55 UTC",
    ]
    without = TopicActivity(found.topic)
    without.add(to_arrow(found.topic, 0, [(b"k", b"v", {}, "1:1:0", 0, None, last)]))
    assert list(summary_lines([without], complete))[2] == "  last 2026-11-24 22:00:56 UTC"
    assert list(summary_lines([], {})) == ["no record"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "--source-config: {path} cannot be read: No such file or directory"),
        ("{", "--source-config: {path} cannot be read: it is no JSON (JSONDecodeError)"),
        ("[1]", "--source-config: {path} is not a JSON object"),
        (
            '{"configs": {"keyspace": "ks", "table": "t", "columns.hash": "ks.t.a"}}',
            "columns.hashKey: is required by columns.hash: a secret text of at least 32 bytes (`openssl rand -hex 32` makes one)",
        ),
    ],
)
def test_a_file_of_a_sources_options_that_is_of_no_use_is_told(tmp_path: Path, text: str | None, reason: str) -> None:
    """The mistake is reported before Spark starts. `sources get` prints the options as `configs`."""
    path = tmp_path / "source.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        hidden_columns(path)
    assert str(raised.value) == reason.format(path=path)


def test_a_resync_says_what_became_of_the_gaps_of_each_table() -> None:
    """The report also says that no gap is open, and counts messages that are not gap records."""
    assert list(report_lines(ResyncReport(tables=(), foreign_messages=0, seconds=0))) == [
        "no gap is open: nothing to do"
    ]
    report = ResyncReport(
        tables=(
            TableResync(table="shop.orders", gaps=2, outcome=Outcome.CLOSED, reason="the table was dropped"),
            TableResync(table="shop.parts", gaps=1, outcome=Outcome.LEFT_OPEN, reason="why"),
        ),
        foreign_messages=3,
        seconds=1,
    )
    assert list(report_lines(report)) == [
        "shop.orders: 2 gaps closed: the table was dropped",
        "shop.parts: 1 gap left open: why",
        "messages of the gaps topic that are not gap records, and were skipped: 3",
    ]
    assert report.left_open == 1


def test_a_folder_of_another_file_system_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path without a scheme may be one of HDFS there, and an object store may need Hadoop's credentials."""
    with pytest.raises(ConfigError, match="there is no mirror below"):
        check_mirror(str(tmp_path))
    check_mirror("hdfs://namenode/lake")
    monkeypatch.setenv("SPARK_ENV_LOADED", "1")
    check_mirror(str(tmp_path))


def test_an_empty_master_is_none_and_those_of_cluster_managers_are_urls() -> None:
    """`--master "$MASTER"` is empty where the variable is not set."""

    @click.command()
    @BROKER_OPTIONS
    @SESSION_OPTIONS
    def command(*, job: SparkJob) -> None:
        click.echo(job.master)

    for text in ("", "local", "local[2]", "yarn", "spark://h:7077", "k8s://https://h", "custom://h"):
        assert CliRunner().invoke(command, [*PULSAR, "--master", text]).output == f"{text}\n"
