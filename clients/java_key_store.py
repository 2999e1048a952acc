"""The common format of Java's key stores JKS and JCEKS: their digest, and the frame of their entries. Pure.

    KeyStore => Magic Version(2) Count {Entry} Digest
      Entry  => Tag Alias(Text) Date(8 bytes) Content
        Tag 1 => a private key: PrivateKey
        Tag 2 => a certificate: Certificate
        Tag 3 => a secret key, in JCEKS only
      PrivateKey  => Length Bytes Count {Certificate}
      Certificate => Type(Text) Length Bytes
      Text        => UInt16 and that many bytes of UTF-8
      Digest      => SHA-1 over the password in UTF-16, "Mighty Aphrodite", and all bytes before the digest

Numbers are Int32, big-endian. Source: sun.security.provider.JavaKeyStore, com.sun.crypto.provider.JceKeyStore.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["PRIVATE_KEY", "SECRET_KEY", "TRUSTED_CERTIFICATE", "KeyStoreReader"]

PRIVATE_KEY: Final = 1
TRUSTED_CERTIFICATE: Final = 2
SECRET_KEY: Final = 3

_WHITENER: Final = b"Mighty Aphrodite"
_DIGEST_SIZE: Final = 20
_MAGIC_SIZE: Final = 4
_DATE_SIZE: Final = 8
_VERSION: Final = 2


class KeyStoreReader:
    """A cursor over the entries. `failed` makes the error for a wrong password and for malformed bytes."""

    def __init__(self, content: bytes, password: str, failed: Callable[[str], Exception]) -> None:
        self.body: Final = content[:-_DIGEST_SIZE]
        self.position = _MAGIC_SIZE
        """Position in `body`.

        A caller that reads an entry's content itself moves the position to the end of the content.
        """
        self._failed: Final = failed
        # The format requires SHA-1. The digest shows a wrong password or damage; it does not protect against changes.
        expected = hashlib.sha1(password.encode("utf-16-be") + _WHITENER + self.body, usedforsecurity=False).digest()
        if not hmac.compare_digest(content[-_DIGEST_SIZE:], expected):
            raise failed("the password is wrong, or the file is damaged")

    def entries(self) -> Iterator[tuple[int, str]]:
        """Tag and alias of each entry. The caller must read the entry's content before the next entry."""
        if self._number() != _VERSION:
            raise self._failed("a key store of an unknown version")
        for _ in range(self._number()):
            tag, alias = self._number(), self._text()
            self._take(_DATE_SIZE)
            if tag not in (PRIVATE_KEY, TRUSTED_CERTIFICATE, SECRET_KEY):
                raise self._failed("a key store with an entry of an unknown kind")
            yield tag, alias

    def private_key(self) -> tuple[bytes, list[bytes]]:
        """The encrypted key, and its certificates in DER."""
        key = self._take(self._number())
        return key, [self.certificate() for _ in range(self._number())]

    def certificate(self) -> bytes:
        """A certificate in DER."""
        self._text()
        return self._take(self._number())

    def _take(self, size: int) -> bytes:
        taken = self.body[self.position : self.position + size]
        if size < 0 or len(taken) < size:
            raise self._failed("the key store ends too early")
        self.position += size
        return taken

    def _number(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def _text(self) -> str:
        text = self._take(int.from_bytes(self._take(2), "big"))
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self._failed("a key store with an alias that is no text") from None
