"""The prefix of a working directory's events topics: with another one, what was published before is on other topics.

topic-prefix.txt => the full prefix, as `persistent://public/default/cdc-events-`
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from change_agent.positions.stops import Stops
from change_agent.private_files import write_private_text
from change_agent.reporting.progress_reporter import remove_progress, stored_progress

__all__ = ["take_prefix"]

_NAME: Final = "topic-prefix.txt"


def take_prefix(directory: Path, prefix: str, stops: Stops) -> None:
    """From now on the agent publishes with this prefix. Raises OSError.

    Times and positions of topics with another prefix count no more: a subscription of the new topics seems to have passed them. The
    progress of these tables stands still, since nobody here sees whether the earlier topics' events were read. A folder of a
    version before this file has the prefix that is given.
    """
    path = directory / _NAME
    before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else None
    if before == prefix:
        return
    if before is not None:
        known = stored_progress(directory)
        for each in () if known is None else known.tables:
            stops.add(
                each.name,
                f"its events up to the change of topicPrefix are on {before}{each.name}: when the connector has read all of that"
                " topic, run cdc agent resume-progress",
            )
        remove_progress(directory)
    temporary = path.with_suffix(".tmp")
    write_private_text(temporary, prefix)
    temporary.replace(path)
