"""PublishedClearings: the file with the clearings that were published (Clearings), for the copy of the positions."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from change_agent.private_files import replace_private, sync_directory

__all__ = ["CLEARINGS_FILE", "PublishedClearings"]

CLEARINGS_FILE: Final = "clearings.json"


class PublishedClearings:
    """The file of a working directory. Only Clearings knows what its JSON means."""

    def __init__(self, directory: Path) -> None:
        self._directory: Final = directory

    def read(self) -> Any:
        """Return the JSON of the file; None if there is no file, or it cannot be read."""
        with suppress(OSError, ValueError):
            return json.loads((self._directory / CLEARINGS_FILE).read_text(encoding="utf-8"))
        return None

    def restore(self, stored: Any) -> bool:
        """Replace the file by that of another machine. It survives a power loss. False when it cannot be written now."""
        try:
            content = f"{json.dumps(stored, indent=1)}\n".encode()
            replace_private(self._directory / CLEARINGS_FILE, content, is_durable=True)
            sync_directory(self._directory)
        except OSError:
            return False
        return True
