"""Waits until a line without faults has nothing left to do."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final, cast

import httpx

from tests.fault_kit.errors import FaultRunError
from tests.fault_kit.line import FaultLine

__all__ = ["settle", "waiting_messages"]

_LOOK_S: Final = 0.5
_QUIET_S: Final = 2.0
_TIMEOUT_S: Final = 60
_DONE: Final = ("lag_bytes", "inflight_events", "parked")


def settle(line: FaultLine, timeout_s: float) -> None:
    """Wait until agents and connector have acknowledged everything, and no node holds hints. Raises FaultRunError."""
    deadline = time.monotonic() + timeout_s
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < _QUIET_S:
        reason = _why_busy(line)
        if reason is not None:
            quiet_since = time.monotonic()
            if quiet_since > deadline:
                raise FaultRunError(f"not settled after {timeout_s:g} s: {reason}")
        time.sleep(_LOOK_S)


def _why_busy(line: FaultLine) -> str | None:
    for agent in line.agents:
        if not agent.running:
            return f"the agent of {agent.directory} does not run:\n{agent.log_tail()}"
        with suppress(FileNotFoundError):
            status = agent.status()
            if status["pid"] != agent.pid:
                return f"the agent of {agent.directory} is starting"
            for name in _DONE:
                if agent.metric(name):
                    return f"the agent of {agent.directory} has {name} {agent.metric(name)}:\n{agent.log_tail(5)}"
            topics = cast("dict[str, dict[str, object]]", status["topics"])
            held = [str(topic["topic"]) for topic in topics.values() if topic["held_bytes"]]
            if held:
                return f"the agent of {agent.directory} holds events of {', '.join(held)}:\n{agent.log_tail(5)}"
    for node in line.sandbox.nodes:
        hints = list((node.folder / "hints").glob("*.hints"))
        if hints:
            return f"{node.name} holds hints for other nodes: {hints[0].name}"
    try:
        waiting = waiting_messages(line.sandbox.pulsar.admin_url)
    except (httpx.HTTPError, KeyError) as error:
        return f"Pulsar does not tell its backlog: {error}"
    busy = {topic: count for topic, count in waiting.items() if count}
    return f"messages wait for the connector: {busy}" if busy else None


def waiting_messages(admin_url: str) -> dict[str, int]:
    """By events topic: the messages that the connector has not acknowledged. Raises httpx.HTTPError and KeyError."""
    found: dict[str, int] = {}
    with httpx.Client(timeout=_TIMEOUT_S) as client:
        topics = client.get(f"{admin_url}/admin/v2/persistent/public/default/partitioned")
        for topic in topics.raise_for_status().json():
            if "/cdc-events-" not in topic or topic.endswith(("gaps", "schema-changes")):
                continue
            url = f"{admin_url}/admin/v2/{topic.replace('://', '/')}/partitioned-stats"
            found[topic] = client.get(url).raise_for_status().json()["subscriptions"]["sub"]["msgBacklog"]
    return found
