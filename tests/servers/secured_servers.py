"""Servers that require credentials: TLS everywhere, certificates and passwords, tokens."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from cdc.sandbox import Sandbox, SandboxOptions
from spark_bridge.jobs.cassandra_rows import CassandraAccess
from spark_bridge.jobs.cassandra_tls import CassandraTls
from tests.servers.certificates import CertificateAuthority
from tests.servers.interface import REPOSITORY
from tests.servers.security_settings import HTTPS_PORT, TLS_PORT, node_tls, pulsar_tls, pulsar_tokens, token

__all__ = [
    "ADMIN_ROLE",
    "DATA_TOPIC",
    "ROLE",
    "TABLE",
    "SecuredSandbox",
    "agent_options",
    "cassandra_access",
    "child",
    "relay",
    "source_options",
    "spark_options",
]

ADMIN_ROLE: Final = "admin"
ROLE: Final = "cdc"
TABLE: Final = "secured.t"
DATA_TOPIC: Final = f"data-{TABLE}"
_CLIENT_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"


class SecuredSandbox(Sandbox):
    """A node that requires TLS, a client's certificate and a password, and a Pulsar with TLS and tokens.

    The certificates are `node` and `broker`, which have the servers' addresses, and `client`. Pulsar's ports without
    TLS are for its own functions worker, and for changes by tests.
    """

    def __init__(self, authority: CertificateAuthority) -> None:
        self.authority = authority
        authority.issue("client")
        context = ssl.create_default_context(cafile=str(authority.trusted))
        context.load_cert_chain(authority.folder / "client.pem", authority.folder / "client.key")
        folder = authority.folder
        (folder / "admin.token").write_text(token(ADMIN_ROLE))
        super().__init__(
            SandboxOptions(
                commitlog_sync_ms=100,
                cassandra_passwords=True,
                cassandra_tls=context,
                cassandra_settings=node_tls(folder, optional=False),
                pulsar_settings=pulsar_tls(folder) | pulsar_tokens(super_users=f"{ADMIN_ROLE},{ROLE}"),
                pulsar_token_file=folder / "admin.token",
            )
        )

    @property
    def tls_context(self) -> ssl.SSLContext:
        """The TLS context with which a client connects to the node."""
        assert self.options.cassandra_tls is not None
        return self.options.cassandra_tls

    def _create_servers(self, folder: Path) -> None:
        super()._create_servers(folder)
        self.authority.issue("node", self.node.address)
        self.authority.issue("broker", self.pulsar.address)


@contextmanager
def relay(address: str, port: int) -> Iterator[int]:
    """Forward a port of 127.0.0.1 to the server, so that it has an address that its certificate does not have."""
    listener = socket.create_server(("127.0.0.1", 0))
    opened: list[socket.socket] = [listener]

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((address, port))
                opened.extend((near, far))
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=_copy, args=(source, target), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def agent_options(servers: SecuredSandbox, files: Mapping[str, Path]) -> dict[str, object]:
    """The agent's options for mutual TLS, a password and a token."""
    folder, address = servers.authority.folder, servers.pulsar.address
    return {
        "cassandraTls": True,
        "cassandraTrustCertsFilePath": str(servers.authority.trusted),
        "cassandraCertificateFilePath": str(folder / "client.pem"),
        "cassandraKeyFilePath": str(folder / "client.key"),
        "username": ROLE,
        "passwordFile": str(files["password"]),
        "pulsarServiceUrl": f"pulsar+ssl://{address}:{TLS_PORT}",
        "pulsarAdminUrl": f"https://{address}:{HTTPS_PORT}",
        "tlsTrustCertsFilePath": str(servers.authority.trusted),
        "pulsarAuthPluginClassName": _CLIENT_PLUGIN,
        "pulsarAuthParams": f"file://{files['token']}",
    }


def source_options(servers: SecuredSandbox, files: Mapping[str, Path]) -> dict[str, object]:
    """The connector's options for the same, with Java key stores."""
    folder = servers.authority.folder
    return {
        "contactPoints": servers.node.address,
        "port": servers.node.native_port,
        "loadBalancing.localDc": "datacenter1",
        "keyspace": "secured",
        "table": "t",
        "python": sys.executable,
        "auth.provider": "PLAIN",
        "auth.username": ROLE,
        "auth.passwordFile": str(files["password"]),
        "ssl.provider": "JDK",
        "ssl.truststore.path": str(folder / "ca.p12"),
        "ssl.truststore.passwordFile": str(files["store"]),
        "ssl.keystore.path": str(folder / "client.p12"),
        "ssl.keystore.passwordFile": str(files["store"]),
        "pulsarServiceUrl": f"pulsar+ssl://{servers.pulsar.address}:{TLS_PORT}",
        "pulsarAuthPluginClassName": _CLIENT_PLUGIN,
        "pulsarAuthParams": f"file://{files['token']}",
        "tlsTrustCertsFilePath": str(servers.authority.trusted),
        "sslHostnameVerificationEnable": True,
    }


def spark_options(servers: SecuredSandbox, files: Mapping[str, Path]) -> dict[str, str]:
    """The Spark reader's options for TLS and a token."""
    address = servers.pulsar.address
    return {
        "serviceUrl": f"pulsar+ssl://{address}:{TLS_PORT}",
        "adminUrl": f"https://{address}:{HTTPS_PORT}",
        "topic": DATA_TOPIC,
        "authPluginClassName": _CLIENT_PLUGIN,
        "authParams": f"file://{files['token']}",
        "tlsTrustCertsFilePath": str(servers.authority.trusted),
        "operationTimeoutSeconds": "60",
    }


def cassandra_access(servers: SecuredSandbox, password: str) -> CassandraAccess:
    """Access with mutual TLS and a password, for Spark jobs that read Cassandra."""
    folder = servers.authority.folder
    return CassandraAccess(
        contact_points=(servers.node.address,),
        port=servers.node.native_port,
        username=ROLE,
        password=password,
        tls=CassandraTls(
            trusted=str(servers.authority.trusted),
            certificate=str(folder / "client.pem"),
            key=str(folder / "client.key"),
        ),
        consistency="ONE",
    )


@contextmanager
def child(options: Mapping[str, object]) -> Iterator[Callable[[], str]]:
    """Start the connector's process, send OPEN, and yield a function that returns all output so far."""
    document = json.dumps({"config": options, "pulsar": {}, "instance": {"name": "n"}}).encode()
    process = subprocess.Popen(
        [sys.executable, "-m", "source_connector"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert process.stdin is not None and process.stdout is not None
    said = bytearray()
    thread = threading.Thread(target=lambda: [said.extend(data) for data in iter(lambda: os.read(out, 4096), b"")])
    out = process.stdout.fileno()
    thread.start()
    process.stdin.write((len(document) + 1).to_bytes(4, "big") + b"\x00" + document)
    process.stdin.flush()
    try:
        yield lambda: said.decode("utf-8", "replace")
    finally:
        process.stdin.close()
        process.wait(60)
        thread.join()
        process.stdout.close()
