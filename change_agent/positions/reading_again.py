"""Positions with which segments are read again from their beginning, when it is not known which parts are done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from change_agent.cdc_raw.folder import list_folder
from change_agent.positions.offsets import StoredPositions
from change_agent.positions.segment_ids import SegmentIds

__all__ = ["reading_again"]


def reading_again(stored: StoredPositions, folders: Iterable[Path]) -> StoredPositions:
    """Return the positions as if no segment that is still in one of these folders had been read.

    A folder that cannot be listed counts as having all segments. Segments that are gone stay finished.
    """
    finished = stored.finished
    for folder in folders:
        try:
            finished = finished.removing(list_folder(folder).logs)
        except FileNotFoundError:
            continue
        except OSError:
            finished = SegmentIds()
    segments = {key: replace(each, position=0) for key, each in stored.segments.items()}
    return replace(stored, segments=segments, finished=finished)
