"""PartitionCounts: how many partitions each events topic had when this agent first published to it.

    topic-partitions.json => {"<topic>": n, ...}

A row's partition follows from its token and the number of partitions. If that number changes, a row's events are in
two partitions and their order is lost. Such a topic must not be used as before.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Final

from change_agent.errors import PartitionsChangedError, PublishError
from change_agent.private_files import replace_private, sync_directory
from change_agent.publishing.shared_write import SharedWrite

__all__ = ["PartitionCounts"]


class PartitionCounts:
    """The file of a working directory; may be used by several threads."""

    def __init__(self, directory: Path) -> None:
        self.path: Final = directory / "topic-partitions.json"
        self._lock: Final = threading.Lock()
        # Numbers that the file does not have yet.
        self._new: Final[dict[str, int]] = {}
        self._file: Final = SharedWrite(self._write)

    def check(self, topic: str, partitions: int) -> None:
        """Store the number at the first call for a topic. Raises PartitionsChangedError if it is another one later.

        Threads that call this at the same time wait for the same write. Raises PublishError if the file cannot be read
        or written.
        """
        with self._lock:
            before = self._read().get(topic)
            if before is None:
                self._new[topic] = partitions
                self._file.note_change()
        if before is None:
            try:
                self._file.run()
            except OSError as error:
                raise PublishError(topic, f"{self.path} cannot be written ({error.strerror})") from error
        if before in (None, partitions):
            return
        raise PartitionsChangedError(
            topic,
            f"has {partitions} partitions and had {before} when this agent first published to it: rows would change"
            " their partition and lose their order. Use another topicPrefix; or, when the connector has drained the"
            f" topic, remove its line from {self.path} of every agent",
        )

    def known(self, topic: str) -> int | None:
        """How many partitions the topic had; None when this agent has never published to it. Raises PublishError."""
        with self._lock:
            return self._read().get(topic)

    def _read(self) -> dict[str, int]:
        # Read each time: the operator may have removed a line.
        try:
            loaded = json.loads(self.path.read_text(encoding="utf-8"))
            return {str(topic): int(count) for topic, count in loaded.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise PublishError(str(self.path), f"cannot be read ({error}); correct it, or delete it") from error

    def _write(self) -> None:
        with self._lock:
            new = dict(self._new)
            known = self._read() | new
        replace_private(self.path, json.dumps(dict(sorted(known.items())), indent=1).encode(), is_durable=True)
        sync_directory(self.path.parent)
        with self._lock:
            for topic in new:
                self._new.pop(topic, None)
