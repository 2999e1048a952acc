"""The connector's options, with DataStax's names where these have a meaning here. All problems are reported at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from schemas.errors import ConfigError, ConfigProblem
from schemas.hidden_columns import HiddenColumns, Hiding
from schemas.topics import (
    DEFAULT_EVENTS_PREFIX,
    DEFAULT_SUBSCRIPTION,
    dead_letters_topic,
    events_topic,
    full_topic_name,
    schema_changes_topic,
)
from source_connector.configuration.datastax_options import known_name, take_out_foreign, use_login
from source_connector.configuration.hidden_options import HASH_KEY, column_patterns, hidden_problems
from source_connector.configuration.private_files import is_content, is_readable_content
from source_connector.configuration.secret_options import FILE_OPTIONS, SECRET_OPTIONS, take_secrets
from source_connector.configuration.table_selection import (
    TablePlace,
    TableSelection,
    is_table_name,
    is_template,
    main_topic,
)
from source_connector.data_format import DataFormat

__all__ = ["ConsistencyName", "SourceConfig", "flattened", "hidden_columns_of"]

ConsistencyName = Literal["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "LOCAL_ONE", "EACH_QUORUM"]

_SUBSCRIPTION_TYPES: Final = ("Exclusive", "Shared", "Failover", "Key_Shared")
_CONSISTENCY_LEVELS: Final = get_args(ConsistencyName)
# Options whose value may be content, `base64:...`, instead of a path.
_FILES: Final = (
    "cloud.secureConnectBundle",
    "ssl.keystore.path",
    "ssl.truststore.path",
    "ssl.openssl.keyCertChain",
    "ssl.openssl.privateKey",
)
_TLS_STORES: Final = frozenset(each for each in _FILES if each.startswith("ssl."))
_SECRETS: Final = frozenset({*SECRET_OPTIONS, *_FILES})


def _parts(value: object) -> object:
    """Split a text at its commas. Other values are returned unchanged."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


_Texts = Annotated[tuple[str, ...], BeforeValidator(_parts)]


