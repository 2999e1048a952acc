"""Proves at the start that `cdcRawDirectory` is not the node's own commit log.

The commit log has the same files as `cdc_raw`. The agent would take the segments that Cassandra still needs for
segments that are done with, and delete them: the node would lose writes at its next crash. While the agent runs,
CdcRawGuard repeats the check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from change_agent.cdc_raw.folder import list_folder
from change_agent.configuration.cassandra_yaml import CassandraYamlError, settings_of
from change_agent.configuration.config import AgentConfig
from change_agent.configuration.option_types import COMMIT_LOG_SETTING, commit_log_problem, is_same_folder
from change_agent.metrics import AgentMetrics
from change_agent.positions.offsets import has_positions
from change_agent.schema.node_connection import NodeConnection, NodeUnavailableError
from change_agent.standby import not_ready, stop_signals
from schemas.errors import ConfigError

__all__ = ["check_raw_folder"]

_log: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 2.0
# From this version of the commit log on (Cassandra 4.0), cdc_raw has indexes, and the node returns its settings.
_FIRST_INDEXED_VERSION: Final = 7


def check_raw_folder(config: AgentConfig, is_over: Callable[[], bool]) -> bool:
    """Raise ConfigError if `cdcRawDirectory` is the commit log's folder. Return False if the agent is not to start.

    The node is asked only if the folder may be its commit log. An agent that has no positions yet waits for the answer,
    and answers over HTTP meanwhile; SIGTERM, SIGINT and `is_over` end the wait.
    """
    if not _may_be_commit_log(config):
        return True
    with closing(NodeConnection.of(config)) as node, stop_signals() as stop_request, ExitStack() as waiting:
        reason = ""
        while True:
            try:
                _refuse_commit_log(config.cdc_raw_directory, node)
            except NodeUnavailableError as error:
                if not _is_needed(config, error):
                    break
                if not reason:
                    folder = config.cdc_raw_directory
                    reason = f"{folder} has segments and no index, as a commit log has: waiting for the node ({error})"
                    _log.warning("%s", reason)
                    waiting.enter_context(not_ready(config, reason, AgentMetrics()))
                if stop_request.wait(_PAUSE_S) or is_over():
                    return False
            else:
                break
        # A signal that came while the node was asked. The agent's own handlers, which are set later, never see it.
        return not stop_request.take()


def _refuse_commit_log(folder: Path, node: NodeConnection) -> None:
    """Raise ConfigError if the node says that this is its commit log. Raises NodeUnavailableError."""
    commit_log = node.settings((COMMIT_LOG_SETTING,)).get(COMMIT_LOG_SETTING)
    if commit_log and is_same_folder(Path(commit_log), folder):
        raise ConfigError.of("cdcRawDirectory", commit_log_problem(folder))


def _is_needed(config: AgentConfig, error: NodeUnavailableError) -> bool:
    """Return True if the agent waits for the node's answer. `error`: why it did not answer."""
    if has_positions(config.cdc_working_dir):
        return False
    if error.is_refusal:
        _log.warning(
            "%s has segments and no index, as a commit log has: the node does not say whether it is; see that"
            " cdcRawDirectory is its cdc_raw_directory, and grant the agent's role SELECT on system_views.settings, or set"
            " cassandraYaml (%s)",
            config.cdc_raw_directory,
            error,
        )
    return not error.is_refusal


def _may_be_commit_log(config: AgentConfig) -> bool:
    """Return True if the folder has segments of Cassandra 4.0 or later, and no index. Only cdc_raw has indexes.

    Return False if cassandra.yaml names the commit log: the configuration was checked with it.
    """
    try:
        if config.cassandra_yaml is not None and settings_of(config.cassandra_yaml).get(COMMIT_LOG_SETTING):
            return False
        content = list_folder(config.cdc_raw_directory)
    except (OSError, CassandraYamlError):
        return False  # the agent reports it
    return not content.indexes and any(each.version >= _FIRST_INDEXED_VERSION for each in content.logs.values())
