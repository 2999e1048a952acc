"""The prefix of a working directory's events topics.

After a change, events that were published before are on other topics.

topic-prefix.txt => the full prefix, such as `persistent://public/default/cdc-events-`
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from change_agent.positions.stops import EVERY_TABLE, Stops, read_stops
from change_agent.private_files import replace_private
from change_agent.reporting.progress_reporter import remove_progress, stored_progress

__all__ = ["take_prefix"]

_NAME: Final = "topic-prefix.txt"


def take_prefix(directory: Path, prefix: str, stops: Stops, *, has_read: bool) -> None:
    """Note that the agent publishes with this prefix from now on. Raises OSError.

    `has_read`: an agent of this working directory has read before. If the prefix has changed then, the stored progress,
    with times and positions of the earlier topics, is removed: a subscription of the new topics would seem to have
    passed these positions. The progress of these tables stands still, or of every table if none is known, because the
    agent cannot see if the events of the earlier topics were read. A working directory of an agent before this file
    gets the given prefix.
    """
    path = directory / _NAME
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if before == prefix:
        return
    if before and has_read:
        known = stored_progress(directory)
        names = [each.name for each in known.tables] if known is not None and known.tables else [EVERY_TABLE]
        for name in names:
            stops.add(
                name,
                f"its events up to the change of topicPrefix are on {before}{name}: when the connector has read all of that topic,"
                " run cdc agent resume-progress",
            )
        if not read_stops(directory).keys() >= set(names):
            raise OSError(errno.ENOSPC, "the stops of the earlier topics cannot be written")
    if before:
        remove_progress(directory)
    replace_private(path, prefix.encode())