class SourceConfig(BaseModel):
    """All options, checked. Names with dots are aliases; names of durations have their unit. Secrets print as stars."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    keyspace: str = ""
    table: str = ""
    tables: _Texts = ()
    destination: str = "data-{keyspace}.{table}"
    contact_points: _Texts = Field(default=(), alias="contactPoints")
    port: int = Field(default=9042, ge=1, le=65535)
    local_dc: str = Field(default="", alias="loadBalancing.localDc")
    secure_connect_bundle: str = Field(default="", alias="cloud.secureConnectBundle", repr=False)
    columns: str = ".*"
    dropped_columns: _Texts = Field(default=(), alias="columns.drop")
    masked_columns: _Texts = Field(default=(), alias="columns.mask")
    mask: str = Field(default="****", alias="columns.maskWith")
    hashed_columns: _Texts = Field(default=(), alias="columns.hash")
    hash_key: SecretStr = Field(default=SecretStr(""), alias="columns.hashKey")
    truncated_columns: _Texts = Field(default=(), alias="columns.truncate")
    output_format: Annotated[DataFormat, known_name(*(each.value for each in DataFormat))] = Field(
        default=DataFormat.KEY_VALUE_AVRO, alias="outputFormat"
    )

    events_topics: _Texts = Field(default=(), alias="events.topic")
    subscription: str = Field(default=DEFAULT_SUBSCRIPTION, alias="events.subscription.name", min_length=1)
    subscription_type: Annotated[
        Literal["Exclusive", "Shared", "Failover", "Key_Shared"], known_name(*_SUBSCRIPTION_TYPES)
    ] = Field(default="Key_Shared", alias="events.subscription.type")
    schema_changes_topic: str = Field(default="", alias="schema.changes.topic")
    max_waiting_events: int = Field(default=4000, alias="events.maxWaiting", ge=1, le=1_000_000)

    retention_minutes: int | None = Field(default=None, alias="dataTopic.retentionMinutes", ge=-1)

    dead_letters_name: str = Field(default="", alias="deadLetter.topic")
    max_failures: int = Field(default=8, alias="deadLetter.maxAttempts", ge=1, le=1000)

    cache_max_digests: int = Field(default=3, alias="cache.max.digest", ge=1, le=100)
    cache_max_capacity: int = Field(default=32767, alias="cache.max.capacity", ge=1, le=10_000_000)
    cache_expire_after_ms: int = Field(default=60000, alias="cache.expire.after.ms", ge=1000)
    only_if_coordinator_match: bool = Field(default=False, alias="cache.only_if_coordinator_match")
    suppress_unchanged: bool = Field(default=False, alias="suppress.unchanged")
    range_deletions: bool = Field(default=True, alias="publish.rangeDeletions")
    publishes_expiry: bool = Field(default=False, alias="expiry.publish")

    consistency: Annotated[ConsistencyName, known_name(*_CONSISTENCY_LEVELS)] = Field(
        default="LOCAL_QUORUM", alias="query.consistencyLevel"
    )
    higher_consistency: Annotated[ConsistencyName, known_name(*_CONSISTENCY_LEVELS)] = Field(
        default="ALL", alias="query.higherConsistencyLevel"
    )
    fallback_consistency: Annotated[ConsistencyName | Literal["none"], known_name(*_CONSISTENCY_LEVELS, "none")] = (
        Field(default="LOCAL_ONE", alias="query.fallbackConsistencyLevel")
    )
    proves_reads: bool = Field(default=True, alias="query.proveReads")
    max_reads_in_flight: int = Field(default=32, alias="query.maxInFlight", ge=1, le=1024)
    backoff_ms: int = Field(default=100, alias="query.backoffInMs", ge=1)
    max_backoff_s: int = Field(default=60, alias="query.maxBackoffInSec", ge=1)
    read_timeout_s: float = Field(default=30, alias="queryExecutionTimeout", gt=0, allow_inf_nan=False)

    auth_provider: Annotated[Literal["None", "PLAIN"], known_name("None", "PLAIN")] = Field(
        default="None", alias="auth.provider"
    )
    auth_username: str = Field(default="", alias="auth.username")
    auth_password: SecretStr = Field(default=SecretStr(""), alias="auth.password")

    ssl_provider: Annotated[Literal["None", "JDK", "OpenSSL"], known_name("None", "JDK", "OpenSSL")] = Field(
        default="None", alias="ssl.provider"
    )
    ssl_trust_store: str = Field(default="", alias="ssl.truststore.path", repr=False)
    ssl_trust_store_password: SecretStr = Field(default=SecretStr(""), alias="ssl.truststore.password")
    ssl_key_store: str = Field(default="", alias="ssl.keystore.path", repr=False)
    ssl_key_store_password: SecretStr = Field(default=SecretStr(""), alias="ssl.keystore.password")
    ssl_certificate_chain: str = Field(default="", alias="ssl.openssl.keyCertChain", repr=False)
    ssl_private_key: str = Field(default="", alias="ssl.openssl.privateKey", repr=False)
    ssl_hostname_validation: bool = Field(default=True, alias="ssl.hostnameValidation")
    ssl_ciphers: _Texts = Field(default=(), alias="ssl.cipherSuites")

    pulsar_service_url: str = Field(default="", alias="pulsarServiceUrl")
    pulsar_admin_url: str = Field(default="", alias="pulsarAdminUrl")
    pulsar_auth_plugin: str = Field(default="", alias="pulsarAuthPluginClassName")
    pulsar_auth_params: SecretStr = Field(default=SecretStr(""), alias="pulsarAuthParams")
    pulsar_trusted_certificates: str = Field(default="", alias="tlsTrustCertsFilePath")
    pulsar_allow_insecure: bool = Field(default=False, alias="sslAllowInsecureConnection")
    pulsar_hostname_validation: bool = Field(default=False, alias="sslHostnameVerificationEnable")
    python: str = "python3"

    @classmethod
    def from_mapping(
        cls,
        options: Mapping[str, object],
        pulsar: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[Self, tuple[str, ...]]:
        """Build it from `--source-config` (nested or dotted), the host's data, and secrets in the environment.

        Return the configuration and warnings for the log, one line each. Raises ConfigError with every problem.
        """
        known = dict(flattened(options))
        problems, warnings = take_out_foreign(known)
        problems += take_secrets(known, environment or {})
        use_login(known)
        for option, name in _PULSAR_OPTIONS.items():
            if pulsar and name in pulsar:
                known.setdefault(option, pulsar[name])
        try:
            config = cls.model_validate(known)
        except ValidationError as error:
            problems += [_problem(detail) for detail in error.errors(include_url=False)]
            # The rules between options are checked nevertheless, on the given values, to report all problems.
            raise ConfigError(problems + list(_cross_problems(known))) from None
        problems += _cross_problems(known)
        if problems:
            raise ConfigError(problems)
        if known.get("events.subscription.type") and config.subscription_type != "Failover":
            warnings.append(
                f"events.subscription.type: {config.subscription_type} is for topics of DataStax's agents; events of "
                "ours are read with a Failover subscription, which keeps the order of each topic partition"
            )
        if config.hash_key.get_secret_value() and not config.hashed_columns:
            warnings.append(f"{HASH_KEY}: has no effect without columns.hash")
        if config.auth_provider == "None" and config.auth_username:
            warnings.append("auth.username: has no effect without auth.password")
        if config.ssl_provider == "None" and any(value for name, value in known.items() if name in _TLS_STORES):
            warnings.append(
                "ssl.*: has no effect without ssl.provider JDK or OpenSSL; Cassandra is spoken to in plain text"
            )
        return config, tuple(warnings)

    @property
    def selection(self) -> TableSelection:
        """The tables that are served."""
        if self.tables:
            templates = self.events_topics or (f"{DEFAULT_EVENTS_PREFIX}{{keyspace}}.{{table}}",)
            return TableSelection(
                entries=self.tables, events_templates=templates, destination_template=self.destination
            )
        return TableSelection(only=TablePlace(keyspace=self.keyspace, table=self.table, events_topics=self.topics))

    @property
    def hidden(self) -> HiddenColumns | None:
        """The columns whose values are not published unchanged; None if there are none."""
        patterns = column_patterns(_hidden_entries(self.model_dump(by_alias=True)))
        if not patterns:
            return None
        return HiddenColumns(
            patterns=patterns,
            mask=self.mask,
            hash_key=self.hash_key.get_secret_value().encode(),
            has_range_markers=self.range_deletions,
            serves_one_table=not self.tables,
        )

    @property
    def table_name(self) -> str:
        """`keyspace.table` for logs."""
        return f"{self.keyspace}.{self.table}"

    @property
    def topics(self) -> tuple[str, ...]:
        """Full names of the events topics; by default the topic that our agents write."""
        return tuple(map(full_topic_name, self.events_topics)) or (events_topic(self.keyspace, self.table),)

    @property
    def fallback_level(self) -> str | None:
        """The consistency level of last resort; None if reads wait for Cassandra instead."""
        return None if self.fallback_consistency == "none" else self.fallback_consistency

    @property
    def dead_letters_topic(self) -> str:
        """The full name of the dead-letter topic; by default one topic for all sources of the events' namespace."""
        if self.dead_letters_name:
            return full_topic_name(self.dead_letters_name)
        return dead_letters_topic(main_topic(self.topics))

    @property
    def changes_topic(self) -> str:
        """The full name of the topic for changes of the table's definition, by default beside the main events topic.

        Empty if changes are not to be published.
        """
        if self.schema_changes_topic.lower() == "none":
            return ""
        if self.schema_changes_topic:
            return full_topic_name(self.schema_changes_topic)
        if self.tables and self.events_topics:
            return schema_changes_topic(main_topic(self.topics), "{keyspace}", "{table}")
        return schema_changes_topic(main_topic(self.topics), self.keyspace, self.table)


