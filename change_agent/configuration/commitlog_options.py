"""The settings of `cassandra.yaml` for reading commit logs: keys of encrypted segments, and the size of segments.

    transparent_data_encryption_options:
      enabled: true
      key_provider:
        - class_name: org.apache.cassandra.security.JKSKeyProvider
          parameters:
            - keystore: conf/.keystore
              keystore_password: ...
              store_type: JCEKS
              key_password: ...
    commitlog_segment_size: 32MiB            # before 4.1: commitlog_segment_size_in_mb: 32

The file may be `cassandra.yaml` itself, or have only these options, in YAML or JSON. All other options are ignored. A
segment's compressor, its cipher and the alias of its key are in the segment's header.

Cassandra source: o.a.c.config.TransparentDataEncryptionOptions, o.a.c.security.EncryptionContext.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError

from change_agent.commitlog.section_decoder import DEFAULT_MAX_SEGMENT_SIZE, SegmentOptions
from change_agent.configuration.cassandra_yaml import YAML_ERRORS
from change_agent.errors import KeyStoreError
from change_agent.security.key_provider import KeyStoreKeyProvider
from schemas.errors import ConfigError, ConfigProblem

__all__ = ["load_segment_options"]

_ENCRYPTION: Final = "transparent_data_encryption_options"
_PROVIDER: Final = "JKSKeyProvider"
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _only_one(value: object) -> object:
    """The only item of a list: Cassandra writes a class as a list of one."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _as_text(value: object) -> object:
    """The text of a number: YAML reads a password of digits as a number."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _as_bytes(value: object) -> object:
    match = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)", value) if isinstance(value, str) else None
    return int(match[1]) * _UNITS[match[2]] if match else value


_Secret = Annotated[SecretStr, BeforeValidator(_as_text)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


class _Parameters(_Part):
    keystore: Path
    keystore_password: _Secret
    key_password: _Secret | None = None


class _KeyProvider(_Part):
    class_name: str
    parameters: Annotated[_Parameters, BeforeValidator(_only_one)]


class _Encryption(_Part):
    enabled: bool = False
    key_provider: Annotated[_KeyProvider, BeforeValidator(_only_one)] | None = None


class _Options(_Part):
    transparent_data_encryption_options: _Encryption | None = None
    commitlog_segment_size: Annotated[int, BeforeValidator(_as_bytes)] | None = Field(default=None, gt=0)
    commitlog_segment_size_in_mb: int | None = Field(default=None, gt=0)


def load_segment_options(path: Path, option: str) -> SegmentOptions:
    """Read the file that the option `option` names. Raises ConfigError with all problems.

    A relative path of the key store is resolved in the file's folder, then in its parent folder (`conf/.keystore` for a
    `conf/cassandra.yaml`). With `enabled: false` older segments may still be encrypted. So the keys are used then, but
    the key store may be missing.
    """
    try:
        options = _Options.model_validate(_read(path, option))
    except ValidationError as error:
        # No cause: pydantic's error has its input, which contains passwords.
        raise ConfigError([_problem(option, path, each["loc"], each["msg"]) for each in error.errors()]) from None
    mebibytes = options.commitlog_segment_size_in_mb
    size = options.commitlog_segment_size or (mebibytes << 20 if mebibytes else 0)
    keys = None
    if options.transparent_data_encryption_options is not None:
        keys = _keys(options.transparent_data_encryption_options, path, option)
    # Segments that were written before the setting changed are read, too.
    return SegmentOptions(keys=keys, max_segment_size=max(size, DEFAULT_MAX_SEGMENT_SIZE))


def _read(path: Path, option: str) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        # JSON first: it may be indented with tabs, which YAML refuses.
        loaded = json.loads(text) if text.lstrip().startswith("{") else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError.of(option, f"{path} cannot be read ({error.strerror})") from error
    except YAML_ERRORS:
        # No cause: the parsers quote the text, which contains passwords.
        raise ConfigError.of(option, f"{path} is neither YAML nor JSON") from None
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ConfigError.of(option, f"{path} must hold options of cassandra.yaml, such as {_ENCRYPTION}")
    return loaded


def _problem(option: str, path: Path, location: tuple[int | str, ...], message: str) -> ConfigProblem:
    where = ".".join(map(str, location))
    return ConfigProblem(option=option, reason=f"{path}: {where}: {message[0].lower() + message[1:]}")


def _keys(encryption: _Encryption, path: Path, option: str) -> KeyStoreKeyProvider | None:
    provider = encryption.key_provider
    if provider is None:
        if encryption.enabled:
            raise ConfigError.of(option, f"{path}: {_ENCRYPTION}.key_provider is missing; set it as the node has it")
        return None
    if provider.class_name.rpartition(".")[2] != _PROVIDER:
        if encryption.enabled:
            raise ConfigError.of(
                option, f"{path}: key provider {provider.class_name} is not supported ({_PROVIDER} is)"
            )
        return None
    parameters = provider.parameters
    keys = KeyStoreKeyProvider(_found(parameters.keystore, path), parameters.keystore_password, parameters.key_password)
    if encryption.enabled:
        try:
            keys.check()
        except KeyStoreError as error:
            raise ConfigError.of(option, f"{_ENCRYPTION}: {error.reason}") from None
    return keys


def _found(keystore: Path, options_file: Path) -> Path:
    folder = options_file.absolute().parent
    beside, above = folder / keystore, folder.parent / keystore
    try:
        return above if above.exists() and not beside.exists() else beside
    except OSError:  # a name that is too long: opening the file reports it
        return beside
