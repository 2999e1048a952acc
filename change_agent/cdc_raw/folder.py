"""The files of `cdc_raw`: segments, their indexes, and other files, which are ignored.

    CommitLog-<version>-<segment id>.log        a segment
    CommitLog-<version>-<segment id>_cdc.idx    its index, from Cassandra 4.0 on

Only plain files count: a symbolic link could lead anywhere, and Cassandra creates none.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.cdc_index import INDEX_SUFFIX
from change_agent.commitlog.descriptor import file_id

__all__ = ["FolderContent", "SegmentFile", "list_folder"]

# A segment id is a Java long.
_MAX_ID: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFile:
    """A segment or an index. `links` counts its names on the disk; `time_ms` is its last change (since the epoch)."""

    segment_id: int
    version: int
    path: Path
    size: int
    time_ms: int
    time_ns: int
    links: int
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderContent:
    """Segments and indexes by segment id.

    `strangers`: names of all other entries, with the reason why they are ignored.
    """

    logs: Mapping[int, SegmentFile] = field(default_factory=dict)
    indexes: Mapping[int, SegmentFile] = field(default_factory=dict)
    strangers: Mapping[str, str] = field(default_factory=dict)


_NONE: Final[Mapping[str, SegmentFile]] = {}


def list_folder(directory: Path, settled: Mapping[str, SegmentFile] = _NONE) -> FolderContent:
    """List a folder once. Files that vanish meanwhile are left out. Raises OSError when the folder cannot be listed.

    Files of `settled` do not change any more. If such a name still has the same inode, `stat` is not called again.
    """
    logs: dict[int, SegmentFile] = {}
    indexes: dict[int, SegmentFile] = {}
    strangers: dict[str, str] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            known = settled.get(entry.name)
            if known is not None and known.inode == entry.inode():
                (indexes if entry.name.endswith(INDEX_SUFFIX) else logs)[known.segment_id] = known
                continue
            named = file_id(entry.name)
            if named is None or named[1] > _MAX_ID:
                strangers[entry.name] = "it has no name of a commit log segment"
                continue
            try:
                found = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                strangers[entry.name] = f"its attributes cannot be read ({error.strerror})"
                continue
            if not stat.S_ISREG(found.st_mode):
                strangers[entry.name] = f"it is {_kind(found.st_mode)}"
                continue
            kind = indexes if entry.name.endswith(INDEX_SUFFIX) else logs
            kind[named[1]] = SegmentFile(
                segment_id=named[1],
                version=named[0],
                path=Path(entry.path),
                size=found.st_size,
                time_ms=found.st_mtime_ns // 1_000_000,
                time_ns=found.st_mtime_ns,
                links=found.st_nlink,
                inode=found.st_ino,
            )
    return FolderContent(logs=logs, indexes=indexes, strangers=strangers)


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a symbolic link" if stat.S_ISLNK(mode) else "no plain file"
