"""Reads the secret keys of JCEKS key stores. `clients.java_key_store` reads the frame of these files.

A secret key is a serialized javax.crypto.SealedObject. Its content is the serialized key, encrypted with Sun's own
algorithm PBEWithMD5AndTripleDES. Source: com.sun.crypto.provider.JceKeyStore, KeyProtector, PBES1Core. Pure.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from asn1crypto.algos import Pbes1Params
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES

from change_agent.errors import KeyStoreError
from change_agent.security.block_cipher import decrypt_cbc
from change_agent.security.java_objects import JavaObject, read_java_object
from clients.java_key_store import PRIVATE_KEY, SECRET_KEY, KeyStoreReader

__all__ = ["JCEKS_MAGIC", "read_jceks", "unseal"]

JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_SEALING: Final = "PBEWithMD5AndTripleDES"
# The JDK has the same limit.
_MAX_ITERATIONS: Final = 5_000_000


def read_jceks(content: bytes, password: str) -> dict[str, JavaObject]:
    """The sealed secret keys by alias (lower case, as Java stores it). Raises KeyStoreError, also for a wrong password."""
    reader = KeyStoreReader(content, password, KeyStoreError)
    keys = {}
    for tag, alias in reader.entries():
        if tag == SECRET_KEY:
            keys[alias.lower()], reader.position = read_java_object(reader.body, reader.position)
        elif tag == PRIVATE_KEY:
            reader.private_key()
        else:
            reader.certificate()
    return keys


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
        # Checked first, because a UnicodeEncodeError has the whole password.
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
        # PBES1Core.deriveCipherKey was meant to reverse the first half here, but does this instead. So this must be the
        # same.
        salt = struct.pack("4B", salt[3], salt[0], salt[1], salt[3]) + salt[4:]
    derived = b""
    for digest in (salt[:4], salt[4:]):
        for _ in range(iterations):
            digest = hashlib.md5(digest + password, usedforsecurity=False).digest()  # noqa: PLW2901
        derived += digest
    return derived
