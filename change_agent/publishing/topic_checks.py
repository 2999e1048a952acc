"""TopicChecks: the state of each events topic when it was last found complete, and the place in the log from which on
events may be lost if it is not.

    topic-looks.json => {"<topic>": Entry}
      Entry => {"subscription": text, "mark": text | null, "lost": text | null, "looks": [Look]}
        Look => {"ends": [[ledger, entry], ...], "place": Place | null}
      Place => [segment id, position, time in milliseconds]

A check stores where each topic partition ended, and the place up to which the commit log was acknowledged just before.
When the subscription has consumed up to these ends, all events before this place are consumed, and earlier checks are
removed. So all events that were not consumed count as lost. No times of different clocks are compared.
"""

from __future__ import annotations

import json
import logging
import operator
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from change_agent.errors import TopicLostError
from change_agent.positions.inflight import Place
from change_agent.private_files import replace_private
from change_agent.publishing.shared_write import SharedWrite
from schemas.topics import DEFAULT_SUBSCRIPTION

__all__ = ["LostTopic", "TopicChecks", "TopicState"]

_log: Final = logging.getLogger(__name__)
# A subscription gets a mark if it has none after this time. The agent that has created the topic marks it earlier.
_UNMARKED_S: Final = 60.0
# The largest number of checks that are kept while nothing is consumed. When there are more, every second one is
# dropped.
_MOST_CHECKS: Final = 120

LedgerPosition = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """An events topic that exists with its subscription in every partition.

    `mark` identifies this subscription: a subscription that was deleted and created again has another mark, or none.
    `ends` are the last entries of the partitions, and `consumed` are the positions up to which the subscription has
    consumed them; both are empty if the broker does not return them. `is_drained`: the subscription has no backlog.
    """

    partitions: int
    mark: str | None
    ends: tuple[LedgerPosition, ...] = ()
    consumed: tuple[LedgerPosition, ...] = ()
    is_drained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTopic:
    """A topic that was lost. Its events after `since` (None: all) that were acknowledged so far may be lost.

    `on_reported` is called when the loss is published.
    """

    topic: str
    reason: str
    since: Place | None
    on_reported: Callable[[], None]


class _Check(NamedTuple):
    ends: tuple[LedgerPosition, ...]
    place: Place | None


@dataclass(slots=True)
class _Entry:
    subscription: str
    mark: str | None
    lost: str | None = None
    checks: list[_Check] = field(default_factory=list)
    since: float = 0.0


