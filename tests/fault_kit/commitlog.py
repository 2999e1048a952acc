"""How the nodes of a run write their commit log: plain, compressed or encrypted.

It is always synced by batch. A compressed or encrypted section reaches its file only when it is synced. With periodic
syncs, kill -9 of a node would lose writes that Cassandra had acknowledged, and no agent could know of them.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from cdc.sandbox.options import Json
from cdc.sandbox.prerequisites import java_home
from tests.fault_kit.errors import FaultRunError

__all__ = ["CommitLogEncoding", "commitlog_settings"]

_KEY_ALIAS: Final = "faults:1"
_SYNCED_BY_BATCH: Final[Mapping[str, Json]] = {"commitlog_sync": "batch", "commitlog_sync_period_in_ms": None}


class CommitLogEncoding(Enum):
    """The value of `--commitlog`."""

    PLAIN = "plain"
    LZ4 = "lz4"
    SNAPPY = "snappy"
    DEFLATE = "deflate"
    ZSTD = "zstd"
    """Since Cassandra 4.0."""
    ENCRYPTED = "encrypted"


_COMPRESSORS: Final = {
    CommitLogEncoding.LZ4: "LZ4Compressor",
    CommitLogEncoding.SNAPPY: "SnappyCompressor",
    CommitLogEncoding.DEFLATE: "DeflateCompressor",
    CommitLogEncoding.ZSTD: "ZstdCompressor",
}


def commitlog_settings(encoding: CommitLogEncoding, folder: Path) -> dict[str, Json]:
    """Return settings of `cassandra.yaml`, and make the key store of encrypted segments in the folder. Raises
    FaultRunError."""
    settings: dict[str, Json] = dict(_SYNCED_BY_BATCH)
    if encoding in _COMPRESSORS:
        settings["commitlog_compression"] = [{"class_name": _COMPRESSORS[encoding]}]
    elif encoding is CommitLogEncoding.ENCRYPTED:
        settings["transparent_data_encryption_options"] = _encryption(folder / "commitlog.jceks")
    return settings


def _encryption(key_store: Path) -> Json:
    password = secrets.token_hex(8)
    _make_key(key_store, password)
    parameters: dict[str, Json] = {
        "keystore": str(key_store),
        "keystore_password": password,
        "store_type": "JCEKS",
        "key_password": password,
    }
    return {
        "enabled": True,
        "chunk_length_kb": 64,
        "cipher": "AES/CBC/PKCS5Padding",
        "key_alias": _KEY_ALIAS,
        "key_provider": [{"class_name": "org.apache.cassandra.security.JKSKeyProvider", "parameters": [parameters]}],
    }


def _make_key(key_store: Path, password: str) -> None:
    key_store.parent.mkdir(parents=True, exist_ok=True)
    keytool = str(java_home() / "bin" / "keytool")
    key = ["-alias", _KEY_ALIAS, "-keyalg", "AES", "-keysize", "128"]
    store = ["-storetype", "JCEKS", "-keystore", str(key_store)]
    passwords = ["-storepass:env", "STORE_PASSWORD", "-keypass:env", "STORE_PASSWORD"]
    command = [keytool, "-genseckey", *key, *store, *passwords]
    environment = {**os.environ, "STORE_PASSWORD": password}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FaultRunError(
            f"keytool could not make {key_store}: {' '.join((done.stdout + done.stderr).split())[:500]}"
        )
    key_store.chmod(0o600)
