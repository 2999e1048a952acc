"""A sandbox: a Cassandra cluster with CDC and a Pulsar standalone on this machine, for one owner.

Files, below the sandbox's folder:

    sandbox.json          the servers and their processes; for `cdc sandbox status` and `down`
    logs/<server>.log     each server's own output
    cassandra-1/ ...      conf, data, commitlog, cdc_raw, ... of each node
    pulsar/               home, data, ...
"""

from __future__ import annotations

import fcntl
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Literal, Self, TypeAlias

from cdc.sandbox.addresses import AddressBlock, claim_block
from cdc.sandbox.artifacts import cassandra_class_path, ensure, pulsar_distribution
from cdc.sandbox.cassandra_node import CassandraNode
from cdc.sandbox.errors import SandboxError, ServerStartError
from cdc.sandbox.options import SandboxOptions
from cdc.sandbox.prerequisites import require_linux
from cdc.sandbox.pulsar_standalone import Pulsar
from cdc.sandbox.server import START_TIMEOUT_S, Server
from cdc.sandbox.state import ProcessId, SandboxState, ServerState, read_state, write_state
from cdc.sandbox.supervision import SupervisorChannel
from schemas.errors import ConfigError

__all__ = ["Progress", "Sandbox", "Step"]

_GOSSIP_STABLE_S: Final = 3.0

Step: TypeAlias = Literal["fetching", "waiting", "starting", "ready"]
Progress: TypeAlias = Callable[[str, Step], None]
"""Is called with the server's name and the step, for each step of each server, from several threads."""


class Sandbox:
    """Real servers during a ``with`` block, or from :meth:`start` to :meth:`close`.

    No server outlives this process, for whatever reason it ends, unless :meth:`detach` was called. Without ``base_dir``
    the files are in a temporary folder that :meth:`close` removes.
    """

    def __init__(
        self,
        options: SandboxOptions | None = None,
        *,
        base_dir: Path | None = None,
        on_progress: Progress = lambda name, step: None,
    ) -> None:
        self.options = options or SandboxOptions()
        self._base_dir = base_dir
        self._on_progress = on_progress
        self._dir: Path | None = None
        self._supervisor: SupervisorChannel | None = None
        self._nodes: tuple[CassandraNode, ...] = ()
        self._waiting_nodes: tuple[CassandraNode, ...] = ()
        self._pulsar: Pulsar | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def dir(self) -> Path:
        """The sandbox's folder; raises SandboxError before :meth:`start`."""
        if self._dir is None:
            raise SandboxError("this sandbox was not started")
        return self._dir

    @property
    def nodes(self) -> tuple[CassandraNode, ...]:
        """The Cassandra nodes; the first is the seed."""
        return self._nodes

    @property
    def waiting_nodes(self) -> tuple[CassandraNode, ...]:
        """The nodes that join when they are started."""
        return self._waiting_nodes

    @property
    def node(self) -> CassandraNode:
        """The first Cassandra node; raises SandboxError if there is none."""
        if not self._nodes:
            raise SandboxError("this sandbox has no Cassandra node")
        return self._nodes[0]

    @property
    def pulsar(self) -> Pulsar:
        """The Pulsar standalone; raises SandboxError if there is none."""
        if self._pulsar is None:
            raise SandboxError("this sandbox has no Pulsar")
        return self._pulsar

    def start(self) -> None:
        """Start the servers, and return when all serve clients.

        Raises ConfigError for a missing prerequisite or an unusable folder, ArtifactError if files cannot be fetched,
        and ServerStartError with the tail of the log if a server does not start. No server runs after an error.
        """
        if self._supervisor is not None:
            raise SandboxError("this sandbox runs already")
        require_linux()
        if self._base_dir is not None:
            _check_path(self._base_dir.absolute())
            _block_of_earlier_run(self._base_dir, self.options)  # raises its errors before anything is fetched
        self._fetch_artifacts()
        self._dir = self._base_dir.absolute() if self._base_dir else Path(tempfile.mkdtemp(prefix="cdc-sandbox-"))
        try:
            self._create_servers(self._dir)
            self._start_servers()
        except BaseException:
            self.close()
            raise

    def close(self, *, grace_s: float = 0) -> None:
        """End all servers and free their addresses: at once, or by SIGTERM, and after ``grace_s`` seconds by SIGKILL.

        May be called again. Does nothing for a sandbox that was detached.
        """
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.shutdown(grace_s)
        if self._base_dir is None and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)

    def detach(self) -> None:
        """Let the servers run after the end of this process, until ``cdc sandbox down``.

        This object cannot be used afterwards.
        """
        if self._supervisor is None:
            raise SandboxError("this sandbox does not run")
        if self._base_dir is None:
            raise SandboxError("a sandbox in a temporary folder cannot be detached; give it a base_dir")
        self._supervisor.detach()
        self._supervisor = None

    def _fetch_artifacts(self) -> None:
        self._on_progress("artifacts", "fetching")
        if self.options.nodes:
            cassandra_class_path(self.options.cassandra)
            ensure("jolokia")
        if self.options.pulsar:
            pulsar_distribution()
        self._on_progress("artifacts", "ready")

    def _create_servers(self, folder: Path) -> None:
        options = self.options
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        with _lock_folder(folder) as lock:
            # Another start may have used the folder while this one fetched the artifacts.
            block, claim = claim_block(_block_of_earlier_run(folder, options))
            with claim:
                supervisor = SupervisorChannel(folder, held=[lock, claim], remove_folder=self._base_dir is None)
        self._supervisor = supervisor
        total = options.nodes + options.waiting_nodes
        ports = block.cassandra_ports(total)
        nodes = [CassandraNode(number, folder, block, ports, options, supervisor) for number in range(1, total + 1)]
        self._nodes, self._waiting_nodes = tuple(nodes[: options.nodes]), tuple(nodes[options.nodes :])
        self._pulsar = Pulsar(folder, block, block.pulsar_ports(), options, supervisor) if options.pulsar else None
        write = partial(self._write_state, folder, block, ProcessId.of(supervisor.pid), threading.Lock())
        for server in self._servers():
            server.on_start = write
        write()

    def _write_state(self, folder: Path, block: AddressBlock, supervisor: ProcessId, lock: threading.Lock) -> None:
        """Replace ``sandbox.json``, after each start of a server. Several threads may call this, with the same lock."""
        with lock:
            servers = tuple(
                ServerState(
                    name=server.name,
                    version=server.version,
                    address=server.address,
                    ports=asdict(server.ports),
                    details=server.details,
                    log=str(server.log),
                    process=server.process_id,
                )
                for server in self._servers()
            )
            state = SandboxState(
                cassandra=self.options.cassandra,
                nodes=self.options.nodes,
                pulsar=self.options.pulsar,
                address_prefix=block.prefix,
                supervisor=supervisor,
                servers=servers,
            )
            write_state(folder, state)

    def _servers(self) -> list[CassandraNode | Pulsar]:
        return [*self._nodes, *self._waiting_nodes, *([self._pulsar] if self._pulsar else [])]

    def _start_servers(self) -> None:
        """Start Pulsar and the nodes at the same time; the nodes one after the other, the seed first."""
        for server in self._servers():
            if server not in self._waiting_nodes:
                self._on_progress(server.name, "waiting")
        with ThreadPoolExecutor(max_workers=2) as pool:
            starts = [pool.submit(self._start_nodes)]
            if self._pulsar is not None:
                starts.append(pool.submit(self._start_server, self._pulsar))
            try:
                for start in as_completed(starts):
                    start.result()
            except BaseException:
                self.close()  # the other thread then sees that its supervisor is gone, and ends
                raise

    def _start_nodes(self) -> None:
        for node in self._nodes:
            self._start_server(node)
        if len(self._nodes) > 1:
            self._wait_for_gossip()

    def _wait_for_gossip(self) -> None:
        """Wait until every node has seen all others alive for some seconds.

        The others may lose a node again that has just joined.
        """
        everyone = frozenset(node.address for node in self._nodes)
        complete_since = time.monotonic()
        deadline = complete_since + START_TIMEOUT_S
        while time.monotonic() - complete_since < _GOSSIP_STABLE_S:
            strangers = [node.name for node in self._nodes if node.live_nodes() != everyone]
            if strangers:
                complete_since = time.monotonic()
            if time.monotonic() > deadline:
                reason = f"after {START_TIMEOUT_S:g} s it does not see all of {', '.join(sorted(everyone))} alive"
                raise ServerStartError((strangers or [self._nodes[0].name])[0], reason, [])
            time.sleep(0.1)

    def _start_server(self, server: Server) -> None:
        self._on_progress(server.name, "starting")
        server.start()
        self._on_progress(server.name, "ready")