class TopicChecks:
    """Owns the file in a working directory. May be used by several threads.

    `subscription` is the present subscription of the events topics.
    """

    def __init__(
        self,
        directory: Path,
        subscription: str = DEFAULT_SUBSCRIPTION,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path: Final = directory / "topic-looks.json"
        self._subscription: Final = subscription
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._entries: Final = self._read()
        # Entries of lost topics from before the loss. The file has them until the loss is published.
        self._unreported: Final[dict[str, _Entry]] = {}
        self._file: Final = SharedWrite(self._write)

    def knows(self, topic: str) -> bool:
        """True if the topic was found complete before."""
        with self._lock:
            return topic in self._entries

    def former_subscription(self, topic: str) -> str | None:
        """The topic's subscription when it was last found complete; None if eventsSubscriptionName is the same now."""
        with self._lock:
            entry = self._entries.get(topic)
            return None if entry is None or entry.subscription == self._subscription else entry.subscription

    def compare(self, topic: str, found: TopicState) -> None:
        """Raise TopicLostError when `found` has another subscription than the last check, or a loss was noted since."""
        with self._lock:
            entry = self._entries.get(topic)
        if entry is None:
            return
        if entry.lost is not None:
            raise TopicLostError(topic, entry.lost)
        if entry.mark is not None and entry.mark != found.mark:
            raise TopicLostError(
                topic, "has another subscription than before: it was removed, or the topic was deleted, and made again"
            )

    def wants_mark(self, topic: str) -> bool:
        """True if the topic's subscription has been known for `_UNMARKED_S`, and has no mark."""
        with self._lock:
            entry = self._entries.get(topic)
            return entry is not None and entry.mark is None and self._clock() >= entry.since + _UNMARKED_S

    def note_lost(self, topic: str, reason: str) -> None:
        """Note that the topic was lost: `compare` raises from now on, until `renew`."""
        with self._lock:
            entry = self._entries.get(topic)
            if entry is not None:
                entry.lost = reason
                self._file.note_change()

    def note(self, topic: str, found: TopicState, place: Place | None) -> None:
        """Note that the topic was found complete.

        `place`: up to where the log was acknowledged before the check; None while events of the topic wait on disk.
        """
        with self._lock:
            known = self._entries.get(topic)
            entry = known or _Entry(self._subscription, found.mark, since=self._clock())
            before = (entry.subscription, entry.mark, list(entry.checks))
            self._entries[topic] = entry
            self._note_subscription(topic, entry, found)
            entry.mark = found.mark or entry.mark
            if place is not None or not entry.checks:
                entry.checks.append(_Check(found.ends, place))
            _drop_checks(entry.checks, found)
            if known is None or before != (entry.subscription, entry.mark, entry.checks):
                self._file.note_change()

    def _note_subscription(self, topic: str, entry: _Entry, found: TopicState) -> None:
        former = entry.subscription
        if former == self._subscription:
            return
        _log.info(
            "%s has the subscription %r now, which begins at the oldest message that the topic has; if nothing reads %r, delete it",
            topic,
            self._subscription,
            former,
        )
        entry.subscription, entry.mark, entry.since = self._subscription, found.mark, self._clock()

    def renew(self, topic: str, found: TopicState) -> Place | None:
        """Note that a lost topic was created again. Return the place in the log after which events may be lost.

        The file keeps the old entry until `note_reported`.
        """
        with self._lock:
            entry = self._entries[topic]
            self._unreported.setdefault(topic, entry)
            place = entry.checks[0].place if entry.checks else None
            self._entries[topic] = _Entry(
                self._subscription, found.mark, checks=[_Check(found.ends, place)], since=self._clock()
            )
            self._file.note_change()
            return place

    def note_reported(self, topic: str) -> None:
        """Note that the loss is published."""
        with self._lock:
            self._unreported.pop(topic, None)
            self._file.note_change()
        self.save()

    def save(self) -> None:
        """Write the file, if it lacks a change. A loss that was not written before a crash is found by the marks.

        Threads that call this at the same time wait for the same write. A loss of power leaves this file or the one
        before it: without the marks, a deleted topic would be a new one.
        """
        # If the disk is full, positions cannot be stored either, and that is reported.
        with suppress(OSError):
            self._file.run()

    def _write(self) -> None:
        with self._lock:
            entries = {topic: _as_json(entry) for topic, entry in (self._entries | self._unreported).items()}
        # A line for each topic. The encoder is many times slower with an indent, and a topic may have many checks.
        lines = [f"{json.dumps(topic)}: {json.dumps(entry)}" for topic, entry in sorted(entries.items())]
        replace_private(self.path, ("{\n" + ",\n".join(lines) + "\n}\n").encode(), is_durable=True)

    def _read(self) -> dict[str, _Entry]:
        try:
            loaded = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(topic): _of_json(entry, self._subscription) for topic, entry in loaded.items()}
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            # The next check of each topic creates its entry again.
            return {}


def _drop_checks(checks: list[_Check], found: TopicState) -> None:
    """Drop the checks before the last one whose ends are consumed, and every second one if there are too many."""
    consumed = [
        number for number, check in enumerate(checks) if found.is_drained or _reached(found.consumed, check.ends)
    ]
    if consumed:
        del checks[: consumed[-1]]
    if len(checks) > _MOST_CHECKS:
        checks[1:] = checks[2::2]


def _reached(consumed: tuple[LedgerPosition, ...], ends: tuple[LedgerPosition, ...]) -> bool:
    return bool(ends) and len(consumed) == len(ends) and all(map(operator.ge, consumed, ends))


def _as_json(entry: _Entry) -> dict[str, object]:
    return {
        "subscription": entry.subscription,
        "mark": entry.mark,
        "lost": entry.lost,
        "looks": [each._asdict() for each in entry.checks],
    }


def _of_json(entry: dict[str, Any], subscription: str) -> _Entry:
    """Return an entry of the file. Files of earlier versions have no subscription; then `subscription` is used."""
    checks = [
        _Check(
            tuple((int(ledger), int(end)) for ledger, end in check["ends"]),
            None if check["place"] is None else Place(*map(int, check["place"])),
        )
        for check in entry["looks"]
    ]
    return _Entry(str(entry.get("subscription", subscription)), entry["mark"], entry["lost"], checks)
