"""The names of the metrics in the dashboard and the alarms of deploy/monitoring."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml

__all__ = ["agent_metrics_named", "pulsar_metrics_named", "resolved_metrics_named", "source_metrics_named"]

_FOLDER: Final = Path(__file__).parent.parent.parent / "deploy" / "monitoring"


def agent_metrics_named() -> set[str]:
    """Metrics of agents, with the endings of counters and histograms."""
    return set(re.findall(r"\bcdc_agent_\w+", _queries()))


def resolved_metrics_named() -> set[str]:
    """Metrics of `cdc resolved`."""
    return set(re.findall(r"\bcdc_resolved_\w+", _queries()))


def pulsar_metrics_named() -> set[str]:
    """Metrics of Pulsar's brokers and functions workers."""
    return set(re.findall(r"\bpulsar_\w+", _queries()))


def source_metrics_named() -> set[str]:
    """User metrics of sources: the values of the label `metric`."""
    values = re.findall(r'metric=~?\\?"([\w|]+)', _queries())
    return {name for value in values for name in value.split("|")}


def _queries() -> str:
    rules = yaml.safe_load((_FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return "\n".join([*expressions, (_FOLDER / "cassandra-cdc-dashboard.json").read_text(encoding="utf-8")])
