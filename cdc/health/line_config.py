"""`line.yaml`: where the parts of one pipeline are, for `cdc status`, `cdc doctor` and `cdc connector watch`.

Connections and credentials have the same names as in agent.yaml. All options have a default; with a running
`cdc sandbox up` no file is needed.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from change_agent.configuration.cassandra_yaml import YAML_ERRORS, yaml_problem
from change_agent.configuration.option_types import Names, TablePatterns, TopicPrefix
from change_agent.configuration.server_options import CassandraOptions, PulsarOptions, read_secrets
from schemas.errors import ConfigError, ConfigProblem
from schemas.topics import DEFAULT_EVENTS_PREFIX, DEFAULT_SUBSCRIPTION, dead_letters_topic, full_topic_name
from source_connector.events import pulsar_access

__all__ = ["LineConfig"]


class LineConfig(CassandraOptions, PulsarOptions):
    """Everything that can be set for a line. Built by :meth:`load`, or :meth:`from_mapping`."""

    agents: Names = ()
    """For each agent, its working directory, its agent.yaml, or the URL of its HTTP endpoint."""

    tables: TablePatterns = ()
    """Patterns of the tables that should be captured; by default, the tables with `cdc = true`."""

    topic_prefix: TopicPrefix = DEFAULT_EVENTS_PREFIX
    events_subscription_name: Annotated[str, Field(min_length=1)] = DEFAULT_SUBSCRIPTION
    namespace: Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")] = "public/default"
    """Tenant and namespace of the sources."""
    sources: Names = ()
    """Names of sources that must exist. All existing sources of this connector are always checked."""
    dead_letters_topic: Annotated[str, Field(min_length=1)] | None = None
    """By default `cdc-dead-letters` in the namespace of the events topics, as for the connector."""
    functions_log_dir: Path | None = None
    """The folder where the functions worker writes the instances' logs, if it is on this machine."""

    mirrors: Names = ()
    """Folders of mirrors, as given to `cdc spark mirror --target`."""

    @property
    def dead_letters(self) -> str:
        """The full name of the connector's dead-letter topic."""
        return full_topic_name(self.dead_letters_topic or dead_letters_topic(self.topic_prefix))

    @property
    def pulsar_options(self) -> pulsar_access.PulsarOptions:
        """The options for clients of the broker."""
        params = self.pulsar_auth_params
        return pulsar_access.PulsarOptions(
            service_url=self.pulsar_service_url,
            auth_plugin=self.pulsar_auth_plugin_class_name or "",
            auth_params="" if params is None else params.get_secret_value(),
            trusted_certificates=str(self.tls_trust_certs_file_path or ""),
            allow_insecure=self.ssl_allow_insecure_connection,
            hostname_validation=self.ssl_hostname_verification_enable,
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the options from a file. Raises ConfigError with every problem."""
        try:
            loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise ConfigError.of("--config", f"{path} cannot be read ({reason})") from error
        except YAML_ERRORS as error:
            raise ConfigError.of("--config", f"{path} is not YAML ({yaml_problem(error)})") from None
        if not isinstance(loaded, dict | None):
            raise ConfigError.of("--config", f"{path} has no options; write `name: value` lines")
        try:
            return cls.from_mapping({str(name): value for name, value in (loaded or {}).items()})
        except ConfigError as error:
            raise error.in_file(str(path)) from None

    @classmethod
    def from_mapping(cls, given: dict[str, object]) -> Self:
        """Make a line from options by name. Raises ConfigError with every problem."""
        problems = [ConfigProblem(option=name, reason=_unknown(name)) for name in given if name not in _names(cls)]
        known = {name: value for name, value in given.items() if name in _names(cls)}
        problems += read_secrets(cls, known)
        try:
            made = cls.model_validate(known)
        except ValidationError as error:
            problems += [
                ConfigProblem(option=".".join(map(str, each["loc"])), reason=each["msg"].removeprefix("Value error, "))
                for each in error.errors(include_input=False)
            ]
        if problems:
            raise ConfigError(problems)
        return made

    @field_validator("mirrors", "agents")
    @classmethod
    def _without_repeats(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(values))


def _names(model: type[BaseModel]) -> list[str]:
    return [to_camel(name) for name in model.model_fields]


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _names(LineConfig), n=1)
    return f"is no option of a line; {f'did you mean {close[0]}?' if close else 'docs/status.md lists all options'}"
