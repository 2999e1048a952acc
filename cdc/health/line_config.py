"""`line.yaml`: where the parts of one line are, for `cdc status`, `cdc doctor` and `cdc connector watch`.

Names and credentials are those of agent.yaml. All have a default; beside a running `cdc sandbox up` no file is needed.
"""

from __future__ import annotations

import difflib
import ssl
from pathlib import Path
from typing import Annotated, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic.alias_generators import to_camel

from change_agent.configuration.option_types import AdminUrl, Names, PemFile, ServiceUrl, TablePatterns, TopicPrefix
from schemas.errors import ConfigError, ConfigProblem
from schemas.topics import DEFAULT_EVENTS_PREFIX, DEFAULT_SUBSCRIPTION
from source_connector.events.pulsar_access import PulsarOptions

__all__ = ["LineConfig"]

_DEFAULT_DEAD_LETTERS: Final = "persistent://public/default/cdc-dead-letters"


class LineConfig(BaseModel):
    """Everything that can be set for a line. Built by :meth:`load`, or :meth:`from_mapping`."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=False, hide_input_in_errors=True
    )

    agents: Names = ()
    """Of each agent its working directory, its agent.yaml, or the URL of its HTTP endpoint."""

    contact_points: Names = ("127.0.0.1",)
    port: int = Field(default=9042, ge=1, le=65535)
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    cassandra_tls: bool = False
    cassandra_trust_certs_file_path: PemFile | None = None
    cassandra_certificate_file_path: PemFile | None = None
    cassandra_key_file_path: PemFile | None = None
    cassandra_hostname_verification: bool = True
    tables: TablePatterns = ()
    """Tables that are meant to be captured; without, those with `cdc = true`."""

    pulsar_service_url: ServiceUrl = "pulsar://localhost:6650"
    pulsar_admin_url: AdminUrl = "http://localhost:8080"
    pulsar_auth_plugin_class_name: str | None = None
    pulsar_auth_params: SecretStr | None = None
    pulsar_auth_params_file: Path | None = None
    tls_trust_certs_file_path: PemFile | None = None
    ssl_allow_insecure_connection: bool = False
    ssl_hostname_verification_enable: bool = True

    topic_prefix: TopicPrefix = DEFAULT_EVENTS_PREFIX
    events_subscription_name: Annotated[str, Field(min_length=1)] = DEFAULT_SUBSCRIPTION
    namespace: Annotated[str, Field(pattern=r"^[^/\s]+/[^/\s]+$")] = "public/default"
    """Tenant and namespace of the sources."""
    sources: Names = ()
    """Names of sources that must be there; all sources of ours that are there are looked at in any case."""
    dead_letters_topic: str = _DEFAULT_DEAD_LETTERS
    functions_log_dir: Path | None = None
    """Where the functions worker writes the logs of instances, if this machine has it."""

    mirrors: Names = ()
    """Folders of mirrors, as `cdc spark mirror --target` has them."""

    @property
    def cassandra_context(self) -> ssl.SSLContext | None:
        """How to connect by TLS; None without. Raises ConfigError."""
        if not self.cassandra_tls:
            return None
        certificate = self.cassandra_certificate_file_path
        try:
            trusted = self.cassandra_trust_certs_file_path
            context = ssl.create_default_context(cafile=None if trusted is None else str(trusted))
            context.check_hostname = self.cassandra_hostname_verification
            if certificate is not None:
                context.load_cert_chain(certificate, self.cassandra_key_file_path)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError.of("cassandraTrustCertsFilePath", f"the certificates cannot be used ({error})") from error
        return context

    @property
    def pulsar_options(self) -> PulsarOptions:
        """How clients of the broker are made."""
        params = self.pulsar_auth_params
        return PulsarOptions(
            service_url=self.pulsar_service_url,
            auth_plugin=self.pulsar_auth_plugin_class_name or "",
            auth_params="" if params is None else params.get_secret_value(),
            trusted_certificates=str(self.tls_trust_certs_file_path or ""),
            allow_insecure=self.ssl_allow_insecure_connection,
            hostname_validation=self.ssl_hostname_verification_enable,
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Of a file. Raises ConfigError with every problem."""
        try:
            loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError.of("--config", f"{path} cannot be read ({error})") from error
        except yaml.YAMLError as error:
            raise ConfigError.of("--config", f"{path} is not YAML ({' '.join(str(error).split())})") from error
        if not isinstance(loaded, dict | None):
            raise ConfigError.of("--config", f"{path} holds no options; write `name: value` lines")
        return cls.from_mapping({str(name): value for name, value in (loaded or {}).items()})

    @classmethod
    def from_mapping(cls, given: dict[str, object]) -> Self:
        """Of options by name. Raises ConfigError with every problem."""
        problems = [
            ConfigProblem(option=name, reason=_unknown(name)) for name in given if name not in _names(cls)
        ]  # fmt: skip
        known = {name: value for name, value in given.items() if name in _names(cls)}
        problems += _take_files(known)
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


def _take_files(given: dict[str, object]) -> list[ConfigProblem]:
    """Put secrets that stand in files of their own in their places."""
    problems = []
    for option in ("password", "pulsarAuthParams"):
        path = given.get(f"{option}File")
        if path is None:
            continue
        if option in given:
            problems.append(ConfigProblem(option=option, reason=f"is given, and {option}File, too; remove one"))
            continue
        try:
            given[option] = Path(str(path)).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            problems.append(ConfigProblem(option=f"{option}File", reason=f"cannot be read ({error})"))
    return problems
