"""The user metrics of the source: those of DataStax's connector under their names, and ours.

Pulsar keeps a summary (count, sum, quantiles) of the values that it gets. So a counted metric is sent as the increase
since the last report, and the summary's sum is the total. A measured metric is sent as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, final

__all__ = ["COUNTED", "MEASURED", "Mean", "Metrics"]

COUNTED: Final[Mapping[str, str]] = {
    "cache_hits": "Events whose change was published already",
    "cache_misses": "Events whose change was not published yet",
    "cache_evictions": "Keys that were removed from the cache for others",
    "data_topic_partitions_added": "Partitions that data topics were given while this instance wrote to them",
    "events_dead_lettered": "Events that can never be published and became dead letters",
    "events_of_dropped_tables": "Events of tables that were dropped",
    "events_received": "Events that were read from events topics",
    "expiries_looked_at_again": "Reads that still returned an expired value, and were repeated",
    "expiries_stored": "Rows that wait for the second in which one of their values expires",
    "keys_not_read": "Reads that failed while reads of other keys were answered",
    "levels_left_out": "Times that the higher consistency level was not used for a while, because nodes did not answer",
    "levels_refused": "Answers of Cassandra that a consistency level is disallowed",
    "messages_dead_lettered": "Messages that are not events, and became dead letters",
    "partitions_taken_over": "Topic partitions that this instance began to read or got from another one",
    "range_deletions_left_out": "Range deletions that were not published (publish.rangeDeletions: false)",
    "reads_at_fallback": "Reads that a lower level than the configured one answered",
    "reads_refused_in_disagreement": "Reads that were refused while the nodes did not agree about the schema",
    "reads_too_early": "Reads that showed less than their event, and were repeated",
    "records_published": "Records that the data topics have",
    "records_refused": "Records that the broker did not take, and that are sent again",
    "retries": "Attempts that failed and were repeated",
    "rows_not_converted": "Rows that could not be written as a record",
    "slots_given_up": "Statements that had no answer after 2 s",
    "unexpected_errors": "Attempts that failed for an unexpected reason; the log gives the reason",
}
"""Name -> help. All are reported from the start, so that dashboards show them and alarms see their first increase."""

MEASURED: Final[Mapping[str, str]] = {
    "cache_size": "Keys in the cache",
    "data_topic_hazards": "Policies of Pulsar that delete records of data topics",
    "data_topics_not_judged": "Data topics whose policies are not known",
    "events_topics_refused": "Events topics that cannot be read",
    "partitions_in_work": "Partitions of Cassandra that are being read",
    "query_executors": "Statements that may be in flight",
    "query_latency": "Milliseconds of a statement; the mean of an interval",
    "replication_latency": "Milliseconds from the write to its acknowledged record; the mean of an interval",
    "tables": "Tables that this instance serves",
    "tables_parked": "Tables that wait for a problem to be solved",
}
"""Name -> help."""


@final
class Mean:
    """Sum and number of the measurements of an interval."""

    __slots__ = ("count", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        """Add a measurement."""
        self.total += value
        self.count += 1


class Metrics:
    """Counters, and means of the measurements since the last report."""

    def __init__(self) -> None:
        self.counters: Final[dict[str, int]] = dict.fromkeys(COUNTED, 0)
        """Counted events by metric name, since the start."""
        self._reported: dict[str, int] = {}
        self._means: dict[str, Mean] = {}

    def mean(self, name: str) -> Mean:
        """The measurements of this metric. Their mean is reported at the end of an interval, if there are any."""
        return self._means.setdefault(name, Mean())

    def observe(self, name: str, value: float) -> None:
        """Add a measurement."""
        self.mean(name).add(value)

    def to_report(self, measured: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        """The values to report now: increases, means, and these values as they are."""
        for name, value in self.counters.items():
            increase = value - self._reported.get(name, 0)
            self._reported[name] = value
            yield name, increase
        for name, mean in self._means.items():
            if mean.count:
                yield name, mean.total / mean.count
            mean.total, mean.count = 0.0, 0
        yield from measured.items()
