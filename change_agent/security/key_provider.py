"""KeyStoreKeyProvider: the keys of a key store file.

Cassandra source: o.a.c.security.JKSKeyProvider.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import SecretStr

from change_agent.errors import KeyStoreError

if TYPE_CHECKING:
    # Its libraries take 10 MiB, and most nodes have no key store.
    from change_agent.security.key_store import KeyStore
__all__ = ["KeyStoreKeyProvider"]


class KeyStoreKeyProvider:
    """Reads the file for the first key, and again for each key that is not known yet: it may have been added meanwhile.

    Without `key_password`, keys have the password of the store, as in Cassandra.
    """

    def __init__(self, path: Path, store_password: SecretStr, key_password: SecretStr | None) -> None:
        self._path: Final = path
        self._store_password: Final = store_password
        self._key_password: Final = key_password or store_password
        self._keys: Final[dict[str, bytes]] = {}

    def secret_key(self, alias: str) -> bytes:
        """The bytes of a key. Raises KeyStoreError with the file's path."""
        if alias not in self._keys:
            try:
                store = self._store()
                self._keys[alias] = store.secret_key(alias, self._key_password.get_secret_value())
            except KeyStoreError as error:
                # The causes are not chained: their texts could contain bytes of the store.
                raise KeyStoreError(f"{self._path}: {error.reason}") from None
        return self._keys[alias]

    def check(self) -> None:
        """Raise KeyStoreError if the file cannot be read or its password is wrong."""
        try:
            self._store()
        except KeyStoreError as error:
            raise KeyStoreError(f"{self._path}: {error.reason}") from None

    def _store(self) -> KeyStore:
        from change_agent.security.key_store import KeyStore

        return KeyStore(self._content(), self._store_password.get_secret_value())

    def _content(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise KeyStoreError(f"the key store cannot be read ({error.strerror})") from error
