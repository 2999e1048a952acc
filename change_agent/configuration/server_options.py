"""Options for the connections to Cassandra and Pulsar, which agent.yaml and line.yaml share."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator
from pydantic.alias_generators import to_camel

from change_agent.configuration.option_types import AdminUrl, Names, PemFile, ServiceUrl
from schemas.errors import ConfigProblem

__all__ = ["CassandraOptions", "PulsarOptions", "read_secrets"]

_OPTIONS = ConfigDict(
    frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=False, hide_input_in_errors=True
)


class CassandraOptions(BaseModel):
    """Options of the connection to a node."""

    model_config = _OPTIONS

    contact_points: Annotated[Names, Field(min_length=1)] = ("127.0.0.1",)
    port: int = Field(default=9042, ge=1, le=65535)
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    cassandra_tls: bool = False
    cassandra_trust_certs_file_path: PemFile | None = None
    cassandra_certificate_file_path: PemFile | None = None
    cassandra_key_file_path: PemFile | None = None
    cassandra_hostname_verification: bool = True

    @field_validator("password")
    @classmethod
    def _password_needs_a_user(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and info.data.get("username") is None:
            raise ValueError("has no meaning without username; set that too")
        return value

    @field_validator("cassandra_trust_certs_file_path", "cassandra_certificate_file_path", "cassandra_key_file_path")
    @classmethod
    def _certificates_need_tls(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and not info.data.get("cassandra_tls"):
            raise ValueError("has no meaning without cassandraTls: true; set that too")
        return value


class PulsarOptions(BaseModel):
    """Options of the connections to the broker and its admin service."""

    model_config = _OPTIONS

    pulsar_service_url: ServiceUrl = "pulsar://localhost:6650"
    pulsar_admin_url: AdminUrl = "http://localhost:8080"
    pulsar_auth_plugin_class_name: str | None = None
    pulsar_auth_params: SecretStr | None = None
    pulsar_auth_params_file: Path | None = None
    tls_trust_certs_file_path: PemFile | None = None
    ssl_allow_insecure_connection: bool = False
    ssl_hostname_verification_enable: bool = True

    @field_validator("pulsar_auth_params")
    @classmethod
    def _params_need_a_plugin(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and info.data.get("pulsar_auth_plugin_class_name") is None:
            raise ValueError("has no meaning without pulsarAuthPluginClassName; set that too")
        return value


def read_secrets(model: type[BaseModel], given: MutableMapping[str, object]) -> list[ConfigProblem]:
    """Read the secrets that `given` has a file for, and set them in `given`. Return the problems with these files.

    A secret of `model` is a field of type `SecretStr`. The path of its file is in a field `<name>_file`.
    """
    problems = []
    for name, field in model.model_fields.items():
        option, file_option = str(field.alias), f"{field.alias}File"
        path = given.get(file_option)
        if SecretStr not in get_args(field.annotation) or not isinstance(path, str):
            continue
        assert f"{name}_file" in model.model_fields
        if given.get(option) is not None:
            reason = f"has no meaning beside {option}; set one of the two"
            problems.append(ConfigProblem(option=file_option, reason=reason))
            continue
        try:
            given[option] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = str(error.strerror) if isinstance(error, OSError) else "it is not UTF-8 text"
            problems.append(ConfigProblem(option=file_option, reason=f"{path} cannot be read ({reason})"))
    return problems
