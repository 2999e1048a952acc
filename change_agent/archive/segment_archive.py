"""SegmentArchive: keeps finished segments in a folder or an object store, compressed, so that they can be read again.

    <archiveUrl>/<node id>/CommitLog-7-1795219249195.log.zst     Zstandard; not compressed without .zst
    <archiveUrl>/<node id>/schema-history.json                   needed to read them (schemas.archived_schema)

fsspec opens the URLs: `/path`, `s3://bucket/path`, `gs://...`. Each protocol has its own package and credentials.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol

import cramjam

from change_agent.private_files import (
    give_to_owner_of,
    make_private_folder,
    open_private,
    replace_private,
    sync_directory,
)
from schemas.archived_schema import (
    ARCHIVED_SCHEMA_NAME,
    ArchivedSchema,
    ArchivedSchemaError,
    NewerSchemaError,
    merged,
)
from schemas.errors import CdcError

__all__ = ["ArchiveError", "Compression", "LastArchive", "SegmentArchive", "archive_problem", "fetch_segment"]

_log: Final = logging.getLogger(__name__)
Compression = Literal["zstd", "none"]
_SUFFIXES: Final[dict[Compression, str]] = {"zstd": ".zst", "none": ""}
# Each chunk is a separate Zstandard frame, so memory does not depend on the segment. All Zstandard tools can read
# several frames in a file.
_CHUNK: Final = 1024 * 1024
_LEVEL: Final = 3
_ARCHIVED: Final = re.compile(r"(CommitLog-\d+-\d+\.log)(\.zst)?")
_LAST_ARCHIVE: Final = "archive-url"


class ArchiveError(CdcError):
    """A file cannot be stored in the archive, or cannot be read from it."""


class _FileSystem(Protocol):
    protocol: str | tuple[str, ...]

    def makedirs(self, path: str, exist_ok: bool) -> None: ...
    def open(self, path: str, mode: str) -> BinaryIO: ...
    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def mv(self, source: str, target: str) -> None: ...


def archive_problem(url: str) -> str | None:
    """Why the URL cannot be an archive; None when it can."""
    if re.search(r"://[^/]*:[^/]*@", url):
        return "must hold no password; give it as fsspec's configuration or the store's own environment variables"
    import fsspec  # needed only with an archive, here and below

    protocol = url.partition("://")[0] if "://" in url else "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except (ValueError, ImportError) as error:
        return f"{protocol}:// cannot be used ({error})"
    return None


class SegmentArchive:
    """Stores segments. `store` blocks as long as the object store takes, so it must be called by a separate thread.

    `last`: see LastArchive.
    """

    def __init__(self, url: str, compression: Compression, last: LastArchive | None = None) -> None:
        self._url: Final = url
        self._last: Final = last
        self._compression: Final[Compression] = compression

    def store(self, log: Path, node_id: str) -> None:
        """Store a segment. When this returns, the archive has the whole segment.

        Raises ArchiveError, and every error of the object store.
        """
        store, folder = self._folder(node_id)
        with log.open("rb") as reading:
            _put(store, folder, f"{log.name}{_SUFFIXES[self._compression]}", self._packed(reading))

    def store_schema(self, schema: ArchivedSchema) -> None:
        """Store the schema history, merged with the history that the archive has.

        Raises ArchiveError, and every error of the object store.
        """
        store, folder = self._folder(str(schema.node_id))
        stored = _stored_schema(store, f"{folder}/{ARCHIVED_SCHEMA_NAME}")
        wanted = merged(stored, schema, has_hole=self._last is not None and self._last.is_another)
        if stored is None or wanted.text() != stored.text():
            _put(store, folder, ARCHIVED_SCHEMA_NAME, [wanted.text().encode()])
        if self._last is not None:
            self._last.note()

    def _folder(self, node_id: str) -> tuple[_FileSystem, str]:
        import fsspec

        files, root = fsspec.core.url_to_fs(self._url)
        return files, f"{root.rstrip('/')}/{node_id}"

    def _packed(self, log: BinaryIO) -> Iterator[bytes]:
        while chunk := log.read(_CHUNK):
            yield bytes(cramjam.zstd.compress(chunk, level=_LEVEL)) if self._compression == "zstd" else chunk


def _put(store: _FileSystem, folder: str, name: str, chunks: Iterable[bytes]) -> None:
    """Write a file that has its name only when it is complete.

    Raises ArchiveError, and every error of the object store.
    """
    target = f"{folder}/{name}"
    is_local = "file" in store.protocol
    # An object appears only when it is complete. A file is renamed when it is complete.
    written_to = f"{target}.tmp" if is_local else target
    if is_local:
        make_private_folder(Path(folder))
        # Remove the rest of an earlier try, or a link that somebody else has created and that leads out of the folder.
        Path(written_to).unlink(missing_ok=True)
        open_private(Path(written_to), "xb").close()
    else:
        store.makedirs(folder, exist_ok=True)
    size = 0
    with store.open(written_to, "wb") as writing:
        for chunk in chunks:
            writing.write(chunk)
            size += len(chunk)
        if is_local:
            writing.flush()
            os.fsync(writing.fileno())
    if store.size(written_to) != size:
        raise ArchiveError(f"{target} has {store.size(written_to)} bytes instead of {size}")
    if is_local:
        store.mv(written_to, target)
        # The segment may be deleted now, so its new name must survive a loss of power, too.
        sync_directory(Path(folder))


def _stored_schema(store: _FileSystem, path: str) -> ArchivedSchema | None:
    """The schema history in the archive; None if there is none. A damaged file is set aside and reported. Raises
    ArchiveError."""
    if not store.exists(path):
        return None
    with store.open(path, "rb") as reading:
        content = reading.read()
    try:
        return ArchivedSchema.of_text(content)
    except NewerSchemaError as error:
        raise ArchiveError(f"{path}: {error}") from error
    except ArchivedSchemaError as error:
        store.mv(path, f"{path}.damaged")
        _log.error(
            "%s: %s; set aside as %s.damaged and written anew: tables that were dropped before this agent knew them are missing in it",
            path,
            error,
            ARCHIVED_SCHEMA_NAME,
        )
        return None


def fetch_segment(source: str, folder: Path) -> Path:
    """Copy a segment (a path or an fsspec URL, compressed or not) into a folder, and return its path there.

    The file appears only when it is complete. Only the last part of `source` is used as its name, so it cannot lead out
    of the folder. Raises ArchiveError.
    """
    import fsspec

    match = _ARCHIVED.fullmatch(source.rstrip("/").rpartition("/")[2])
    if match is None:
        raise ArchiveError(f"{source} is not named like a segment: CommitLog-<version>-<id>.log, perhaps with .zst")
    target = folder / match[1]
    temporary = folder / f"{match[1]}.tmp"
    try:
        with fsspec.open(source, "rb") as reading:
            content = reading.read()
        if match[2]:
            content = bytes(cramjam.zstd.decompress(content))
        temporary.unlink(missing_ok=True)
        with open_private(temporary, "xb") as writing:
            give_to_owner_of(folder, temporary)
            writing.write(content)
            writing.flush()
            os.fsync(writing.fileno())
        temporary.replace(target)
    except (OSError, ImportError, ValueError) as error:  # also: no library for this kind of URL, or no such kind
        temporary.unlink(missing_ok=True)
        raise ArchiveError(f"{source} cannot be read ({error})") from error
    except cramjam.DecompressionError as error:
        raise ArchiveError(f"{source} is not whole ({error})") from error
    return target


class LastArchive:
    """The archive that the agent last wrote to. Any other archive lacks segments that were finished meanwhile.

    Its URL is a line of the file `archive-url`, which is empty if the agent ran without an archive. The file is missing
    after an agent of an earlier version, and in a new working directory. Then the present archive counts as the last one.
    """

    def __init__(self, working_directory: Path, url: str | None) -> None:
        """`url` is the URL of the present archive; None if there is none."""
        self._path: Final = working_directory / _LAST_ARCHIVE
        self._url: Final = url or ""

    @property
    def is_another(self) -> bool:
        """True when segments were written to another archive, or to none, since this one was last used.

        Raises OSError.
        """
        last = self._last()
        return last is not None and last != self._url

    def note(self) -> None:
        """Store the present archive as the last one. Raises OSError."""
        if self._last() != self._url:
            replace_private(self._path, f"{self._url}\n".encode())

    def _last(self) -> str | None:
        """The stored URL; None if there is no file, or no whole line in it after a full disk or a power loss."""
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return None
        return text.removesuffix("\n") if text.endswith("\n") else None
