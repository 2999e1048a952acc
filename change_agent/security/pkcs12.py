"""Reads the secret keys of PKCS #12 key stores, where Java stores them as SecretBags.

    PFX => AuthenticatedSafe MacData
      AuthenticatedSafe => {data: SafeContents | encryptedData: certificates, not read}
      SafeContents      => {SecretBag with friendlyName | other bags}
      SecretBag         => an EncryptedPrivateKeyInfo, whose private key is the secret key's bytes

Source: RFC 7292, sun.security.pkcs12.PKCS12KeyStore. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import ClassVar, Final

from asn1crypto.algos import EncryptionAlgorithm
from asn1crypto.core import Any as AnyValue
from asn1crypto.core import Integer, OctetString, Sequence
from asn1crypto.keys import EncryptedPrivateKeyInfo
from asn1crypto.pkcs12 import MacData, Pfx, SafeContents
from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import CipherAlgorithm
from cryptography.hazmat.primitives.ciphers.algorithms import AES

from change_agent.errors import KeyStoreError
from change_agent.security.block_cipher import decrypt_cbc

__all__ = ["decrypt_secret", "read_pkcs12"]

_PBKDF2, _PKCS12_KDF = "pbkdf2", "pkcs12_kdf"
# The purposes of a derived value in RFC 7292, appendix B.
_FOR_KEY, _FOR_IV, _FOR_MAC = 1, 2, 3
_MAC_BLOCK: Final = {"sha1": 64, "sha224": 64, "sha256": 64, "sha384": 128, "sha512": 128}
_MAX_ITERATIONS: Final = 5_000_000
_MALFORMED: Final = "the file is no PKCS #12 key store that can be read"


class _SecretKeyInfo(Sequence):  # type: ignore[misc]  # the library has no types
    """PKCS #8, with the OID of AES instead of RSA or EC; its attributes are not used."""

    _fields: ClassVar = [("version", Integer), ("algorithm", AnyValue), ("key", OctetString)]


def read_pkcs12(content: bytes, password: str) -> dict[str, bytes]:
    """The encrypted secret keys by alias (lower case, as Java stores it). Raises KeyStoreError, also for a wrong password."""
    try:
        pfx = Pfx.load(content, strict=True)
        if pfx["mac_data"].native is not None:
            _check_mac(pfx["mac_data"], pfx["auth_safe"]["content"].native, password)
        found = {}
        for part in pfx.authenticated_safe:
            if part["content_type"].native == "data":
                found.update(_secret_bags(SafeContents.load(part["content"].native, strict=True)))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise KeyStoreError(_MALFORMED) from error
    return found


def decrypt_secret(encrypted: bytes, password: str) -> bytes:
    """The bytes of a key. Raises KeyStoreError, also for a wrong password."""
    try:
        info = EncryptedPrivateKeyInfo.load(encrypted, strict=True)
        plain = _decrypt(info["encryption_algorithm"], bytes(info["encrypted_data"].native), password)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise KeyStoreError("a key is encrypted in a way that cannot be read") from error
    if plain is None:
        raise KeyStoreError("the key's password is wrong")
    try:
        return bytes(_SecretKeyInfo.load(plain, strict=True)["key"].native)
    except (ValueError, TypeError, KeyError):
        # No cause: its text may contain decrypted bytes.
        raise KeyStoreError("the key's password is wrong, or it is no secret key") from None


def _check_mac(mac_data: MacData, content: bytes, password: str) -> None:
    digest = str(mac_data["mac"]["digest_algorithm"]["algorithm"].native)
    salt, iterations = bytes(mac_data["mac_salt"].native), int(mac_data["iterations"].native)
    if digest not in _MAC_BLOCK:
        raise KeyStoreError(f"the key store is protected by {digest}, which is not supported")
    key = _derive(digest, password, salt, iterations, hashlib.new(digest).digest_size, _FOR_MAC)
    if not hmac.compare_digest(hmac.new(key, content, digest).digest(), bytes(mac_data["mac"]["digest"].native)):
        raise KeyStoreError("the password is wrong, or the file is damaged")


def _secret_bags(contents: SafeContents) -> dict[str, bytes]:
    found = {}
    for bag in contents:
        if bag["bag_id"].native != "secret_bag":
            continue
        names = [each["values"].native[0] for each in bag["bag_attributes"] if each["type"].native == "friendly_name"]
        for name in names:
            found[str(name).lower()] = bytes(bag["bag_value"]["secret_value"].native)
    return found


def _decrypt(algorithm: EncryptionAlgorithm, encrypted: bytes, password: str) -> bytes | None:
    cipher, mode = str(algorithm.encryption_cipher), str(algorithm.encryption_mode)
    salt, iterations, size = bytes(algorithm.kdf_salt), int(algorithm.kdf_iterations), int(algorithm.key_length)
    if mode != "cbc" or cipher not in {"aes", "tripledes"} or not 0 < iterations <= _MAX_ITERATIONS:
        raise KeyStoreError(f"a key is encrypted by {cipher} in mode {mode}, which is not supported")
    if algorithm.kdf == _PBKDF2:
        key = hashlib.pbkdf2_hmac(str(algorithm.kdf_hmac), password.encode(), salt, iterations, size)
        iv = bytes(algorithm.encryption_iv)
    elif algorithm.kdf == _PKCS12_KDF:
        digest = str(algorithm.kdf_hmac)
        key = _derive(digest, password, salt, iterations, size, _FOR_KEY)
        iv = _derive(digest, password, salt, iterations, int(algorithm.encryption_block_size), _FOR_IV)
    else:
        raise KeyStoreError(f"a key is derived by {algorithm.kdf}, which is not supported")
    block_cipher: CipherAlgorithm = AES(key) if cipher == "aes" else TripleDES(key)
    return decrypt_cbc(block_cipher, iv, encrypted)


def _derive(digest: str, password: str, salt: bytes, iterations: int, size: int, purpose: int) -> bytes:
    """Derive `size` bytes as in RFC 7292, appendix B.2."""
    if not 0 < iterations <= _MAX_ITERATIONS:
        raise KeyStoreError("the key store asks for an impossible number of iterations")
    block = _MAC_BLOCK[digest]
    text = (password + "\0").encode("utf-16-be")
    mixed = _repeated(salt, block) + _repeated(text, block)
    make_digest = getattr(hashlib, digest)
    derived = b""
    while len(derived) < size:
        part = bytes([purpose]) * block + mixed
        for _ in range(iterations):
            part = make_digest(part, usedforsecurity=False).digest()
        derived += part
        addend = int.from_bytes(_repeated(part, block)[:block], "big") + 1
        mixed = b"".join(
            ((int.from_bytes(mixed[at : at + block], "big") + addend) % (1 << (8 * block))).to_bytes(block, "big")
            for at in range(0, len(mixed), block)
        )
    return derived[:size]


def _repeated(value: bytes, block: int) -> bytes:
    """`value`, repeated to fill a whole number of blocks."""
    size = -(-len(value) // block) * block
    return (value * (size // len(value) + 1))[:size] if value else b""
