"""The agents that run on this machine, by their command lines and their environments."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil

from cdc.health.findings import Finding, warning
from change_agent.configuration.config import AgentConfig
from schemas.errors import ConfigError

__all__ = ["LocalAgent", "admin_url_of", "local_agents", "shared_nodes", "unknown_agents", "without_status"]

_WITH_VALUE: Final = ("--config", "--parent")
# `t` is the build without the global lock, `d` the one for debugging.
_OWN_PROGRAM: Final = re.compile(r"cdc|(python|pypy)[0-9.]*[td]*")
_NOT_RUNNING: Final = ("--check", "--help", "-h")
_DEFAULT_ADMIN_URL: Final = AgentConfig.model_fields["pulsar_admin_url"].default


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAgent:
    """An agent's process, and its options. An option is None if it cannot be learned."""

    pid: int
    config: Path | None = None
    """Its agent.yaml; None also if all its options come from its environment."""
    place: str | None = None
    """Where it is asked, as under `agents` of a line; None if this user may not read its environment."""
    working_dir: Path | None = None
    cdc_raw: Path | None = None
    admin_url: str | None = None
    """The URL of the admin service that it uses."""


def local_agents() -> list[LocalAgent]:
    """All agents that run on this machine, also those that wait for another agent.

    Without agents in a container that have no agent.yaml here.
    """
    return sorted(_running(), key=lambda each: each.pid)


def shared_nodes(agents: Sequence[LocalAgent], admin_url: str) -> Iterator[Finding]:
    """A finding for each cdc_raw that several agents of the same Pulsar read: only one of them publishes."""
    by_folder: dict[Path, list[LocalAgent]] = defaultdict(list)
    for each in agents:
        if each.cdc_raw is not None and each.admin_url == admin_url:
            by_folder[each.cdc_raw].append(each)
    for folder, found in by_folder.items():
        if len(found) > 1:
            names = ", ".join(f"{each.pid} ({each.config or each.place})" for each in found)
            text = f"{len(found)} agents run for its node; one publishes, the others wait: processes {names}"
            yield warning(str(folder), text, "nothing to do if one of them is a spare; else stop one of them")


def unknown_agents(agents: Sequence[LocalAgent], known_pids: Collection[int]) -> Iterator[Finding]:
    """A finding for each agent that cannot be asked, except those whose status is known otherwise."""
    for each in agents:
        if each.place is None and each.pid not in known_pids:
            text = "is an agent, and was not asked: this user may not read which options it has"
            remedy = (
                "call this as the agent's user, or name its working directory or URL under agents in line.yaml; nothing to"
                " do if it is of another pipeline"
            )
            yield warning(f"process {each.pid}", text, remedy)


def without_status(directory: Path, agents: Sequence[LocalAgent]) -> str | None:
    """Why the agent that runs with this working directory writes no status; None if none of these agents has it."""
    running = next((each.pid for each in agents if each.working_dir == directory.resolve()), None)
    if running is None:
        return None
    return (
        f"process {running} runs and has written no status: it starts, or waits for its node or for another agent of it"
    )


def admin_url_of(config: Path | None, environment: Mapping[str, str] | None = None) -> str | None:
    """The URL of the admin service that an agent uses; None if its file cannot be read."""
    with suppress(ConfigError):
        options = AgentConfig.unchecked(config, environment)
        return str(options.get("pulsarAdminUrl", _DEFAULT_ADMIN_URL)).rstrip("/")
    return None


def _running() -> Iterator[LocalAgent]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if _runs_agent(words := process.cmdline()):
                yield from _agent_of(process, _config_of(words))


def _agent_of(process: psutil.Process, config: str | None) -> Iterator[LocalAgent]:
    """The agent of a process. None if it is in a container, and has no file here."""
    try:
        environment, folder = process.environ(), Path(process.cwd())
    except psutil.AccessDenied:
        if not _is_in_container(process.pid):
            yield LocalAgent(pid=process.pid)
        return
    config = config or environment.get("CDC_CONFIG")
    if config:
        if (path := folder / config).is_file():
            yield _described(process.pid, path, folder, environment)
    elif not _is_in_container(process.pid):
        found = _described(process.pid, None, folder, environment)
        if found.place is not None:  # else its options are wrong, and it is about to end
            yield found


def _is_in_container(pid: int) -> bool:
    """Return True if the process has another id in a namespace of its own. Its folders are not those of this machine."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return any(line.startswith("NSpid:") and len(line.split()) > 2 for line in lines)


def _runs_agent(words: Sequence[str]) -> bool:
    """Return True if a command line is of an agent: `cdc agent` with neither a subcommand nor --check.

    The process of `sudo cdc agent` or `timeout 60 cdc agent` is none: the agent is its child, with its own command line.
    """
    if "agent" not in words or not _OWN_PROGRAM.fullmatch(Path(words[0]).name):
        return False
    at = words.index("agent")
    if not any(each == "cdc.main" or Path(each).name == "cdc" for each in words[:at]):
        return False
    options = iter(words[at + 1 :])
    for word in options:
        if word in _WITH_VALUE:
            next(options, None)
        elif word in _NOT_RUNNING or not word.startswith("-"):
            return False
    return True


def _config_of(words: Sequence[str]) -> str | None:
    """The last value of --config, in both of its forms."""
    values = [after for word, after in pairwise(words) if word == "--config"]
    joined = [word.removeprefix("--config=") for word in words if word.startswith("--config=")]
    return next(reversed([*values, *joined]), None)


def _described(pid: int, config: Path | None, folder: Path, environment: Mapping[str, str]) -> LocalAgent:
    """An agent with these options. `folder`: where it was started, to which its relative paths belong."""
    working_dir = cdc_raw = None
    place = None if config is None else str(config)
    with suppress(ConfigError):
        if given := AgentConfig.unchecked(config, environment).get("cdcWorkingDir"):
            working_dir = (folder / str(given)).resolve()
            if config is None or not Path(str(AgentConfig.unchecked(config, {}).get("cdcWorkingDir"))).is_absolute():
                place = str(working_dir)  # the file alone does not name it
        cdc_raw = (folder / AgentConfig.load(config, environment).cdc_raw_directory).resolve()
    return LocalAgent(
        pid=pid,
        config=config,
        place=place,
        working_dir=working_dir,
        cdc_raw=cdc_raw,
        admin_url=admin_url_of(config, environment),
    )
