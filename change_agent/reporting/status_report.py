"""StatusReport: the agent's state, as in `status.json`, `/healthz`, `/readyz` and `cdc agent status`."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.segment_key import SegmentKey
from change_agent.metrics import AgentMetrics
from change_agent.parking.parked import parked_bytes
from change_agent.positions.inflight import InflightPositions
from change_agent.private_files import replace_private
from change_agent.publishing.topic_status import TopicStatus
from change_agent.reporting.process_space import process_space
from change_agent.reporting.progress import Progress
from change_agent.schema.schema_store import schema_bytes
from change_agent.schema.table_metadata import TableMetadataProvider

__all__ = ["StatusReport"]

_CONNECT_TIMEOUT_S: Final = 1.0
_JSON: Final = "application/json"
_NOTHING_YET: Final = "{}\n"


class StatusReport:
    """Measures and reports the agent's state. One thread calls `refresh`; any thread may read the results."""

    def __init__(
        self,
        metrics: AgentMetrics,
        positions: InflightPositions,
        node: TableMetadataProvider,
        *,
        limits: Callable[[], Mapping[SegmentKey, int]],
        topics: Callable[[], Mapping[str, TopicStatus]],
        progress: Callable[[], Mapping[str, object]] = dict,
        path: Path,
        service_url: str,
        contact_points: Sequence[str],
        requires_safe_policies: bool = False,
    ) -> None:
        self._metrics: Final = metrics
        self._positions: Final = positions
        self._node: Final = node
        self._limits: Final = limits
        self._topics: Final = topics
        self._published: Final = progress
        self._path: Final = path
        self._service_url: Final = service_url
        self._contact_points: Final = list(contact_points)
        self._requires_safe_policies: Final = requires_safe_policies
        self._progress: Final = Progress()
        self._process_space: Final = process_space()
        self._started_at: Final = _utc_now()
        self.unhealthy_after_s = 60.0
        self.table_patterns: tuple[Sequence[str], Sequence[str]] = ((), ())
        """The options `includeTables` and `excludeTables`, as they are in force."""
        self.http_address: str | None = None
        self._last = ""

    def refresh(self) -> None:
        """Measure the state, and replace the status file."""
        metrics, positions = self._metrics, self._positions
        places = {key: each.position for key, each in positions.progress().items()}
        metrics.inflight_events, metrics.inflight_bytes = positions.events, positions.bytes
        metrics.schema_refreshes = self._node.refreshes
        metrics.parked_bytes = parked_bytes(self._path.parent)
        metrics.schema_bytes = schema_bytes(self._path.parent)
        metrics.events_too_large = sum(each.events_too_large for each in list(metrics.tables.values()))
        self._progress.update(
            time_s=time.time(),
            positions=places,
            limits=self._limits(),
            acknowledged_writetime_us=metrics.acknowledged_writetime_us,
            events=metrics.events_acknowledged,
            size=metrics.bytes_read,
        )
        now = self._progress.now
        metrics.lag_bytes, metrics.lag_seconds, metrics.stuck_seconds = now.lag_bytes, now.lag_s, now.stuck_s
        status = {
            "pid": os.getpid(),
            "process_space": self._process_space,
            "time": _utc_now(),
            "started": self._started_at,
            "node_id": None if self._node.node_id is None else str(self._node.node_id),
            "contact_points": self._contact_points,
            "include_tables": list(self.table_patterns[0]),
            "exclude_tables": list(self.table_patterns[1]),
            "cassandra_problem": self._node.problem,
            "http": self.http_address,
            "segments": {str(each): place for each, place in places.items()},
            "progress": asdict(now),
            "published_until": dict(self._published()),
            "topics": {table: asdict(topic) for table, topic in self._topics().items()},
            "metrics": metrics.as_dict(),
        }
        self._last = _one_line_each(status)
        replace_private(self._path, self._last.encode())

    def last(self) -> tuple[bool, bytes, str]:
        """The content of the status file, for readers without access to the file."""
        return bool(self._last), (self._last or _NOTHING_YET).encode(), _JSON

    def health(self) -> tuple[bool, bytes, str]:
        """Unhealthy if there is something to read, but the position has not moved for `unhealthy_after_s`."""
        stuck_s = self._progress.now.stuck_s
        is_well = stuck_s < self.unhealthy_after_s
        reason = None if is_well else f"the log moved and the position did not for {stuck_s:.0f} s"
        return is_well, _body(is_well, [reason] if reason else []), _JSON

    def readiness(self) -> tuple[bool, bytes, str]:
        """Not ready while Cassandra or Pulsar is unavailable, or another agent has the node.

        With `requires_safe_policies`, also while policies of Pulsar would drop unread events.
        """
        problems = []
        if self._node.problem is not None:
            problems.append(f"cassandra: {self._node.problem}")
        elif self._node.node_id is None:
            problems.append("cassandra: the schema is not read yet")
        if self._metrics.standby:
            problems.append("another agent, perhaps on another machine, publishes this node's changes")
        topics = self._topics()
        if topics and not any(each.is_usable for each in topics.values()):
            problems += [f"pulsar: {each.topic}: {each.problem or 'is being opened'}" for each in topics.values()][:3]
        elif not topics and not _is_listening(self._service_url):
            problems.append(f"pulsar: {self._service_url} does not answer")
        if self._requires_safe_policies:
            problems += [f"pulsar: {each.topic}: {hazard}" for each in topics.values() for hazard in each.hazards]
        return not problems, _body(not problems, problems), _JSON


def _body(is_well: bool, problems: list[str]) -> bytes:
    return json.dumps({"status": "ok" if is_well else "failing", "problems": problems}).encode() + b"\n"


def _one_line_each(parts: Mapping[str, object]) -> str:
    """A JSON object with a line for each of its parts.

    Python encodes JSON with indents ten times as slowly, and the status of a thousand tables is long.
    """
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(part)}" for name, part in parts.items())
    return f"{{\n{lines}\n}}\n"


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_listening(service_url: str) -> bool:
    """True if one of the URL's brokers accepts connections."""
    default = 6651 if service_url.startswith("pulsar+ssl") else 6650
    for address in service_url.partition("://")[2].partition("/")[0].split(","):
        found = re.fullmatch(r"\[?(.*?)\]?(?::(\d+))?", address.strip())
        assert found is not None
        try:
            with socket.create_connection((found[1], int(found[2] or default)), _CONNECT_TIMEOUT_S):
                return True
        except OSError:
            continue
    return False
