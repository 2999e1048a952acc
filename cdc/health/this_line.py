"""The pipeline of a command: from a file, or the sandbox that runs here, or servers on this machine."""

from __future__ import annotations

from pathlib import Path

import click
import platformdirs

from cdc.health.line_config import LineConfig
from cdc.health.local_agents import local_agents
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
    """The line of a file. Without a file: the line of the running sandbox, or of servers on localhost.

    The latter has the agents that run on this machine. `sandbox`: the sandbox's folder, if it is not the default one.
    Raises ConfigError, and SandboxError for a state file that cannot be read.
    """
    if path is not None:
        return LineConfig.load(path)
    folder = sandbox or platformdirs.user_data_path("cassandra-cdc", appauthor=False) / "sandbox"
    state = read_state(folder)
    config = LineConfig.from_mapping({} if state is None or not _runs(state) else _of_sandbox(folder, state))
    here = {each.place for each in local_agents() if each.place and each.admin_url == config.pulsar_admin_url}
    return config.model_copy(update={"agents": tuple(sorted(here))})


def _runs(state: SandboxState) -> bool:
    """Return True if a process of the sandbox runs. The state file stays after the sandbox has ended."""
    processes = [state.supervisor, *(server.process for server in state.servers)]
    return any(each is not None and each.process() is not None for each in processes)


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
