"""A key store of any kind that Cassandra's JKSKeyProvider can get secret keys from: its bytes in, keys out. Pure.

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
    """Secret keys by alias. The first bytes show the kind, because `store_type` may say JKS although Java reads both.

    Raises KeyStoreError when the store cannot be read or the password is wrong.
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
        """Bytes of the key. Aliases are compared without regard to case, as Java does for both kinds."""
        decryptor = self._decryptors.get(alias.lower())
        if decryptor is None:
            raise KeyStoreError(f"the key store holds no secret key {alias!r}")
        return decryptor(password)
