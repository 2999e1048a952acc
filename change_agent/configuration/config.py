"""The agent's configuration: `agent.yaml` and the environment -> AgentConfig, with all problems reported at once.

Option names are camelCase as in DataStax's agent, so that its users know them. Each option may also come from the
environment, as `CDC_` and the name in capitals with underscores (`topicPrefix` -> `CDC_TOPIC_PREFIX`). The file takes
precedence.

To add an option, add a field here, in its section, and a line in the table of docs/agent.md (a test compares the two).
A secret is a `SecretStr` with a second field `<name>_file`; either of the two sets it.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel

from change_agent.archive.segment_archive import Compression, archive_problem
from change_agent.commitlog.section_decoder import SegmentOptions
from change_agent.configuration.cassandra_yaml import (
    YAML_ERRORS,
    CassandraYamlError,
    cdc_raw_directory_of,
    settings_of,
    yaml_problem,
)
from change_agent.configuration.commitlog_options import load_segment_options
from change_agent.configuration.datastax_options import ENVIRONMENT_NAMES, FOREIGN_NAMES, take_out
from change_agent.configuration.option_types import (
    Folder,
    OptionalFolder,
    Port,
    RawDirectory,
    TablePatterns,
    TopicPrefix,
    commit_log_problem,
    is_named_commit_log,
    is_same_folder,
)
from change_agent.configuration.server_options import CassandraOptions, PulsarOptions, read_secrets
from schemas.errors import ConfigError, ConfigProblem
from schemas.topics import DEFAULT_EVENTS_PREFIX, DEFAULT_SUBSCRIPTION

__all__ = ["RELOADABLE", "AgentConfig", "option_names", "to_option"]

_MIB: Final = 1024 * 1024
_MIN_ROTATION_MS: Final = 1_000
_MIN_PROGRESS_MS: Final = 100
# Folders of the working directory that have another use, so that spillDir must be none of them.
_NOT_FOR_SPILLED: Final = ("error", "reprocess", "held")
_ALL_OF_OURS: Final = "move everything there except Cassandra's segments in cdcRawDirectory"


def _off_or_a_second(interval_ms: int) -> int:
    if 0 < interval_ms < _MIN_ROTATION_MS:
        raise ValueError(f"must be 0 (off) or at least {_MIN_ROTATION_MS}: each turn flushes every table of the node")
    return interval_ms


def _off_or_a_tenth(interval_ms: int) -> int:
    if 0 < interval_ms < _MIN_PROGRESS_MS:
        raise ValueError(f"must be 0 (off) or at least {_MIN_PROGRESS_MS}: each turn checks cdc_raw and sends a record")
    return interval_ms


def _archive_url(url: str | None, info: ValidationInfo) -> str | None:
    if url is None:
        return None
    if not url:
        # An empty URL would mean the working directory of the process.
        raise ValueError("is empty; give a folder, or leave the option out")
    problem = archive_problem(url)
    if problem is not None:
        raise ValueError(problem)
    protocol, _, path = url.rpartition("://")
    if protocol in ("", "file", "local"):
        _outside_cdc_raw(Path(path), info)
    return url


def _outside_cdc_raw(folder: Path, info: ValidationInfo) -> Path:
    raw = info.data.get("cdc_raw_directory")
    if not isinstance(raw, Path) or not folder.resolve().is_relative_to(raw.resolve()):
        return folder
    # The message says to move the content, because with a new, empty folder it would be lost.
    is_raw = folder.resolve() == raw.resolve()
    what = _ALL_OF_OURS if is_raw else "move this one there with all its content (if it exists)"
    raise ValueError(
        f"{folder} {'is' if is_raw else 'lies in'} cdcRawDirectory, where Cassandra counts it; take a folder elsewhere:"
        f" stop the agent, {what}, and set {to_option(str(info.field_name))} to it (docs/upgrade.md)"
    )


def _working_dir(folder: Path, info: ValidationInfo) -> Path:
    raw = info.data.get("cdc_raw_directory")
    if isinstance(raw, Path) and raw.resolve() in _own_folders(folder, "spill", *_NOT_FOR_SPILLED):
        raise ValueError(
            f"cdcRawDirectory ({raw}) is one of the agent's own folders there; take a folder elsewhere: stop the agent,"
            f" {_ALL_OF_OURS}, and set cdcWorkingDir to it (docs/upgrade.md)"
        )
    return _outside_cdc_raw(folder, info)


def _spill_dir(folder: Path | None, info: ValidationInfo) -> Path | None:
    if folder is None:
        return None
    work = info.data.get("cdc_working_dir")
    if isinstance(work, Path) and folder.resolve() in _own_folders(work, *_NOT_FOR_SPILLED):
        raise ValueError(
            f"{folder} is for other files of the agent; take another folder: stop the agent, move the segments without a"
            " .reason.json there, and set spillDir to it (docs/upgrade.md)"
        )
    return _outside_cdc_raw(folder, info)


def _own_folders(working_dir: Path, *names: str) -> list[Path]:
    return [(working_dir / name).resolve() for name in names]


RELOADABLE: Final = frozenset(
    {"exclude_tables", "include_tables", "log_format", "log_level", "stats_interval_ms", "unhealthy_after_ms"}
)
"""Fields that a running agent applies at SIGHUP. All others need a restart."""


class AgentConfig(CassandraOptions, PulsarOptions):
    """All options of an agent. Built by :meth:`load` or :meth:`from_mapping`."""

    # The node
    cassandra_yaml: Path | None = None
    commitlog_options: Path | None = None
    cdc_raw_directory: RawDirectory
    cdc_working_dir: Annotated[Folder, AfterValidator(_working_dir)]
    schema_refresh_interval_ms: int = Field(default=10_000, ge=100)
    cdc_poll_interval_ms: int = Field(default=1_000, ge=10)
    read_unsynced: bool = False
    read_unsynced_min_interval_ms: int = Field(default=1, ge=1, le=1_000)
    read_unsynced_max_interval_ms: int = Field(default=20, ge=1, le=1_000)
    cdc_total_space_bytes: int | None = Field(default=None, ge=_MIB)
    spill_dir: Annotated[OptionalFolder, AfterValidator(_spill_dir)] = None
    spill_when_full_within_ms: int = Field(default=300_000, ge=0)
    spill_min_free_bytes: int = Field(default=1024 * _MIB, ge=0)
    archive_url: Annotated[str | None, AfterValidator(_archive_url)] = None
    archive_compression: Compression = "zstd"
    segment_rotation_interval_ms: Annotated[int, AfterValidator(_off_or_a_second)] = Field(default=0, ge=0)

    # Tables
    include_tables: TablePatterns = ()
    exclude_tables: TablePatterns = ()

    # Events topics
    topic_prefix: TopicPrefix = DEFAULT_EVENTS_PREFIX
    events_subscription_name: str = Field(default=DEFAULT_SUBSCRIPTION, min_length=1)
    create_topics: bool = True
    events_topic_partitions: int = Field(default=4, ge=1, le=1024)
    max_events_per_message: int = Field(default=1_000, ge=1, le=100_000)
    max_message_bytes: int = Field(default=256 * 1024, ge=1024, le=4 * _MIB)
    max_inflight_events: int = Field(default=20_000, ge=100)
    max_inflight_bytes: int = Field(default=32 * _MIB, ge=_MIB)
    events_topics_check_interval_ms: int = Field(default=60_000, ge=1_000)
    max_held_bytes: int = Field(default=1024 * _MIB, ge=0)
    progress_interval_ms: Annotated[int, AfterValidator(_off_or_a_tenth)] = Field(default=500, ge=0, le=60_000)

    # Seeing it
    http_address: str = Field(default="127.0.0.1", min_length=1)
    http_port: Port = 9465
    ready_requires_safe_policies: bool = False
    unhealthy_after_ms: int = Field(default=60_000, ge=1_000)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    stats_interval_ms: int = Field(default=60_000, ge=1_000)

    # The process
    positions_topic_prefix: TopicPrefix | None = None
    positions_interval_ms: int = Field(default=200, ge=10, le=10_000)
    shutdown_timeout_ms: int = Field(default=3_000, ge=0)
    _notes: tuple[str, ...] = PrivateAttr(default=())
    _segment_options: SegmentOptions = PrivateAttr(default_factory=SegmentOptions)

    @property
    def notes(self) -> tuple[str, ...]:
        """One line for each given option that has no effect here."""
        return self._notes

    @property
    def segment_options(self) -> SegmentOptions:
        """Keys of encrypted segments, from `commitlogOptions`, else from `cassandraYaml`."""
        return self._segment_options

    def differences(self, other: AgentConfig) -> frozenset[str]:
        """Names of the fields that have another value in `other`."""
        return frozenset(name for name in type(self).model_fields if getattr(self, name) != getattr(other, name))

    @field_validator("read_unsynced_max_interval_ms")
    @classmethod
    def _longest_is_not_the_shortest(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("read_unsynced_min_interval_ms", 1)
        if value < least:
            raise ValueError(f"must be at least readUnsyncedMinIntervalMs ({least})")
        return value

    @classmethod
    def load(cls, path: Path | None, environment: Mapping[str, str] | None = None) -> Self:
        """Read a configuration file, or the environment alone. Raises ConfigError with all problems."""
        options = _read(path)
        try:
            return cls.from_mapping(options, environment)
        except ConfigError as error:
            if path is None:
                raise
            given, _ = _from_environment(os.environ if environment is None else environment)
            raise error.in_file(str(path), given.keys() - options.keys()) from None

    @classmethod
    def unchecked(cls, path: Path | None, environment: Mapping[str, str] | None = None) -> Mapping[str, object]:
        """The options of a file and of the environment by name, as they are given.

        For users who inspect an agent but do not have its permissions. Raises ConfigError.
        """
        from_environment, _ = _from_environment(os.environ if environment is None else environment)
        return from_environment | dict(_read(path))

    @classmethod
    def working_dir_of(cls, path: Path | None) -> Path:
        """Only `cdcWorkingDir`, for such users. Raises ConfigError."""
        found = cls.unchecked(path).get("cdcWorkingDir")
        if not isinstance(found, str) or not found:
            error = ConfigError.of("cdcWorkingDir", "is missing; set it, or give --working-dir")
            raise error if path is None else error.in_file(str(path))
        return Path(found)

    @classmethod
    def from_mapping(cls, options: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Self:
        """Check options.

        They take precedence over the environment, by default that of the process. Raises ConfigError.
        """
        from_environment, notes = _from_environment(os.environ if environment is None else environment)
        given = from_environment | dict(options)
        foreign_notes, problems = take_out(given)
        problems += read_secrets(cls, given) + _fill_cdc_raw_directory(given)
        segment_options = SegmentOptions()
        try:
            segment_options = _segment_options(given, {problem.option for problem in problems})
        except ConfigError as error:
            problems += error.problems
        try:
            config = cls.model_validate(given)
        except ValidationError as error:
            reported = {problem.option for problem in problems}
            if "cassandraYaml" in reported and "cdcRawDirectory" not in given:
                reported.add("cdcRawDirectory")
            found = [_of_pydantic(each["type"], each["loc"], each["msg"]) for each in error.errors()]
            problems += [problem for problem in found if problem.option not in reported]
            raise ConfigError(problems) from None
        if problems:
            raise ConfigError(problems)
        config._notes, config._segment_options = (*foreign_notes, *notes), segment_options  # noqa: SLF001  # its own class
        return config


def _read(path: Path | None) -> Mapping[str, object]:
    """The options of a file; empty if `path` is None. Raises ConfigError."""
    if path is None:
        return {}
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError.of(str(path), f"cannot be read ({error.strerror}); give the agent's file") from error
    except YAML_ERRORS as error:
        raise ConfigError.of(str(path), f"is not YAML ({yaml_problem(error)})") from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError.of(str(path), "must hold options by name, such as `pulsarServiceUrl: pulsar://...`")
    return loaded


def _problem(option: str, reason: str) -> ConfigProblem:
    return ConfigProblem(option=option, reason=reason)


def to_option(field_name: str) -> str:
    """The option's name in the file."""
    return to_camel(field_name)


