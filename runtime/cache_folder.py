"""The folder for files that a user's processes keep for later ones: the servers' files, Spark's home."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """``CDC_CACHE_DIR``, else the user's cache folder of the platform."""
    own = os.environ.get("CDC_CACHE_DIR")
    return Path(own).expanduser().absolute() if own else platformdirs.user_cache_path("cassandra-cdc")
