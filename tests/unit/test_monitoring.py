"""Dashboard and alarms of deploy/monitoring: they are generated, valid, and use existing metrics."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from cdc.main import cli
from change_agent.metrics import AgentMetrics
from change_agent.publishing.topic_status import TopicStatus
from change_agent.reporting.prometheus import MetricsPage
from schemas.gap_record import gaps_topic
from schemas.progress_record import progress_topic
from schemas.topics import events_topic, expiry_topic, full_topic_name, schema_changes_topic
from source_connector.metrics import COUNTED, MEASURED
from tests.topics.metric_names import agent_metrics_named, resolved_metrics_named, source_metrics_named

_ROOT: Final = Path(__file__).parent.parent.parent
_FOLDER: Final = _ROOT / "deploy" / "monitoring"
_PROMTOOL: Final = shutil.which("promtool")
_without_promtool = pytest.mark.skipif(
    _PROMTOOL is None, reason="promtool is not on this machine (Debian: prometheus): the rules were not run"
)


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((_FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_dashboard_is_what_its_code_makes() -> None:
    """`python deploy/monitoring/dashboard.py` writes it again."""
    made = runpy.run_path(str(_FOLDER / "dashboard.py"))["dashboard"]()
    assert (_FOLDER / "cassandra-cdc-dashboard.json").read_text(encoding="utf-8") == made


def test_agents_export_each_metric_that_is_named() -> None:
    """The page is that of an agent with a table and its topic."""
    metrics = AgentMetrics()
    metrics.table("ks.t").observe_delay(0.1, 1)
    topic = TopicStatus(
        topic="events-ks.t",
        partitions=4,
        is_usable=True,
        waiting_events=0,
        held_bytes=0,
        too_large_bytes=0,
        problem=None,
        problem_since_s=None,
        attempts=0,
    )
    page = MetricsPage(metrics, lambda: {"ks.t": topic}, lambda: {"ks.t": 1.0}).render().decode()
    exported = set(re.findall(r"^(cdc_agent_\w+)", page, re.MULTILINE))
    named = agent_metrics_named()
    assert len(named) > 20
    assert named <= exported


def test_cdc_resolved_exports_each_metric_that_is_named(tmp_path: Path) -> None:
    """This holds also while Pulsar does not answer and no table has a value."""
    line = tmp_path / "line.yaml"
    line.write_text("pulsarServiceUrl: pulsar://127.0.0.1:1\npulsarAdminUrl: http://127.0.0.1:1\nport: 1\n")
    done = CliRunner().invoke(cli, ["resolved", "--prometheus", "--config", str(line)], catch_exceptions=False)
    assert done.exit_code == 0
    named = resolved_metrics_named()
    assert len(named) == 3
    assert named <= set(re.findall(r"^# TYPE (\w+)", done.stdout, re.MULTILINE))


def test_the_connector_counts_each_metric_that_is_named() -> None:
    """Each counted metric has a text, so the reference is complete. An integration test reads Pulsar's page."""
    named = source_metrics_named()
    assert len(named) > 10
    assert named <= {*COUNTED, *MEASURED}
    counted = r'counters\["(\w+)"\]|observe\("(\w+)"|counted_as="(\w+)"'
    sources = "".join(path.read_text(encoding="utf-8") for path in (_ROOT / "source_connector").rglob("*.py"))
    used = {name for names in re.findall(counted, sources) for name in names if name}
    assert used <= {*COUNTED, *MEASURED}
    assert set(COUNTED) - used == {"cache_hits", "cache_misses"} - used


def test_each_alarm_is_one_sentence_with_a_place_in_the_runbook() -> None:
    """Each alarm of the runbook exists."""
    names = [rule["alert"] for rule in _rules()]
    assert len(set(names)) == len(names)
    for rule in _rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert not rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
    runbook = (_ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (Cdc\w+)$", runbook, re.MULTILINE) == names


@pytest.mark.parametrize("name", ["alerts.yaml", "cassandra-cdc-dashboard.json"])
def test_a_backlog_is_that_of_tables_events_topics(name: str) -> None:
    """Records stay on the gaps topic after their gaps are closed, and expiries wait until they are due.

    On these topics, a backlog does not mean that a reader is missing.
    """
    text = (_FOLDER / name).read_text(encoding="utf-8").replace(r"\"", '"')
    selectors = re.findall(r"pulsar_subscription_(?:back_log|msg_ack_rate)\{(.*?)\}", text)
    assert selectors
    events = events_topic("shop", "orders")
    others = [
        gaps_topic(),
        progress_topic(),
        expiry_topic(events, "shop", "orders"),
        schema_changes_topic(events, "shop", "orders"),
    ]
    for selector in selectors:
        [(wanted, unwanted)] = re.findall(r'^topic=~"(.*)",topic!~"(.*)"$', selector)
        for topic, is_counted in [(events, True), *((each, False) for each in others)]:
            for part in ("", "-partition-3"):
                full = f"{full_topic_name(topic)}{part}"
                is_found = bool(re.fullmatch(wanted, full)) and not re.fullmatch(unwanted, full)
                assert is_found == is_counted, full


@_without_promtool
@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yaml"), ("check", "config", "prometheus.yaml"), ("test", "rules", "alerts_test.yaml")],
    ids=" ".join,
)
def test_promtool_takes_the_rules_and_their_tests(arguments: tuple[str, ...]) -> None:
    """promtool is Prometheus's own check. The test runs where it is installed."""
    assert _PROMTOOL is not None
    done = subprocess.run([_PROMTOOL, *arguments], cwd=_FOLDER, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
