"""`cdc spark` with a real Pulsar: topics are checked before Spark starts, and missing parts give one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cdc.sandbox import artifacts
from tests.fixtures.spark import MakeTopic
from tests.topics.numbered_records import KEY_AND_VALUE
from tests.unit.cdc.test_spark_command import cdc


def _where(options: Mapping[str, str], topic: str) -> list[str]:
    return ["--service-url", options["serviceUrl"], "--admin-url", options["adminUrl"], "--topic", topic]


@pytest.mark.parametrize("command", ["latest", "mirror", "verify"])
def test_a_wrong_topic_is_named_before_spark_starts(
    command: str, data_topic: MakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no Java here, and the command does not need it for this error."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    topic = data_topic(*KEY_AND_VALUE)
    more = {"mirror": ["--target", str(tmp_path)], "verify": ["--table", "k.t", "--contact-point", "127.0.0.1"]}
    done = cdc(command, *_where(topic.options, f"{topic.name}-missing"), *more.get(command, []))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"topic {topic.name}-missing: does not exist" in line


def test_without_a_java_there_is_one_line(data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, and there is no traceback."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    topic = data_topic(*KEY_AND_VALUE)
    done = cdc("latest", *_where(topic.options, topic.name))
    assert done.returncode == 1
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("cdc: ")]
    assert "Spark's Java did not start (JAVA_HOME is /nowhere); install a JDK 17" in line
    assert "Traceback" not in done.stderr


def test_iceberg_tables_in_a_session_without_iceberg_are_one_line(data_topic: MakeTopic, tmp_path: Path) -> None:
    """The error says that the session has no Iceberg."""
    topic = data_topic(*KEY_AND_VALUE)
    (tmp_path / "applied").mkdir()
    state = {"table_format": "iceberg", "positions": {}, "static_columns": []}
    (tmp_path / "applied" / "1.json").write_text(json.dumps(state))
    jars = [
        part
        for name in ("spark-avro", "spark-delta")
        for jar in artifacts.ensure(name)
        for part in ("--jars", str(jar))
    ]
    where = _where(topic.options, topic.name)
    done = cdc("mirror", *where, "--target", str(tmp_path), "--master", "local[1]", *jars)
    assert done.returncode == 2
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("cdc: ")]
    assert f"format: the tables below {tmp_path} are Iceberg's, and this session has no Iceberg" in line
    assert "Traceback" not in done.stderr
