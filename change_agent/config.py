"""The agent's configuration: `agent.yaml` -> AgentConfig, with every problem told at once.

Option names are camelCase, as DataStax's agent has them, so that its users find theirs. Each option may also come from
the environment, as `CDC_` and the name in capitals with underscores (`topicPrefix` -> `CDC_TOPIC_PREFIX`); the file wins.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel

from change_agent.cassandra_yaml import CassandraYamlError, cdc_raw_directory_of, yaml_problem
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.commitlog_options import load_segment_options
from schemas.errors import ConfigError, ConfigProblem
from schemas.topics import DEFAULT_EVENTS_PREFIX, DEFAULT_SUBSCRIPTION

__all__ = ["AgentConfig"]

# Options of DataStax's agent that have nothing to set here: accepted, so that a file can be taken over, and told.
_WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "cdcConcurrentProcessors": "segments are read in order by one thread",
    "errorCommitLogReprocessEnabled": "a segment that cannot be read stays in cdc_raw and is tried again at start",
    "maxInflightMessagesPerTask": "use maxInflightEvents and maxInflightBytes",
    "pulsarBatchDelayInMs": "events that wait together travel in one message, and nothing waits for company",
    "pulsarKeyBasedBatcher": "set maxEventsPerMessage to 1 for one keyed event a message",
    "pulsarMaxPendingMessages": "use maxInflightEvents and maxInflightBytes",
    "pulsarMaxPendingMessagesAcrossPartitions": "use maxInflightEvents and maxInflightBytes",
    "pulsarMemoryLimitBytes": "use maxInflightBytes",
}
# Java key stores cannot be read without a JVM: refused, for ignoring them would weaken the connection.
_JAVA_KEY_STORES: Final = (
    "sslKeystorePath", "sslKeystorePassword", "sslTruststorePath", "sslTruststorePassword", "sslTruststoreType",
    "sslProvider", "sslCipherSuites", "sslEnabledProtocols", "useKeyStoreTls",
)  # fmt: skip
_OTHER_ENVIRONMENT_NAMES: Final = {"cdcWorkingDir": "CDC_WORKING_DIR", "cdcPollIntervalMs": "CDC_DIR_POLL_INTERVAL_MS"}


def _addresses(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _existing_directory(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError(f"{path} is not a directory; set it to the node's cdc_raw_directory (see cassandra.yaml)")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise ValueError(f"{path} cannot be read and written by this user; the agent deletes finished segments there")
    return path


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"{path} is not a file; set it to a PEM file of trusted certificates")
    return path


def _service_url(value: str) -> str:
    if not re.match(r"pulsar(\+ssl)?://[^/\s]+", value):
        raise ValueError(f"{value!r} is not a Pulsar service URL, such as pulsar://localhost:6650")
    return value


def _admin_url(value: str) -> str:
    if not re.match(r"https?://[^/\s]+", value):
        raise ValueError(f"{value!r} is not an HTTP URL, such as http://localhost:8080")
    return value.rstrip("/")


def _topic_prefix(value: str) -> str:
    if "://" in value and not re.match(r"persistent://[^/]+/[^/]+/[^/]*$", value):
        raise ValueError(f"{value!r} must be a name's beginning or persistent://tenant/namespace/beginning-of-a-name")
    return value


class AgentConfig(BaseModel):
    """Everything that can be set for an agent. Built once, by :meth:`load` or :meth:`from_mapping`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=False, hide_input_in_errors=True
    )

    # The node
    cassandra_yaml: Path | None = None
    commitlog_options: Path | None = None
    cdc_raw_directory: Annotated[Path, AfterValidator(_existing_directory)]
    cdc_working_dir: Path
    contact_points: Annotated[tuple[str, ...], BeforeValidator(_addresses), Field(min_length=1)] = ("127.0.0.1",)
    port: int = Field(default=9042, ge=1, le=65535)
    username: str | None = None
    password: SecretStr | None = None
    schema_refresh_interval_ms: int = Field(default=10_000, ge=100)
    cdc_poll_interval_ms: int = Field(default=1_000, ge=10)

    # Pulsar
    pulsar_service_url: Annotated[str, AfterValidator(_service_url)] = "pulsar://localhost:6650"
    pulsar_admin_url: Annotated[str, AfterValidator(_admin_url)] = "http://localhost:8080"
    pulsar_auth_plugin_class_name: str | None = None
    pulsar_auth_params: SecretStr | None = None
    tls_trust_certs_file_path: Annotated[Path, AfterValidator(_existing_file)] | None = None
    ssl_allow_insecure_connection: bool = False
    ssl_hostname_verification_enable: bool = True

    # Events topics
    topic_prefix: Annotated[str, AfterValidator(_topic_prefix)] = DEFAULT_EVENTS_PREFIX
    events_subscription_name: str = Field(default=DEFAULT_SUBSCRIPTION, min_length=1)
    create_topics: bool = True
    events_topic_partitions: int = Field(default=4, ge=1, le=1024)
    max_events_per_message: int = Field(default=1_000, ge=1, le=100_000)
    max_message_bytes: int = Field(default=256 * 1024, ge=1024, le=4 * 1024 * 1024)
    max_inflight_events: int = Field(default=20_000, ge=100)
    max_inflight_bytes: int = Field(default=32 * 1024 * 1024, ge=1024 * 1024)
    max_held_bytes: int = Field(default=1024 * 1024 * 1024, ge=0)

    # The process
    positions_interval_ms: int = Field(default=200, ge=10, le=10_000)
    shutdown_timeout_ms: int = Field(default=10_000, ge=0)
    stats_interval_ms: int = Field(default=60_000, ge=1_000)
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _segment_options: SegmentOptions = PrivateAttr(default_factory=SegmentOptions)

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each given option of DataStax's agent that has no effect here."""
        return self._notes

    @property
    def segment_options(self) -> SegmentOptions:
        """Keys of encrypted segments, from `commitlogOptions`, else from `cassandraYaml`."""
        return self._segment_options

    @field_validator("pulsar_auth_params")
    @classmethod
    def _params_need_a_plugin(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and info.data.get("pulsar_auth_plugin_class_name") is None:
            raise ValueError("has no meaning without pulsarAuthPluginClassName; set that too")
        return value

    @field_validator("password")
    @classmethod
    def _password_needs_a_user(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and info.data.get("username") is None:
            raise ValueError("has no meaning without username; set that too")
        return value

    @classmethod
    def load(cls, path: Path, environment: Mapping[str, str] | None = None) -> Self:
        """Read a configuration file. Raises ConfigError with all problems."""
        try:
            loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError.of(str(path), f"cannot be read ({error.strerror}); give the agent's file") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError.of(str(path), f"is not YAML ({yaml_problem(error)})") from None
        if loaded is None:
            loaded = {}
        if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
            raise ConfigError.of(str(path), "must hold options by name, such as `pulsarServiceUrl: pulsar://...`")
        return cls.from_mapping(loaded, environment)

    @classmethod
    def from_mapping(cls, options: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Self:
        """Check options (file over environment, which is the process's by default). Raises ConfigError."""
        given = _from_environment(os.environ if environment is None else environment) | dict(options)
        problems: list[ConfigProblem] = []
        notes = tuple(f"{name} has no effect: {why}" for name, why in _WITHOUT_EFFECT.items() if name in given)
        given = {name: value for name, value in given.items() if name not in _WITHOUT_EFFECT}
        for name in _JAVA_KEY_STORES:
            if name in given:
                del given[name]
                problems.append(_problem(name, "Java key stores cannot be used; give tlsTrustCertsFilePath (PEM)"))
        problems += _fill_cdc_raw_directory(given)
        told = {problem.option for problem in problems}
        segment_options = SegmentOptions()
        try:
            segment_options = _segment_options(given, told)
        except ConfigError as error:
            problems += error.problems
        try:
            config = cls.model_validate(given)
        except ValidationError as error:
            told = {problem.option for problem in problems}
            if "cassandraYaml" in told and "cdcRawDirectory" not in given:
                told.add("cdcRawDirectory")
            found = [_of_pydantic(each["type"], each["loc"], each["msg"]) for each in error.errors()]
            problems += [problem for problem in found if problem.option not in told]
            raise ConfigError(problems) from None
        if problems:
            raise ConfigError(problems)
        config._notes, config._segment_options = notes, segment_options  # noqa: SLF001  # its own class
        return config


def _problem(option: str, reason: str) -> ConfigProblem:
    return ConfigProblem(option=option, reason=reason)


def option_names() -> dict[str, str]:
    """Every option: option name as in the file -> name of the environment variable."""
    names = [field.alias for field in AgentConfig.model_fields.values() if field.alias]
    return {name: _OTHER_ENVIRONMENT_NAMES.get(name) or f"CDC_{_snake(name).upper()}" for name in names}


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    return {name: environment[variable] for name, variable in option_names().items() if variable in environment}


def _fill_cdc_raw_directory(given: dict[str, object]) -> list[ConfigProblem]:
    """Take the folder from cassandra.yaml when that is given; what is wrong with it."""
    path = given.get("cassandraYaml")
    if path is None:
        if "cdcRawDirectory" in given:
            return []
        return [_problem("cdcRawDirectory", "is missing; set it to the node's cdc_raw_directory, or set cassandraYaml")]
    try:
        directory = cdc_raw_directory_of(Path(str(path)))
    except CassandraYamlError as error:
        return [_problem("cassandraYaml", str(error))]
    if directory is not None:
        given.setdefault("cdcRawDirectory", str(directory))
    if "cdcRawDirectory" not in given:
        return [_problem("cdcRawDirectory", f"is missing, and {path} does not name cdc_raw_directory; set it")]
    return []


def _segment_options(given: Mapping[str, object], told: set[str]) -> SegmentOptions:
    """Of the file that is there for it; one that was complained about is not read again. Raises ConfigError."""
    for option in ("commitlogOptions", "cassandraYaml"):
        if given.get(option) is not None and option not in told:
            return load_segment_options(Path(str(given[option])), option)
    return SegmentOptions()


_REASONS: Final = {
    "missing": "is missing; set it",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "path_type": "must be a path",
    "tuple_type": "must be a list of texts",
}


def _of_pydantic(kind: str, location: tuple[int | str, ...], message: str) -> ConfigProblem:
    option = ".".join(map(str, location))
    if kind == "extra_forbidden":
        known = difflib.get_close_matches(option, option_names(), n=1)
        hint = f"did you mean {known[0]}?" if known else "docs/agent.md lists all options"
        return _problem(option, f"is no option of the agent; {hint}")
    if kind == "value_error":
        return _problem(option, message.removeprefix("Value error, "))
    return _problem(option, _REASONS.get(kind, message[0].lower() + message[1:]))
