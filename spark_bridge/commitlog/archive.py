"""An agent's archive: its nodes, their segments, their schema histories.

    <archiveUrl>/<node id>/CommitLog-7-1795219249195.log.zst
    <archiveUrl>/<node id>/schema-history.json

fsspec opens the URL, as in the agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

import fsspec

from schemas.archived_schema import ARCHIVED_SCHEMA_NAME, ArchivedSchema, ArchivedSchemaError
from schemas.errors import ConfigError
from spark_bridge.errors import ArchiveReadError

__all__ = ["ArchivedSegment", "CommitLogArchive"]

_SEGMENT: Final = re.compile(r"(CommitLog-(\d+)-(\d+)\.log)(\.zst)?")
_MODIFIED: Final = ("mtime", "LastModified", "last_modified", "updated", "created")


class _FileSystem(Protocol):
    def exists(self, path: str) -> bool: ...
    def ls(self, path: str, detail: bool) -> Sequence[Mapping[str, object]]: ...
    def cat_file(self, path: str) -> bytes: ...
    def unstrip_protocol(self, path: str) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedSegment:
    """One segment.

    `modified_ms`: when the archive got it, by the listing of its store; None if the listing has no time.
    """

    node: str
    name: str
    version: int
    segment_id: int
    url: str
    modified_ms: int | None


class CommitLogArchive:
    """Reads the listing and the schema histories of an archive, but no segment.

    The constructor raises ConfigError, the methods raise ArchiveReadError.
    """

    def __init__(self, url: str) -> None:
        self._url: Final = url
        try:
            found, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise ConfigError.of("archiveUrl", f"{url} cannot be used ({error})") from error
        self._files: Final[_FileSystem] = found
        self._root: Final = str(root).rstrip("/")

    def nodes(self) -> list[str]:
        """Host ids of the nodes that have a folder in the archive; at least one."""
        with self._errors(self._url):
            if not self._files.exists(self._root):
                raise ArchiveReadError(self._url, "is not there; check archiveUrl, and the rights to it")
            names = [_last(each) for each in self._files.ls(self._root, detail=True) if each.get("type") == "directory"]
        found = sorted(each for each in names if _is_uuid(each))
        if not found:
            raise ArchiveReadError(
                self._url, "holds no folder of a node; archiveUrl is the folder above, as the agent has it"
            )
        return found

    def segments(self, node: str) -> list[ArchivedSegment]:
        """The segments of one node, sorted by id, each once."""
        folder = f"{self._root}/{node}"
        with self._errors(folder):
            listed = self._files.ls(folder, detail=True)
        found: dict[int, ArchivedSegment] = {}
        for each in listed:
            match = _SEGMENT.fullmatch(_last(each))
            if match is not None:
                found[int(match[3])] = ArchivedSegment(
                    node=node,
                    name=match[1],
                    version=int(match[2]),
                    segment_id=int(match[3]),
                    url=self._files.unstrip_protocol(str(each["name"])),
                    modified_ms=_modified_ms(each),
                )
        return [found[segment_id] for segment_id in sorted(found)]

    def schema(self, node: str) -> ArchivedSchema:
        """The schema history of a node, which its segments are decoded with."""
        return ArchivedSchema.of_text(self.schema_text(node))

    def schema_text(self, node: str) -> bytes:
        """The schema history of a node as text, after a check that it can be read."""
        path = f"{self._root}/{node}/{ARCHIVED_SCHEMA_NAME}"
        with self._errors(path):
            if not self._files.exists(path):
                raise ArchiveReadError(
                    path,
                    "is missing, and without it no segment of the node can be decoded: an agent of this version writes it"
                    " with the next segment that it archives there (archiveUrl), from all that its working directory knows",
                )
            content = self._files.cat_file(path)
        try:
            ArchivedSchema.of_text(content)
        except ArchivedSchemaError as error:
            raise ArchiveReadError(
                path, f"{error}; without it no segment of the node can be decoded: bring back a copy of it"
            ) from error
        return content

    @contextmanager
    def _errors(self, place: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ArchiveReadError(place, f"cannot be read ({error.strerror or error})") from error


def _last(entry: Mapping[str, object]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _modified_ms(entry: Mapping[str, object]) -> int | None:
    found = next((entry[name] for name in _MODIFIED if entry.get(name) is not None), None)
    if isinstance(found, datetime):
        return int(found.timestamp() * 1000)
    if isinstance(found, int | float):
        return int(found * 1000)
    if isinstance(found, str):
        try:
            return int(datetime.fromisoformat(found).timestamp() * 1000)
        except ValueError:
            return None
    return None
