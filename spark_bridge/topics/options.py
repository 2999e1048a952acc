"""Options of the `cassandra_cdc` data source, checked all at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from clients.client_credentials import ClientCredentials
from schemas.errors import ConfigError, ConfigProblem
from schemas.topics import DEFAULT_EVENTS_PREFIX, DEFAULT_SUBSCRIPTION, dead_letters_topic, full_topic_name
from spark_bridge.topics.positions import parse_time_ms

__all__ = ["BridgeOptions", "Numbers", "batch_options", "option_texts", "refuse_catalog_table", "texts_without"]

Numbers = Literal["decimal", "string"]
"""The type of varint and decimal in Spark."""

TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # noqa: S105  (a class name)
TLS_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
BASIC_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationBasic"
OAUTH2_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
_PLUGINS: Final = (TOKEN_PLUGIN, TLS_PLUGIN, BASIC_PLUGIN, OAUTH2_PLUGIN)


class BridgeOptions(BaseModel):
    """How to reach a data topic, and what to read from it.

    In Spark, the options' names are these fields in camel case.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    service_url: str
    admin_url: str
    topic: str | None = None
    topics: str | None = None
    topics_pattern: str | None = None
    starting_offsets: str = "earliest"
    ending_offsets: str = "latest"
    max_rows_per_trigger: int | None = Field(default=None, ge=1)
    max_bytes_per_trigger: int | None = Field(default=None, ge=1)
    checkpoint_location: str | None = None
    subscription: str | None = Field(default=None, min_length=1)
    fail_on_data_loss: bool = True
    min_partitions: int = Field(default=1, ge=1, le=10_000)
    receiver_queue_size: int = Field(default=2_000, ge=1, le=100_000)
    operation_timeout_seconds: int = Field(default=30, ge=1, le=3_600)
    numbers: Numbers = "decimal"
    corrupt_rows: Literal["fail", "keep"] = "fail"
    auth_plugin_class_name: str | None = None
    auth_params: SecretStr | None = None
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_hostname_verification_enable: bool = True
    table: str | None = Field(default=None, pattern=r"^[^.\s]+\.[^.\s]+$")
    events_topic_prefix: str = Field(default=DEFAULT_EVENTS_PREFIX, min_length=1)
    events_subscription_name: str = Field(default=DEFAULT_SUBSCRIPTION, min_length=1)
    dead_letters_topic: str | None = Field(default=None, min_length=1)
    schema_changes_topic: str | None = Field(default=None, min_length=1)
    _names: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def dead_letters(self) -> tuple[str, ...]:
        """The full names of the dead-letter topics that connectors of these events may use."""
        named = self.dead_letters_topic or dead_letters_topic(self.events_topic_prefix)
        return tuple(full_topic_name(each.strip()) for each in named.split(","))

    @classmethod
    def from_mapping(cls, options: Mapping[str, str], written: Mapping[str, str] | None = None) -> BridgeOptions:
        """Options as given to Spark: names in any case, values as text. Raises ConfigError with all problems.

        `written`: by name of an option, the name by which the user has given it, for errors.
        """
        return cls._parsed(options, written, needs_topic=True)

    @classmethod
    def without_topic(cls, options: Mapping[str, str], written: Mapping[str, str] | None = None) -> BridgeOptions:
        """As `from_mapping`, for requests that are not about a data topic: options that name topics are left out."""
        others = {name: each for name, each in options.items() if name.lower() not in _NAME_TOPICS}
        return cls._parsed(others, written, needs_topic=False)

    @classmethod
    def _parsed(
        cls, options: Mapping[str, str], written: Mapping[str, str] | None, *, needs_topic: bool
    ) -> BridgeOptions:
        names = {alias.lower(): alias for alias in _ALIASES}
        problems = [_unknown(name) for name in options if name.lower() not in names]
        known = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
        problems += _problems_together(known, needs_topic=needs_topic)
        try:
            parsed = cls.model_validate(known)
        except ValidationError as error:
            problems += [
                ConfigProblem(
                    option=".".join(map(str, each["loc"])) or "options", reason=_reason(each["type"], each["msg"])
                )
                for each in error.errors(include_input=False, include_url=False)
            ]
        given_as = dict(written or {})
        if problems:
            raise ConfigError([replace(each, option=given_as.get(each.option, each.option)) for each in problems])
        parsed._names = given_as  # noqa: SLF001  # pydantic has no constructor with private attributes
        return parsed

    @classmethod
    def of_batch(cls, options: Mapping[str, str | int | bool], topic: str) -> BridgeOptions:
        """As `from_mapping`, for a batch read of this topic instead of those in the options."""
        given = texts_without(batch_options(options), "topic", "topics", "topicspattern")
        return cls.from_mapping({**given, "topic": topic})

    def written(self, name: str) -> str:
        """The name by which the user has given an option, such as `pulsarAdminUrl` in line.yaml for `adminUrl`."""
        return self._names.get(name, name)

    @field_validator("service_url")
    @classmethod
    def _broker_address(cls, value: str) -> str:
        return _with_scheme(value, ("pulsar://", "pulsar+ssl://"), "the broker's address")

    @field_validator("admin_url")
    @classmethod
    def _admin_address(cls, value: str) -> str:
        return _with_scheme(value, ("http://", "https://"), "the admin service's address").rstrip("/")

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The full names of the topics in the options; empty with a pattern, and without a topic."""
        named = self.topics or self.topic
        return () if named is None or self.topics_pattern is not None else tuple(named.split(","))

    @property
    def only_topic(self) -> str:
        """The one topic, which typed columns and tables need.

        Raises ConfigError unless the options name exactly one.
        """
        if len(self.topic_names) != 1:
            reason = (
                "must name the one topic whose schema gives the columns; raw rows alone may come from several topics"
            )
            raise ConfigError.of("topic", reason)
        return self.topic_names[0]

    @property
    def clearings_topic(self) -> str | None:
        """The full name of the topic with truncations and drops; None if they are not followed."""
        if self.schema_changes_topic is None:
            return full_topic_name(f"{self.events_topic_prefix}schema-changes")
        return None if self.schema_changes_topic.lower() == "none" else full_topic_name(self.schema_changes_topic)

    @property
    def is_limited(self) -> bool:
        """True when the size of a micro-batch is limited."""
        return self.max_rows_per_trigger is not None or self.max_bytes_per_trigger is not None

    def as_texts(self) -> dict[str, str]:
        """The given options as text, for Spark. Secrets are in clear text."""
        given = self.model_dump(by_alias=True, exclude_unset=True, exclude_none=True)
        if self.auth_params is not None:
            given["authParams"] = self.auth_params.get_secret_value()
        return option_texts(given)

    def of_topic(self, topic: str) -> BridgeOptions:
        """The same options for one topic."""
        return self.model_copy(update={"topic": topic, "topics": None, "topics_pattern": None})

    def of_whole_topic(self, topic: str) -> BridgeOptions:
        """The same options for one topic and all of its records: starting and ending offsets are replaced."""
        whole = {"starting_offsets": "earliest", "ending_offsets": "latest"}
        return self.of_topic(topic).model_copy(update=whole)

    @field_validator("topic")
    @classmethod
    def _one_topic(cls, value: str) -> str:
        name = value.strip()
        if not name or "," in name:
            raise ValueError(
                "names one topic, such as 'persistent://public/default/data-shop.orders'; topics takes several"
            )
        return _full_name(name)

    @field_validator("topics")
    @classmethod
    def _several_topics(cls, value: str) -> str:
        names = [_full_name(name.strip()) for name in value.split(",")]
        if len(set(names)) < len(names):
            raise ValueError("names a topic twice")
        return ",".join(names)

    @field_validator("topics_pattern")
    @classmethod
    def _namespace_and_pattern(cls, value: str) -> str:
        full = _full_name(value.strip())
        try:
            re.compile(full.split("/", 4)[4])
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{value!r} ends in no regular expression ({error})") from None
        return full

    @field_validator("starting_offsets", "ending_offsets")
    @classmethod
    def _offsets(cls, value: str) -> str:
        text = value.strip()
        if text.lower() in ("earliest", "latest"):
            return text.lower()
        if not text.startswith("{") and parse_time_ms(text) is None:
            raise ValueError(
                "must be 'earliest', 'latest', a time with its zone such as '2026-11-21T05:00:00Z', or a JSON object of "
                "positions"
            )
        return text

    @model_validator(mode="after")
    def _authentication(self) -> BridgeOptions:
        if (self.auth_plugin_class_name is None) != (self.auth_params is None):
            raise ValueError("authPluginClassName and authParams are given together or not at all")
        if self.auth_plugin_class_name is not None and self.auth_plugin_class_name not in _PLUGINS:
            raise ValueError(f"authPluginClassName is one of {', '.join(_PLUGINS)}")
        return self


_FIELDS: Final = {to_camel(name): name for name in BridgeOptions.model_fields}
_ALIASES: Final = tuple(_FIELDS)
_NAME_TOPICS: Final = ("topic", "topics", "topicspattern")
_OF_STREAMS: Final = ("maxrowspertrigger", "maxbytespertrigger", "checkpointlocation")


def _unknown(name: str) -> ConfigProblem:
    near = difflib.get_close_matches(name.lower(), [alias.lower() for alias in _ALIASES], n=3, cutoff=0.5)
    nearest = [alias for alias in _ALIASES if alias.lower() in near]
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"the options are {', '.join(_ALIASES)}"
    return ConfigProblem(option=name, reason=f"is no option of cassandra_cdc; {hint}")


def _reason(kind: str, message: str) -> str:
    if kind == "missing":
        return "is missing"
    return message.removeprefix("Value error, ")


def refuse_catalog_table(name: str, options: Mapping[str, str]) -> None:
    """Raise ConfigError if Spark makes a table of a catalog from the data source `name`: `CREATE TABLE ... USING`.

    Spark then gives the options together with properties of the table, such as `provider`.
    """
    if "provider" in {each.lower() for each in options}:
        reason = f"{name} cannot be a table of a catalog; use CREATE TEMPORARY VIEW ... USING {name} OPTIONS (...) in each session"
        raise ConfigError.of("CREATE TABLE", reason)


def option_texts(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Options with their values as text, as Spark needs them."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def texts_without(options: Mapping[str, str | int | bool], *left_out: str) -> dict[str, str]:
    """As `option_texts`, without the options that have these names in small letters."""
    return {name: each for name, each in option_texts(options).items() if name.lower() not in left_out}


def batch_options(options: Mapping[str, str | int | bool]) -> dict[str, str]:
    """Options for a batch read, as text: without those that only streams have (micro-batch limits, checkpoint)."""
    return texts_without(options, *_OF_STREAMS)


def _problems_together(known: Mapping[str, str], *, needs_topic: bool) -> list[ConfigProblem]:
    """Problems of options that do not fit together."""
    given = [name for name in ("topic", "topics", "topicsPattern") if name in known]
    limits = [name for name in ("maxRowsPerTrigger", "maxBytesPerTrigger") if name in known]
    problems = []
    if not given and needs_topic:
        problems.append(ConfigProblem(option="topic", reason="is missing (or topics, or topicsPattern)"))
    if len(given) > 1:
        reason = f"and {' and '.join(given[1:])} are given; give only one of them"
        problems.append(ConfigProblem(option=given[0], reason=reason))
    if limits and "checkpointLocation" not in known and not _has_admission_control():
        reason = "needs checkpointLocation, that of the query, which has its position (PySpark 4.2 needs none)"
        problems.append(ConfigProblem(option=limits[0], reason=reason))
    if known.get("authPluginClassName") == OAUTH2_PLUGIN and "authParams" in known:
        try:
            ClientCredentials.parse(known["authParams"], "authParams")
        except ConfigError as error:
            problems += error.problems
    return problems


def _has_admission_control() -> bool:
    # Imported here, because `cdc status` and `cdc resolved` use these options where PySpark may not be installed.
    from spark_bridge.spark_line import HAS_ADMISSION_CONTROL

    return HAS_ADMISSION_CONTROL


def _full_name(name: str) -> str:
    full = full_topic_name(name)
    if not full.startswith("persistent://") or full.count("/") != 4 or not all(full.split("/")[2:]):
        raise ValueError(f"{name!r} is not a topic name, such as 'persistent://tenant/namespace/name'")
    return full


def _with_scheme(value: str, schemes: tuple[str, ...], what: str) -> str:
    address = value.strip()
    if not any(address.startswith(scheme) and len(address) > len(scheme) for scheme in schemes):
        raise ValueError(f"must be {what} and begin with {' or '.join(schemes)}")
    return address
