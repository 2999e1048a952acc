"""Stops: the reasons why a table's progress stands still: its changes may be lost, or wait until an operator decides.

    stops.json => {"<keyspace.table>" or "*": reason | {"reason": reason, "gaps": [hex of a gap record, ...]}}

Stops survive a restart of the agent. If reported gaps cover all changes of a stop, it ends when records on the gaps topic
close them (`cdc spark resync`). Any other stop ends when `cdc agent resume-progress` removes it from the file: only an
operator knows that the table was verified or backfilled. The agent and the command lock `stops.lock` while they change
the file, so that neither undoes a change of the other. The copy of the positions has the stops, too (CopiedState).
"""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from change_agent.private_files import give_to_owner_of, open_private, sync_directory, write_private_text
from schemas.errors import CdcError
from schemas.gap_record import GapRecord, decode_gap, encode_gap

__all__ = ["EVERY_TABLE", "REPAIR", "Stop", "Stops", "parse_stops", "read_stops", "remove_stops", "stops_as_json"]

EVERY_TABLE: Final = "*"
REPAIR: Final = "run cdc spark verify --repair on the tables, then cdc agent resume-progress"
"""The remedy for stops that a closing record on the gaps topic does not end."""
_NAME: Final = "stops.json"
_LOCK: Final = "stops.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The stop of one table, or of EVERY_TABLE.

    It ends when all of `gaps` are closed. Without gaps, an operator removes it.
    """

    reason: str
    gaps: tuple[GapRecord, ...] = ()

    def with_gaps(self, gaps: Sequence[GapRecord]) -> Stop:
        """Return this stop with these gaps added. If it has no gaps, or `gaps` is empty, only an operator ends it."""
        return (
            replace(self, gaps=tuple(dict.fromkeys((*self.gaps, *gaps))))
            if self.gaps and gaps
            else Stop(reason=self.reason)
        )

    def with_reason(self, reason: str) -> Stop:
        """Return this stop with one more reason. Only an operator ends it."""
        return self if reason in self.reason and not self.gaps else Stop(reason=f"{self.reason}; {reason}")

    def joined(self, other: Stop) -> Stop:
        """Return one stop that ends when both would end. If gaps end both, the first reason stays.

        The reasons of the other stop may include those of this one: it was joined on another machine, and comes back.
        """
        both = self.with_gaps(other.gaps)
        if both.gaps:
            return both
        return Stop(reason=other.reason) if both.reason in other.reason else both.with_reason(other.reason)

    def without(self, closings: Sequence[GapRecord]) -> Stop | None:
        """Return this stop without the gaps that these records close; None when it ends."""
        left = tuple(gap for gap in self.gaps if not any(each.closes(gap) for each in closings))
        return replace(self, gaps=left) if left or not self.gaps else None


class Stops:
    """The file of a working directory. May be used by several threads; another process may remove stops."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory
        self._lock: Final = threading.Lock()
        self._stored: Mapping[str, Stop] = {}
        # Changes that could not be written yet.
        self._unwritten: dict[str, Stop] = {}
        self._seen: tuple[int, int] | None = None

    def note(self, table: str, reason: str, gaps: Sequence[GapRecord] = ()) -> None:
        """Stop the progress of `keyspace.table`, or of EVERY_TABLE. If it is stopped already, the first reason stays.

        `gaps`: the records that are about to be published, if they cover all changes that may be lost.
        """
        with self._lock, _lone_writer(self._directory):
            self._refresh()
            known = self._known().get(table)
            noted = Stop(reason=reason, gaps=tuple(gaps)) if known is None else known.with_gaps(gaps)
            if noted != known:
                self._unwritten[table] = noted
                self._write()

    def add(self, table: str, reason: str) -> None:
        """Like `note`, but add the reason to those that the table already has: an operator must know all of them."""
        with self._lock, _lone_writer(self._directory):
            self._refresh()
            known = self._known().get(table)
            noted = Stop(reason=reason) if known is None else known.with_reason(reason)
            if noted != known:
                self._unwritten[table] = noted
                self._write()

    def awaits_closing(self) -> bool:
        """True if a stop waits until gaps are closed."""
        with self._lock:
            self._refresh()
            return any(each.gaps for each in self._known().values())

    def gaps(self) -> list[GapRecord]:
        """The gaps that stops wait for."""
        with self._lock:
            self._refresh()
            return [gap for each in self._known().values() for gap in each.gaps]

    def close(self, closings: Iterable[GapRecord]) -> list[str]:
        """Apply the closing records of the gaps topic. Return the tables that continue. Raises OSError."""
        records = [each for each in closings if each.is_closing]
        with self._lock, _lone_writer(self._directory):
            self._refresh()
            known = self._known()
            left = {table: stop for table, each in known.items() if (stop := each.without(records)) is not None}
            if left != known:
                _store(self._directory, left)
                self._unwritten = {}
                self._refresh()
            return sorted(known.keys() - left.keys())

    def reasons(self) -> Mapping[str, str]:
        """The reasons of the stops that the file has now, by table."""
        with self._lock:
            if self._unwritten:
                with _lone_writer(self._directory):
                    self._write()
            self._refresh()
            return {table: each.reason for table, each in self._known().items()}

    def known(self) -> Mapping[str, Stop]:
        """The stops that the file has now, and those that could not be written yet, by table."""
        with self._lock:
            self._refresh()
            return self._known()

    def restore(self, stops: Mapping[str, Stop]) -> bool:
        """Add the stops of another machine. False when they cannot be written now: only the memory has them then."""
        with self._lock, _lone_writer(self._directory):
            self._refresh()
            known = self._known()
            joined = {table: known[table].joined(stop) if table in known else stop for table, stop in stops.items()}
            if changed := {table: stop for table, stop in joined.items() if known.get(table) != stop}:
                self._unwritten |= changed
            if self._unwritten:
                self._write()
            return not self._unwritten

    def _known(self) -> dict[str, Stop]:
        return {**self._stored, **self._unwritten}

    def _write(self) -> None:
        self._refresh()
        try:
            _store(self._directory, self._known())
        except OSError:
            # The stops stay in memory. If the disk is full, positions cannot be stored either, and that is logged.
            return
        self._unwritten = {}
        self._refresh()

    def _refresh(self) -> None:
        try:
            status = (self._directory / _NAME).stat()
        except FileNotFoundError:
            self._seen, self._stored = None, {}
            return
        except OSError as error:
            # The known stops stay: a stop that is written now must not replace them.
            self._seen, self._stored = None, {**self._stored, **_unreadable(str(self._directory / _NAME), error)}
            return
        if self._seen != (status.st_ino, status.st_mtime_ns):
            self._seen, self._stored = (status.st_ino, status.st_mtime_ns), _read(self._directory)


