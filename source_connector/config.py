"""The connector's options: DataStax's names where they mean something here, ours beside them, all problems at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from schemas.errors import ConfigError, ConfigProblem
from schemas.topics import DEFAULT_SUBSCRIPTION, events_topic, full_topic_name

__all__ = ["ConsistencyName", "SourceConfig", "flattened"]

ConsistencyName = Literal["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "LOCAL_ONE", "EACH_QUORUM"]

# Options of DataStax's connector that steer something which does not exist here: accepted, with one warning for all.
_WITHOUT_MEANING: Final = frozenset({
    "batch.size", "query.executors", "query.maxMobileAvgLatency", "query.minMobileAvgLatency",
    "cache.only_if_coordinator_match", "key.converter", "value.converter", "maxConcurrentRequests",
    "connectionPoolLocalSize", "compression", "metricsHighestLatency", "jmx", "jmxConnectorDomain", "ignoreErrors",
    "ssl.keystore.password", "ssl.truststore.password", "name", "task.id",
})  # fmt: skip
_DRIVER_PREFIX: Final = "datastax-java-driver."
_UNSUPPORTED: Final = {
    "cloud.secureConnectBundle": "is not supported; give contactPoints, loadBalancing.localDc and the ssl options",
    "ssl.keystore.path": "a Java key store cannot be read here; give PEM files in ssl.openssl.keyCertChain and "
    "ssl.openssl.privateKey",
}
_OUTPUT_FORMATS: Final = ("key-value-avro",)
_SECRETS: Final = frozenset({"auth.password", "pulsarAuthParams"})


def _parts(value: object) -> object:
    """One text may hold several parts, parted by commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _known(value: object, names: tuple[str, ...]) -> object:
    """A name whatever its case."""
    matching = [name for name in names if isinstance(value, str) and name.lower() == value.lower()]
    return matching[0] if matching else value


_Texts = Annotated[tuple[str, ...], BeforeValidator(_parts)]


