"""AwaitedClearings: truncations whose topic could not be used. Its events that are not sent yet wait for them.

A topic may come back before the reader of the log tries again. Without this wait, events behind a truncation could be
on the topic before it, and their segments deleted before they are published once more.

    awaited-clearings.json => {table id: {"topic": text, "payload": hex, "is_late": bool}}

The file has the truncations for which events wait. Held events wait for them after a restart, too. So events are held,
or sent before a truncation, only when the file says so: after a restart, nothing else would.

The table may have been dropped meanwhile, and its topic deleted. No topic is created for the truncation of a table that
the node does not have.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from change_agent.errors import PublishError
from change_agent.private_files import replace_private, sync_directory
from change_agent.publishing.event_producers import EventProducer, send_all
from runtime.backoff import Backoff

__all__ = ["AwaitedClearings", "send_clearing"]

_log: Final = logging.getLogger(__name__)
_NAME: Final = "awaited-clearings.json"
_BACKOFF: Final = Backoff(0.2, 5.0)
_ANSWER_TIMEOUT_S: Final = 30.0
_MOST_THREADS: Final = 8
_TURN_S: Final = 0.1
# How long the events of a topic that can be used wait for its truncation.
_PATIENCE_S: Final = 60.0


def send_clearing(producers: Sequence[EventProducer], topic: str, payload: bytes) -> None:
    """Send the message with each producer, and close the producers. Raises PublishError."""
    try:
        send_all([(producer, payload) for producer in producers], topic, _ANSWER_TIMEOUT_S)
    finally:
        for producer in producers:
            producer.close()


@dataclass(slots=True)
class _Awaited:
    topic: str
    payload: bytes
    is_late: bool
    """Events that it should precede were sent already, and are to be published again behind it."""
    is_repeated: bool = False
    """These events are handed over once more, but they are not durable yet."""
    is_published: bool = False
    is_overtaken: bool = False
    is_dropped: bool = False
    """It is never published: the node does not have its table, and the broker does not have its topic."""
    # When the topic was first seen to be usable for events; None while it is not.
    usable_since: float | None = None
    # When it is to be published (monotonic), and how often that was put off.
    due_at: float = 0.0
    tries: int = 0

    @property
    def waits(self) -> bool:
        """True while events wait for it."""
        return self.is_unpublished and not self.is_overtaken

    @property
    def is_unpublished(self) -> bool:
        """True while it is to be published."""
        return not (self.is_published or self.is_dropped)

    def put_off(self) -> None:
        """Set the time of the next try; the pause grows each time."""
        self.tries += 1
        self.due_at = time.monotonic() + _BACKOFF.pause_s(self.tries)


class AwaitedClearings:
    """The newest truncation of each table whose topic could not be used.

    The reader's thread adds and removes them, the publisher's thread asks whether a topic waits, and some threads
    publish them. There are no threads while nothing is to be published.
    """

    def __init__(
        self,
        directory: Path,
        open_producers: Callable[[str], list[EventProducer]],
        stopping: threading.Event,
        patience_s: float = _PATIENCE_S,
        is_dropped: Callable[[UUID], bool | None] = lambda _: False,
        has_topic: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`is_dropped` is None while it is not known whether the node has the table.

        `open_producers` may create the topic; `has_topic` does not. Both may raise PublishError.
        """
        self._path: Final = directory / _NAME
        self._open_producers: Final = open_producers
        self._stopping: Final = stopping
        self._patience_s: Final = patience_s
        self._is_dropped: Final = is_dropped
        self._has_topic: Final = has_topic
        # By table id. Replaced as a whole, because other threads read it.
        self._awaited: Mapping[UUID, _Awaited] = self._read()
        # Keeps threads from writing the file at once.
        self._lock: Final = threading.Lock()
        # How many threads publish truncations, and the topics of those that they publish now; `_turns` guards both.
        self._turns: Final = threading.Lock()
        self._threads = 0
        self._busy: Final[set[str]] = set()
        # False while the file may lack the newest state.
        self._is_stored = True

    def start(self) -> None:
        """Begin to publish the truncations of the file."""
        for each in self._awaited.values():
            self._begin(each)

    def add(self, table_id: UUID, topic: str, payload: bytes, *, is_late: bool) -> None:
        """Let the topic's events that are not sent yet wait until the broker has the message.

        `is_late`: events that it should precede were sent already. The message replaces an earlier one of the table. If
        it is the same one, that of an earlier start, nothing changes.
        """
        known = self._awaited.get(table_id)
        if known is not None and (known.topic, known.payload) == (topic, payload):
            return
        added = _Awaited(topic, payload, is_late)
        self._is_stored = False
        self._awaited = {**self._awaited, table_id: added}
        self._store()
        self._begin(added)

    def __contains__(self, table_id: UUID) -> bool:
        return table_id in self._awaited

    def remove(self, table_id: UUID) -> None:
        """Let no event wait for the table's truncation any more, if there is one."""
        if table_id in self._awaited:
            self._awaited = {each: awaited for each, awaited in self._awaited.items() if each != table_id}
            self._store()

    def _begin(self, awaited: _Awaited) -> None:
        awaited.put_off()
        with self._turns:
            if self._threads < min(_MOST_THREADS, len(self._unpublished())):
                self._threads += 1
                threading.Thread(target=self._work, name="truncations", daemon=True).start()

    def _unpublished(self) -> list[tuple[UUID, _Awaited]]:
        return [(table_id, each) for table_id, each in self._awaited.items() if each.is_unpublished]

    def _work(self) -> None:
        """Publish truncations until fewer of them are left than there are threads."""
        while (due := self._take_due()) is not None:
            table_id, awaited = due
            self._publish(table_id, awaited)
            with self._turns:
                self._busy.discard(awaited.topic)

    def _take_due(self) -> tuple[UUID, _Awaited] | None:
        """Wait for a truncation that is due, and take it; None when this thread is not needed, or the agent stops.

        One that failed comes behind those that are due already. So a topic that is slow to fail takes one thread from
        the others, and many of them delay the others by one attempt.
        """
        while not self._stopping.wait(_TURN_S):
            with self._turns:
                unpublished = self._unpublished()
                if len(unpublished) < self._threads:
                    self._threads -= 1
                    return None
                # Never two of a topic at the same time: of two truncations of a table, the newer one comes last.
                free = [(table_id, each) for table_id, each in unpublished if each.topic not in self._busy]
                first = min(free, key=lambda found: found[1].due_at, default=None)
                if first is not None and time.monotonic() >= first[1].due_at:
                    self._busy.add(first[1].topic)
                    return first
        return None

    def _publish(self, table_id: UUID, awaited: _Awaited) -> None:
        """Try once. If it fails, it is tried again."""
        try:
            if self._is_moot(table_id, awaited):
                return
            send_clearing(self._open_producers(awaited.topic), awaited.topic, awaited.payload)
        except PublishError as error:
            _log.debug("a truncation cannot be published: %s", error)
            awaited.put_off()
        except Exception:  # noqa: BLE001  # its events wait for it
            _log.exception("%s: a truncation was not published; it is tried again", awaited.topic)
            awaited.put_off()
        else:
            awaited.is_published = True
            self._store()

    def _is_moot(self, table_id: UUID, awaited: _Awaited) -> bool:
        """True if the truncation is never published. Raises PublishError, also while that is not known."""
        is_dropped = self._is_dropped(table_id)
        if is_dropped is False or self._has_topic(awaited.topic):
            return False
        if is_dropped is None:
            raise PublishError(awaited.topic, "does not exist, and the node has not said yet whether it has the table")
        awaited.is_dropped = True
        self._store()
        _log.warning(
            "%s does not exist any more, and its table was dropped: an earlier truncation of the table is not published,"
            " and the topic is not made for it",
            awaited.topic,
        )
        return True

    def may_hold(self, topic: str) -> bool:
        """False while the file lacks a truncation for which the topic's events wait: tries to write it again."""
        if self._is_stored or not any(each.topic == topic and each.waits for each in self._awaited.values()):
            return True
        return self._store()

    def holds_back(self, topic: str, *, is_usable: bool) -> bool:
        """True while the topic's events wait for a truncation. `is_usable`: the topic can be used for events now.

        If the broker takes no truncation although it would take events, the events do not wait for ever.
        """
        waits = [self._holds_back(each, is_usable) for each in self._awaited.values() if each.topic == topic]
        return any(waits)

    def _holds_back(self, awaited: _Awaited, is_usable: bool) -> bool:
        if not awaited.waits:
            return False
        now = time.monotonic()
        if not is_usable:
            awaited.usable_since = None
        elif awaited.usable_since is None:
            awaited.usable_since = now
        elif now - awaited.usable_since >= self._patience_s and self._store(overtaken=awaited):
            _log.warning(
                "%s: the broker takes events, but no truncation, for %.0f s: later events are sent before it, and once"
                " more after it; see that the agent may produce with a further version of the topic's schema",
                awaited.topic,
                self._patience_s,
            )
        return not awaited.is_overtaken

    def take_published(self, table_id: UUID) -> bool | None:
        """Remove the table's truncation if it is published; None if it is not.

        Return True if later events may be before it, and not behind it as well.
        """
        awaited = self._awaited[table_id]
        if not awaited.is_published:
            return None
        self.remove(table_id)
        return awaited.is_overtaken or (awaited.is_late and not awaited.is_repeated)

    def wants_repetition(self, table_id: UUID) -> bool:
        """True if events from behind the table's truncation were sent already, and were not handed over once more.

        They may be handed over now: they wait for the truncation, too.
        """
        awaited = self._awaited[table_id]
        return awaited.is_late and not awaited.is_repeated

    def note_repeated(self, table_id: UUID, *, are_durable: bool) -> None:
        """Note that these events were handed over once more, and whether they are acknowledged, or held on disk.

        If they are not, they are handed over once more after a restart.
        """
        awaited = self._awaited[table_id]
        awaited.is_repeated = True
        if are_durable and awaited.is_late:
            awaited.is_late = False
            self._store()

    def _read(self) -> dict[UUID, _Awaited]:
        try:
            loaded = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                UUID(each): _Awaited(found["topic"], bytes.fromhex(found["payload"]), found["is_late"])
                for each, found in loaded.items()
            }
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            # The reader finds the truncations again. Only held events may come before them then.
            return {}

    def _store(self, *, overtaken: _Awaited | None = None) -> bool:
        """Write the file; False if the disk is full. Then only the memory has a truncation.

        `overtaken`: no event waits for this one any more, once the file says so.
        """
        with self._lock:
            waiting = {
                str(table_id): {"topic": each.topic, "payload": each.payload.hex(), "is_late": each.is_late}
                for table_id, each in self._awaited.items()
                if each.waits and each is not overtaken
            }
            try:
                replace_private(self._path, json.dumps(waiting, indent=1).encode(), is_durable=True)
                sync_directory(self._path.parent)
            except OSError:
                self._is_stored = False
            else:
                self._is_stored = True
                if overtaken is not None:
                    overtaken.is_overtaken = True
            return self._is_stored
