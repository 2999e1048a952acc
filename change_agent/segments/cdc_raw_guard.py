"""CdcRawGuard: keeps `cdc_raw` from filling up, because then Cassandra refuses writes to every table with CDC.

When `cdc_raw` grows towards its limit, the guard moves final segments, the oldest first, to another folder. The
reader takes them from there in the order of their ids. The guard never deletes anything. It needs neither the reader
nor the broker, so it also works while both make no progress, which is when it is needed.

It also ends the agent if `cdc_raw` has become the node's own commit log: a file system was mounted there, or the node
was restarted with other folders. The agent would delete segments that Cassandra needs.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.archiver import move_file
from change_agent.cdc_raw.cdc_index import index_name
from change_agent.cdc_raw.listing import ReadableSegment, SegmentListing
from change_agent.cdc_raw.space import TOTAL_SPACE_SETTINGS, SpaceForecast, cdc_space_of
from change_agent.configuration.option_types import COMMIT_LOG_SETTING, commit_log_problem, is_same_folder
from change_agent.metrics import AgentMetrics
from change_agent.private_files import make_private_folder
from change_agent.schema.node_connection import NodeConnection, NodeUnavailableError
from runtime.stage import Stage
from schemas.errors import ConfigError

__all__ = ["CdcRawGuard", "GuardLimits"]

_log: Final = logging.getLogger(__name__)
_LOOK_S: Final = 1.0
# The shortest pause after a check, as a multiple of its CPU time.
_REST: Final = 200
# Short enough to notice every run of the node with other settings.
_SETTINGS_INTERVAL_S: Final = 30.0
_SETTINGS_RETRY_S: Final = 10.0
# Shares of the limit. Segments are moved above _HIGH, or above _RISING if `cdc_raw` would be full soon, until _LOW is
# left.
_HIGH: Final = 0.75
_RISING: Final = 0.25
_LOW: Final = 0.5
_MIB: Final = 1024 * 1024
_STARTED_ON_FULL: Final = (
    "cdc_raw has %s of %s at the agent's start. With cdc_block_writes: false, Cassandra then removes the oldest segments:"
    " some may be gone that no agent ever saw; verify the tables, or read them again"
)
_DISABLED: Final = (
    "the node runs with cdc_enabled: false, so its changes are not in cdc_raw: set cdc_enabled: true and restart the node; the"
    " tables' timestamps stand still until they are repaired"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """`total_bytes` overrides Cassandra's setting. Segments are moved early if `cdc_raw` would be full within `soon_s`.

    `min_free_bytes` stay free on the disk of the folder for moved segments.
    """

    total_bytes: int | None
    soon_s: float
    min_free_bytes: int


_CDC_ENABLED: Final = "cdc_enabled"
_SETTINGS: Final = (
    "cdc_total_space",
    "cdc_total_space_in_mb",
    "commitlog_segment_size",
    "commitlog_segment_size_in_mb",
    "cdc_block_writes",
    "commitlog_disk_access_mode",
    _CDC_ENABLED,
    COMMIT_LOG_SETTING,
)


_GRANT: Final = "grant the agent's role SELECT on system_views.settings, or set cdcTotalSpaceBytes or cassandraYaml"


class CdcRawGuard(Stage):
    """Moves segments to `spill_directory`, on a separate thread."""

    def __init__(
        self,
        cdc_raw: Path,
        spill_directory: Path,
        node: NodeConnection,
        yaml_settings: Mapping[str, object],
        limits: GuardLimits,
        metrics: AgentMetrics,
        on_moved: Callable[[], None],
    ) -> None:
        super().__init__("guard of cdc_raw")
        self._cdc_raw: Final = cdc_raw
        self._spill_directory: Final = spill_directory
        self._node: Final = node
        self._yaml_settings: Final = yaml_settings
        self._limits: Final = limits
        self._metrics: Final = metrics
        self._on_moved: Final = on_moved
        self._listing: Final = SegmentListing(cdc_raw, quiet=True)
        self._forecast: Final = SpaceForecast()
        self._spilled_bytes = 0
        self._settings: Mapping[str, object] = yaml_settings
        self._settings_at = 0.0
        # The device and the inode of cdc_raw: others after a mount.
        self._folder: tuple[int, int] | None = None
        self._is_cdc_enabled = True
        self.ran_without_cdc = False
        """True when the node ran with `cdc_enabled: false` since this was last set to False.

        Any thread may read and set it.
        """
        self._settings_known = self._unknown_reported = False
        self._has_checked = False
        self._alarmed = False
        self._stuck: str | None = None

    def commitlog_disk_access_mode(self) -> str:
        """Cassandra's setting of this name; empty while it is not known, and before 5.0.

        May be called by any thread.
        """
        return str(self._settings.get("commitlog_disk_access_mode", ""))

    def run(self) -> None:
        """Check at intervals. A move that is under way at the stop is finished.

        `failure` is a ConfigError when `cdc_raw` has become the node's commit log.
        """
        for left_over in self._spill_directory.glob("*.tmp"):
            with suppress(OSError):  # it only takes room, until the next start
                left_over.unlink()
        self._ask_settings()
        while not self.stopping.is_set() and self.failure is None:
            began_s = time.thread_time()
            try:
                self._check()
            except OSError as error:
                self._report_stuck(f"{self._cdc_raw} cannot be watched ({error}); trying again")
            self._ask_settings()
            # With thousands of files a check costs milliseconds of CPU, so the pause is longer.
            self.stopping.wait(max(_LOOK_S, _REST * (time.thread_time() - began_s)))
        self._node.close()

    def _ask_settings(self) -> None:
        if time.monotonic() < self._settings_at:
            return
        try:
            # The settings that the node runs with take precedence over cassandra.yaml, which may have changed since its
            # start.
            settings = self._node.settings(_SETTINGS)
            self._settings = {**self._yaml_settings, **settings}
        except NodeUnavailableError as error:
            self._settings_at = time.monotonic() + _SETTINGS_RETRY_S
            self._report_unknown(error)
        else:
            self._settings_at = time.monotonic() + _SETTINGS_INTERVAL_S
            self._settings_known = True
            self._refuse_commit_log(settings.get(COMMIT_LOG_SETTING))
            self._note_enabled(settings.get(_CDC_ENABLED, "true").lower() != "false")

    def _refuse_commit_log(self, commit_log: str | None) -> None:
        """Fail if this folder of the node is now cdc_raw. Not by an exception: it is no error of this program.

        Only cdc_raw has indexes. So an agent whose machine has the node's folders under other names is left alone.
        """
        if commit_log and is_same_folder(Path(commit_log), self._cdc_raw) and not any(self._cdc_raw.glob("*_cdc.idx")):
            self.failure = ConfigError.of("cdcRawDirectory", commit_log_problem(self._cdc_raw))

    def _note_enabled(self, is_enabled: bool) -> None:
        if self._is_cdc_enabled and not is_enabled:
            _log.error("%s", _DISABLED)
        self._is_cdc_enabled = is_enabled
        # A thread that sets it to False meanwhile has noted an earlier answer.
        if not is_enabled:
            self.ran_without_cdc = True

    def _report_unknown(self, error: NodeUnavailableError) -> None:
        """Report once that the settings are not known.

        A node that is down answers later; a role without the right to read the settings never gets them.
        """
        is_given = self._limits.total_bytes or any(name in self._yaml_settings for name in TOTAL_SPACE_SETTINGS)
        if self._unknown_reported or self._settings_known or is_given:
            return
        self._unknown_reported = True
        space = cdc_space_of(self._settings, shutil.disk_usage(self._cdc_raw).total)
        _log.warning(
            "the node does not return its cdc_total_space: the agent assumes %s until it does; %s (%s)",
            _mib(space.total_bytes),
            _GRANT if error.is_refusal else "it is asked again",
            error,
        )

    def _note_mount(self) -> None:
        """Ask for the node's settings at once when another file system was mounted at cdc_raw."""
        found = self._cdc_raw.stat()
        folder = (found.st_dev, found.st_ino)
        if self._folder not in (None, folder):
            self._settings_at = 0.0
        self._folder = folder

    def _check(self) -> None:
        self._note_mount()
        disk = shutil.disk_usage(self._cdc_raw)
        space = cdc_space_of(self._settings, disk.total)
        limit = self._limits.total_bytes or space.total_bytes
        used = _folder_bytes(self._cdc_raw)
        self._forecast.add(time.monotonic(), used + self._spilled_bytes)
        # Cassandra counts a new segment when it creates it. The free space of the disk may be the tighter limit.
        room = min(limit - used, disk.free) - space.segment_bytes
        seconds = self._forecast.seconds_until(room)
        metrics = self._metrics
        metrics.cdc_raw_bytes, metrics.cdc_raw_limit_bytes = used, limit
        metrics.cdc_raw_seconds_to_full = -1 if seconds is None else int(seconds)
        metrics.spilled_bytes = _folder_bytes(self._spill_directory) if self._spill_directory.exists() else 0
        counted = used + space.segment_bytes
        if not self._has_checked and self._settings_known:
            self._has_checked = True
            if space.blocks_writes is False and counted + space.segment_bytes > limit:
                metrics.started_on_full = 1
                _log.error(_STARTED_ON_FULL, _mib(used), _mib(limit))
        soon = seconds is not None and seconds < self._limits.soon_s
        if counted > _HIGH * limit or (soon and counted > _RISING * limit):
            self._off_load(counted, limit, seconds)
        elif self._alarmed and counted <= _LOW * limit:
            self._alarmed, self._stuck = False, None
            _log.info("cdc_raw has room again: %s of %s", _mib(used), _mib(limit))

    def _off_load(self, counted: int, limit: int, seconds: float | None) -> None:
        final = [each for each in self._listing.segments(time.time_ns() // 1_000_000) or () if _can_go(each)]
        if not self._alarmed:
            self._alarmed = True
            when = "" if seconds is None else f", full in {seconds:.0f} s"
            _log.warning(
                "cdc_raw has %s of %s%s: finished segments that are not sent yet are moved to %s; see why events are not sent",
                _mib(counted),
                _mib(limit),
                when,
                self._spill_directory,
            )
        excess = counted - _LOW * limit
        for segment in final:
            if excess <= 0:
                break
            size = self._move(segment)
            if size is None:
                return
            excess -= size
        if counted > _HIGH * limit and not final:
            self._report_stuck(
                "cdc_raw is nearly full and none of its segments is finished: Cassandra may refuse writes"
            )

    def _move(self, segment: ReadableSegment) -> int | None:
        """Move the segment and return its size in bytes; None when nothing can be moved now."""
        target = self._spill_directory / segment.path.name
        try:
            make_private_folder(self._spill_directory)
            size = segment.path.stat().st_size
            free = shutil.disk_usage(self._spill_directory).free
            if free - size < self._limits.min_free_bytes:
                self._metrics.spill_failures += 1
                self._report_stuck(
                    f"cdc_raw is nearly full, and so is {self._spill_directory} ({_mib(free)} free): Cassandra will refuse"
                    " writes to tables with CDC; make room or get Pulsar going"
                )
                return None
            move_file(segment.path, target)
            (self._cdc_raw / index_name(segment.path.name)).unlink(missing_ok=True)
        except FileNotFoundError:
            # The segment was finished and deleted meanwhile.
            return 0
        except OSError as error:
            self._metrics.spill_failures += 1
            self._report_stuck(
                f"cdc_raw is nearly full and {segment.path.name} cannot be moved to {self._spill_directory}"
                f" ({error.strerror}): Cassandra will refuse writes to tables with CDC"
            )
            return None
        self._spilled_bytes += size
        self._metrics.segments_spilled += 1
        self._on_moved()
        return size

    def _report_stuck(self, message: str) -> None:
        if message.partition("(")[0] != self._stuck:
            self._stuck = message.partition("(")[0]
            _log.error("%s", message)


def _can_go(segment: ReadableSegment) -> bool:
    return segment.final and segment.log_exists


def _folder_bytes(folder: Path | str) -> int:
    """The size of all files below the folder, as Cassandra counts it."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                is_folder = entry.is_dir(follow_symlinks=False)
                total += _folder_bytes(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_size
    return total


def _mib(size: float) -> str:
    return f"{size / _MIB:.1f} MiB"
