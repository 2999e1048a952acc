"""Sends a Cassandra node one query over the CQL native protocol v4, to learn whether it serves clients.

It has only the parts that this query needs, so it takes milliseconds, where a driver's session takes a second. The
frames are described in ``native_protocol_v4.spec``, sections 2 to 4. If a node asks for a password, it gets the one of
``PasswordAuthenticator``'s default superuser, unless another one is given.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Final

__all__ = ["DEFAULT_LOGIN", "NotServingError", "count_rows"]

DEFAULT_LOGIN: Final = ("cassandra", "cassandra")
"""Name and password of the superuser that ``PasswordAuthenticator`` creates in an empty node."""

_REQUEST_VERSION: Final = 4
_STARTUP, _READY, _AUTHENTICATE, _QUERY, _RESULT, _AUTH_RESPONSE, _AUTH_SUCCESS = 1, 2, 3, 7, 8, 0x0F, 0x10
_CONSISTENCY_ONE: Final = 0x0001
_SKIP_METADATA: Final = 0x02
_ROWS: Final = 2
_HAS_MORE_PAGES, _NO_METADATA = 0x0002, 0x0004
_HEADER: Final = struct.Struct(">BBhBi")


class NotServingError(Exception):
    """The node did not answer the query; it may still be starting."""


def count_rows(
    host: str,
    port: int,
    table: str,
    timeout_s: float = 5.0,
    *,
    login: tuple[str, str] = DEFAULT_LOGIN,
    tls: ssl.SSLContext | None = None,
) -> int:
    """The number of rows of a small table, by a SELECT that returns all rows. Raises NotServingError."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as plain:
            connection = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
            with connection:
                _start(connection, f"{host}:{port}", login)
                query = f"SELECT * FROM {table}".encode()
                body = struct.pack(">i", len(query)) + query + struct.pack(">HB", _CONSISTENCY_ONE, _SKIP_METADATA)
                opcode, answer = _exchange(connection, _QUERY, body)
    except OSError as error:
        raise NotServingError(f"{host}:{port}: {error}") from error
    if opcode != _RESULT:
        raise NotServingError(f"{host}:{port} answered a query with opcode {opcode}")
    # Rows => kind:Int32 metadata_flags:Int32 columns:Int32 rows:Int32 ...
    kind, flags, _, rows = struct.unpack_from(">iiii", answer)
    if kind != _ROWS or flags & (_NO_METADATA | _HAS_MORE_PAGES) != _NO_METADATA:
        raise NotServingError(f"{host}:{port} answered a query with result kind {kind}, flags {flags}")
    return int(rows)


def _start(connection: socket.socket, where: str, login: tuple[str, str]) -> None:
    """Send STARTUP, and AUTH_RESPONSE if the node asks for it (SASL PLAIN, as ``PasswordAuthenticator`` reads it)."""
    opcode, _ = _exchange(connection, _STARTUP, _string_map({"CQL_VERSION": "3.0.0"}))
    if opcode == _AUTHENTICATE:
        token = "\0".join(("", *login)).encode()
        opcode, _ = _exchange(connection, _AUTH_RESPONSE, struct.pack(">i", len(token)) + token)
        if opcode != _AUTH_SUCCESS:
            raise NotServingError(f"{where} does not let {login[0]} log in (opcode {opcode})")
    elif opcode != _READY:
        raise NotServingError(f"{where} answered STARTUP with opcode {opcode}")


def _string_map(entries: dict[str, str]) -> bytes:
    parts = [text.encode() for pair in entries.items() for text in pair]
    return struct.pack(">H", len(entries)) + b"".join(struct.pack(">H", len(part)) + part for part in parts)


def _exchange(connection: socket.socket, opcode: int, body: bytes) -> tuple[int, bytes]:
    connection.sendall(_HEADER.pack(_REQUEST_VERSION, 0, 0, opcode, len(body)) + body)
    _, _, _, answer, length = _HEADER.unpack(_receive(connection, _HEADER.size))
    return answer, _receive(connection, length)


def _receive(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionResetError("closed by the node")
        data += part
    return data
