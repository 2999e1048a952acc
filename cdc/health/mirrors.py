"""How far a mirror has come, from the state file beside its tables and the ends of its data topic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.health.findings import Finding, as_duration, failure, ok, warning
from cdc.health.pulsar_service import NotThereError, PulsarService

__all__ = ["mirror_finding"]

_LATE_S: Final = 600.0


def mirror_finding(service: PulsarService, target: str, now_s: float) -> Finding:
    """Raises PulsarServiceError."""
    try:
        from spark_bridge.jobs.state_file import newest_state
        from spark_bridge.reading.folders import FsspecFolder
    except ImportError as error:
        return warning(target, f"not checked: {error.name} is not installed", "pip install 'cassandra-cdc[spark]'")
    try:
        stored = newest_state(FsspecFolder(f"{target.rstrip('/')}/applied"))
    except (OSError, ValueError) as error:
        return failure(target, f"cannot be read ({error})", "correct mirrors in line.yaml, or the rights")
    if stored is None:
        return failure(
            target, "no mirror was ever written there", "run cdc spark mirror, or correct mirrors in line.yaml"
        )
    return judged_mirror(target, json.loads(stored), lambda topic: _end(service, topic), now_s)


def judged_mirror(target: str, state: Mapping[str, Any], end_of: Any, now_s: float) -> Finding:
    """By its state and the last entry of each topic partition, None for one that is gone."""
    positions: Mapping[str, Sequence[int]] = state["positions"]
    ends = {name: end_of(name) for name in positions}
    behind = [
        name for name, end in ends.items() if end is not None and end[1] >= 0 and end > tuple(positions[name][:2])
    ]
    clock_s = float(state.get("clock_s") or 0)
    age = as_duration(max(0.0, now_s - clock_s)) if clock_s else "long"
    facts = {"epoch": state["epoch"], "partitions": len(positions), "partitions_behind": len(behind)}
    if not behind:
        return ok(target, f"has every record, micro-batch {state['epoch']}", **facts)
    text = f"lacks records of {len(behind)} of {len(positions)} topic partitions; its last micro-batch was {age} ago"
    if now_s - clock_s > _LATE_S:
        return warning(target, text, "start cdc spark mirror (--follow keeps it running)", **facts)
    return ok(target, text, **facts)


def _end(service: PulsarService, topic: str) -> tuple[int, int] | None:
    try:
        return service.last_entry(topic)
    except NotThereError:
        return None
