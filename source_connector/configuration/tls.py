"""TLS to Cassandra by the options `ssl.*`: PEM files or Java key stores, as a path or as content."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError, ConfigProblem
from source_connector.configuration.config import SourceConfig
from source_connector.configuration.java_key_store import KeyStoreError, read_key_store
from source_connector.configuration.private_files import as_file

__all__ = ["tls_context"]

_PEM_MARK: Final = b"-----BEGIN"


def tls_context(config: SourceConfig) -> ssl.SSLContext | None:
    """The context for the driver; None without `ssl.provider`. Raises ConfigError with every option that is wrong."""
    if config.ssl_provider == "None":
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    steps: tuple[tuple[str, Callable[[SourceConfig, ssl.SSLContext], None]], ...] = (
        ("ssl.truststore.path", _use_trust_store),
        ("ssl.cipherSuites", _use_ciphers),
        ("ssl.openssl.keyCertChain", _use_chain),
        ("ssl.keystore.path", _use_key_store),
    )
    problems = []
    for option, step in steps:
        try:
            step(config, context)
        except (ssl.SSLError, OSError, KeyStoreError) as error:
            what = "no suite of these is known" if option == "ssl.cipherSuites" else "it must be PEM, PKCS12 or JKS"
            problems.append(ConfigProblem(option=option, reason=f"cannot be used ({error}); {what}"))
    if problems:
        raise ConfigError(problems)
    return context


def _use_trust_store(config: SourceConfig, context: ssl.SSLContext) -> None:
    context.check_hostname = config.ssl_hostname_validation
    trusted = _trusted(config)
    if trusted is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(cadata=trusted)


def _use_ciphers(config: SourceConfig, context: ssl.SSLContext) -> None:
    if config.ssl_ciphers:
        context.set_ciphers(":".join(openssl_ciphers(config.ssl_ciphers)))


def _use_chain(config: SourceConfig, context: ssl.SSLContext) -> None:
    if config.ssl_certificate_chain:
        with as_file(config.ssl_certificate_chain) as chain, as_file(config.ssl_private_key) as key:
            context.load_cert_chain(chain, key)


def _trusted(config: SourceConfig) -> str | None:
    """PEM text of the certificate authorities; None for those of the system."""
    if not config.ssl_trust_store:
        return None
    with as_file(config.ssl_trust_store) as path:
        data = Path(path).read_bytes()
    if _PEM_MARK in data:
        return data.decode()
    store = read_key_store(data, config.ssl_trust_store_password.get_secret_value())
    if not store.trusted:
        raise KeyStoreError("it holds no trusted certificate")
    return "".join(store.trusted)


def _use_key_store(config: SourceConfig, context: ssl.SSLContext) -> None:
    if not config.ssl_key_store:
        return
    with as_file(config.ssl_key_store) as path:
        data = Path(path).read_bytes()
    store = read_key_store(data, config.ssl_key_store_password.get_secret_value())
    if not store.private_key:
        raise KeyStoreError("it holds no private key")
    with as_file(_content(store.private_key, *store.chain)) as both:
        context.load_cert_chain(both)


def _content(*pems: str) -> str:
    return "base64:" + base64.b64encode("".join(pems).encode()).decode()


def openssl_ciphers(names: Iterable[str]) -> Iterator[str]:
    """OpenSSL's names of cipher suites, from OpenSSL's or Java's (`TLS_RSA_WITH_AES_128_CBC_SHA` is `AES128-SHA`).

    The suites of TLS 1.3 are left out, because OpenSSL always offers all of them.
    """
    for name in names:
        exchange, found, cipher = name.removeprefix("TLS_").partition("_WITH_")
        if not found:
            if not name.startswith("TLS_"):
                yield name
            continue
        cipher = re.sub(r"AES_(128|256)", r"AES\1", cipher).replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
        parts = [] if exchange == "RSA" else [exchange]
        yield "-".join([*parts, cipher]).replace("_", "-")
