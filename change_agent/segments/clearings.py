"""Clearings: publishes on a table's events topic that the table was truncated or dropped.

    clearings.json => {"truncations": {table id: [segment id, position, time in ms]}, "alive": [table id]}

Truncations are in the node's `system.local`. They are compared whenever the provider has asked the node (because the
log moved, or at its interval), and when the log says that the node has noted a truncation. The position of a truncation
in the log is known. So the reader stops there, and the message follows the events of earlier changes. If the reader has
already passed this position, the message is published at once, and the table's events from this position on are
published again. So a consumer finds every change that the truncation has not removed after its message. If the topic
cannot be used then, the events of the table that are not sent yet wait for the message (AwaitedClearings).

A drop is found when the node's schema lacks a table that was there before. It is published at the reader's position.

A clearing is stored when the broker has it on every partition, and has the events that were published again. After a
crash before that, both are published again. Their segments stay until then. If the topic of a truncation that is found
late cannot be used, the events that are published again wait behind it, in memory or held on disk. The copy of the
positions has this file, too (CopiedState).

The module has more than 500 lines because a clearing goes through all its states here: found, awaited, published again,
stored.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Final, TypeAlias
from uuid import UUID

from change_agent.errors import PublishError
from change_agent.events.mutation_events import EventKeys
from change_agent.events.mutation_interpreter import MutationInterpreter, StoppedError
from change_agent.positions.inflight import InflightPositions, TrackedEntry
from change_agent.positions.published_clearings import CLEARINGS_FILE
from change_agent.private_files import replace_private, sync_directory
from change_agent.publishing.awaited_clearings import AwaitedClearings, send_clearing
from change_agent.publishing.event_producers import EventProducers
from change_agent.schema.table_metadata import TableMetadataProvider
from change_agent.segments.known_segments import KnownSegments
from runtime.backoff import Backoff
from runtime.notices import Notices
from schemas.mutation_event import Clearing, ClearingKind, MutationEvents, encode_clearing
from schemas.table_metadata import TableMetadata
from schemas.topics import events_topic
from schemas.truncation import Truncation

__all__ = ["Clearings"]

_log: Final = logging.getLogger(__name__)
_BACKOFF: Final = Backoff(1.0, 60.0)
_NODE_ANSWER_S: Final = 1.0
_NODE_PAUSE_S: Final = 10.0
# How long a clearing waits until the broker has all events that were handed over before it.
_EMPTY_S: Final = 5.0
# How long a clearing waits until the reader has read its position; longer than the usual period of sync.
_PATIENCE_S: Final = 12.0


PublishAgain: TypeAlias = Callable[[UUID, int, int], Sequence[TrackedEntry]]


class _State(Enum):
    """FOUND ──> done; if the reader has already passed the position: FOUND ──> REPEATED ──> done.

    If the topic of a truncation cannot be used: FOUND ──> AWAITED ──> as above.
    """

    FOUND = auto()
    AWAITED = auto()
    """AwaitedClearings publishes it, before the events that are handed over now."""
    REPEATED = auto()
    """The clearing is published.

    The events after it were handed over again; the broker may not have all of them yet.
    """


@dataclass(kw_only=True)
class _Pending:
    table: TableMetadata
    kind: ClearingKind
    place: Truncation
    found_at: float
    state: _State = _State.FOUND
    is_late: bool = False
    """The reader has passed its position, so the events after it are published again."""
    repeated: Sequence[TrackedEntry] = ()
    """The entries of these events, if they were handed over before the truncation was published."""
    due_at: float = 0.0
    failures: int = 0

    @property
    def name(self) -> str:
        word = "truncation" if self.kind is ClearingKind.TRUNCATION else "drop"
        return f"the {word} of {self.table.full_name}"

    @property
    def is_repeated(self) -> bool:
        """True when the events of `repeated` are acknowledged, or held on disk."""
        return not any(each.outstanding for each in self.repeated)

    def is_at(self, segment_id: int, position: int) -> bool:
        return self.state is _State.FOUND and self.place[:2] == (segment_id, position)

    def put_off(self) -> None:
        """Set the time of the next try; the pause grows with each failure."""
        self.failures += 1
        self.due_at = time.monotonic() + _BACKOFF.pause_s(self.failures)


class Clearings:
    """Used by the reader's thread.

    `read_again(table_id, segment_id, position)` must publish a table's events from this position on again, and return
    their entries.
    """

    def __init__(
        self,
        directory: Path,
        source: TableMetadataProvider,
        interpreter: MutationInterpreter,
        positions: InflightPositions,
        producers: EventProducers,
        topic_prefix: str,
        stopping: threading.Event,
        awaited: AwaitedClearings,
    ) -> None:
        self._path: Final = directory / CLEARINGS_FILE
        self._source: Final = source
        self._interpreter: Final = interpreter
        self._positions: Final = positions
        self._producers: Final = producers
        self._topic_prefix: Final = topic_prefix
        self._stopping: Final = stopping
        self._awaited: Final = awaited
        self._notices: Final = Notices(_log)
        self._published: dict[UUID, Truncation] | None = None
        self._alive: set[UUID] = set()
        self._pending: Final[dict[UUID, _Pending]] = {}
        self._noted = 0
        self._ask_at = 0.0
        # The input of the last check. There is nothing to do while it is unchanged.
        self._seen: tuple[object, ...] = ()

    def find(self, first_segment_id: int | None, done_place: tuple[int, int]) -> None:
        """Find new truncations and drops. `first_segment_id` is the oldest segment in `cdc_raw`.

        `done_place`: the place in the log up to which earlier agents had read when this one began; zeros if none had.
        Without a file of published truncations (nor one in the copy of positions), those before the oldest segment are
        not published again: earlier agents have published them. At the very first start, no agent has events from before
        them. A truncation behind `done_place` happened when no agent ran, so it is published.
        """
        self._ask_node()
        truncations, present = self._source.truncations, self._source.present
        # A change of the table filter leaves the schema's version as it is.
        seen = (truncations, present, self._interpreter.schema_version, self._interpreter.left_out_ids)
        if present is None or all(a is b or a == b for a, b in zip(seen, self._seen or (None,) * 4, strict=True)):
            return
        self._seen = seen
        published = {each.table_id: each for each in self._interpreter.published_tables}
        self._load(truncations, first_segment_id, done_place)
        assert self._published is not None
        now = time.monotonic()
        for table_id, found in truncations.items():
            if table_id in published and table_id in present and _is_new(found, self._published.get(table_id)):
                waiting = self._pending.get(table_id)
                if waiting is None or waiting.place != found:
                    self._pending[table_id] = _Pending(
                        table=published[table_id], kind=ClearingKind.TRUNCATION, place=found, found_at=now
                    )
        for table_id in self._alive - present:
            waiting = self._pending.get(table_id)
            if table_id not in published:
                self._alive.discard(table_id)
            elif waiting is None or waiting.kind is not ClearingKind.DROP:
                self._pending[table_id] = _Pending(
                    table=published[table_id], kind=ClearingKind.DROP, place=Truncation(0, 0, _now_ms()), found_at=now
                )
        if not self._alive.issuperset(alive := present & published.keys()):
            self._alive |= alive
            self._store()

    def _ask_node(self) -> None:
        """Ask the node for its truncations if the log says that it has noted one.

        A node that does not answer blocks the reader for `_NODE_ANSWER_S`, and is asked again after `_NODE_PAUSE_S`.
        """
        noted = self._interpreter.truncations_noted
        if noted == self._noted or time.monotonic() < self._ask_at:
            return
        if self._source.as_of(time.time_ns() // 1_000_000, _NODE_ANSWER_S) is not None:
            self._noted = noted
        else:
            self._ask_at = time.monotonic() + _NODE_PAUSE_S

    def stop_in(self, segment_id: int, position: int) -> int | None:
        """The first position in this segment from `position` on where a clearing has to be published; None without one.

        The reader may be just there: it was started again, or had read all that there was.
        """
        if not self._pending:
            return None
        return min(
            (
                each.place.position
                for each in self._pending.values()
                if each.state is _State.FOUND
                and each.place.segment_id == segment_id
                and each.place.position >= position
            ),
            default=None,
        )

    def publish_at(self, segment_id: int, position: int) -> None:
        """Publish the clearings of this position. All events before it must be handed over, and none after it.

        Raises StoppedError.
        """
        for table_id, each in list(self._pending.items()):
            if each.is_at(segment_id, position):
                if not self._wait_for_events() and self._stopping.is_set():
                    raise StoppedError
                self._publish_truncation(table_id, each)

    def _publish_truncation(self, table_id: UUID, pending: _Pending, *, is_tried: bool = True) -> bool:
        """Publish it now; False if later events of the table wait for it, because it has to be tried again."""
        # If an earlier truncation of the table is awaited, this one replaces it.
        if is_tried and table_id not in self._awaited and self._publish(table_id, pending, pending.place):
            return True
        pending.state = _State.AWAITED
        message = self._message(table_id, pending, pending.place)
        self._awaited.add(table_id, self._topic_of(pending), message, is_late=pending.is_late)
        return False

    def _topic_of(self, pending: _Pending) -> str:
        return events_topic(pending.table.keyspace, pending.table.name, self._topic_prefix)

    def publish_due(self, log: KnownSegments, read_again: PublishAgain) -> None:
        """Publish the clearings that the reader has passed, or has not reached within `_PATIENCE_S`.

        After the first failure no other clearing is tried. So a broker that does not answer blocks the reader once, and
        not once for each table of a keyspace that was dropped. Raises StoppedError.
        """
        now = time.monotonic()
        due = [
            (table_id, each)
            for table_id, each in self._found()
            if now > each.found_at + _PATIENCE_S or _is_passed(each, log.reached(each.place.segment_id), log)
        ]
        if self._publish_all(due, log, read_again):
            self._finish_awaited(read_again)
            self._finish_repeated()

    def publish_passed(self, log: KnownSegments, read_again: PublishAgain) -> None:
        """Publish the truncations that the reader has passed, before it reads on. Raises StoppedError.

        Otherwise more events would come before them. An earlier process may have passed them: if the disk was full,
        AwaitedClearings has forgotten that they are to be published. A truncation that the reader is just at is not
        passed: see `stop_in`.
        """
        passed = [
            (table_id, each)
            for table_id, each in self._found()
            if each.kind is ClearingKind.TRUNCATION and _is_passed(each, log.reached(each.place.segment_id) - 1, log)
        ]
        self._publish_all(passed, log, read_again)

    def _found(self) -> list[tuple[UUID, _Pending]]:
        """The clearings that may be tried now."""
        now = time.monotonic()
        return [each for each in self._pending.items() if each[1].state is _State.FOUND and now >= each[1].due_at]

    def _publish_all(self, due: Sequence[tuple[UUID, _Pending]], log: KnownSegments, read_again: PublishAgain) -> bool:
        """Publish these clearings; False after the first failure.

        The others are not tried then. Drops wait for the next call. Truncations are awaited at once: the reader may read
        on after this call, and the segments with the events behind them may be deleted.
        """
        if due and not self._wait_for_events() and self._stopping.is_set():
            raise StoppedError
        is_answered = True
        for table_id, each in due:
            if is_answered:
                is_answered = self._publish_due(table_id, each, log, read_again)
            elif self._stopping.is_set():
                raise StoppedError
            elif each.kind is ClearingKind.TRUNCATION:
                self._publish_late(table_id, each, read_again, is_tried=False)
        return is_answered

    def _finish_awaited(self, read_again: PublishAgain) -> None:
        for table_id, each in list(self._pending.items()):
            if each.state is not _State.AWAITED:
                continue
            if each.repeated and each.is_repeated:
                self._awaited.note_repeated(table_id, are_durable=True)
            is_late = self._awaited.take_published(table_id)
            if is_late is None:
                continue
            self._note_published(each, each.place)
            if is_late:
                read_again(table_id, each.place.segment_id, each.place.position)
            if is_late or not each.is_repeated:
                each.state = _State.REPEATED
            else:
                self._finish(table_id, each, each.place)

    def _publish_due(self, table_id: UUID, pending: _Pending, log: KnownSegments, read_again: PublishAgain) -> bool:
        if pending.kind is ClearingKind.DROP:
            segment_id, position = log.read_place()
            return self._publish(table_id, pending, Truncation(segment_id, position, pending.place.time_ms))
        return self._publish_late(table_id, pending, read_again)

    def _publish_late(
        self, table_id: UUID, pending: _Pending, read_again: PublishAgain, *, is_tried: bool = True
    ) -> bool:
        """Publish a truncation that the reader has passed, and the events behind it once more; False if it is awaited.

        `is_tried`: False to let it be awaited in any case.
        """
        pending.is_late = True
        if not self._publish_truncation(table_id, pending, is_tried=is_tried):
            if self._awaited.wants_repetition(table_id):
                # Now, because the topic may stay away for longer than the segments.
                pending.repeated = read_again(table_id, pending.place.segment_id, pending.place.position)
                self._awaited.note_repeated(table_id, are_durable=pending.is_repeated)
            return False
        read_again(table_id, pending.place.segment_id, pending.place.position)
        return True

    def _finish_repeated(self) -> None:
        """Finish the truncations in state REPEATED when the broker has all events.

        After a crash before that, the truncation and the events after it are published again. While the broker does
        not take the events, the checks back off, because each one blocks the reader.
        """
        now = time.monotonic()
        repeated = [
            table_id for table_id, each in self._pending.items() if each.state is _State.REPEATED and now >= each.due_at
        ]
        if not repeated:
            return
        if self._wait_for_events():
            for table_id in repeated:
                self._finish(table_id, self._pending[table_id], self._pending[table_id].place)
            return
        for each in map(self._pending.__getitem__, repeated):
            each.put_off()

    def _wait_for_events(self) -> bool:
        """Wait until the broker has all events that were handed over; False if it has not after `_EMPTY_S`."""
        return self._positions.wait_until_empty(_EMPTY_S)

    def _publish(self, table_id: UUID, pending: _Pending, place: Truncation) -> bool:
        """Publish the clearing on every partition; False if it has to be tried again."""
        topic = self._topic_of(pending)
        if pending.kind is ClearingKind.DROP:
            self._awaited.remove(table_id)
        try:
            # No topic is created for a dropped table.
            is_wanted = pending.kind is ClearingKind.TRUNCATION or self._producers.has_topic(topic)
            if is_wanted:
                send_clearing(self._producers.open_clearings(topic), topic, self._message(table_id, pending, place))
        except PublishError as error:
            pending.put_off()
            self._notices.say(topic, f"{pending.name} is not on its events topic yet, trying again: {error}")
            return False
        self._awaited.remove(table_id)
        if is_wanted:
            self._note_published(pending, place)
        else:
            _log.info("%s does not exist: %s is not published, and the topic is not made for it", topic, pending.name)
        if pending.is_late:
            pending.state = _State.REPEATED
        else:
            self._finish(table_id, pending, place)
        return True

    def _note_published(self, pending: _Pending, place: Truncation) -> None:
        _log.info(
            "%s: %s at segment %d, position %d is published to every partition",
            self._topic_of(pending),
            pending.name,
            place.segment_id,
            place.position,
        )

    def _message(self, table_id: UUID, pending: _Pending, place: Truncation) -> bytes:
        table = pending.table
        return encode_clearing(
            MutationEvents(
                node_id=self._interpreter.node_id,
                segment_id=place.segment_id,
                keyspace=table.keyspace,
                table=table.name,
                table_id=table_id,
                key_schema=EventKeys(table).schema,
                events=(),
                clearing=Clearing(pending.kind, place.position, place.time_ms),
            )
        )

    def _finish(self, table_id: UUID, pending: _Pending, place: Truncation) -> None:
        assert self._published is not None
        if pending.kind is ClearingKind.TRUNCATION:
            self._published[table_id] = place
        else:
            self._published.pop(table_id, None)
            self._alive.discard(table_id)
        del self._pending[table_id]
        self._store()

    def _load(
        self, truncations: Mapping[UUID, Truncation], first_segment_id: int | None, done_place: tuple[int, int]
    ) -> None:
        if self._published is not None:
            return
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            self._published = {
                UUID(each): Truncation(*map(int, place)) for each, place in stored["truncations"].items()
            }
            self._alive = {UUID(each) for each in stored["alive"]}
        except FileNotFoundError:
            self._begin(truncations, first_segment_id, done_place)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.error(
                "%s cannot be read (%s): truncations whose segments the node still has are published again, earlier drops are not",
                self._path,
                error,
            )
            self._begin(truncations, first_segment_id, done_place)

    def _begin(
        self, truncations: Mapping[UUID, Truncation], first_segment_id: int | None, done_place: tuple[int, int]
    ) -> None:
        self._published = {
            table_id: each
            for table_id, each in truncations.items()
            if (first_segment_id is None or each.segment_id < first_segment_id)
            and (done_place == (0, 0) or each[:2] <= done_place)
        }

    def _store(self) -> None:
        """Write the file. A clearing that cannot be stored is published again by the next start, which is harmless."""
        assert self._published is not None
        stored = {
            "truncations": {str(table_id): list(each) for table_id, each in sorted(self._published.items())},
            "alive": sorted(map(str, self._alive)),
        }
        try:
            replace_private(self._path, f"{json.dumps(stored, indent=1)}\n".encode(), is_durable=True)
            sync_directory(self._path.parent)
        except OSError as error:
            self._notices.say(
                "store",
                f"{self._path} cannot be written ({error.strerror}); the next start publishes truncations again",
            )


def _is_new(found: Truncation, last: Truncation | None) -> bool:
    """True if `found` is a later truncation than `last`.

    A later position in the log decides first, because the node's clock may have been set back.
    """
    return last is None or found[:2] > last[:2] or (found != last and found.time_ms >= last.time_ms)


def _is_passed(pending: _Pending, reached: int, log: KnownSegments) -> bool:
    """True if the log was read up to its place. `reached`: up to where its segment was read."""
    place = pending.place
    return all(
        segment_id == place.segment_id and reached >= place.position for segment_id in log.unread(place.segment_id)
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
