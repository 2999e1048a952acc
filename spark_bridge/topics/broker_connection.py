"""A connection to a broker in Pulsar's binary protocol: log-in, look-up, requests with one answer.

pulsar-client cannot publish records with a key schema: it sets neither the schema's properties nor the flags of key and
null value. (Pulsar's Java client would have to be on the class path of every executor.) The protocol is described at
https://pulsar.apache.org/docs/next/developing-binary-protocol and in Pulsar's PulsarApi.proto. A connection is for one
thread at a time.
"""

from __future__ import annotations

import base64
import select
import socket
import ssl
import struct
import time
from enum import IntEnum
from typing import Final

from clients.tls import certificate_refusal
from spark_bridge.errors import PulsarUnreachableError
from spark_bridge.topics.admin import PATIENCE_S
from spark_bridge.topics.authentication import http_certificate, http_headers, verification
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.protobuf import Fields, encoded, first_bytes, first_int, first_text, parsed

__all__ = ["BrokerConnection", "BrokerRefusedError", "Command", "check_answer", "connection_of_topic"]

_PROTOCOL_VERSION: Final = 19  # of Pulsar 2.11 and later
_MAX_FRAME: Final = 64 << 20
_MAX_REDIRECTS: Final = 8
_PAUSE_S: Final = 0.5
_REDIRECT, _CONNECT, _FAILED = 0, 1, 2


class Command(IntEnum):
    """`BaseCommand.Type`. Each value is also the number of the field that holds the command."""

    CONNECT = 2
    CONNECTED = 3
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37


_COMMANDS: Final = {int(each): each for each in Command}


