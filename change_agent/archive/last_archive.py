"""Which archive this working directory's agent wrote to last: another one lacks the segments that were finished meanwhile.

    archive-url     a line with its URL, which is empty where the agent ran without an archive

No file: an agent of an earlier version, or a new working directory. Then the archive goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from change_agent.private_files import replace_private

__all__ = ["LastArchive"]

_NAME: Final = "archive-url"


class LastArchive:
    """`url` is the archive of now; None: there is none."""

    def __init__(self, working_directory: Path, url: str | None) -> None:
        self._path: Final = working_directory / _NAME
        self._url: Final = url or ""

    @property
    def is_another(self) -> bool:
        """True when segments went elsewhere, or nowhere, since this archive was last written to. Raises OSError."""
        last = self._last()
        return last is not None and last != self._url

    def note(self) -> None:
        """From here on it is this one. Raises OSError."""
        if self._last() != self._url:
            replace_private(self._path, f"{self._url}\n".encode())

    def _last(self) -> str | None:
        """None also of a file without its line: a full disk, or a power loss."""
        try:
            text = self._path.read_text(errors="replace")
        except FileNotFoundError:
            return None
        return text.removesuffix("\n") if text.endswith("\n") else None
