"""The pipeline of a command: from a file, or the sandbox that runs here, or servers on this machine."""

from __future__ import annotations

from pathlib import Path

import click
import platformdirs

from cdc.health.findings import Finding, Level, Section, level_of, warning
from cdc.health.line_config import LineConfig
from cdc.health.local_agents import local_agents
from cdc.sandbox.state import SandboxState, read_state

__all__ = ["line_of", "line_option", "unnamed_line", "with_hint"]

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
    folder = sandbox or _default_sandbox()
    state = _running(folder)
    config = LineConfig.from_mapping({} if state is None else _of_sandbox(folder, state))
    here = {each.place for each in local_agents() if each.place and each.admin_url == config.pulsar_admin_url}
    return config.model_copy(update={"agents": tuple(sorted(here))})


def unnamed_line(path: Path | None, sandbox: Path | None = None) -> Finding | None:
    """A warning if no line.yaml was given: which servers are used, and what is not looked at. None for a file.

    `sandbox` is that of `line_of`. Raises SandboxError.
    """
    if path is not None:
        return None
    is_found = _running(sandbox or _default_sandbox()) is not None
    servers = (
        "of the running sandbox are used"
        if is_found
        else "on localhost are used, for no sandbox runs in its default folder"
    )
    text = f"none was given: the servers {servers}; agents of other machines and mirrors are not looked at"
    return warning("", text, "give a file by --config or CDC_LINE (docs/status.md has an example)")


def with_hint(sections: list[Section], path: Path | None) -> list[Section]:
    """The sections of a screen; before them the warning of `unnamed_line`, if there is no file and something fails.

    Raises SandboxError.
    """
    unnamed = unnamed_line(path)
    if unnamed is None or level_of(each for section in sections for each in section.findings) is not Level.FAILURE:
        return sections
    return [Section(title="line.yaml", findings=[unnamed]), *sections]


def _default_sandbox() -> Path:
    return platformdirs.user_data_path("cassandra-cdc", appauthor=False) / "sandbox"


def _running(folder: Path) -> SandboxState | None:
    """The state of the sandbox in a folder; None if it does not run. Raises SandboxError."""
    state = read_state(folder)
    return state if state is not None and _runs(state) else None


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
