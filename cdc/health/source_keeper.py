"""SourceKeeper: restarts sources whose instances do not run, because Pulsar's functions worker gives up some of them.

The worker tries to start an instance once. If a server was not up yet, or another process has taken the instance's
port, the instance stays down until `sources restart`. A source that somebody has stopped is left alone.

    RUNS ── an instance is down ──> DOWN ── for longer than the patience ──> restart, and wait twice as long for the next
     ^──────────────── all instances run ────┘

Several keepers may run for one pipeline. The keeper that restarts a source is the exclusive producer of a topic until
the source runs, or the time for its start is over. The other keepers restart nothing in this time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from cdc.health.line_config import LineConfig
from cdc.health.pulsar_service import NotThereError, PulsarService, PulsarServiceError
from cdc.health.sources import SourceView, sources_of, with_starts
from cdc.health.turns import Turns

__all__ = ["SourceKeeper", "wait_for_sources"]

_LOOK_S: Final = 1.0
_START_LOOK_S: Final = 0.5
# A start takes 5 to 15 s: first the instance's JVM starts, then the connector's process.
_PATIENCE_S: Final = 20.0
_LONGEST_PAUSE_S: Final = 600.0
# A source that has run for this time has recovered: its pauses between restarts begin short again.
_WELL_AFTER_S: Final = 300.0

Turn = Callable[[], AbstractContextManager[bool]]
"""A context with True if this keeper may restart a source now. The end of the context gives the turn back."""


@dataclass(slots=True)
class _Watched:
    """The state of a source. All times are by the keeper's clock. `down_since_s`: None while the source runs."""

    down_since_s: float | None = None
    up_since_s: float = 0.0
    restarted_at_s: float | None = None
    pause_s: float = 0.0
    is_reported: bool = False


