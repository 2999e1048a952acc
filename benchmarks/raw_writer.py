"""RawWriter: writes rows to one node over the native protocol, with little CPU, which leaves the machine to the
measured programs.

The driver needs about 150 us for a write, which is most of two cores at 5,000 writes a second. Here a write is one
EXECUTE frame of a statement that the driver has prepared. Frames that are due are sent together, and answers are only
counted.

Source: native_protocol_v4.spec, sections 2 (frame), 4.1.1 STARTUP, 4.1.6 EXECUTE, 4.2.5 RESULT.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, Self

import click
from cassandra.cluster import Session
from cassandra.query import PreparedStatement

from cdc.sandbox.cassandra_node import CassandraNode

__all__ = ["RawWriter"]

_VERSION: Final = 4
_STARTUP, _READY, _RESULT, _EXECUTE = 0x01, 0x02, 0x08, 0x0A
_LOCAL_ONE: Final = 0x000A
_WITH_VALUES: Final = 0x01
_HEADER: Final = struct.Struct(">BBhBi")
_STREAMS: Final = 256
"""The largest number of writes without an answer. The stream of an answer is ignored."""
_TICK_S: Final = 0.001
_PATIENCE_S: Final = 60


class RawWriter:
    """Writes with one INSERT over one connection. Use it in a `with` block, in one thread."""

    def __init__(self, node: CassandraNode, session: Session, cql: str) -> None:
        """`cql` is prepared by the driver's session. Raises click.ClickException when the node refuses the connection."""
        self._statement: Final[PreparedStatement] = session.prepare(cql)
        self._socket: Final = socket.create_connection((node.address, node.native_port), timeout=_PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._waiting = 0
        options = struct.pack(">H", 1) + _short("CQL_VERSION") + _short("3.0.0")
        self._socket.sendall(_frame(_STARTUP, options))
        self._waiting += 1
        while self._waiting:
            self._receive(_READY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._socket.close()

    def write(self, rows: Iterable[tuple[object, ...]], rate: float | None = None) -> int:
        """Write all rows, `rate` a second or as fast as the node answers. Return their number.

        Raises click.ClickException when the node refuses a write.
        """
        frames, count, started = (self._execute(row) for row in rows), 0, time.monotonic()
        while due := self._due(frames, count, started, rate):
            self._socket.sendall(b"".join(due))
            count += len(due)
            self._waiting += len(due)
            while self._waiting >= _STREAMS or (self._waiting and self._is_readable()):
                self._receive(_RESULT)
        while self._waiting:
            self._receive(_RESULT)
        return count

    def _due(self, frames: Iterator[bytes], count: int, started: float, rate: float | None) -> list[bytes]:
        """Wait until frames are due, and return them; none when all rows are written."""
        room = _STREAMS - self._waiting
        if rate is None:
            return list(islice(frames, room))
        while (due := int((time.monotonic() - started) * rate) + 1 - count) < 1:
            time.sleep(_TICK_S)
        return list(islice(frames, min(room, due)))

    def _execute(self, row: tuple[object, ...]) -> bytes:
        values = self._statement.bind(row).values
        parts = [
            struct.pack(">H", len(self._statement.query_id)),
            self._statement.query_id,
            struct.pack(">HBH", _LOCAL_ONE, _WITH_VALUES, len(values)),
        ]
        for value in values:
            parts += [struct.pack(">i", len(value)), value]
        return _frame(_EXECUTE, b"".join(parts))

    def _is_readable(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])

    def _receive(self, expected: int) -> None:
        """Wait for the first answer, and count all answers that have arrived."""
        more = self._socket.recv(65536)
        if not more:
            raise click.ClickException("the node has closed the writer's connection")
        data, at = self._received + more, 0
        while len(data) - at >= _HEADER.size:
            _, _, _, opcode, length = _HEADER.unpack_from(data, at)
            if len(data) - at < _HEADER.size + length:
                break
            if opcode != expected:
                text = data[at + _HEADER.size : at + _HEADER.size + length]
                raise click.ClickException(f"the node refused a write: {text.decode(errors='replace')}")
            at += _HEADER.size + length
            self._waiting -= 1
        self._received = data[at:]


def _frame(opcode: int, body: bytes) -> bytes:
    return _HEADER.pack(_VERSION, 0, 0, opcode, len(body)) + body


def _short(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
