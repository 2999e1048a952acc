"""The agents that run on this machine as this user, by their command lines."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil
import yaml

from cdc.health.findings import Finding, warning
from change_agent.configuration.cassandra_yaml import YAML_ERRORS
from change_agent.configuration.config import AgentConfig
from schemas.errors import ConfigError

__all__ = ["LocalAgent", "admin_url_of", "local_agents", "shared_nodes"]

_WITH_VALUE: Final = ("--config", "--parent")
_NOT_RUNNING: Final = ("--check", "--help", "-h")


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """An agent's process, its agent.yaml, and the folders that the file names.

    A folder is None if it cannot be learned from the file.
    """

    pid: int
    config: Path
    working_dir: Path | None
    cdc_raw: Path | None


def local_agents() -> list[LocalAgent]:
    """All agents that run on this machine as this user, also those that wait for another agent."""
    return [_described(pid, config) for pid, config in sorted(_running())]


def shared_nodes(agents: Sequence[LocalAgent], admin_url: str) -> Iterator[Finding]:
    """A finding for each cdc_raw that several agents of the same Pulsar read: only one of them publishes."""
    by_folder: dict[Path, list[LocalAgent]] = defaultdict(list)
    for each in agents:
        if each.cdc_raw is not None and admin_url_of(each.config) == admin_url:
            by_folder[each.cdc_raw].append(each)
    for folder, found in by_folder.items():
        if len(found) > 1:
            names = ", ".join(f"{each.pid} ({each.config})" for each in found)
            text = f"{len(found)} agents run for its node; one publishes, the others wait: processes {names}"
            yield warning(str(folder), text, "nothing to do if one of them is a spare; else stop it")


def admin_url_of(agent_yaml: Path) -> str | None:
    """The URL of the admin service that an agent uses; None if its file cannot be read."""
    try:
        loaded = yaml.safe_load(agent_yaml.read_text(encoding="utf-8"))
    except (OSError, *YAML_ERRORS):
        return None
    default = AgentConfig.model_fields["pulsar_admin_url"].default
    return str(loaded.get("pulsarAdminUrl", default)).rstrip("/") if isinstance(loaded, dict) else None


def _running() -> Iterator[tuple[int, Path]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.uids().real != os.getuid() or not _runs_agent(words := process.cmdline()):
                continue
            config = _config_of(words) or process.environ().get("CDC_CONFIG")
            if config and (path := Path(process.cwd()) / config).is_file():
                yield process.pid, path


def _runs_agent(words: Sequence[str]) -> bool:
    """Return True if a command line starts an agent: `cdc agent` with neither a subcommand nor --check."""
    if "agent" not in words:
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


def _described(pid: int, config: Path) -> LocalAgent:
    working_dir = cdc_raw = None
    with suppress(ConfigError):
        working_dir = AgentConfig.working_dir_of(config).resolve()
        cdc_raw = AgentConfig.load(config).cdc_raw_directory.resolve()
    return LocalAgent(pid=pid, config=config, working_dir=working_dir, cdc_raw=cdc_raw)
