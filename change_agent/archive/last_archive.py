"""LastArchive: the archive that the agent last wrote to. Any other archive lacks segments that were finished meanwhile.

    archive-url     a line with its URL, which is empty if the agent ran without an archive

The file is missing after an agent of an earlier version, and in a new working directory. Then the present archive
counts as the last one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from change_agent.private_files import replace_private

__all__ = ["LastArchive"]

_NAME: Final = "archive-url"


class LastArchive:
    """`url` is the URL of the present archive; None if there is none."""

    def __init__(self, working_directory: Path, url: str | None) -> None:
        self._path: Final = working_directory / _NAME
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