class BrokerRefusedError(Exception):
    """The broker answered with an error; `code` as in `ServerError` of PulsarApi.proto."""

    def __init__(self, code: int, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(code, reason)


class BrokerConnection:
    """A connection that is logged in when it is made.

    Every method raises OSError when the connection is lost, and ValueError for data that is not a frame.
    """

    def __init__(self, options: BridgeOptions, address: str, broker: str | None = None) -> None:
        """`address`: pulsar://host:port. `broker`: the broker to which a proxy at that address should connect.

        Raises BrokerRefusedError, ConfigError.
        """
        self.address = address
        self._options = options
        self._timeout_s = float(options.operation_timeout_seconds)
        self._requests = 0
        self._received = bytearray()
        method, data = _credentials(options)
        self._socket = _opened(options, address)
        features = encoded((1, 1), (2, 1))  # refreshes credentials, knows the broker's own metadata of entries
        body = encoded(
            (1, "cassandra-cdc"), (3, data), (4, _PROTOCOL_VERSION), (5, method), (6, broker), (10, features)
        )
        try:
            self.write(Command.CONNECT, body)
            _, answer = self.read(self._timeout_s)
        except BaseException:
            self.close()
            raise
        self.max_message_bytes = first_int(answer, 3, 5 << 20)

    def close(self) -> None:
        """Close the connection. The broker then closes the producers that belong to it."""
        self._socket.close()

    def ask(self, command: Command, *fields: tuple[int, int | str | bytes | None], request_field: int) -> Fields:
        """Send a command with its request number in field `request_field`, and return the answer.

        Raises BrokerRefusedError.
        """
        self._requests += 1
        self.write(command, encoded(*fields, (request_field, self._requests)))
        while True:
            kind, answer = self.read(self._timeout_s)
            if kind is Command.PRODUCER_SUCCESS and not first_int(answer, 6, 1):
                continue  # the producer is not ready: it waits until another one ends
            if kind in (Command.SUCCESS, Command.PRODUCER_SUCCESS, Command.LOOKUP_RESPONSE):
                return answer

    def write(self, command: Command, body: bytes, payload: bytes = b"") -> None:
        """Write one frame: a command, and for SEND the metadata and payload after it."""
        head = encoded((1, int(command)), (int(command), body))
        self._socket.sendall(struct.pack(">II", 4 + len(head) + len(payload), len(head)) + head + payload)

    def read(self, timeout_s: float) -> tuple[Command, Fields]:
        """The next command for the caller.

        Raises BrokerRefusedError for ERROR, and TimeoutError if none comes in time.
        """
        ends_at = time.monotonic() + timeout_s
        while True:
            found = self._next(max(0.0, ends_at - time.monotonic()))
            if found is None:
                raise TimeoutError(f"no answer in {timeout_s:g} s")
            kind, fields = found
            match kind:
                case Command.PING:
                    self.write(Command.PONG, b"")
                case Command.AUTH_CHALLENGE:
                    method, data = _credentials(self._options)
                    self.write(
                        Command.AUTH_RESPONSE,
                        encoded((1, "cassandra-cdc"), (2, encoded((1, method), (2, data))), (3, _PROTOCOL_VERSION)),
                    )
                case Command.ERROR:
                    raise BrokerRefusedError(first_int(fields, 2), first_text(fields, 3))
                case None:
                    pass  # a command that is not needed here, or of a later version
                case _:
                    return kind, fields

    def has_more(self) -> bool:
        """True when data of the broker has arrived that was not read yet."""
        if len(self._received) >= 4 or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(select.select([self._socket], [], [], 0)[0])

    def _next(self, timeout_s: float) -> tuple[Command | None, Fields] | None:
        ends_at = time.monotonic() + timeout_s
        while True:
            if len(self._received) >= 4:
                (size,) = struct.unpack_from(">I", self._received)
                if size > _MAX_FRAME:
                    raise ValueError(f"a frame of {size} bytes")
                if len(self._received) >= 4 + size:
                    frame = bytes(self._received[4 : 4 + size])
                    del self._received[: 4 + size]
                    return _command(frame)
            left_s = ends_at - time.monotonic()
            if left_s <= 0 and not self._is_readable():
                return None
            self._socket.settimeout(max(left_s, 0.001))
            try:
                more = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            finally:
                self._socket.settimeout(self._timeout_s)
            if not more:
                raise ConnectionResetError("the broker closed the connection")
            self._received += more

    def _is_readable(self) -> bool:
        return bool(select.select([self._socket], [], [], 0)[0])


def connection_of_topic(options: BridgeOptions, topic: str) -> BrokerConnection:
    """A connection to the broker that owns a topic partition. Raises as BrokerConnection does, PulsarUnreachableError."""
    address, authoritative, target = options.service_url, 0, None
    for _ in range(_MAX_REDIRECTS):
        connection = BrokerConnection(options, address, target)
        try:
            answer = connection.ask(Command.LOOKUP, (1, topic), (3, authoritative), request_field=2)
        except BaseException:
            connection.close()
            raise
        if first_int(answer, 3) == _FAILED:
            connection.close()
            raise BrokerRefusedError(first_int(answer, 6), first_text(answer, 7))
        owner = first_text(answer, 2 if options.service_url.startswith("pulsar+ssl://") else 1)
        if first_int(answer, 8):  # through the proxy
            address, target = options.service_url, owner.partition("://")[2]
        else:
            address, target = owner, None
        if first_int(answer, 3) == _CONNECT:
            if (address, target) == (connection.address, None):
                return connection
            connection.close()
            return BrokerConnection(options, address, target)
        connection.close()
        authoritative = first_int(answer, 5)
    raise PulsarUnreachableError(options.service_url, f"the look-up of {topic} was redirected {_MAX_REDIRECTS} times")


def check_answer(options: BridgeOptions, patience_s: float = PATIENCE_S) -> None:
    """Log in to the broker of the options. Raises ConfigError, and PulsarUnreachableError if no broker answers.

    A broker that starts is asked again for `patience_s`. A refusal is not reported here: Pulsar's own client, which
    knows more ways to log in, reports it with the topic.
    """
    name = options.written("serviceUrl")
    ends_at = time.monotonic() + patience_s
    while True:
        try:
            BrokerConnection(options, options.service_url).close()
        except BrokerRefusedError:
            return
        except OSError as error:
            if time.monotonic() < ends_at:
                time.sleep(_PAUSE_S)
                continue
            reason = f"the broker does not answer ({certificate_refusal(str(error)) or error}); start it or check the option {name}"
            raise PulsarUnreachableError(options.service_url, reason) from error
        except ValueError as error:  # after OSError: an error of TLS may be both
            reason = f"something else than a broker answers; check the option {name}"
            raise PulsarUnreachableError(options.service_url, reason) from error
        else:
            return


def _command(frame: bytes) -> tuple[Command | None, Fields]:
    (size,) = struct.unpack_from(">I", frame)
    fields = parsed(frame[4 : 4 + size])
    number = first_int(fields, 1)
    kind = _COMMANDS.get(number)
    return kind, {} if kind is None else parsed(first_bytes(fields, number))


def _opened(options: BridgeOptions, address: str) -> socket.socket:
    """A socket to the first host that accepts a connection, of several (`pulsar://a:6650,b:6650`). Raises OSError."""
    scheme, _, hosts = address.partition("://")
    timeout_s = min(10, options.operation_timeout_seconds)
    refused: OSError = ConnectionRefusedError(f"{address} names no host")
    for each in hosts.rstrip("/").split(","):
        host, _, port = each.rpartition(":") if ":" in each.rpartition("]")[2] else (each, "", "")
        is_encrypted = scheme == "pulsar+ssl"
        number = int(port) if port else (6651 if is_encrypted else 6650)
        context = verification(options) if is_encrypted else None
        try:
            opened = _connected(host.strip("[]"), number, timeout_s, context)
        except OSError as error:
            refused = error
            continue
        opened.settimeout(float(options.operation_timeout_seconds))
        return opened
    raise refused


def _connected(host: str, port: int, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    """A socket to the host, an IPv6 address without brackets; with TLS if there is a context. Raises OSError."""
    plain = socket.create_connection((host, port), timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _credentials(options: BridgeOptions) -> tuple[str | None, bytes | None]:
    """Name and data of the authentication method. The data is the same as in the header for the admin service."""
    header = http_headers(options, patience_s=5).get("Authorization", "")
    kind, _, text = header.partition(" ")
    if kind == "Bearer":
        return "token", text.encode()
    if kind == "Basic":
        return "basic", base64.b64decode(text)
    return ("tls", b"") if http_certificate(options) is not None else (None, None)
