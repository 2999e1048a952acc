"""The Grafana dashboard of a line: `python deploy/monitoring/dashboard.py` writes cassandra-cdc-dashboard.json.

Import the JSON in Grafana. A test generates it again and compares, and checks that agents and brokers export each
metric.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders.dashboard import Dashboard, DatasourceVariable, QueryVariable, Row
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.timeseries import Panel
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

JSON: Final = Path(__file__).with_name("cassandra-cdc-dashboard.json")
_SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_NODE: Final = 'instance=~"$agent"'
_TABLE: Final = 'instance=~"$agent",table=~"$table"'
_USER: Final = "pulsar_source_user_metric_"
_RATE: Final = "[$__rate_interval]"
# As in alerts.yaml: the tables' events topics with the default topicPrefix.
_EVENTS: Final = 'topic=~".*/cdc-events-[^/]+[.].+",topic!~".*/cdc-events-expiry-.+"'


@dataclass(frozen=True)
class _Graph:
    """A graph: title, description, unit, and queries with their legends."""

    title: str
    text: str
    unit: str
    queries: Sequence[tuple[str, str]]


def _counted(*names: str) -> str:
    return f'sum by (fqfn, metric) (rate({_USER}_sum{{metric=~"{"|".join(names)}"}}{_RATE}))'


def _mean(name: str) -> str:
    labels = f'{{metric="{name}"}}{_RATE}'
    return f"sum by (fqfn) (rate({_USER}_sum{labels})) / sum by (fqfn) (rate({_USER}_count{labels}))"


def _delay(share: str) -> str:
    return (
        f"histogram_quantile({share}, sum by (le) (rate(cdc_agent_write_to_publish_seconds_bucket{{{_TABLE}}}{_RATE})))"
    )


_ROWS: Final[dict[str, Sequence[_Graph]]] = {
    "Is it well?": (
        _Graph("Agents that answer", "1: yes. 0: CdcAgentDown in the runbook.", "short",
               ((f'up{{job="cassandra-cdc-agent",{_NODE}}}', "{{instance}}"),)),
        _Graph("Age of the oldest unpublished change", "Without readUnsynced it reaches Cassandra's sync period.", "s",
               ((f"cdc_agent_lag_seconds{{{_NODE}}}", "{{instance}}"),)),
        _Graph("Messages that wait for the connector", "By events topic. 0 while the connector keeps up.", "short",
               ((f"sum by (topic) (pulsar_subscription_back_log{{{_EVENTS}}})", "{{topic}}"),)),
        _Graph("From the write to the record", "The mean of an interval, by the writer's clock.", "ms",
               ((_mean("replication_latency"), "{{fqfn}}"),)),
    ),
    "Complete until": (
        _Graph("How long ago the data topic was complete", "Of `cdc resolved --listen`, by table.", "s",
               (('cdc_resolved_age_seconds{table=~"$table"}', "{{table}}"),)),
        _Graph("How long ago the events topic was complete", "By agent: what its node answered before is published.", "s",
               ((f"cdc_agent_published_age_seconds{{{_TABLE}}}", "{{table}} {{instance}}"),)),
    ),
    "Agents": (
        _Graph("Events that the broker has", "By table.", "ops",
               ((f"sum by (table) (rate(cdc_agent_table_events_acknowledged_total{{{_TABLE}}}{_RATE}))", "{{table}}"),)),
        _Graph("From the write to the events topic", "", "s",
               ((_delay("0.5"), "half"), (_delay("0.95"), "95 %"), (_delay("0.99"), "99 %"))),
        _Graph("Commit log that is not acknowledged", "", "bytes",
               ((f"cdc_agent_lag_bytes{{{_NODE}}}", "{{instance}}"),)),
        _Graph("cdc_raw", "At the limit Cassandra refuses writes.", "bytes",
               ((f"cdc_agent_cdc_raw_bytes{{{_NODE}}}", "{{instance}}"),
                (f"cdc_agent_cdc_raw_limit_bytes{{{_NODE}}}", "limit of {{instance}}"),
                (f"cdc_agent_spilled_bytes{{{_NODE}}}", "moved out, {{instance}}"))),
        _Graph("What waits, by table", "Held: on the agent's disk, because the topic cannot be used.", "short",
               ((f"cdc_agent_topic_waiting_events{{{_TABLE}}}", "{{table}} waiting events"),
                (f"cdc_agent_topic_held_bytes{{{_TABLE}}}", "{{table}} held bytes"))),
        _Graph("Trouble of agents", "Each of them has an alarm in the runbook.", "short",
               ((f"cdc_agent_parked{{{_NODE}}}", "parked, {{instance}}"),
                (f"increase(cdc_agent_damage_total{{{_NODE}}}[5m])", "damage: {{kind}}, {{instance}}"),
                (f"increase(cdc_agent_segments_gone_unread_total{{{_NODE}}}[5m])", "segments gone, {{instance}}"),
                (f"increase(cdc_agent_topics_lost_total{{{_NODE}}}[5m])", "topics lost, {{instance}}"),
                (f"increase(cdc_agent_write_failures_total{{{_NODE}}}[5m])", "failed writes, {{instance}}"))),
    ),
    "Sources": (
        _Graph("Events read, records published", "", "ops",
               ((_counted("events_received", "records_published"), "{{metric}} {{fqfn}}"),)),
        _Graph("Latency of Cassandra's reads", "The mean of an interval's statements.", "ms",
               ((_mean("query_latency"), "{{fqfn}}"),)),
        _Graph("Statements that may be in flight", "The connector adapts it to Cassandra's latency.", "short",
               ((_mean("query_executors"), "{{fqfn}}"),)),
        _Graph("Copies of replicas", "Events that were published already, and those that were not.", "ops",
               ((_counted("cache_hits", "cache_misses"), "{{metric}} {{fqfn}}"),)),
        _Graph("Reads that were repeated or fell back", "", "ops",
               ((_counted("reads_too_early", "reads_at_fallback", "levels_refused", "retries"), "{{metric}} {{fqfn}}"),)),
        _Graph("Trouble of sources", "Each of them has an alarm in the runbook.", "ops",
               ((_counted("events_dead_lettered", "messages_dead_lettered", "records_refused", "rows_not_converted",
                          "unexpected_errors", "tables_parked"), "{{metric}} {{fqfn}}"),)),
    ),
}  # fmt: skip


def dashboard() -> str:
    """The dashboard as JSON, with a line break at its end."""
    made = (
        Dashboard("Cassandra CDC")
        .uid("cassandra-cdc")
        .description("From Cassandra's commit log to the data topics; alarms are in alerts.yaml")
        .tags(["cassandra", "cdc", "pulsar"])
        .refresh("30s")
        .time("now-1h", "now")
        .with_variable(DatasourceVariable("datasource").type("prometheus").label("Data source"))
        .with_variable(_choice("agent", "cdc_agent_lag_seconds", "instance"))
        .with_variable(_choice("table", "cdc_agent_topic_usable", "table"))
    )
    for title, graphs in _ROWS.items():
        made = made.with_row(Row(title))
        for graph in graphs:
            made = made.with_panel(_panel(graph))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _choice(name: str, metric: str, label: str) -> QueryVariable:
    variable = QueryVariable(name).label(name.capitalize()).datasource(_SOURCE)
    variable = variable.query(f"label_values({metric}, {label})").refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
    return variable.include_all(True).multi(True).all_value(".*")


def _panel(graph: _Graph) -> Panel:
    panel = Panel().title(graph.title).description(graph.text).unit(graph.unit).min(0).span(8).height(7)
    panel = panel.datasource(_SOURCE).fill_opacity(8).line_width(1)
    for number, (query, legend) in enumerate(graph.queries):
        panel = panel.with_target(Dataquery().expr(query).legend_format(legend).ref_id(chr(ord("A") + number)))
    return panel


if __name__ == "__main__":
    JSON.write_text(dashboard(), encoding="utf-8")
    print(JSON, file=sys.stderr)