def _check_path(folder: Path) -> None:
    """Raise ConfigError for a path with a colon or a space.

    A colon separates class paths, and Pulsar's start script cuts a path at a space.
    """
    if re.search(r"[\s:]", str(folder)):
        raise ConfigError.of("sandbox folder", f"{str(folder)!r} has a space or colon, which Java tools cannot take")


def _lock_folder(folder: Path) -> BinaryIO:
    """Lock the folder until all copies of the returned file are closed. The supervisor inherits and keeps a copy.

    Raises ConfigError if a sandbox runs in the folder.
    """
    file = (folder / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError.of(
            "sandbox folder",
            f"a sandbox runs in {folder}; end it by `cdc sandbox down --dir {folder}`, start a stopped server of it by"
            f" `cdc sandbox start NAME --dir {folder}`, or take another folder",
        ) from None
    return file


def _block_of_earlier_run(folder: Path, options: SandboxOptions) -> AddressBlock | None:
    """The addresses of the earlier sandbox in the folder, because Cassandra and Pulsar store them with their data.

    Raises ConfigError if the options do not fit its data, SandboxError for a state that cannot be read.
    """
    earlier = read_state(folder)
    if earlier is None:
        return None
    wanted = (options.cassandra, options.nodes, options.pulsar)
    if (earlier.cassandra, earlier.nodes, earlier.pulsar) != wanted:
        raise ConfigError.of(
            "sandbox folder",
            f"{folder} holds the data of Cassandra {earlier.cassandra} with {earlier.nodes} node(s)"
            f"{'' if earlier.pulsar else ' and no Pulsar'}; take another folder or remove this one",
        )
    return AddressBlock(prefix=earlier.address_prefix)
