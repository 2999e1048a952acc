"""Values that are reported to Pulsar's summaries."""

from __future__ import annotations

from source_connector.metrics import Metrics


def test_counters_are_told_by_their_increase_and_measurements_by_their_mean() -> None:
    """So the sum in the summary is the total."""
    metrics = Metrics()
    metrics.counters["cache_hits"] += 5
    metrics.observe("query_latency", 2)
    metrics.observe("query_latency", 4)
    first = dict(metrics.to_report({"cache_size": 9}))
    metrics.counters["cache_hits"] += 2
    second = dict(metrics.to_report({"cache_size": 8}))
    assert (first["cache_hits"], second["cache_hits"], first["cache_misses"]) == (5, 2, 0)
    assert (first["query_latency"], "query_latency" in second) == (3.0, False)
    assert (first["cache_size"], second["cache_size"]) == (9, 8)