class SourceKeeper:
    """Restarts sources. One thread calls :meth:`check` again and again; it yields the lines for the user."""

    def __init__(
        self,
        service: PulsarService,
        turn: Turn,
        *,
        patience_s: float,
        start_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        stopping: threading.Event | None = None,
    ) -> None:
        """`start_s`: the longest time to wait until a restarted source runs; then another keeper may restart it.

        `stopping` ends all waits.
        """
        self._service: Final = service
        self._turn: Final = turn
        self._patience_s: Final = patience_s
        self._start_s: Final = start_s
        self._clock: Final = clock
        self._stopping: Final = stopping or threading.Event()
        self._watched: Final[dict[str, _Watched]] = {}
        self._is_away = False
        self.restarts = 0
        self.failures = 0
        """How often Pulsar did not answer, or refused a restart."""

    def check_once(self) -> Iterator[str]:
        """Restart each source that did not run during the whole patience, once. Yield the lines for the user."""
        began_s = self._clock()
        try:
            down = self._down()
            if down and self._patience_s:
                names = ", ".join(view.name for view in down)
                yield f"waiting {self._patience_s:.0f} s, because these sources may be starting: {names}"
            while down and self._clock() - began_s < self._patience_s and not self._stopping.wait(_LOOK_S):
                names_before = {view.name for view in down}
                down = [view for view in self._down() if view.name in names_before]
        except PulsarServiceError as error:
            self.failures += 1
            yield f"the sources are not known: {error}"
            return
        for view in down:
            if self._stopping.is_set():
                return
            yield from self._restart(view, _Watched(down_since_s=began_s), is_once=True)

    def check(self) -> Iterator[str]:
        """Check all sources once, and restart those that are down for too long. Yield the lines for the user."""
        try:
            views = with_starts(self._service, sources_of(self._service))
        except PulsarServiceError as error:
            self.failures += 1
            # It is not known what happens to the sources meanwhile: the patience begins again for all of them.
            self._watched.clear()
            if not self._is_away:
                yield f"waiting for Pulsar: {error}"
            self._is_away = True
            return
        if self._is_away:
            yield f"Pulsar at {self._service.url} answers again"
        self._is_away = False
        for gone in self._watched.keys() - {view.name for view in views}:
            del self._watched[gone]
        for view in views:
            yield from self._look_at(view)

    def _look_at(self, view: SourceView) -> Iterator[str]:
        now_s = self._clock()
        watched = self._watched.setdefault(view.name, _Watched(up_since_s=now_s))
        if not view.is_down:
            if watched.is_reported:
                yield f"source {view.name} runs"
            if watched.down_since_s is not None:
                watched.up_since_s = now_s
            watched.down_since_s, watched.is_reported = None, False
            if now_s - watched.up_since_s >= _WELL_AFTER_S:
                watched.pause_s = 0.0
            return
        if watched.down_since_s is None:
            # A random delay, so that keepers that began at the same time do not restart at the same time.
            watched.down_since_s = now_s + random.uniform(0, self._patience_s / 4)
        due_s = watched.down_since_s + self._patience_s
        if watched.restarted_at_s is not None:
            due_s = max(due_s, watched.restarted_at_s + watched.pause_s)
        if now_s >= due_s:
            yield from self._restart(view, watched)

    def _restart(self, view: SourceView, watched: _Watched, *, is_once: bool = False) -> Iterator[str]:
        down_s = self._clock() - (watched.down_since_s or 0.0)
        try:
            with self._turn() as is_ours:
                if not is_ours:
                    watched.down_since_s = None  # another keeper restarts it: the patience begins again
                    if is_once:
                        yield f"source {view.name} does not run; a watch restarts it now"
                    return
                if not self._is_down(view.name):
                    return
                self._service.restart_source(view.name)
                self.restarts += 1
                watched.pause_s = min(_LONGEST_PAUSE_S, max(self._patience_s, watched.pause_s * 2))
                watched.restarted_at_s, watched.is_reported = self._clock(), True
                reason = f": {view.error}" if view.error else ""
                lasted = f" for {down_s:.0f} s" if down_s >= 1 else ""
                following = "" if is_once else f"; next attempt in {watched.pause_s:.0f} s unless it runs"
                yield f"source {view.name} restarted, for it did not run{lasted}{reason}{following}"
                self._wait_until_it_runs(view.name)
        except PulsarServiceError as error:
            self.failures += 1
            yield f"source {view.name} could not be restarted: {error}"

    def _down(self) -> list[SourceView]:
        return [view for view in with_starts(self._service, sources_of(self._service)) if view.is_down]

    def _wait_until_it_runs(self, name: str) -> None:
        deadline_s = self._clock() + self._start_s
        while self._clock() < deadline_s and self._is_down(name):
            if self._stopping.wait(_LOOK_S):
                return

    def _is_down(self, name: str) -> bool:
        try:
            return SourceView.of(name, {}, self._service.source_status(name)).is_down
        except NotThereError:
            return False


def wait_for_sources(
    config: LineConfig, say: Callable[[str], None], *, timeout_s: float = 120.0, patience_s: float = _PATIENCE_S
) -> Mapping[str, str]:
    """Wait until all instances of this connector's sources run. A source that somebody has stopped is left out.

    Return a text for each source by name: empty if it runs, else why it does not run after `timeout_s`
    (`no reason given` if Pulsar gives none). `say` gets a line for each restart. Raises PulsarServiceError.
    """
    deadline = time.monotonic() + timeout_s
    with PulsarService(config) as service:
        keeper = SourceKeeper(service, Turns(config).turn, patience_s=patience_s)
        while True:
            views = [view for view in with_starts(service, sources_of(service)) if not view.is_stopped]
            down = {view.name: view.error or "no reason given" for view in views if view.is_down}
            if not down or time.monotonic() >= deadline:
                return {view.name: down.get(view.name, "") for view in views}
            for line in keeper.check():
                say(line)
            time.sleep(_START_LOOK_S)
