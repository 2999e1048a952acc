"""A TCP proxy on loopback that can be away, stand still, delay data, and cut connections in mid-frame.

A Pulsar client asks where a topic is, and connects to the address in the answer, past any proxy. So the proxy replaces
the broker's address with its own in the data to the client. Both texts must have the same length, because frames have
their size.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

__all__ = ["Address", "Proxy"]

Address = tuple[str, int]
"""Host and port."""

_CHUNK_BYTES: Final = 65_536
_LOOK_S: Final = 0.05
_HELD_S: Final = 0.005


@dataclass(slots=True, eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_cut: bool = False

    def reset(self) -> None:
        """Reset the connections to both ends; data on its way is dropped."""
        with self.lock:
            for each in (self.client, self.server):
                with suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


class Proxy:
    """Forwards connections to `listen` to `target`, and makes faults on request. Close it, or use it in a `with`
    block."""

    def __init__(self, listen: Address, target: Address, rewrite: tuple[bytes, bytes] | None = None) -> None:
        if rewrite is not None and len(rewrite[0]) != len(rewrite[1]):
            raise ValueError("what is rewritten must keep its length")
        self.listen: Final = listen
        self.connections_cut = 0
        """The number of connections that were cut in mid-frame so far."""
        self._target = target
        self._rewrite = rewrite
        self._connections: set[_Connection] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._refuses = False
        self._stands_still = False
        self._delay_s = 0.0
        self._cuts = False
        self._server = socket.create_server(listen)
        self._server.settimeout(_LOOK_S)
        threading.Thread(target=self._accept, daemon=True, name=f"proxy {listen[0]}").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Reset all connections and stop listening."""
        self._closed = True
        self._reset_all()
        self._server.close()

    def go_away(self) -> None:
        """Reset all connections, and close new ones at once."""
        self._refuses = True
        self._reset_all()

    def stand_still(self) -> None:
        """Forward nothing, and leave all connections open."""
        self._stands_still = True

    def delay(self, seconds: float) -> None:
        """Forward each piece of data this much later."""
        self._delay_s = seconds

    def cut(self) -> None:
        """Forward half of the next data of each connection, then reset the connection. A single byte is forwarded as it
        is."""
        self._cuts = True

    def heal(self) -> None:
        """Forward everything again."""
        self._refuses = self._stands_still = self._cuts = False
        self._delay_s = 0.0

    def _reset_all(self) -> None:
        with self._lock:
            connections = list(self._connections)
        for each in connections:
            each.reset()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._refuses:
                raise ConnectionError("away")
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            return
        for each in (client, server):
            each.settimeout(None)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(client, server)
        with self._lock:
            self._connections.add(connection)
        if self._refuses or self._closed:
            # A fault may have begun since the look above, and did not see this connection.
            connection.reset()
        back = threading.Thread(target=self._pump, args=(connection, server, client, self._rewrite), daemon=True)
        back.start()
        self._pump(connection, client, server, None)
        back.join()
        with self._lock:
            self._connections.discard(connection)

    def _pump(
        self, connection: _Connection, source: socket.socket, sink: socket.socket, rewrite: tuple[bytes, bytes] | None
    ) -> None:
        held = b""
        try:
            while True:
                source.settimeout(_HELD_S if held else None)
                try:
                    data = source.recv(_CHUNK_BYTES)
                except TimeoutError:
                    sink.sendall(held)
                    held = b""
                    continue
                if not data:
                    break
                self._wait()
                data, held = _rewritten(held + data, rewrite)
                if self._cuts and len(data) > 1:
                    sink.sendall(data[: len(data) // 2])
                    self._count_cut(connection)
                    break
                sink.sendall(data)
        except OSError:
            pass  # the other direction, or a fault, has closed it
        connection.reset()

    def _count_cut(self, connection: _Connection) -> None:
        with self._lock:  # both directions may be cut: the connection counts once
            self.connections_cut += not connection.is_cut
            connection.is_cut = True

    def _wait(self) -> None:
        if self._delay_s:
            time.sleep(self._delay_s)
        while self._stands_still and not self._closed:
            time.sleep(_LOOK_S)


def _rewritten(data: bytes, rewrite: tuple[bytes, bytes] | None) -> tuple[bytes, bytes]:
    """Return the data to forward, and a tail to hold back: it may be the beginning of the text to replace."""
    if rewrite is None:
        return data, b""
    old, new = rewrite
    data = data.replace(old, new)
    for length in range(min(len(old) - 1, len(data)), 0, -1):
        if data.endswith(old[:length]):
            return data[:-length], data[-length:]
    return data, b""
