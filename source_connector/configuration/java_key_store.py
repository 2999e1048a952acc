"""Java key stores, as far as TLS needs them: trusted certificates, and one private key with its certificates. Pure.

PKCS12, Java's default since version 9, is read by `cryptography`. JKS, the older format, is read by
`clients.java_key_store`. There a private key is XORed with a chain of SHA-1 hashes of password and salt
(sun.security.provider.KeyProtector).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from clients.java_key_store import PRIVATE_KEY, SECRET_KEY, KeyStoreReader
from schemas.errors import CdcError

__all__ = ["JavaKeyStore", "KeyStoreError", "read_key_store"]

_MAGIC: Final = b"\xfe\xed\xfe\xed"
_DIGEST: Final = 20


class KeyStoreError(CdcError):
    """The bytes are no key store that can be read, or the password is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaKeyStore:
    """The content as PEM texts. `private_key` is empty if there is none. `chain` starts with the key's certificate."""

    trusted: tuple[str, ...] = ()
    private_key: str = field(default="", repr=False)
    chain: tuple[str, ...] = ()


def read_key_store(data: bytes, password: str) -> JavaKeyStore:
    """Read a JKS or PKCS12 key store. Raises KeyStoreError."""
    return _read_jks(data, password) if data[:4] == _MAGIC else _read_pkcs12(data, password)


def _read_pkcs12(data: bytes, password: str) -> JavaKeyStore:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        store = load_pkcs12(data, password.encode() or None)
    except (ValueError, TypeError) as error:
        raise KeyStoreError(f"neither JKS nor PKCS12 with this password ({error})") from error
    others = [each.certificate.public_bytes(Encoding.PEM).decode() for each in store.additional_certs]
    if store.key is None or store.cert is None:
        return JavaKeyStore(trusted=tuple(others))
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    own = store.cert.certificate.public_bytes(Encoding.PEM).decode()
    return JavaKeyStore(private_key=key, chain=(own, *others))


def _read_jks(data: bytes, password: str) -> JavaKeyStore:
    reader = KeyStoreReader(data, password, KeyStoreError)
    trusted: list[str] = []
    private_key = ""
    chain: tuple[str, ...] = ()
    for tag, _ in reader.entries():
        if tag == SECRET_KEY:
            raise KeyStoreError("a JKS key store with a secret key")
        if tag == PRIVATE_KEY:
            encrypted, certificates = reader.private_key()
            private_key = _pem("PRIVATE KEY", _decrypted(encrypted, password.encode("utf-16-be")))
            chain = tuple(_pem("CERTIFICATE", each) for each in certificates)
        else:
            trusted.append(_pem("CERTIFICATE", reader.certificate()))
    return JavaKeyStore(trusted=tuple(trusted), private_key=private_key, chain=chain)


def _decrypted(info: bytes, password: bytes) -> bytes:
    """EncryptedPrivateKeyInfo => SEQUENCE { SEQUENCE { algorithm }, OCTET STRING { salt, key, check } }."""
    try:
        body, _ = _der(info, 0)
        _, after_algorithm = _der(body, 0)
        sealed, _ = _der(body, after_algorithm)
    except IndexError as error:
        raise KeyStoreError(f"the JKS key store cannot be read ({error})") from error
    hashed, secret, check = sealed[:_DIGEST], sealed[_DIGEST:-_DIGEST], sealed[-_DIGEST:]
    plain = bytearray()
    for at in range(0, len(secret), _DIGEST):
        hashed = hashlib.sha1(password + hashed).digest()  # noqa: S324  # the format's own
        plain += bytes(left ^ right for left, right in zip(secret[at : at + _DIGEST], hashed, strict=False))
    if not hmac.compare_digest(hashlib.sha1(password + plain).digest(), check):  # noqa: S324  # the format's own
        raise KeyStoreError("the key's password is not that of the JKS key store")
    return bytes(plain)


def _der(data: bytes, at: int) -> tuple[bytes, int]:
    """The content of the DER element at a position, and the position after it."""
    size, at = data[at + 1], at + 2
    if size & 0x80:
        width = size & 0x7F
        size, at = int.from_bytes(data[at : at + width], "big"), at + width
    if at + size > len(data):
        raise IndexError(f"a DER element of {size} bytes")
    return data[at : at + size], at + size


def _pem(label: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
