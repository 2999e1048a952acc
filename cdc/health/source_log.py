"""What a source says in the logs of its instances, where the functions worker runs on this machine."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

__all__ = ["SourceWarnings", "last_error", "one_line", "start_waits_for"]

# The Java client logs the schema of each producer on many lines, so a few hundred lines may be a second.
_LOG_BYTES: Final = 1024 * 1024
_BAD_LINE: Final = re.compile(r" (ERROR|FATAL) |Exception: |error: ")
_MOST_SHOWN: Final = 400
_BEGINNING: Final = 180
# The first thing that an instance's JVM logs.
_START: Final = "Trying Loading file as NAR file"
# How the connector says that a table is not parked any more.
_TAKEN: Final = " goes on: the data topic takes the table's schema"
# A line of the connector's Python process, without those that repeat each hour and delay no event.
_WARNING: Final = re.compile(
    rf"(?P<time>\S+) \[cassandra-cdc-stderr\] (WARN|ERROR|INFO(?=.*{_TAKEN})) .*? - source_connector(?!\.tables\.data_topic_policies)[\w.]*: "
    r"(?P<text>.*)"
)
# Any line of the process. While it cannot reach Cassandra at its start, it logs nothing else.
_SAID: Final = re.compile(r"(?P<time>\S+) \[cassandra-cdc-stderr\] \w+ .*? - source_connector[\w.]*: (?P<text>.*)")
_START_WAITS: Final = "waiting: "
# A source that waits at its start says so again after 30 s, or ends.
_START_RECENT_S: Final = 45.0
# A warning comes again after 30 s, or after the pause between two attempts, which is at most a minute.
_RECENT_S: Final = 120.0


def last_error(logs: Path, name: str, now_s: float) -> str:
    """The last line of the source's logs that reports an error of its present state; empty when there is none.

    That is an error since the last start of its JVM, or within the last two minutes: an instance that cannot start is
    started again and again. An older error is over.
    """
    found = ""
    for lines in _ends(logs, name):
        started = max((number for number, line in enumerate(lines) if _START in line), default=-1)
        said_s = 0.0
        for number, line in enumerate(lines):
            said_s = _seconds(line.partition(" ")[0]) or said_s  # the lines of a traceback have no time
            # A warning is not why an instance has ended, whatever words it has.
            is_error = _BAD_LINE.search(line) and " WARN " not in line
            if is_error and (number > started or now_s - said_s < _RECENT_S):
                found = one_line(line)
    return found


class SourceWarnings:
    """What sources warn of in their logs. The logs of a source are read once, when it is asked for first.

    `logs`: the folder of the logs; None if it is not on this machine. Any thread may ask.
    """

    def __init__(self, logs: Path | None, now_s: float) -> None:
        self._logs: Final = logs
        self._now_s: Final = now_s
        self._lock: Final = threading.Lock()
        self._by_source: Final[dict[str, list[tuple[float, str]]]] = {}

    @property
    def is_known(self) -> bool:
        """True if the logs are looked at."""
        return self._logs is not None

    def about(self, name: str, table: str) -> str:
        """The newest warning about `keyspace.table` that the source logged within the last two minutes.

        Empty without one, or if the table is not parked any more since then.
        """
        names = re.compile(rf"(?<![\w.]){re.escape(table)}(?!\w)")
        found = ((said_s, text) for said_s, text in self._of(name) if names.search(text))
        said_s, text = max(found, default=(0.0, ""))
        return _without_middle(text) if self._now_s - said_s < _RECENT_S and not text.endswith(_TAKEN) else ""

    def _of(self, name: str) -> Sequence[tuple[float, str]]:
        """Times and texts of the source's warnings."""
        if self._logs is None:
            return ()
        with self._lock:
            if name not in self._by_source:
                matches = (matched for lines in _ends(self._logs, name) for matched in map(_WARNING.match, lines))
                self._by_source[name] = [(_seconds(each["time"]), each["text"]) for each in matches if each]
            return self._by_source[name]


def start_waits_for(logs: Path, name: str, now_s: float) -> str:
    """Why an instance of the source waits at its start, if that is the newest thing it logged; empty if none waits.

    An instance that does not reach Cassandra counts as running for half a minute. Then it ends, and is started again.
    """
    for lines in _ends(logs, name):
        matched = next(filter(None, map(_SAID.match, reversed(lines))), None)
        if matched and matched["text"].startswith(_START_WAITS) and now_s - _seconds(matched["time"]) < _START_RECENT_S:
            return one_line(matched["text"].removeprefix(_START_WAITS))
    return ""


def one_line(text: str) -> str:
    """The first line of an exception, without the frames behind it."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return first if len(first) <= _MOST_SHOWN else f"{first[:_MOST_SHOWN]}..."


def _without_middle(text: str) -> str:
    """A warning, without the middle of a long one: what to do is at its end."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_BEGINNING]} ... {text[_BEGINNING - _MOST_SHOWN :]}"


def _ends(logs: Path, name: str) -> Iterator[list[str]]:
    """The last lines of each log of the source. A log that this user may not read is left out."""
    for path in sorted(logs.glob(f"*/*/{name}/{name}-*.log")):
        try:
            with path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
                text = file.read(_LOG_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        yield text.splitlines()


def _seconds(time: str) -> float:
    """A time of a log line, in seconds since the epoch; 0 if the worker's log has another form."""
    try:
        return datetime.strptime(time, "%Y-%m-%dT%H:%M:%S,%f%z").timestamp()
    except ValueError:
        return 0.0
