"""JCEKS key stores: the secret keys.

    KeyStore => Magic(0xCECECECE) Version(2) Count {Entry} Digest
      Entry  => Tag(Int32) Alias(UTF) Date(Int64) Content
        Tag 1 => a private key: Length Bytes, Count of certificates {Type(UTF) Length Bytes}
        Tag 2 => a certificate: Type(UTF) Length Bytes
        Tag 3 => a secret key: a serialized javax.crypto.SealedObject
      Digest => SHA-1 over password in UTF-16, "Mighty Aphrodite", all bytes before

A sealed key is encrypted by PBEWithMD5AndTripleDES, an algorithm of Sun's own, and serialized inside.
Source: com.sun.crypto.provider.JceKeyStore, KeyProtector, PBES1Core. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from typing import Final

from asn1crypto.algos import Pbes1Params
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES

from change_agent.errors import KeyStoreError
from change_agent.security.block_cipher import decrypt_cbc
from change_agent.security.java_objects import JavaObject, read_java_object

__all__ = ["JCEKS_MAGIC", "read_jceks", "unseal"]

JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_WHITENER: Final = b"Mighty Aphrodite"
_DIGEST_SIZE: Final = 20
_SEALING: Final = "PBEWithMD5AndTripleDES"
# As the JDK bounds it.
_MAX_ITERATIONS: Final = 5_000_000


def read_jceks(content: bytes, password: str) -> dict[str, JavaObject]:
    """The sealed secret keys by alias (lower case, as Java stores it). Raises KeyStoreError, also for a wrong password."""
    body, digest = content[:-_DIGEST_SIZE], content[-_DIGEST_SIZE:]
    # SHA-1 is the format's; it tells a wrong password and bit rot, and protects nothing.
    expected = hashlib.sha1(password.encode("utf-16-be") + _WHITENER + body, usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, expected):
        raise KeyStoreError("the password is wrong, or the file is damaged")
    return _Entries(body).read()


class _Entries:
    def __init__(self, body: bytes) -> None:
        self._body = body
        self._position = len(JCEKS_MAGIC)

    def read(self) -> dict[str, JavaObject]:
        if self._int() != 2:
            raise KeyStoreError("a JCEKS key store of an unknown version")
        keys = {}
        for _ in range(self._int()):
            tag, alias, _ = self._int(), self._text(), self._take(8)
            match tag:
                case 1:
                    self._take(self._int())
                    for _ in range(self._int()):
                        self._skip_certificate()
                case 2:
                    self._skip_certificate()
                case 3:
                    keys[alias.lower()], self._position = read_java_object(self._body, self._position)
                case _:
                    raise KeyStoreError("a JCEKS key store with an entry of an unknown kind")
        return keys

    def _skip_certificate(self) -> None:
        self._text()
        self._take(self._int())

    def _take(self, length: int) -> bytes:
        taken = self._body[self._position : self._position + length]
        if length < 0 or len(taken) < length:
            raise KeyStoreError("the key store ends too early")
        self._position += length
        return taken

    def _int(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def _text(self) -> str:
        text = self._take(int.from_bytes(self._take(2), "big"))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise KeyStoreError("a JCEKS key store with an alias that is no text") from error


def unseal(sealed: JavaObject, password: str) -> bytes:
    """The bytes of a key. Raises KeyStoreError, also for a wrong password."""
    content, parameters = sealed.fields.get("encryptedContent"), sealed.fields.get("encodedParams")
    if sealed.fields.get("sealAlg") != _SEALING or not isinstance(content, bytes) or not isinstance(parameters, bytes):
        raise KeyStoreError(f"a key is not sealed by {_SEALING}")
    try:
        derived = Pbes1Params.load(parameters, strict=True)
        salt, iterations = bytes(derived["salt"].native), int(derived["iterations"].native)
    except (ValueError, TypeError) as error:
        raise KeyStoreError("a key is sealed with parameters that cannot be read") from error
    if len(salt) != 8 or not 0 < iterations <= _MAX_ITERATIONS:
        raise KeyStoreError("a key is sealed with parameters that cannot be true")
    if not password.isascii():
        # Asked before, for a UnicodeEncodeError holds the whole password.
        raise KeyStoreError("the key's password is wrong: a JCEKS key has a password of ASCII characters")
    key_and_iv = _derive(password.encode("ascii"), salt, iterations)
    serialized = decrypt_cbc(TripleDES(key_and_iv[:24]), key_and_iv[24:], content)
    if serialized is None:
        raise KeyStoreError("the key's password is wrong")
    key, _ = read_java_object(serialized)
    # SecretKeySpec has `key`, a KeyRep has `encoded`.
    for name in ("key", "encoded"):
        found = key.fields.get(name)
        if isinstance(found, bytes):
            return found
    raise KeyStoreError("a secret key of an unknown class")


def _derive(password: bytes, salt: bytes, iterations: int) -> bytes:
    """Key and initialization vector, 32 bytes."""
    if salt[:4] == salt[4:]:
        # Meant to reverse the first half, it does this (PBES1Core.deriveCipherKey), and so do we.
        salt = struct.pack("4B", salt[3], salt[0], salt[1], salt[3]) + salt[4:]
    derived = b""
    for digest in (salt[:4], salt[4:]):
        for _ in range(iterations):
            digest = hashlib.md5(digest + password, usedforsecurity=False).digest()  # noqa: PLW2901
        derived += digest
    return derived
