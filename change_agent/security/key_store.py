"""Reads secret keys from the bytes of every kind of key store that Cassandra's JKSKeyProvider gets them from. Pure.

Cassandra source: o.a.c.security.JKSKeyProvider.getSecretKey.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from change_agent.errors import KeyStoreError
from change_agent.security.jceks import JCEKS_MAGIC, read_jceks, unseal
from change_agent.security.pkcs12 import decrypt_secret, read_pkcs12

__all__ = ["KeyStore"]

_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_DER_SEQUENCE: Final = b"\x30"


class KeyStore:
    """The secret keys by alias. Raises KeyStoreError if the store cannot be read or the password is wrong.

    The first bytes decide about the kind of the store, not `store_type`: that may be JKS, because Java then reads both
    kinds.
    """

    def __init__(self, content: bytes, password: str) -> None:
        self._decryptors: Mapping[str, Callable[[str], bytes]]
        if content.startswith(JCEKS_MAGIC):
            self._decryptors = {alias: partial(unseal, key) for alias, key in read_jceks(content, password).items()}
        elif content.startswith(_DER_SEQUENCE):
            keys = read_pkcs12(content, password)
            self._decryptors = {alias: partial(decrypt_secret, key) for alias, key in keys.items()}
        elif content.startswith(_JKS_MAGIC):
            raise KeyStoreError("a JKS key store cannot hold secret keys; use JCEKS or PKCS12")
        else:
            raise KeyStoreError("the file is neither a JCEKS nor a PKCS12 key store")

    def secret_key(self, alias: str, password: str) -> bytes:
        """The bytes of a key. Raises KeyStoreError. As in Java, upper and lower case of the alias do not matter."""
        decryptor = self._decryptors.get(alias.lower())
        if decryptor is None:
            raise KeyStoreError(f"the key store holds no secret key {alias!r}")
        return decryptor(password)
