"""The proxy between two parts: the data that it forwards, holds back, and cuts."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.fault_kit.kinds import FaultKind
from tests.fault_kit.plan import Fault
from tests.fault_kit.proxy import Proxy
from tests.fault_kit.report import Report, Struck
from tests.fault_kit.strikes import Strikes

if TYPE_CHECKING:
    from tests.fault_kit.line import FaultLine


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back the data that it receives."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()
    server.close()


def _echo(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        while data := connection.recv(65_536):
            connection.sendall(data)


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[Proxy]:
    """A proxy in front of the server that replaces `near` by `far` on the way back."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Proxy(("127.0.0.1", port), echo, (b"near:1", b"far..2")) as running:
        yield running


def _connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(proxy.listen, timeout=10)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(count - len(data))):
        data += more
    return data


def _is_cut_off(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_the_address_in_an_answer_is_replaced_wherever_the_packets_end(proxy: Proxy) -> None:
    """An address in two pieces is replaced, too; the beginning of an address without more data is not held back."""
    with _connect(proxy) as connection:
        connection.sendall(b"at near:1 and ne")
        assert _read(connection, 16) == b"at far..2 and ne"
        connection.sendall(b"x near")
        time.sleep(0.001)
        connection.sendall(b":1 ")
        assert _read(connection, 9) in {b"x far..2 ", b"x near:1 "}  # The pieces may be far apart on a busy machine.


def test_away_resets_and_refuses_until_it_is_healed(proxy: Proxy) -> None:
    """Existing connections are reset, and new ones are refused."""
    with _connect(proxy) as connection:
        connection.sendall(b"a")
        assert _read(connection, 1) == b"a"
        proxy.go_away()
        assert _is_cut_off(connection)
    with _connect(proxy) as refused:
        assert _is_cut_off(refused)
    proxy.heal()
    with _connect(proxy) as connection:
        connection.sendall(b"c")
        assert _read(connection, 1) == b"c"


def test_standing_still_loses_nothing(proxy: Proxy) -> None:
    """Data that is sent meanwhile arrives after the proxy is healed."""
    with _connect(proxy) as connection:
        proxy.stand_still()
        connection.sendall(b"late")
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.heal()
        connection.settimeout(10)
        assert _read(connection, 4) == b"late"


def test_a_cut_leaves_half_of_a_frame(proxy: Proxy) -> None:
    """Then the connection is reset or closed."""
    with _connect(proxy) as connection:
        connection.sendall(b"hello")
        assert _read(connection, 5) == b"hello"
        proxy.cut()
        connection.sendall(b"0123456789")
        try:
            received = _read(connection, 10)
        except ConnectionError:
            received = b""
        assert len(received) < 10
        assert proxy.connections_cut == 1


def test_a_single_byte_is_no_frame_that_could_be_cut(proxy: Proxy) -> None:
    """The byte is forwarded and not counted; the next data is cut."""
    with _connect(proxy) as connection:
        proxy.cut()
        connection.sendall(b"x")
        assert _read(connection, 1) == b"x"
        assert proxy.connections_cut == 0
        connection.sendall(b"0123456789")
        with suppress(ConnectionError):
            assert len(_read(connection, 10)) < 10
        assert proxy.connections_cut == 1


def test_a_strike_counts_what_it_cut(proxy: Proxy) -> None:
    """A strike waits for the first connection to cut if all are idle."""
    line = SimpleNamespace(proxies={"agent-pulsar": [proxy]}, agents=[], sandbox=SimpleNamespace(nodes=[]))
    strikes = Strikes(cast("FaultLine", line), lambda: None, lambda fault, text: None)
    with _connect(proxy) as connection:
        idle = threading.Timer(0.5, connection.sendall, [b"0123456789"])
        idle.start()
        assert strikes.strike(_fault(1, FaultKind.NETWORK_CUT)) == 1
        idle.join()


def test_strikes_that_struck_nothing_are_told() -> None:
    """The report lists the numbers of such faults."""
    report = Report(seed=1, nodes=1, cassandra="5.0", plan=[], replay="")
    for number, broken in ((4, 2), (7, 0), (9, 3)):
        fault = _fault(number, FaultKind.NETWORK_CUT)
        report.struck.append(Struck(fault=fault, text="", at_s=0.0, load_average=0.0, broken=broken))
    assert report.broken(FaultKind.NETWORK_CUT) == 5
    assert "network-cut: 5 connections cut in mid-frame in 3 strikes; these struck NOTHING: 7" in report.lines(), (
        report.lines()
    )


def _fault(number: int, kind: FaultKind) -> Fault:
    return Fault(number=number, kind=kind, node=1, target="agent-pulsar", pause_s=0, length_s=0.1, choice=0)


def test_a_replacement_of_another_length_is_refused() -> None:
    """Frames contain their sizes, so another length would break them."""
    with pytest.raises(ValueError, match="length"):
        Proxy(("127.0.0.1", 0), ("127.0.0.1", 1), (b"ab", b"abc"))