def read_stops(directory: Path) -> Mapping[str, str]:
    """The reasons of a working directory's stops, by table. A file that is damaged stops every table."""
    return {table: each.reason for table, each in _read(directory).items()}


def remove_stops(directory: Path, table: str | None) -> Mapping[str, str]:
    """Remove one table's stop, or all stops, from the file. Return the reasons of the removed stops. Raises OSError."""
    with _lone_writer(directory):
        stored = _read(directory)
        taken = {name: each.reason for name, each in stored.items() if table is None or name == table}
        if taken:
            _store(directory, {name: each for name, each in stored.items() if name not in taken})
        return taken


@contextmanager
def _lone_writer(directory: Path) -> Iterator[None]:
    """Wait until no other process changes the file, and keep others out.

    If there can be no lock (no room for its file, a file system without locks), the change is made without it.
    """
    with ExitStack() as held:
        with suppress(OSError):
            file = held.enter_context(open_private(directory / _LOCK, "ab"))
            give_to_owner_of(directory, directory / _LOCK)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _read(directory: Path) -> dict[str, Stop]:
    path = directory / _NAME
    try:
        return parse_stops(json.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return _unreadable(str(path), error)


def parse_stops(loaded: Any, where: str) -> dict[str, Stop]:
    """Return the stops of loaded JSON, by table. JSON of another form stops every table; the reason has `where`."""
    try:
        return {str(table): _of_json(stop) for table, stop in loaded.items()}
    except (ValueError, AttributeError, TypeError, KeyError, CdcError) as error:
        return _unreadable(where, error)


def _unreadable(where: str, error: Exception) -> dict[str, Stop]:
    """Nobody knows which tables are stopped, so every table is."""
    return {EVERY_TABLE: Stop(reason=f"{where} cannot be read ({error})")}


def stops_as_json(stops: Mapping[str, Stop]) -> dict[str, object]:
    """Return stops as the file has them."""
    return {table: _as_json(each) for table, each in sorted(stops.items())}


def _of_json(stop: object) -> Stop:
    if not isinstance(stop, dict):
        return Stop(reason=str(stop))
    return Stop(reason=str(stop["reason"]), gaps=tuple(decode_gap(bytes.fromhex(each)) for each in stop["gaps"]))


def _as_json(stop: Stop) -> object:
    if not stop.gaps:
        return stop.reason
    return {"reason": stop.reason, "gaps": [encode_gap(each).hex() for each in stop.gaps]}


def _store(directory: Path, stops: Mapping[str, Stop]) -> None:
    """Write the file. It survives a power loss when this returns, like the positions that are stored after it.

    Raises OSError.
    """
    path = directory / _NAME
    temporary = path.with_suffix(".tmp")
    write_private_text(temporary, json.dumps(stops_as_json(stops), indent=1) + "\n", is_durable=True)
    with suppress(OSError):
        # Root may have run the command. An agent that may not change owners must still be able to write a stop.
        give_to_owner_of(directory, temporary)
    temporary.replace(path)
    sync_directory(directory)
