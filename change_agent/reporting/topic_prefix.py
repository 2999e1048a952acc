"""The prefix of a working directory's events topics: with another one, what was published before is on other topics.

topic-prefix.txt => the full prefix, as `persistent://public/default/cdc-events-`
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
    """From now on the agent publishes with this prefix. Raises OSError. `has_read`: an agent of this folder has read before.

    Times and positions of topics with another prefix count no more: a subscription of the new topics seems to have passed them. The
    progress of these tables, or of every table where none is known, stands still, since nobody here sees whether the earlier
    topics' events were read. A folder of a version before this file has the prefix that is given.
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
