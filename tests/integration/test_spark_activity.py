"""The rate and the lag of changes: as numbers, in the terminal, and in the example notebook."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient
from pyspark.sql import SparkSession

from cdc.commands.spark_top import top_command
from cdc.sandbox import artifacts
from spark_bridge.rows.activity import change_rates, recent, topic_summary
from spark_bridge.rows.topic_activity import count_activity
from tests.fixtures.spark import DataTopic, MakeTopic, Record
from tests.servers.interface import REPOSITORY
from tests.topics.numbered_records import KEY_AND_VALUE


def written(topic: DataTopic) -> None:
    """Write ten rows with a write time an hour ago, three deletions of the same write time, and one backfilled row."""
    hour_ago = int(time.time() - 3600) * 1_000_000
    live = {"writetime": str(hour_ago), "kind": "row"}
    rows = [Record(key={"id": n}, value={"name": f"row {n}"}, properties=live) for n in range(10)]
    rows += [Record(key={"id": n}, properties=live) for n in range(3)]
    topic.write(*rows, Record(key={"id": 99}, value={"name": "old"}, properties={"writetime": "1", "snapshot": "true"}))


def test_changes_are_counted_with_their_lag(spark: SparkSession, data_topic: MakeTopic) -> None:
    """Updates and deletes are counted separately, and only live changes have a lag."""
    topic = data_topic(*KEY_AND_VALUE)
    written(topic)
    raw = recent(spark, topic.options, minutes=30)
    (row,) = topic_summary(raw).collect()
    assert (row.topic, row.records, row.updates, row.deletes) == (topic.name, 14, 11, 3)
    assert 3600 <= row.lag_p50_s < 7200
    spans = change_rates(raw, seconds=3600).collect()
    assert sum(each.records for each in spans) == 14
    assert sum(each.deletes for each in spans) == 3
    assert spans[0].per_second == round(spans[0].records / 3600, 3)
    assert spans[0].start <= dt.datetime.now()  # noqa: DTZ005  (as Spark gives rows)


def test_the_terminal_shows_each_topic_in_lines_that_it_has_room_for(
    spark: SparkSession, data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cdc spark top` opens no session, and its numbers equal those of Spark."""
    topic = data_topic(*KEY_AND_VALUE)
    written(topic)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: pytest.fail("a session was opened"))
    monkeypatch.setenv("COLUMNS", "80")
    pattern = topic.name.rsplit("-", 1)[0] + f"-({topic.name.rsplit('-', 1)[1]}|nothing)"
    options = ["--service-url", topic.options["serviceUrl"], "--admin-url", topic.options["adminUrl"]]
    done = CliRunner().invoke(top_command, [*options, "--topics-pattern", pattern, "--minutes", "30"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.endswith(topic.name.rsplit("/", 1)[1])]
    assert lines[at + 1].startswith("  14 records: 11 updates, 3 deletes; ")
    assert max(map(len, lines)) <= 80
    (counted,) = count_activity({**topic.options, "topic": topic.name}, minutes=30)
    (row,) = topic_summary(recent(spark, topic.options, minutes=30)).collect()
    assert (counted.records, counted.updates, counted.deletes) == (row.records, row.updates, row.deletes)
    assert (counted.per_second, counted.lag_s(0.99)) == (row.per_second, row.lag_p99_s)


@pytest.mark.extended
def test_the_notebook_plots_lag_and_rates(
    data_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docs/lag-and-rates.ipynb runs unchanged in its own kernel, and shows a picture at the end."""
    topic = data_topic(*KEY_AND_VALUE)
    written(topic)
    monkeypatch.setenv("CDC_SERVICE_URL", topic.options["serviceUrl"])
    monkeypatch.setenv("CDC_ADMIN_URL", topic.options["adminUrl"])
    monkeypatch.setenv("CDC_TOPIC", topic.name)
    monkeypatch.setenv("CDC_JARS", ",".join(map(str, artifacts.ensure("spark-avro"))))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.read(REPOSITORY / "docs" / "lag-and-rates.ipynb", as_version=4)
    NotebookClient(notebook, timeout=500, startup_timeout=300, kernel_name="python3").execute(cwd=str(tmp_path))
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    shown = [output["data"] for output in outputs if "data" in output]
    assert any("image/png" in each for each in shown)
    assert any(topic.name in each.get("text/plain", "") or "14" in each.get("text/plain", "") for each in shown)
