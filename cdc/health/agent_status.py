"""AgentStatus: the last status that an agent has written, and the findings that follow from it.

An agent writes its status each second. The values of an older status, and of an agent that has ended, are not shown as
current.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Self

import httpx
import psutil

from cdc.health.findings import Finding, Level, as_bytes, as_duration, failure, ok, warning
from cdc.health.status_content import checked_status, seconds_of
from change_agent.reporting.process_space import process_space
from change_agent.schema.node_connection import CHECK_LOGIN
from schemas.errors import CdcError

__all__ = ["AS_ITS_USER", "AgentStatus", "NoStatusError"]

STALE_S: Final = 10.0
_STUCK_S: Final = 60.0
# A failed write is tried again more often than this: without a failure in this time, writing works again.
_WRITABLE_AGAIN_S: Final = 60.0
_SOON_S: Final = 300
# The longest forecast that is shown. It uses the rate of the last minute, which says nothing about later times.
_IN_SIGHT_S: Final = 86_400
_NEARLY: Final = 0.9
_LITTLE_DISK: Final = 64 * 1024 * 1024
_TIMEOUT_S: Final = 3.0
_MOST_TOPICS: Final = 8
_MOST_NAMES: Final = 3


AS_ITS_USER: Final = "run this as the agent's user, or name the agent by its URL under agents in line.yaml"
_NOT_STARTED: Final = "start it, or correct agents in line.yaml"


class NoStatusError(CdcError):
    """There is no agent's status at this place, or it cannot be read. `text`: why; `remedy`: what to do about it."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(f"{text}; {remedy}")
        self.text: Final = text
        self.remedy: Final = remedy


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """The last status of an agent.

    `place`: the working directory or the URL where it was found. `answered_s`: the time of the agent's machine when it
    answered, in seconds since the epoch; None for a file, and for an answer without a time.
    """

    place: str
    content: Mapping[str, Any]
    answered_s: float | None = None

    @classmethod
    def of_folder(cls, directory: Path) -> Self:
        """Read the status in a working directory on this machine, which need not be writable. Raises NoStatusError."""
        path = directory / "status.json"
        try:
            return cls(str(directory), checked_status(json.loads(path.read_text(encoding="utf-8"))))
        except FileNotFoundError as error:
            text = f"{path} does not exist: no agent ever ran with this working directory"
            raise NoStatusError(text, _NOT_STARTED) from error
        except OSError as error:
            raise NoStatusError(f"{path} cannot be read ({error.strerror or error})", AS_ITS_USER) from error
        except ValueError as error:
            remedy = "correct agents in line.yaml; if it is the agent's working directory, see the agent's log"
            raise NoStatusError(f"{path} is no agent's status ({error})", remedy) from error

    @classmethod
    def of_url(cls, url: str) -> Self:
        """Ask an agent's HTTP endpoint for its status. Raises NoStatusError."""
        try:
            answer = httpx.get(f"{url.rstrip('/')}/status", timeout=_TIMEOUT_S, trust_env=False)
            if answer.status_code == httpx.codes.NOT_FOUND:
                raise NoStatusError(
                    f"{url} has no /status: the agent waits for another agent or for its node, or is of an earlier version",
                    f"see {url}/readyz and its log: they say what it waits for",
                )
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and answer.content.strip() == b"{}":
                text = f"{url} answers, and has written no status yet: it starts"
                raise NoStatusError(text, f"wait some seconds; {url}/readyz says what it waits for")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            text = f"{url} does not answer ({str(error) or type(error).__name__})"
            remedy = f"{_NOT_STARTED}; its httpAddress must be one that this machine reaches (loopback by default)"
            raise NoStatusError(text, remedy) from error
        try:
            if not answer.is_success:  # another server, or a proxy
                raise ValueError(f"HTTP {answer.status_code} {answer.reason_phrase}".rstrip())
            return cls(url, checked_status(answer.json()), _date_of(answer))
        except ValueError as error:
            text = f"{url} answers, but {url}/status is no agent's status ({error})"
            raise NoStatusError(text, "correct this URL under agents in line.yaml") from error

    @property
    def node_id(self) -> str | None:
        """The host id of the agent's node; None if the agent has not learned it yet."""
        found: str | None = self.content["node_id"]
        return found

    @property
    def node(self) -> str:
        """The host id of the agent's node. If the agent has not learned it yet, its contact points; empty without any.

        An agent of an earlier version does not write its contact points.
        """
        return self.node_id or ", ".join(self.content.get("contact_points", ()))

    @property
    def _its_node(self) -> str:
        """Its node in a sentence. The address is told only while nothing else tells which node it is."""
        return f"its node ({self.node})" if self.node_id is None and self.node else "its node"

    @property
    def topics(self) -> Mapping[str, Mapping[str, object]]:
        """The state of each table's topic, by table."""
        found: Mapping[str, Mapping[str, object]] = self.content["topics"]
        return found

    @property
    def hazards(self) -> list[str]:
        """The policies of Pulsar that would delete unread events, as the agent has reported them, each once."""
        return sorted({str(hazard) for each in self.topics.values() for hazard in _list(each.get("hazards"))})

    def number(self, name: str) -> float:
        """The value of a metric; 0 if an agent of an earlier version does not have it."""
        return _number(self._part("metrics").get(name, 0))

    def progress(self, name: str) -> float:
        """A number of the agent's progress; 0 if it is missing."""
        return _number(self._part("progress").get(name, 0))

    def age_s(self, now_s: float) -> float:
        """Seconds since the status was written.

        The agent's own clock is used if its answer had the time, because the clocks of two machines may differ.
        """
        return (now_s if self.answered_s is None else self.answered_s) - seconds_of(self.content["time"])

    def is_current(self, now_s: float) -> bool:
        """Return True if the values are current: the status is not old, and its agent is not known to have ended.

        A status whose time is far ahead is old as well: the clock was set back after it was written.
        """
        return abs(self.age_s(now_s)) <= STALE_S and not self._has_ended

    @property
    def _is_remote(self) -> bool:
        return self.place.startswith(("http://", "https://"))

    @property
    def _its_disk(self) -> str:
        return "the disk of cdcWorkingDir on that machine" if self._is_remote else f"the disk of {self.place}"

    @property
    def _has_ended(self) -> bool:
        """True if the agent's process belonged to this system and is gone.

        False where this is not known: for an agent in a container, and for one of an earlier version. An agent that
        answers over HTTP has not ended.
        """
        space = process_space()
        is_of_here = space is not None and self.content.get("process_space") == space
        return is_of_here and Path(self.place).is_dir() and not self.process_exists

    @property
    def process_exists(self) -> bool:
        """True if the process that wrote the status runs on this machine; False for a status that came over HTTP."""
        return Path(self.place).is_dir() and _is_agent(int(_number(self.content["pid"])))

    def findings(self, now_s: float) -> Iterator[Finding]:
        """The agent's state: a summary, unless there is a failure, and one finding for each problem."""
        if not self.is_current(now_s):
            yield self._stale(now_s)
            return
        found = [*self._stages(), *self._losses(), *self._kept(), *self._writes(), *self._disk(), *self._topics()]
        if not any(each.level is Level.FAILURE for each in found):
            yield ok(self.place, self.summary(), **self._facts())
        yield from found

    def summary(self) -> str:
        """Lag and rate, in one line. The status must be current."""
        return (
            f"runs, lag {as_bytes(self.progress('lag_bytes'))}, {as_duration(self.progress('lag_s'))};"
            f" {self.progress('events_per_s'):,.0f} events/s"
        )

    def _facts(self) -> dict[str, object]:
        return {"node_id": self.node_id, "progress": self._part("progress"), "metrics": self._part("metrics")}

    def _stale(self, now_s: float) -> Finding:
        pid, age_s = int(_number(self.content["pid"])), self.age_s(now_s)
        since, ago = f"for {as_duration(max(0.0, age_s))}", f"{as_duration(max(0.0, age_s))} ago"
        if age_s < -STALE_S:
            since = f"since the clock was set back (the last one is {as_duration(-age_s)} ahead)"
            ago = f"before the clock was set back (it is {as_duration(-age_s)} ahead)"
        if self._is_remote:
            clock = "" if self.answered_s is not None else " by the clock of this machine, which may differ"
            text = f"answers, but wrote no status {since}{clock}"
            return failure(self.place, text, "see its log on that machine; restart it if its threads hang")
        if not self.process_exists:
            never = "" if self.node_id is not None or not self.node else f" and never reached {self._its_node}"
            text = f"does not run; process {pid} wrote its last status {ago}{never}"
            return failure(
                self.place, text, "start it (systemctl start cassandra-cdc-agent); its log has the reason why it ended"
            )
        room = shutil.disk_usage(self.place).free
        if room < _LITTLE_DISK:
            text = f"process {pid} has not written its status {since}: its disk is full, {as_bytes(room)} are free"
            return failure(self.place, text, f"make room on {self._its_disk}; it continues by itself")
        text = f"process {pid} exists, and has not written its status {since}"
        return failure(self.place, text, "see its log; if a signal stopped it, send SIGCONT; else restart it")

    def _stages(self) -> Iterator[Finding]:
        problem = self.content["cassandra_problem"]
        if problem and problem.endswith(CHECK_LOGIN):
            remedy = "correct username and password in its agent.yaml, and restart it"
            yield failure(self.place, f"its node refuses the login: {problem.removesuffix(CHECK_LOGIN)}", remedy)
        elif problem:
            remedy = "start Cassandra, or see its log; the agent continues by itself"
            its_node = "its node" if self.node in str(problem) else self._its_node
            yield failure(self.place, f"{its_node} does not answer: {problem}", remedy)
        elif self.node_id is None and not self.number("standby"):
            yield warning(
                self.place, f"it has not read the schema of {self._its_node} yet", "wait; its log has what it waits for"
            )
        if self.number("standby"):
            remedy = "nothing to do if one of the two is a spare; else stop one of them"
            yield warning(self.place, f"it waits: another agent publishes the changes of {self._its_node}", remedy)
        if (stuck_s := self.progress("stuck_s")) > _STUCK_S:
            text = f"Cassandra writes to its log, and the agent's position has not moved for {as_duration(stuck_s)}; {self.summary()}"
            remedy = "cdc doctor says whether Pulsar answers; if it does, save the agent's log and restart it: nothing is lost"
            yield failure(self.place, text, remedy)
        if self.number("cdc_raw_unlocked"):
            remedy = "make sure that only one agent runs for the node"
            yield warning(self.place, "cdc_raw cannot be locked: a second agent would not be kept out", remedy)

    def _losses(self) -> Iterator[Finding]:
        """The losses that were counted since the agent's start.

        A loss stops the progress of its tables until it is closed. So it is a failure while the progress of a table
        stands still, and a warning afterwards. It is a failure, too, if the agent reports no progress.
        """
        for text, remedy in self._counted_losses():
            if self._may_be_open:
                yield failure(self.place, text, remedy)
            else:
                yield warning(self.place, text, f"{remedy}; the count remains until the agent's next start")

    @property
    def _may_be_open(self) -> bool:
        """False if the agent reports resolved timestamps and none of them stands still."""
        published: Mapping[str, Mapping[str, object]] = self.content.get("published_until", {})
        return not published or any(each["stopped"] for each in published.values())

    def _counted_losses(self) -> Iterator[tuple[str, str]]:
        if lost := self.number("segments_gone_unread"):
            text = f"{lost:,.0f} segments disappeared from cdc_raw unread since its start: changes are lost"
            yield text, "`cdc spark resync` sends these changes again and closes the gaps"
        if broken := self.number("segments_unreadable"):
            text = f"{broken:,.0f} segments could not be read since its start; those that were moved are in error/"
            remedy = "see its log, then `cdc agent reprocess`, or `cdc spark verify` the tables; then `cdc agent resume-progress`"
            yield text, remedy
        if wrong := self.number("corrupt_entries"):
            text = f"{wrong:,.0f} entries of the commit log had a wrong checksum since its start"
            yield text, "check the node's disk, and `cdc spark verify` its tables; then `cdc agent resume-progress`"

    def _kept(self) -> Iterator[Finding]:
        """Changes that are not published yet, but are not lost."""
        if parked := self.number("parked"):
            text = f"{parked:,.0f} mutations are parked: they cannot be decoded yet"
            command = f"cdc parked --working-dir {self.place}"
            if self._is_remote:
                command = "on that machine, `cdc parked --config agent.yaml`"
            yield warning(self.place, text, f"{command} gives the reason; they are retried")
        if large := self.number("events_too_large"):
            text = f"{large:,.0f} events were larger than the broker accepts, and are kept on disk"
            yield warning(self.place, text, "raise maxMessageSize of Pulsar, then restart the agent")

    def _writes(self) -> Iterator[Finding]:
        failed, last_s = self.number("write_failures"), self.number("last_write_failure_timestamp_seconds")
        # Both times are by the agent's clock, because the clock of another machine may differ.
        ago_s = seconds_of(self.content["time"]) - last_s
        if failed and (not last_s or ago_s < _WRITABLE_AGAIN_S):
            # An agent of an earlier version does not say when.
            last = f", the last one {as_duration(max(0.0, ago_s))} before this status" if last_s else ""
            text = f"{failed:,.0f} writes to its working directory failed since its start{last}"
            yield warning(self.place, text, f"make room on {self._its_disk}; each write is tried again")

    def _disk(self) -> Iterator[Finding]:
        used, limit = self.number("cdc_raw_bytes"), self.number("cdc_raw_limit_bytes")
        seconds = self.number("cdc_raw_seconds_to_full")
        # An agent of an earlier version does not say how many of them are elsewhere.
        elsewhere = self.number("segments_not_deleted_elsewhere")
        # It counts the one after the other: for a moment there may be more of them elsewhere than in all.
        if (kept := self.number("segments_not_deleted") - elsewhere) > 0:
            text = f"{kept:,.0f} finished segments cannot be deleted, so cdc_raw fills up"
            yield failure(self.place, text, "its log has the reason; let its user write in cdc_raw (docs/install.md)")
        if elsewhere:
            text = (
                f"{elsewhere:,.0f} finished segments in spillDir or reprocess/ cannot be deleted, so that disk fills up"
            )
            remedy = "its log has the reason and the files; let its user write in their folder (docs/install.md)"
            yield failure(self.place, text, remedy)
        remedy = "find out why events are not sent: its topics here, and cdc doctor; to gain time, raise cdc_total_space in cassandra.yaml"
        if limit and used >= _NEARLY * limit:
            text = f"cdc_raw has {as_bytes(used)} of {as_bytes(limit)}: Cassandra refuses writes when it is full"
            yield failure(self.place, text, remedy)
        elif 0 <= seconds < _IN_SIGHT_S:
            make = failure if seconds < _SOON_S else warning
            yield make(self.place, f"cdc_raw is full in {as_duration(seconds)} at the rate of the last minute", remedy)
        if failures := self.number("archive_failures"):
            text = f"{failures:,.0f} times since its start a finished segment could not be copied to archiveUrl"
            remedy = "see its log for the reason; it is tried again, and the count remains until the agent's next start"
            yield warning(self.place, text, remedy)
        if self.number("spill_failures"):
            text = f"{self.number('spill_failures'):,.0f} times since its start a segment could not be moved out of cdc_raw"
            remedy = "make room in spillDir, and check its permissions; the count remains until the agent's next start"
            yield warning(self.place, text, remedy)

    def _topics(self) -> Iterator[Finding]:
        if self.number("held_full"):
            text = "held events fill maxHeldBytes: no more events are held, and reading of all tables will wait"
            yield failure(self.place, text, "correct the topics that cannot be used, or raise maxHeldBytes")
        yield from self._refused_topics()
        for hazard in self.hazards:
            text, _, remedy = hazard.partition("; fix it with ")
            yield warning(self.place, f"Pulsar: {text}", remedy)

    def _refused_topics(self) -> Iterator[Finding]:
        """A finding for each reason why topics cannot be used, with the number of tables that have it."""
        by_reason: dict[str, list[str]] = {}
        for table, each in self.topics.items():
            if not each["is_usable"] or each["problem"]:
                # The names of topics have the table's name. Otherwise the tables have one reason while Pulsar is away.
                by_reason.setdefault(str(each["problem"] or "").replace(table, "*"), []).append(table)
        for tables in list(by_reason.values())[:_MOST_TOPICS]:
            topics = [self.topics[each] for each in tables]
            problem = topics[0]["problem"]
            events, held = (sum(_number(each[name]) for each in topics) for name in ("waiting_events", "held_bytes"))
            text = (
                f"{_some(tables)} cannot be published ({problem or 'its topic is being opened'}); {events:,.0f} events wait,"
                f" {as_bytes(held)} are held on disk"
            )
            remedy = "remove the reason; the events are kept, and sent by themselves then"
            yield (failure if problem else warning)(self.place, text, remedy)
        if more := sum(map(len, list(by_reason.values())[_MOST_TOPICS:])):
            yield failure(self.place, f"and {more} tables more", "cdc agent status --json lists all")

    def _part(self, name: str) -> Mapping[str, object]:
        found: Mapping[str, object] = self.content[name]
        return found


def _date_of(answer: httpx.Response) -> float | None:
    try:
        return parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return None


def _is_agent(pid: int) -> bool:
    """Return True if the process runs and is an agent, not another process that got its pid.

    Also True if this user may not see the process.
    """
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and any("agent" in each for each in process.cmdline())
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False


def _some(tables: Sequence[str]) -> str:
    """One table by its name, several by their number and the first names."""
    if len(tables) == 1:
        return tables[0]
    return f"{len(tables):,} tables ({', '.join(tables[:_MOST_NAMES])}{', ...' if len(tables) > _MOST_NAMES else ''})"


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return value
