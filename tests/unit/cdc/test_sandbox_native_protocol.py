"""native_protocol: the check of readiness, against a server that sends literal frames of the native protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cdc.sandbox.native_protocol import NotServingError, count_rows

_READY = bytes.fromhex("84 00 0000 02 00000000")
_AUTHENTICATE = bytes.fromhex("84 00 0000 03 00000003 0001 78")
_AUTH_SUCCESS = bytes.fromhex("84 00 0000 10 00000004 ffffffff")
_STARTUP = bytes.fromhex("04 00 0000 01 00000016 0001 000b 43514c5f56455253494f4e 0005 332e302e30")
_TWO_ROWS = bytes.fromhex("84 00 0000 08 00000010 00000002 00000004 00000001 00000002")
_ERROR = bytes.fromhex("84 00 0000 00 00000007 00001001 0001 78")


@contextmanager
def _node(answers: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Serve one connection with these answers. Yield the port and the list of received requests."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                for answer in answers:
                    requests.append(connection.recv(65536))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], requests
        thread.join()


def test_the_rows_of_the_answer_are_counted() -> None:
    """A node that answers a query serves clients."""
    with _node([_READY, _TWO_ROWS]) as (port, requests):
        assert count_rows("127.0.0.1", port, "system.peers") == 2
    assert requests[0] == _STARTUP
    assert requests[1][9:13] == (26).to_bytes(4)
    assert requests[1][13:39] == b"SELECT * FROM system.peers"


def test_a_node_that_asks_for_a_password_gets_that_of_its_own_superuser() -> None:
    """SASL PLAIN: an empty authority, then the name and the password, each after a zero byte."""
    with _node([_AUTHENTICATE, _AUTH_SUCCESS, _TWO_ROWS]) as (port, requests):
        assert count_rows("127.0.0.1", port, "system.peers") == 2
    assert requests[1] == bytes.fromhex("04 00 0000 0f 00000018 00000014") + b"\0cassandra\0cassandra"


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([_AUTHENTICATE, _ERROR], "does not let cassandra log in"),
        ([_ERROR], "answered STARTUP with opcode 0"),
        ([_READY, _ERROR], "answered a query with opcode 0"),
        ([_READY, _TWO_ROWS[:-6]], "closed by the node"),
    ],
)
def test_anything_but_rows_means_that_it_does_not_serve(answers: list[bytes], reason: str) -> None:
    """A node that is starting is not ready, and the check raises no other error."""
    with _node(answers) as (port, _), pytest.raises(NotServingError, match=reason):
        count_rows("127.0.0.1", port, "system.peers")


def test_a_closed_port_means_that_it_does_not_serve() -> None:
    """This is the state in the first seconds of every start."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NotServingError, match="refused"):
        count_rows("127.0.0.1", port, "system.local")
