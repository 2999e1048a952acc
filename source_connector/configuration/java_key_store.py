"""Java key stores, as far as TLS needs them: trusted certificates, and one private key with its certificates. Pure.

PKCS12, Java's own default since version 9, is read by `cryptography`. JKS, the older one, is:

    Magic (0xFEEDFEED) Version (2) Count, then Count times: Tag (1 key, 2 certificate) Alias Date, and
      of a key           Size EncryptedPrivateKeyInfo Chain(Int32) and that many certificates
      of a certificate   the certificate
    certificate => Type (Text) Size Bytes;  Text => UInt16 and that many bytes of UTF-8;  numbers are big-endian
    at the end SHA-1 over the password in UTF-16, "Mighty Aphrodite", and everything before

A key is XORed with a chain of SHA-1 hashes of password and salt (sun.security.provider.KeyProtector).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

from schemas.errors import CdcError

__all__ = ["JavaKeyStore", "KeyStoreError", "read_key_store"]

_MAGIC: Final = b"\xfe\xed\xfe\xed"
_SALT: Final = b"Mighty Aphrodite"
_DIGEST: Final = 20
_DATE: Final = 8


class KeyStoreError(CdcError):
    """The bytes are no key store that can be read, or the password is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaKeyStore:
    """What is in it, as PEM texts. `private_key` is empty where there is none; `chain` starts with its certificate."""

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
    content, digest = data[:-_DIGEST], data[-_DIGEST:]
    wide = password.encode("utf-16-be")
    if not hmac.compare_digest(hashlib.sha1(wide + _SALT + content).digest(), digest):  # noqa: S324  # the format's own
        raise KeyStoreError("the JKS key store is damaged, or its password is another one")
    try:
        return _jks_entries(_Reader(content), wide)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise KeyStoreError(f"the JKS key store cannot be read ({error})") from error


def _jks_entries(reader: _Reader, password: bytes) -> JavaKeyStore:
    _magic, version, count = reader.number(), reader.number(), reader.number()
    if version != 2:
        raise KeyStoreError(f"JKS version {version} is not known")
    trusted: list[str] = []
    private_key = ""
    chain: tuple[str, ...] = ()
    for _ in range(count):
        tag = reader.number()
        reader.text()
        reader.take(_DATE)
        if tag == 1:
            private_key = _pem("PRIVATE KEY", _decrypted(reader.take(reader.number()), password))
            chain = tuple(reader.certificate() for _ in range(reader.number()))
        elif tag == 2:
            trusted.append(reader.certificate())
        else:
            raise KeyStoreError(f"JKS entry of type {tag} is not known")
    return JavaKeyStore(trusted=tuple(trusted), private_key=private_key, chain=chain)


def _decrypted(info: bytes, password: bytes) -> bytes:
    """EncryptedPrivateKeyInfo => SEQUENCE { SEQUENCE { algorithm }, OCTET STRING { salt, key, check } }."""
    body, _ = _der(info, 0)
    _, after_algorithm = _der(body, 0)
    sealed, _ = _der(body, after_algorithm)
    hashed, secret, check = sealed[:_DIGEST], sealed[_DIGEST:-_DIGEST], sealed[-_DIGEST:]
    plain = bytearray()
    for at in range(0, len(secret), _DIGEST):
        hashed = hashlib.sha1(password + hashed).digest()  # noqa: S324  # the format's own
        plain += bytes(left ^ right for left, right in zip(secret[at : at + _DIGEST], hashed, strict=False))
    if not hmac.compare_digest(hashlib.sha1(password + plain).digest(), check):  # noqa: S324  # the format's own
        raise KeyStoreError("the key's password is not that of the JKS key store")
    return bytes(plain)


def _der(data: bytes, at: int) -> tuple[bytes, int]:
    """The content of the DER element at a place, and the place behind it."""
    size, at = data[at + 1], at + 2
    if size & 0x80:
        width = size & 0x7F
        size, at = int.from_bytes(data[at : at + width], "big"), at + width
    if at + size > len(data):
        raise IndexError(f"a DER element of {size} bytes")
    return data[at : at + size], at + size


class _Reader:
    """A cursor over the bytes; raises IndexError behind their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise IndexError(f"{size} bytes at {self._at}")
        taken, self._at = self._data[self._at : end], end
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def text(self) -> str:
        return self.take(int.from_bytes(self.take(2), "big")).decode()

    def certificate(self) -> str:
        self.text()
        return _pem("CERTIFICATE", self.take(self.number()))


def _pem(label: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
