"""DataFormat: how records of the data topic are written."""

from __future__ import annotations

from enum import Enum

__all__ = ["DataFormat"]


class DataFormat(Enum):
    """The values of the option `outputFormat`."""

    KEY_VALUE_AVRO = "key-value-avro"
    KEY_VALUE_JSON = "key-value-json"
    JSON = "json"
