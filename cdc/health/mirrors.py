"""The progress of a mirror: the state file beside its tables, compared with the end of its data topic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc.health.findings import Finding, as_duration, failure, ok, warning
from cdc.health.pulsar_service import NotThereError, PulsarService

__all__ = ["mirror_finding"]

_LATE_S: Final = 600.0
_BEGINNING: Final = (-1, -1)


def mirror_finding(service: PulsarService, target: str, now_s: float) -> Finding:
    """The finding about the mirror in a folder. Raises PulsarServiceError."""
    try:
        from spark_bridge.jobs.state_file import newest_state
        from spark_bridge.reading.folders import FsspecFolder
        from spark_bridge.topics.positions import topic_of
    except ImportError as error:
        return warning(target, f"not checked: {error.name} is not installed", "pip install 'cassandra-cdc[spark]'")
    try:
        stored = newest_state(FsspecFolder(f"{target.rstrip('/')}/applied"))
        state = None if stored is None else _parts_of(stored)
    except (OSError, ValueError) as error:
        return failure(target, f"cannot be read ({error})", "correct mirrors in line.yaml, or the rights")
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        text = f"its newest file in applied/ is damaged, or a later version wrote it ({error!r})"
        return failure(target, text, "use that version here; or run cdc spark mirror --rebuild")
    if state is None:
        return failure(
            target, "no mirror was ever written there", "run cdc spark mirror, or correct mirrors in line.yaml"
        )
    topics = {topic for topic, number in map(topic_of, state["positions"]) if number >= 0}
    partitions = [f"{topic}-partition-{number}" for topic in topics for number in range(_partitions(service, topic))]
    return judged_mirror(target, state, lambda topic: _end(service, topic), now_s, partitions)


def judged_mirror(
    target: str, state: Mapping[str, Any], end_of: Any, now_s: float, partitions: Sequence[str] = ()
) -> Finding:
    """The finding about a mirror with this state.

    `end_of` returns the last entry of a topic partition, or None if the partition does not exist. `partitions`: the
    present partitions of the topic; the mirror may not know all of them.
    """
    positions: Mapping[str, Sequence[int]] = state["positions"]
    ends = {name: end_of(name) for name in sorted({*positions, *partitions})}
    behind = [
        name
        for name, end in ends.items()
        if end is not None and end[1] >= 0 and end > tuple(positions.get(name, _BEGINNING)[:2])
    ]
    gone = [name for name in positions if ends[name] is None]
    clock_s = float(state.get("clock_s") or 0)
    age = f"{as_duration(max(0.0, now_s - clock_s))} ago" if clock_s else "long ago"
    if clock_s - now_s > _LATE_S:
        age = f"{as_duration(clock_s - now_s)} ahead of the clock of this machine"
    facts = {"epoch": state["epoch"], "partitions": len(ends), "partitions_behind": len(behind)}
    if gone:
        text = f"its topic does not exist: {gone[0]}" + (f", and {len(gone) - 1} partitions more" if gone[1:] else "")
        remedy = "fill it again with cdc spark backfill, then run cdc spark mirror --rebuild; or correct mirrors in line.yaml"
        return failure(target, text, remedy, **facts)
    if not behind:
        text, lack = f"has every record, micro-batch {state['epoch']}", state.get("may_lack")
        if lack is not None:
            text = f"is at its topic's end, micro-batch {state['epoch']}, but may lack records: {lack}"
        return ok(target, text, **facts)
    text = f"lacks records of {len(behind)} of {len(ends)} topic partitions; its last micro-batch was {age}"
    if abs(now_s - clock_s) > _LATE_S:
        remedy = "start cdc spark mirror (--follow keeps it running)"
        if not positions.keys() & set(behind):
            remedy += "; nothing to do if it began with startingOffsets: those partitions have older records only"
        return warning(target, text, remedy, **facts)
    return ok(target, text, **facts)


def _parts_of(stored: str) -> Mapping[str, Any]:
    """The parts of a stored state that are judged. Raises ValueError and other errors for what is no state."""
    state = json.loads(stored)
    return {
        "epoch": int(state["epoch"]),
        "clock_s": float(state.get("clock_s") or 0),
        "positions": {name: (int(at[0]), int(at[1])) for name, at in state["positions"].items()},
        "may_lack": state.get("may_lack"),
    }


def _partitions(service: PulsarService, topic: str) -> int:
    try:
        return service.partitions(topic)
    except NotThereError:
        return 0


def _end(service: PulsarService, topic: str) -> tuple[int, int] | None:
    try:
        return service.last_entry(topic)
    except NotThereError:
        return None
