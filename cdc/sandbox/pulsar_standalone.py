"""The Pulsar standalone of the sandbox: broker, bookie, metadata store and functions worker in one JVM.

It has its own home, because Pulsar stores packages, logs and extracted archives below it: ``bin`` and ``conf`` are
copies, ``lib`` and ``instances`` are links to the cache.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import httpx
import yaml

from cdc.rest import rest
from cdc.sandbox.addresses import AddressBlock, PulsarPorts
from cdc.sandbox.artifacts import pulsar_distribution
from cdc.sandbox.options import FunctionsRuntime, SandboxOptions
from cdc.sandbox.prerequisites import java_home
from cdc.sandbox.server import Server, server_environment
from cdc.sandbox.supervision import Launch, SupervisorChannel
from cdc.sandbox.versions import PULSAR_VERSION

__all__ = ["PULSAR_START_ATTEMPTS", "Pulsar", "why_pulsar_is_hopeless"]

_RUNTIME_FACTORIES: Final[dict[FunctionsRuntime, str]] = {
    "process": "org.apache.pulsar.functions.runtime.process.ProcessRuntimeFactory",
    "thread": "org.apache.pulsar.functions.runtime.thread.ThreadRuntimeFactory",
}
_FAST_START: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
_PROBE_TIMEOUT_S: Final = 5.0
# Pulsar normally logs a few of these lines. If it makes its registration in circles, it logs thousands a second.
_CIRCLES: Final = 200

PULSAR_START_ATTEMPTS: Final = 4
"""Pulsar's parts wait only some seconds for each other. If ledgers are recovered after a kill on a loaded machine, a
part may give up, and Pulsar ends with exit code 1. Deployments of Pulsar then start it again; so does the sandbox."""


class Pulsar(Server):
    """A Pulsar standalone with the functions worker."""

    start_attempts = PULSAR_START_ATTEMPTS

    def __init__(
        self,
        folder: Path,
        block: AddressBlock,
        ports: PulsarPorts,
        options: SandboxOptions,
        supervisor: SupervisorChannel,
    ) -> None:
        super().__init__("pulsar", folder / "logs" / "pulsar.log", supervisor)
        self._sandbox = folder
        self._options = options
        self.address = block.pulsar
        """The loopback address of all its ports."""
        self.ports = ports
        self.folder = folder / "pulsar"
        """The folder of all of Pulsar's files."""
        self.home = self.folder / "home"
        """PULSAR_HOME, which only this Pulsar uses."""
        self._configure()

    @property
    def version(self) -> str:
        """The release, such as ``4.0.8``."""
        return PULSAR_VERSION

    @property
    def service_url(self) -> str:
        """The address for clients, ``pulsar://...``."""
        return f"pulsar://{self.address}:{self.ports.broker}"

    @property
    def admin_url(self) -> str:
        """The admin REST API, ``http://...`` without a trailing slash."""
        return f"http://{self.address}:{self.ports.web}"

    @property
    def pulsar_admin(self) -> Path:
        """The ``pulsar-admin`` program, which is configured for this Pulsar and its Java."""
        return self.home / "bin" / "pulsar-admin"

    @property
    def functions_log_dir(self) -> Path:
        """Where function instances of the process runtime write their logs."""
        return self.home / "logs" / "functions"

    @property
    def details(self) -> dict[str, str]:
        """Where clients connect, and the admin program."""
        return {"service_url": self.service_url, "admin_url": self.admin_url, "pulsar_admin": str(self.pulsar_admin)}

    def _configure(self) -> None:
        distribution = pulsar_distribution()
        for name in ("data", "tmp", "nar"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.home.mkdir(exist_ok=True)
        for name in ("bin", "conf"):
            shutil.copytree(distribution / name, self.home / name, dirs_exist_ok=True)
        for name in ("lib", "instances"):
            if not (self.home / name).is_symlink():
                (self.home / name).symlink_to(distribution / name)
        conf = self.home / "conf"
        _set_properties(conf / "standalone.conf", {**self._standalone_settings(), **self._options.pulsar_settings})
        _set_properties(conf / "client.conf", {"webServiceUrl": self.admin_url, "brokerServiceUrl": self.service_url})
        # pulsar-admin and pulsar-client source this file; with the defaults they take seconds to start
        tools = (distribution / "conf" / "pulsar_tools_env.sh").read_text()
        (conf / "pulsar_tools_env.sh").write_text(
            f'export JAVA_HOME="{java_home()}"\nPULSAR_GC="{_FAST_START}"\n{tools}'
        )
        worker_file = conf / "functions_worker.yml"
        worker = yaml.safe_load(worker_file.read_text())
        worker.update(self._worker_settings())
        worker_file.write_text(yaml.safe_dump(worker))

    def _standalone_settings(self) -> dict[str, str]:
        return {
            "bindAddress": self.address,
            "advertisedAddress": self.address,
            "brokerServicePort": str(self.ports.broker),
            "webServicePort": str(self.ports.web),
            "narExtractionDirectory": str(self.folder / "nar"),
            # without these two the bookie listens on all interfaces, on a random port (org.apache.pulsar.metadata.
            # bookkeeper.BKCluster); with an interface given it binds the advertised address
            "listeningInterface": "lo",
            "allowEphemeralPorts": "true",
            # the defaults are fractions of a direct memory that is larger than here
            "managedLedgerCacheSizeMB": "32",
            "dbStorage_writeCacheMaxSizeMb": "16",
            "dbStorage_readAheadCacheMaxSizeMb": "16",
            "dbStorage_rocksDB_blockCacheSize": str(16 * 2**20),
            # the default of 100 times a second causes a third of the CPU time of an idle broker
            "managedLedgerCacheEvictionFrequency": "2.0",
            **self._own_login(),
        }

    def _own_login(self) -> dict[str, str]:
        token_file = self._options.pulsar_token_file
        if token_file is None:
            return {}
        return {
            "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"file://{token_file}",
        }

    def _worker_settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "functionRuntimeFactoryClassName": _RUNTIME_FACTORIES[self._options.functions_runtime],
            "narExtractionDirectory": str(self.folder / "nar"),
        }
        if self._options.functions_runtime == "thread":
            settings["functionRuntimeFactoryConfigs"] = {"threadGroupName": "functions"}
        return {**settings, **self._options.functions_worker_settings}

    def _launch(self) -> Launch:
        argv = [
            str(self.home / "bin" / "pulsar"),
            "standalone",
            "--no-stream-storage",
            f"--advertised-address={self.address}",
            f"--config={self.home / 'conf' / 'standalone.conf'}",
            f"--functions-worker-conf={self.home / 'conf' / 'functions_worker.yml'}",
            f"--bookkeeper-port={self.ports.bookie}",
            f"--bookkeeper-dir={self.folder / 'data' / 'bookkeeper'}",
            f"--metadata-dir={self.folder / 'data' / 'metadata'}",
        ]
        heap = self._options.pulsar_heap_mb
        env = {
            **server_environment(self._sandbox),
            "PULSAR_STANDALONE_CONF": str(self.home / "conf" / "standalone.conf"),
            "PULSAR_MEM": f"-Xms{heap // 2}m -Xmx{heap}m -XX:MaxDirectMemorySize=512m",
            "PULSAR_GC": " ".join([_FAST_START, *self._options.pulsar_jvm_options]),
            "PULSAR_GC_LOG": "-Xlog:disable",
            "PULSAR_EXTRA_OPTS": f"-Djava.io.tmpdir={self.folder / 'tmp'} -Dio.netty.recycler.maxCapacityPerThread=4096",
            "PULSAR_LOG_DIR": str(self.home / "logs"),
        }
        return Launch(argv=argv, env=env, cwd=self.home)

    def _why_not_ready(self) -> str | None:
        token_file = self._options.pulsar_token_file
        headers = {} if token_file is None else {"Authorization": f"Bearer {token_file.read_text().strip()}"}
        # the functions worker is ready last; until it is the leader of its cluster, it refuses to create a source
        for path in ("/admin/v2/namespaces/public/default", "/admin/v2/worker/cluster/leader/ready"):
            try:
                answer = rest().get(self.admin_url + path, timeout=_PROBE_TIMEOUT_S, headers=headers)
            except httpx.HTTPError as error:
                return f"{path}: {error}"
            if answer.status_code != httpx.codes.OK:
                return f"{path}: status {answer.status_code}"
        return None

    def _why_hopeless(self, log_start: int) -> str | None:
        return why_pulsar_is_hopeless(self.log, log_start)


def why_pulsar_is_hopeless(log: Path, log_start: int) -> str | None:
    """The reason why a start that began at this offset of the log will not succeed; None if it may succeed.

    After kill -9 the standalone finds the bookie's registration of the previous process. It may then delete and create
    it for ever, so that the start never continues. An orderly stop removes the registration.
    """
    with log.open("rb") as file:
        file.seek(log_start)
        circles = sum(b"was invalidated" in line for line in file)
    if circles < _CIRCLES:
        return None
    return "it makes its bookie's registration anew in circles (apache/pulsar issue 17759)"


def _set_properties(file: Path, values: Mapping[str, str]) -> None:
    """Set keys of a properties file. They move to its end."""
    text = file.read_text()
    for name, value in values.items():
        kept = re.sub(rf"^{re.escape(name)}=.*\n?", "", text, flags=re.MULTILINE)
        text = f"{kept.rstrip()}\n{name}={value}\n"
    file.write_text(text)
