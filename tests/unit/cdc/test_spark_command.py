"""`cdc spark`: what is wrong is said before Spark starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cdc.commands import spark as verify_module
from cdc.commands import spark_tables
from cdc.commands.spark import spark
from cdc.commands.spark_options import may_be_iceberg
from schemas.errors import ConfigError

PULSAR = ["--service-url", "pulsar://h:1", "--admin-url", "http://h:2"]


def cdc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc.main", "spark", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
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
        (["backfill", *PULSAR, "--table", "x", "--contact-point", "h"], "--table: 'x' is not KEYSPACE.TABLE"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    """No session is started, no traceback is shown."""
    done = cdc(*arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("kept", "needs_iceberg"),
    [("iceberg", True), ("delta", False), (None, False), ("nothing", False), ("out of sight", True)],
)
@pytest.mark.parametrize("command", ["mirror", "verify"])
def test_a_session_has_iceberg_where_the_tables_are(
    command: str, kept: str | None, needs_iceberg: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the state that a mirror keeps; a folder that only Spark can look into may hold anything."""
    target = "viewfs://only-spark/lake" if kept == "out of sight" else str(tmp_path)
    if kept != "nothing":
        (tmp_path / "applied").mkdir()
        (tmp_path / "applied" / "9.json").write_text('{"table_format": "of an older state"}')
        (tmp_path / "applied" / "10.json").write_text(json.dumps({"epoch": 1, "table_format": kept}))
    asked: list[bool] = []

    def session(jars: tuple[Path, ...], master: str | None, *, iceberg: bool = False) -> None:
        asked.append(iceberg)
        raise ConfigError.of("session", "is not started by this test")

    for module in (spark_tables, verify_module):
        monkeypatch.setattr(module, "open_session", session)
        monkeypatch.setattr(module, "check_topics", lambda options: None)
    where = (
        ["--target", target] if command == "mirror" else ["--mirror", target, "--table", "k.t", "--contact-point", "h"]
    )
    done = CliRunner().invoke(spark, [command, *PULSAR, "--topic", "t", *where])
    assert isinstance(done.exception, ConfigError), done.output
    assert asked == [needs_iceberg]


def test_where_there_is_no_iceberg_tables_out_of_sight_are_taken_for_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """On PySpark 4.2; if they are Iceberg's nevertheless, the session that has started says so."""
    monkeypatch.setattr("spark_bridge.spark_line.HAS_ICEBERG", False)
    assert may_be_iceberg("viewfs://only-spark/lake") is False


def test_an_admin_service_that_does_not_answer_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no Java here, and nothing asks for it."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    done = cdc("latest", "--service-url", "pulsar://127.0.0.1:1", "--admin-url", "http://127.0.0.1:1", "--topic", "t")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the admin service does not answer" in line
    assert "check the option adminUrl" in line
