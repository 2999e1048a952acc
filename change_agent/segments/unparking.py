"""Unparker: retries parked mutations when the schema has changed, and publishes those that can be read.

Their events come late: newer changes of the same rows may already be on the topic. That is safe, because an event
only says which row changed; a consumer reads the current row, with its write time. An item leaves the store when the
broker has its events, so a crash publishes it again and never loses it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from change_agent.events.mutation_interpreter import MutationInterpreter
from change_agent.metrics import AgentMetrics
from change_agent.parking.parked import ParkedMutation, ParkedMutations
from change_agent.positions.accounts import TrackedEntry
from change_agent.segments.late_events import LateEvents
from change_agent.sqlite_file import UnwritableFileError
from runtime.notices import Notices

__all__ = ["Unparker"]

_log: Final = logging.getLogger(__name__)
# How many parked mutations are read from the store at a time.
_CHUNK: Final = 200


class Unparker:
    """Used by the reader's thread, between two passes over the segments."""

    def __init__(
        self,
        parked: ParkedMutations,
        interpreter: MutationInterpreter,
        late: LateEvents,
        metrics: AgentMetrics,
    ) -> None:
        self._parked: Final = parked
        self._interpreter: Final = interpreter
        self._late: Final = late
        self._metrics: Final = metrics
        self._tried_with = 0
        self._notices: Final = Notices(_log, again_after_s=None)
        self._on_their_way: list[tuple[ParkedMutation, TrackedEntry]] = []

    def run(self) -> None:
        """Remove the mutations whose events the broker has, and retry all others if the schema has changed.

        Raises StoppedError.
        """
        try:
            self._run()
        except UnwritableFileError as error:
            self._metrics.count_write_failure()
            self._notices.say("store", str(error))
            self._tried_with = 0
        else:
            self._notices.clear("store")

    def _run(self) -> None:
        self._forget_arrived()
        self._metrics.parked = self._parked.count
        if not self._parked.count:
            return
        # While there are no new entries to read, nothing else takes over newer definitions.
        self._interpreter.use_schema_of(0)
        if self._tried_with == self._interpreter.schema_version:
            return
        self._tried_with = self._interpreter.schema_version
        after = 0
        while chunk := self._parked.waiting(after, _CHUNK):
            after = chunk[-1].number
            waiting = {each.number for each, _ in self._on_their_way}
            self._try([each for each in chunk if each.number not in waiting])
            self._forget_arrived()

    def _forget_arrived(self) -> None:
        arrived = [each for each, entry in self._on_their_way if entry.outstanding == 0]
        if arrived:
            self._parked.remove(arrived)
            self._on_their_way = [each for each in self._on_their_way if each[1].outstanding]
            self._metrics.mutations_unparked += len(arrived)
            _log.info("%d parked mutations are published; %d are left", len(arrived), self._parked.count)

    def _try(self, chunk: Sequence[ParkedMutation]) -> None:
        in_vain: list[tuple[str, int]] = []
        for each in chunk:
            events = self._interpreter.events_of_parked(each)
            if isinstance(events, str):
                in_vain.append((events, each.number))
            else:
                self._on_their_way.append((each, self._late.publish(events, each.segment_id, each.position)))
        if in_vain:
            self._parked.note_tries(in_vain)
