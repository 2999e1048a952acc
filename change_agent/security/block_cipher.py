"""Decryption of whole messages with a block cipher in CBC mode and the padding of PKCS #7 (Java: PKCS5Padding). Pure.

Only encrypted logs and key stores need `cryptography`, which takes 7 MiB: the functions import it when they are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherAlgorithm

__all__ = ["aes", "decrypt_cbc"]


def aes(key: bytes) -> CipherAlgorithm:
    """AES with a key of 16, 24 or 32 bytes. Raises ValueError for another length."""
    from cryptography.hazmat.primitives.ciphers.algorithms import AES

    return AES(key)


def decrypt_cbc(algorithm: CipherAlgorithm, iv: bytes, encrypted: bytes) -> bytes | None:
    """The plain bytes; None if the length, or the padding after the plain bytes, is wrong."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.modes import CBC

    block = len(iv)
    if not encrypted or len(encrypted) % block:
        return None
    decryptor = Cipher(algorithm, CBC(iv)).decryptor()
    padded = decryptor.update(encrypted) + decryptor.finalize()
    length = padded[-1]
    if not 1 <= length <= block or padded[-length:] != bytes([length]) * length:
        return None
    return padded[:-length]