# Option -> name of its default value in the host's OPEN document.
_PULSAR_OPTIONS: Final = {
    "pulsarServiceUrl": "getServiceUrl",
    "pulsarAuthPluginClassName": "getAuthPluginClassName",
    "pulsarAuthParams": "getAuthParams",
    "tlsTrustCertsFilePath": "getTlsTrustCertsFilePath",
    "sslAllowInsecureConnection": "isTlsAllowInsecureConnection",
    "sslHostnameVerificationEnable": "isTlsHostnameVerificationEnable",
}


def flattened(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Nested maps as names with dots. Null values are left out."""
    # Without recursion, because users may nest maps to any depth.
    left = list(options.items())[::-1]
    while left:
        name, value = left.pop()
        if isinstance(value, Mapping):
            left += [(f"{name}.{inner}", each) for inner, each in value.items()][::-1]
        elif value is not None:
            yield name, value


def _problem(detail: ErrorDetails) -> ConfigProblem:
    option = str(detail["loc"][0])
    if detail["type"] == "missing":
        return ConfigProblem(option=option, reason="is required")
    if detail["type"] == "extra_forbidden":
        return ConfigProblem(option=option, reason=f"is not an option of this connector{_suggestion(option)}")
    shown = detail["input"]
    got = f" (got {shown!r})" if isinstance(shown, str | int | float) and option not in _SECRETS else ""
    return ConfigProblem(option=option, reason=detail["msg"][:1].lower() + detail["msg"][1:] + got)


def _suggestion(option: str) -> str:
    names = [*(field.alias or name for name, field in SourceConfig.model_fields.items()), *FILE_OPTIONS]
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(option.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def _cross_problems(given: Mapping[str, object]) -> Iterator[ConfigProblem]:
    """Problems of the rules that pydantic's types cannot express."""
    yield from _place_problems(given)
    yield from _table_problems(given)
    yield from _topic_problems(given)
    for option in _FILES:
        value = given.get(option)
        if isinstance(value, str) and is_content(value) and not is_readable_content(value):
            yield ConfigProblem(option=option, reason="what follows 'base64:' is no base64")
    try:
        re.compile(str(given.get("columns", "")))
    except (re.error, OverflowError, RecursionError) as error:
        yield ConfigProblem(option="columns", reason=f"is no regular expression: {error}")
    yield from _column_problems(given)
    if str(given.get("auth.provider", "")).upper() == "PLAIN":
        for option in ("auth.username", "auth.password"):
            if not given.get(option):
                yield ConfigProblem(option=option, reason="is required by auth.provider PLAIN")
    if bool(given.get("ssl.openssl.keyCertChain")) != bool(given.get("ssl.openssl.privateKey")):
        reason = "ssl.openssl.keyCertChain and ssl.openssl.privateKey go together"
        yield ConfigProblem(option="ssl.openssl.privateKey", reason=reason)
    if given.get("ssl.openssl.keyCertChain") and given.get("ssl.keystore.path"):
        reason = "give either a key store or ssl.openssl.keyCertChain and ssl.openssl.privateKey"
        yield ConfigProblem(option="ssl.keystore.path", reason=reason)
    if not given.get("pulsarServiceUrl"):
        reason = "is required: this Pulsar does not give its sources the broker's address"
        yield ConfigProblem(option="pulsarServiceUrl", reason=reason)
    yield from _admin_problems(given)


def hidden_columns_of(options: Mapping[str, object], environment: Mapping[str, str]) -> HiddenColumns | None:
    """The columns that a source with these options hides, to compare its records with the table. Raises ConfigError."""
    # Only these options are used, because the other secrets are not known here.
    known = {
        name: value
        for name, value in flattened(options)
        if name.startswith("columns.") or name in ("keyspace", "table", "tables")
    }
    problems = take_secrets(known, environment) + list(_column_problems(known))
    if problems:
        raise ConfigError(problems)
    patterns = column_patterns(_hidden_entries(known))
    mask = str(known.get("columns.maskWith", SourceConfig.model_fields["mask"].default))
    key = str(known.get(HASH_KEY, "")).encode()
    return HiddenColumns(patterns=patterns, mask=mask, hash_key=key) if patterns else None


def _hidden_entries(given: Mapping[str, object]) -> dict[Hiding, tuple[str, ...]]:
    """The entries of each option that hides columns. Values that are no texts or lists are left out."""
    entries = {hiding: _parts(given.get(hiding.value, ())) for hiding in Hiding}
    return {hiding: tuple(map(str, each)) for hiding, each in entries.items() if isinstance(each, list | tuple)}


def _column_problems(given: Mapping[str, object]) -> Iterator[ConfigProblem]:
    tables = _parts(given.get("tables", ())) or (f"{given.get('keyspace', '')}.{given.get('table', '')}",)
    key = str(given.get(HASH_KEY) or "")
    names = tuple(map(str, tables)) if isinstance(tables, list | tuple) else ()
    yield from hidden_problems(_hidden_entries(given), key, names)


def _admin_problems(given: Mapping[str, object]) -> Iterator[ConfigProblem]:
    """Problems of the options for Pulsar's admin interface, by which policies are read and set."""
    admin_url, minutes = given.get("pulsarAdminUrl"), given.get("dataTopic.retentionMinutes")
    if admin_url and not re.match(r"https?://[^/@\s?#]+/?$", str(admin_url)):
        reason = (
            "is the address of Pulsar's admin interface, http://HOST:PORT or https://HOST:PORT, without user and path"
        )
        yield ConfigProblem(option="pulsarAdminUrl", reason=reason)
    if minutes is not None and not admin_url:
        reason = "needs pulsarAdminUrl, with which the retention is set"
        yield ConfigProblem(option="dataTopic.retentionMinutes", reason=reason)
    if str(minutes) == "0":
        reason = "is a number of minutes, or -1 for ever; leave it out and the topic's retention stays as it is"
        yield ConfigProblem(option="dataTopic.retentionMinutes", reason=reason)


def _table_problems(given: Mapping[str, object]) -> Iterator[ConfigProblem]:
    """Problems of the options that name one table, or several by names and patterns."""
    tables = _parts(given.get("tables", ()))
    if not tables:
        for option in ("keyspace", "table"):
            if not given.get(option):
                yield ConfigProblem(option=option, reason="is required")
        if given.get("destination"):
            reason = "has a meaning with tables only; one table's records go where the source is deployed to"
            yield ConfigProblem(option="destination", reason=reason)
        return
    for option in ("keyspace", "table"):
        if given.get(option):
            yield ConfigProblem(option=option, reason="cannot be given together with tables")
    for entry in tables if isinstance(tables, list | tuple) else ():
        if not is_table_name(str(entry)):
            reason = f"each entry is keyspace.table, where * and ? match any characters (got {entry!r})"
            yield ConfigProblem(option="tables", reason=reason)
    reason = "with tables it is a template, a topic that contains {keyspace} and {table}"
    if "destination" in given and not is_template(str(given["destination"])):
        yield ConfigProblem(option="destination", reason=reason)
    topics = _parts(given.get("events.topic", ()))
    if isinstance(topics, list | tuple) and not all(is_template(str(each)) for each in topics):
        yield ConfigProblem(option="events.topic", reason=reason)


def _topic_problems(given: Mapping[str, object]) -> Iterator[ConfigProblem]:
    topics = _parts(given.get("events.topic", ()))
    for topic in topics if isinstance(topics, list | tuple) else ():
        if re.search(r"-partition-\d+$", str(topic)):
            reason = f"name the topic, not its partition: its partitions are divided by --parallelism among the instances (got {topic!r})"
            yield ConfigProblem(option="events.topic", reason=reason)


def _place_problems(given: Mapping[str, object]) -> Iterator[ConfigProblem]:
    """Problems of the options that locate the cluster: a bundle, or contact points and their data center."""
    if not given.get("cloud.secureConnectBundle"):
        for option in ("contactPoints", "loadBalancing.localDc"):
            if not given.get(option):
                yield ConfigProblem(option=option, reason="is required")
        points = _parts(given.get("contactPoints", ()))
        for point in points if isinstance(points, list | tuple) else ():
            if str(point).count(":") == 1:
                reason = f"each entry is a name or an address, the port is a separate option (got {point!r})"
                yield ConfigProblem(option="contactPoints", reason=reason)
        return
    for option, value in sorted(given.items()):
        if value and (option in ("contactPoints", "loadBalancing.localDc") or option.startswith("ssl.")):
            reason = "cannot be given together with cloud.secureConnectBundle, which contains it"
            yield ConfigProblem(option=option, reason=reason)
