"""Options of the `cassandra_cdc` data source, checked all at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from schemas.errors import ConfigError, ConfigProblem
from schemas.topics import full_topic_name

__all__ = ["BridgeOptions"]

TOKEN_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # noqa: S105  (a class name)
TLS_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
BASIC_PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationBasic"
_PLUGINS: Final = (TOKEN_PLUGIN, TLS_PLUGIN, BASIC_PLUGIN)


class BridgeOptions(BaseModel):
    """How to reach a data topic and what to read of it. Names in Spark are the camel case of these fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    service_url: str
    admin_url: str
    topic: str
    starting_offsets: str = "earliest"
    min_partitions: int = Field(default=1, ge=1, le=10_000)
    receiver_queue_size: int = Field(default=2_000, ge=1, le=100_000)
    operation_timeout_seconds: int = Field(default=30, ge=1, le=3_600)
    numbers: Literal["decimal", "string"] = "decimal"
    auth_plugin_class_name: str | None = None
    auth_params: SecretStr | None = None
    tls_trust_certs_file_path: str | None = None
    tls_allow_insecure_connection: bool = False
    tls_hostname_verification_enable: bool = True

    @classmethod
    def from_mapping(cls, options: Mapping[str, str]) -> BridgeOptions:
        """Options as given to Spark: names in any case, values as text. Raises ConfigError with all problems."""
        names = {alias.lower(): alias for alias in _ALIASES}
        problems = [_unknown(name) for name in options if name.lower() not in names]
        known = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
        try:
            parsed = cls.model_validate(known)
        except ValidationError as error:
            problems += [
                ConfigProblem(
                    option=".".join(map(str, each["loc"])) or "options", reason=_reason(each["type"], each["msg"])
                )
                for each in error.errors(include_input=False, include_url=False)
            ]
        if problems:
            raise ConfigError(problems)
        return parsed

    @field_validator("service_url")
    @classmethod
    def _broker_address(cls, value: str) -> str:
        return _with_scheme(value, ("pulsar://", "pulsar+ssl://"), "the broker's address")

    @field_validator("admin_url")
    @classmethod
    def _admin_address(cls, value: str) -> str:
        return _with_scheme(value, ("http://", "https://"), "the admin service's address").rstrip("/")

    @field_validator("topic")
    @classmethod
    def _one_topic(cls, value: str) -> str:
        name = value.strip()
        if not name or "," in name:
            raise ValueError("names one topic, such as 'persistent://public/default/data-shop.orders'")
        full = full_topic_name(name)
        if not full.startswith("persistent://") or len(full.split("/")) != 5 or not all(full.split("/")[2:]):
            raise ValueError(f"{value!r} is no topic name; it looks like 'persistent://tenant/namespace/name'")
        return full

    @field_validator("starting_offsets")
    @classmethod
    def _trimmed(cls, value: str) -> str:
        text = value.strip()
        if text.lower() in ("earliest", "latest"):
            return text.lower()
        if not text.startswith("{"):
            raise ValueError("must be 'earliest', 'latest' or a JSON object of positions")
        return text

    @model_validator(mode="after")
    def _authentication(self) -> BridgeOptions:
        if (self.auth_plugin_class_name is None) != (self.auth_params is None):
            raise ValueError("authPluginClassName and authParams are given together or not at all")
        if self.auth_plugin_class_name is not None and self.auth_plugin_class_name not in _PLUGINS:
            raise ValueError(f"authPluginClassName is one of {', '.join(_PLUGINS)}")
        return self


_ALIASES: Final = tuple(to_camel(name) for name in BridgeOptions.model_fields)


def _unknown(name: str) -> ConfigProblem:
    near = difflib.get_close_matches(name.lower(), [alias.lower() for alias in _ALIASES], n=3, cutoff=0.5)
    nearest = [alias for alias in _ALIASES if alias.lower() in near]
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"the options are {', '.join(_ALIASES)}"
    return ConfigProblem(option=name, reason=f"is no option of cassandra_cdc; {hint}")


def _reason(kind: str, message: str) -> str:
    if kind == "missing":
        return "is missing"
    return message.removeprefix("Value error, ")


def _with_scheme(value: str, schemes: tuple[str, ...], what: str) -> str:
    address = value.strip()
    if not any(address.startswith(scheme) and len(address) > len(scheme) for scheme in schemes):
        raise ValueError(f"must be {what} and begin with {' or '.join(schemes)}")
    return address
