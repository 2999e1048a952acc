"""The `_cdc.idx` file beside a segment: how far the segment is on disk, and if it is complete.

    CdcIndex => Offset [ "\\n" "COMPLETED" ]
      Offset => decimal digits

Cassandra rewrites it in place, not atomically: a reader may see an empty file, or only the first digits of the offset.
So an offset may be too small, but never too large. Readers must ignore an offset that is smaller than an earlier one.

Cassandra source: o.a.c.db.commitlog.CommitLogSegment.writeCDCIndexFile. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from change_agent.errors import MalformedSegmentError

__all__ = ["INDEX_SUFFIX", "CdcIndex", "index_name", "parse_cdc_index", "segment_name"]

_COMPLETED: Final = b"COMPLETED"
INDEX_SUFFIX: Final = "_cdc.idx"
_SEGMENT_SUFFIX: Final = ".log"

# An offset is a Java int.
_MAX_DIGITS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CdcIndex:
    """`offset` counts logical bytes: with compression or encryption it may lie beyond the end of the file."""

    offset: int
    completed: bool


def parse_cdc_index(content: bytes) -> CdcIndex | None:
    """Parse the content of the file; None while it is empty. Raises MalformedSegmentError when it is not an index."""
    digits, _, rest = content.partition(b"\n")
    digits, rest = digits.strip(), rest.strip()
    if not digits and not rest:
        return None
    if not (digits.isdigit() and len(digits) <= _MAX_DIGITS and _COMPLETED.startswith(rest)):
        raise MalformedSegmentError(f"the index file holds {content[:40]!r} instead of an offset")
    return CdcIndex(offset=int(digits), completed=rest == _COMPLETED)


def index_name(segment: str) -> str:
    """Name of a segment's index file: `CommitLog-7-1.log` -> `CommitLog-7-1_cdc.idx`."""
    return segment.removesuffix(_SEGMENT_SUFFIX) + INDEX_SUFFIX


def segment_name(index: str) -> str:
    """Name of the segment that an index file belongs to: `CommitLog-7-1_cdc.idx` -> `CommitLog-7-1.log`."""
    return index.removesuffix(INDEX_SUFFIX) + _SEGMENT_SUFFIX
