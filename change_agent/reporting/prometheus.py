"""The agent's metrics in the format of Prometheus, from a separate registry that is filled at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from change_agent.metrics import DELAY_BUCKETS_S, AgentMetrics, TableMetrics
from change_agent.publishing.topic_status import TopicStatus

__all__ = ["CONTENT_TYPE", "MetricsPage"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "cdc_agent"
# attribute of TableMetrics -> help
_PER_TABLE: Final = {
    "events_acknowledged": "Events that the broker has, by table",
    "messages_sent": "Messages that the broker has, by table",
    "bytes_sent": "Bytes of these messages, by table",
    "retries": "Attempts to open a topic or to send a message that failed and were repeated, by table",
    "write_failures": "Times that events could not be held on disk; they wait, and it is tried again, by table",
    "events_too_large": "Events that the broker did not take for their size, kept on disk, by table",
    "damaged_bytes": "Bytes of events held on disk that were damaged there and cannot be published, by table",
}


class MetricsPage(Collector):
    """The page of `/metrics`. `topics` gives the topics' states by table."""

    def __init__(
        self,
        metrics: AgentMetrics,
        topics: Callable[[], Mapping[str, TopicStatus]],
        resolved_ages: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """`resolved_ages` returns ages in seconds, by table."""
        self._resolved_ages: Final = resolved_ages
        self._metrics: Final = metrics
        self._topics: Final = topics
        self._registry: Final = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        metrics = self._metrics
        for field in fields(metrics):
            text = field.metadata.get("help")
            if text is not None:
                family = GaugeMetricFamily if field.metadata["is_gauge"] else CounterMetricFamily
                yield family(f"{_PREFIX}_{field.name}", text, value=getattr(metrics, field.name))
        damage = CounterMetricFamily(f"{_PREFIX}_damage", "Damaged places in segments, by kind", labels=["kind"])
        for kind, count in metrics.damage.items():
            damage.add_metric([kind], count)
        yield damage
        tables = dict(metrics.tables)
        yield from _of_tables(tables)
        usable = GaugeMetricFamily(
            f"{_PREFIX}_topic_usable", "1 while a table's events topic can be used", labels=["table"]
        )
        waiting = GaugeMetricFamily(f"{_PREFIX}_topic_waiting_events", "Events that wait for it", labels=["table"])
        held = GaugeMetricFamily(f"{_PREFIX}_topic_held_bytes", "Bytes of events held on disk for it", labels=["table"])
        hazards = GaugeMetricFamily(
            f"{_PREFIX}_topic_hazards", "Policies of Pulsar that would drop its unread events", labels=["table"]
        )
        for table, status in self._topics().items():
            hazards.add_metric([table], len(status.hazards))
            usable.add_metric([table], int(status.is_usable))
            waiting.add_metric([table], status.waiting_events)
            held.add_metric([table], status.held_bytes)
        yield from (usable, waiting, held, hazards)
        ages = GaugeMetricFamily(
            f"{_PREFIX}_published_age_seconds",
            "Age of the time before which everything that the node answered is on the events topic, by table",
            labels=["table"],
        )
        for table, age in self._resolved_ages().items():
            ages.add_metric([table], age)
        yield ages


def _of_tables(tables: dict[str, TableMetrics]) -> Iterator[Metric]:
    for name, text in _PER_TABLE.items():
        family = CounterMetricFamily(f"{_PREFIX}_table_{name}", text, labels=["table"])
        for table, counts in tables.items():
            family.add_metric([table], getattr(counts, name))
        yield family
    text = "From an event's write time to the broker's acknowledgement, by table"
    delays = HistogramMetricFamily(f"{_PREFIX}_write_to_publish_seconds", text, labels=["table"])
    for table, counts in tables.items():
        total, buckets = 0, []
        for bound, count in zip((*map(str, DELAY_BUCKETS_S), "+Inf"), counts.delay_counts, strict=True):
            total += count
            buckets.append((bound, total))
        delays.add_metric([table], buckets=buckets, sum_value=counts.delay_sum_s)
    yield delays
