"""Which line is meant: that of a file, that of the sandbox which runs here, or servers on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import platformdirs
import psutil
import yaml

from cdc.health.line_config import LineConfig
from cdc.sandbox.state import SandboxState, read_state

__all__ = ["line_of", "line_option"]

line_option = click.option(
    "--config",
    "path",
    type=click.Path(path_type=Path),
    envvar="CDC_LINE",
    help="line.yaml (docs/status.md); without it: the sandbox that runs here, or servers on localhost.",
)


def line_of(path: Path | None, sandbox: Path | None = None) -> LineConfig:
    """The line of a file, else of a sandbox's folder, with the agents that run on this machine. Raises ConfigError."""
    if path is not None:
        return LineConfig.load(path)
    folder = sandbox or platformdirs.user_data_path("cassandra-cdc", appauthor=False) / "sandbox"
    state = read_state(folder)
    config = LineConfig.from_mapping({} if state is None else _of_sandbox(folder, state))
    here = tuple(sorted({each for each in _agents_here() if _admin_url(each) == config.pulsar_admin_url}))
    return config.model_copy(update={"agents": here})


def _of_sandbox(folder: Path, state: SandboxState) -> dict[str, object]:
    nodes = [server for server in state.servers if "native" in server.ports]
    found: dict[str, object] = {}
    if nodes:
        found |= {"contactPoints": [node.address for node in nodes], "port": nodes[0].ports["native"]}
    for server in state.servers:
        if "broker" in server.ports:
            found["pulsarServiceUrl"] = f"pulsar://{server.address}:{server.ports['broker']}"
            found["pulsarAdminUrl"] = f"http://{server.address}:{server.ports['web']}"
            found["functionsLogDir"] = str(folder / "pulsar" / "home" / "logs" / "functions")
    return found


def _admin_url(agent_yaml: str) -> object:
    """The Pulsar that an agent says it publishes to: other agents of this machine are those of other lines."""
    try:
        loaded = yaml.safe_load(Path(agent_yaml).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    default = LineConfig.model_fields["pulsar_admin_url"].default
    return str(loaded.get("pulsarAdminUrl", default)).rstrip("/") if isinstance(loaded, dict) else None


def _agents_here() -> Iterator[str]:
    """The agent.yaml of every agent of this user on this machine, by its command line."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, IndexError, ValueError):
            words = process.cmdline()
            if process.uids().real == os.getuid() and "agent" in words and "--config" in words:
                path = Path(words[words.index("--config") + 1])
                full = path if path.is_absolute() else Path(process.cwd()) / path
                if "status" not in words and full.is_file():
                    yield str(full)
