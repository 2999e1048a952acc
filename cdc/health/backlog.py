"""Backlog: what a subscription of a topic has not acknowledged yet, from the topic's statistics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from cdc.health.findings import as_duration

__all__ = ["Backlog"]


class Backlog:
    """The messages of a topic that a subscription has not acknowledged.

    `oldest_s`: the age of the oldest of them. `stalled_s`: the seconds for which some of them wait, and consumers are
    connected that acknowledge none. `acknowledged_s`: the seconds since the last acknowledgement, also without a
    backlog; infinite if the broker knows of none.
    """

    def __init__(
        self,
        *,
        messages: int,
        oldest_s: float,
        consumers: int,
        stalled_s: float = 0.0,
        acknowledged_s: float = math.inf,
    ) -> None:
        self.messages: Final = messages
        self.oldest_s: Final = oldest_s
        self.consumers: Final = consumers
        self.stalled_s: Final = stalled_s
        self.acknowledged_s: Final = acknowledged_s

    @classmethod
    def of(cls, stats: Mapping[str, Any], subscription: str, now_s: float) -> Backlog | None:
        """The backlog of a subscription, from a topic's statistics; None if the topic has no such subscription."""
        parts = list((stats.get("partitions") or {}).values()) or [stats]
        found = [each["subscriptions"][subscription] for each in parts if subscription in each["subscriptions"]]
        if not found:
            return None
        oldest = [
            int(each.get("earliestMsgPublishTimeInBacklog") or 0) for each in found if int(each["msgBacklog"]) > 0
        ]
        times = [each / 1000 for each in oldest if each > 0]
        consumers = [consumer for each in found for consumer in each.get("consumers") or ()]
        acknowledged_s = _last_acknowledged_s(found)
        is_read = times and consumers
        last_sign_s = max(acknowledged_s, _last_connected_s(consumers))
        return cls(
            messages=sum(int(each["msgBacklog"]) for each in found),
            oldest_s=max(0.0, now_s - min(times)) if times else 0.0,
            consumers=len(consumers),
            stalled_s=max(0.0, now_s - max(min(times), last_sign_s)) if is_read else 0.0,
            acknowledged_s=max(0.0, now_s - acknowledged_s) if acknowledged_s else math.inf,
        )

    def text(self) -> str:
        """`nothing waits`, or the number of messages and the age of the oldest."""
        if not self.messages:
            return "nothing waits"
        age = f", the oldest for {as_duration(self.oldest_s)}" if self.oldest_s else ""
        return f"{self.messages:,} message{'s wait' if self.messages != 1 else ' waits'}{age}"


def _last_acknowledged_s(subscriptions: Iterable[Mapping[str, Any]]) -> float:
    """When a message was acknowledged last, in seconds since the epoch; 0 if that is not known.

    From the statistics of the subscription in each partition. Pulsar forgets the time when a topic moves to another
    broker. Then the consumers connect anew.
    """
    names = ("lastAckedTimestamp", "lastMarkDeleteAdvancedTimestamp")
    return max((int(each.get(name) or 0) / 1000 for each in subscriptions for name in names), default=0.0)


def _last_connected_s(consumers: Iterable[Mapping[str, Any]]) -> float:
    """When a consumer connected last, in seconds since the epoch; 0 if that is not known."""
    connected = [datetime.fromisoformat(each["connectedSince"]) for each in consumers if each.get("connectedSince")]
    return max((each.timestamp() for each in connected), default=0.0)