def option_names() -> dict[str, str]:
    """All accepted options, also DataStax's: name in the file -> name of the environment variable."""
    own = [field.alias for field in AgentConfig.model_fields.values() if field.alias]
    return {name: ENVIRONMENT_NAMES.get(name) or _variable(name) for name in (*own, *FOREIGN_NAMES)}


def _variable(name: str) -> str:
    """`CDC_` and the name in capitals; only the name if it begins with `CDC_` itself."""
    return f"CDC_{_snake(name).upper().removeprefix('CDC_')}"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    """Options by name, and a note for each unknown variable with a name similar to an option's."""
    names = {variable: name for name, variable in option_names().items()}
    notes = []
    for variable in environment:
        close = difflib.get_close_matches(variable, names, n=1, cutoff=0.85)
        if variable.startswith("CDC_") and variable not in names and close:
            notes.append(f"the environment's {variable} is no option and has no effect; did you mean {close[0]}?")
    # Containers give an empty variable for an option that is not set.
    return {name: environment[variable] for variable, name in names.items() if environment.get(variable)}, notes


def _fill_cdc_raw_directory(given: dict[str, object]) -> list[ConfigProblem]:
    """Set the folder from cassandra.yaml if that file is given. Return the problems."""
    path = given.get("cassandraYaml")
    if path is None:
        if "cdcRawDirectory" in given:
            return _commit_log_problems(Path(str(given["cdcRawDirectory"])), {})
        return [_problem("cdcRawDirectory", "is missing; set it to the node's cdc_raw_directory, or set cassandraYaml")]
    try:
        directory = cdc_raw_directory_of(Path(str(path)))
        settings = settings_of(Path(str(path)))
    except CassandraYamlError as error:
        return [_problem("cassandraYaml", str(error))]
    if directory is not None:
        given.setdefault("cdcRawDirectory", str(directory))
    if "cdcRawDirectory" not in given:
        return [_problem("cdcRawDirectory", f"is missing, and {path} does not name cdc_raw_directory; set it")]
    return _commit_log_problems(Path(str(given["cdcRawDirectory"])), settings)


def _commit_log_problems(raw: Path, settings: Mapping[str, object]) -> list[ConfigProblem]:
    """The problem of a folder that is the commit log by cassandra.yaml, or else by its name.

    `settings`: those of cassandra.yaml, as far as they are known.
    """
    commit_log, cdc_raw = settings.get("commitlog_directory"), settings.get("cdc_raw_directory")
    if isinstance(commit_log, str) and is_same_folder(Path(commit_log), raw):
        return [_problem("cdcRawDirectory", commit_log_problem(raw))]
    if not is_named_commit_log(raw) or (isinstance(cdc_raw, str) and is_same_folder(Path(cdc_raw), raw)):
        return []
    hint = "; if the node's cdc_raw_directory has this name, set cassandraYaml to the file that says so"
    return [_problem("cdcRawDirectory", commit_log_problem(raw) + hint)]


def _segment_options(given: Mapping[str, object], reported: set[str]) -> SegmentOptions:
    """Segment options from `commitlogOptions`, else from `cassandraYaml`. Raises ConfigError.

    A file with a reported problem is not read again.
    """
    for option in ("commitlogOptions", "cassandraYaml"):
        if given.get(option) is not None and option not in reported:
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
