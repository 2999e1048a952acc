"""This process's side of the pipes to its host: takes over the standard streams, reads and writes frames.

Owns the thread that reads. Standard output is for frames only, so all other output goes to standard error.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable

from source_connector.errors import HostProtocolError
from source_connector.host.host_protocol import FrameDecoder, HostFrame

__all__ = ["HostConnection", "LogLines"]

_READ_SIZE = 1 << 16


class HostConnection:
    """Frames in both directions. `post` takes each frame of the host, in the reading thread."""

    def __init__(self, post: Callable[[HostFrame], None]) -> None:
        self._post = post
        self._in = os.dup(0)
        self._out = os.dup(1)
        os.dup2(2, 1)
        # Several threads may append to a deque and pop from its other end, without a lock for every record.
        self._unsent: deque[bytes] = deque()
        self._write_lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="host-reader", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def send(self, frame: bytes) -> None:
        """Queue a frame."""
        self._unsent.append(frame)

    def flush(self) -> None:
        """Write the queued frames. Blocks while the host does not read: that is its back pressure."""
        with self._write_lock:
            unsent = self._unsent
            view = memoryview(b"".join([unsent.popleft() for _ in range(len(unsent))]))
            try:
                while view:
                    view = view[os.write(self._out, view) :]
            except BrokenPipeError:
                os._exit(0)

    def _read(self) -> None:
        decoder = FrameDecoder()
        try:
            while data := os.read(self._in, _READ_SIZE):
                for frame in decoder.feed(data):
                    self._post(frame)
        except HostProtocolError as error:
            os.write(2, f"{error}\n".encode())
            os._exit(1)
        # The host has ended. No record can be handed over any more, and unacknowledged events are delivered again.
        os._exit(0)


class LogLines(logging.Formatter):
    """Formats log records as lines of standard error, each with a level in systemd's form: `<4>` is a warning."""

    def format(self, record: logging.LogRecord) -> str:
        """Mark each line of the text with the level."""
        mark = "<3>" if record.levelno >= logging.ERROR else "<4>" if record.levelno >= logging.WARNING else "<6>"
        return "\n".join(mark + line for line in super().format(record).splitlines())