class SourceConfig(BaseModel):
    """All options, checked. Names with dots are the aliases; durations carry their unit. Secrets print as stars."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=False)

    keyspace: str = Field(min_length=1)
    table: str = Field(min_length=1)
    contact_points: _Texts = Field(alias="contactPoints", min_length=1)
    port: int = Field(default=9042, ge=1, le=65535)
    local_dc: str = Field(alias="loadBalancing.localDc", min_length=1)
    columns: str = ".*"
    output_format: str = Field(default="key-value-avro", alias="outputFormat")

    events_topics: _Texts = Field(default=(), alias="events.topic")
    subscription: str = Field(default=DEFAULT_SUBSCRIPTION, alias="events.subscription.name", min_length=1)
    subscription_type: str = Field(default="Failover", alias="events.subscription.type")
    max_waiting_events: int = Field(default=4000, alias="events.maxWaiting", ge=1, le=1_000_000)

    cache_max_digests: int = Field(default=3, alias="cache.max.digest", ge=1, le=100)
    cache_max_capacity: int = Field(default=32767, alias="cache.max.capacity", ge=1, le=10_000_000)
    cache_expire_after_ms: int = Field(default=60000, alias="cache.expire.after.ms", ge=1000)

    consistency: ConsistencyName = Field(default="LOCAL_QUORUM", alias="query.consistencyLevel")
    higher_consistency: ConsistencyName = Field(default="ALL", alias="query.higherConsistencyLevel")
    max_reads_in_flight: int = Field(default=16, alias="query.maxInFlight", ge=1, le=1024)
    backoff_ms: int = Field(default=100, alias="query.backoffInMs", ge=1)
    max_backoff_s: int = Field(default=60, alias="query.maxBackoffInSec", ge=1)
    read_timeout_s: float = Field(default=30, alias="queryExecutionTimeout", gt=0)

    auth_provider: Annotated[
        Literal["None", "PLAIN"], BeforeValidator(lambda value: _known(value, ("None", "PLAIN")))
    ] = Field(default="None", alias="auth.provider")
    auth_username: str = Field(default="", alias="auth.username")
    auth_password: SecretStr = Field(default=SecretStr(""), alias="auth.password")

    ssl_provider: Annotated[
        Literal["None", "JDK", "OpenSSL"], BeforeValidator(lambda value: _known(value, ("None", "JDK", "OpenSSL")))
    ] = Field(default="None", alias="ssl.provider")
    ssl_trusted_certificates: str = Field(default="", alias="ssl.truststore.path")
    ssl_certificate_chain: str = Field(default="", alias="ssl.openssl.keyCertChain")
    ssl_private_key: str = Field(default="", alias="ssl.openssl.privateKey")
    ssl_hostname_validation: bool = Field(default=True, alias="ssl.hostnameValidation")
    ssl_ciphers: _Texts = Field(default=(), alias="ssl.cipherSuites")

    pulsar_service_url: str = Field(default="", alias="pulsarServiceUrl")
    pulsar_auth_plugin: str = Field(default="", alias="pulsarAuthPluginClassName")
    pulsar_auth_params: SecretStr = Field(default=SecretStr(""), alias="pulsarAuthParams")
    pulsar_trusted_certificates: str = Field(default="", alias="tlsTrustCertsFilePath")
    pulsar_allow_insecure: bool = Field(default=False, alias="sslAllowInsecureConnection")
    pulsar_hostname_validation: bool = Field(default=False, alias="sslHostnameVerificationEnable")
    python: str = "python3"

    @classmethod
    def from_mapping(
        cls, options: Mapping[str, object], pulsar: Mapping[str, str] | None = None
    ) -> tuple[Self, tuple[str, ...]]:
        """The options of `--source-config` (nested or dotted) and what the host found out about Pulsar.

        Returns the configuration and warnings for the log, a line each. Raises ConfigError with every problem.
        """
        given = dict(flattened(options))
        warnings = _take_out_meaningless(given)
        problems = [ConfigProblem(option=name, reason=_UNSUPPORTED[name]) for name in given if name in _UNSUPPORTED]
        known = {name: value for name, value in given.items() if name not in _UNSUPPORTED}
        for option, name in _PULSAR_OPTIONS.items():
            if pulsar and name in pulsar:
                known.setdefault(option, pulsar[name])
        try:
            config = cls.model_validate(known)
        except ValidationError as error:
            problems += [_problem(detail) for detail in error.errors(include_url=False)]
            # What pydantic could not get to is checked on a copy that holds only the right options.
            raise ConfigError(problems + list(_cross_problems(known))) from None
        problems += _cross_problems(known)
        if problems:
            raise ConfigError(problems)
        if config.subscription_type.lower() != "failover":
            warnings.append(
                f"events.subscription.type: {config.subscription_type} is not used; events are read with a Failover "
                "subscription, which keeps the order of each topic partition"
            )
        return config, tuple(warnings)

    @property
    def table_name(self) -> str:
        """`keyspace.table` for logs."""
        return f"{self.keyspace}.{self.table}"

    @property
    def topics(self) -> tuple[str, ...]:
        """Full names of the events topics; by default the one that our agents write."""
        return tuple(map(full_topic_name, self.events_topics)) or (events_topic(self.keyspace, self.table),)


# Option -> name in the host's OPEN document, which serves as its default.
_PULSAR_OPTIONS: Final = {
    "pulsarServiceUrl": "serviceUrl",
    "pulsarAuthPluginClassName": "authPluginClassName",
    "pulsarAuthParams": "authParams",
    "tlsTrustCertsFilePath": "tlsTrustCertsFilePath",
    "sslAllowInsecureConnection": "tlsAllowInsecureConnection",
    "sslHostnameVerificationEnable": "tlsHostnameVerificationEnable",
}


def flattened(options: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested maps as names with dots; values of null are left out."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _take_out_meaningless(given: dict[str, object]) -> list[str]:
    idle = sorted(name for name in given if name in _WITHOUT_MEANING or name.startswith(_DRIVER_PREFIX))
    for name in idle:
        del given[name]
    return [f"options without a meaning for this connector are ignored: {', '.join(idle)}"] if idle else []


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
    names = [field.alias or name for name, field in SourceConfig.model_fields.items()]
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(option.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""


def _cross_problems(given: Mapping[str, object]) -> Iterator[ConfigProblem]:
    """Rules that pydantic's types do not say."""
    output_format = given.get("outputFormat", _OUTPUT_FORMATS[0])
    if output_format not in _OUTPUT_FORMATS:
        reason = f"{output_format!r} is not supported; supported: {', '.join(_OUTPUT_FORMATS)}"
        yield ConfigProblem(option="outputFormat", reason=reason)
    try:
        re.compile(str(given.get("columns", "")))
    except re.error as error:
        yield ConfigProblem(option="columns", reason=f"is no regular expression: {error}")
    if str(given.get("auth.provider", "")).upper() == "PLAIN":
        for option in ("auth.username", "auth.password"):
            if not given.get(option):
                yield ConfigProblem(option=option, reason="is required by auth.provider PLAIN")
    if bool(given.get("ssl.openssl.keyCertChain")) != bool(given.get("ssl.openssl.privateKey")):
        reason = "ssl.openssl.keyCertChain and ssl.openssl.privateKey go together"
        yield ConfigProblem(option="ssl.openssl.privateKey", reason=reason)
    if not given.get("pulsarServiceUrl"):
        reason = "is required: this Pulsar does not tell its sources the broker's address"
        yield ConfigProblem(option="pulsarServiceUrl", reason=reason)
