"""The driver's protocol handler for rows as bytes: requests without metadata, answers that are not decoded."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any, Final, Protocol

from cassandra.protocol import ExecuteMessage, ProtocolHandler, ResultMessage

from source_connector.rows.raw_page import RawPage

__all__ = ["RawProtocolHandler", "RawResultMessage"]

# Only their rows are decoded. The prefix "system" is no criterion: users can create such keyspaces.
_SYSTEM_KEYSPACES: Final = frozenset({"system", "system_schema"})
_SIZE: Final = struct.Struct(">i")
_ROWS_HEAD: Final = struct.Struct(">ii")
# Native protocol v4 specification, section 4.1.4: the flags are behind the consistency level, which has two bytes.
_FLAGS_AT: Final = 2
_SKIP_METADATA: Final = 0x02


class _Writable(Protocol):
    def write(self, data: bytes | bytearray) -> int: ...


class _Readable(Protocol):
    def read(self, size: int = -1) -> bytes: ...

    def seek(self, at: int) -> int: ...

    def tell(self) -> int: ...


class _RowsOnly(ExecuteMessage):  # type: ignore[misc]  # the driver has no types
    """Asks for rows without the names and types of their columns. The driver knows the flag, but does not set it.

    A statement names its columns, so only their number is needed, and the answer has it. For 500 columns with write
    times and TTLs, each answer would have 1,500 names, and the driver would make objects of them.
    """

    def _write_query_params(self, f: _Writable, protocol_version: int) -> None:
        buffer = io.BytesIO()
        super()._write_query_params(buffer, protocol_version)
        params = bytearray(buffer.getvalue())
        params[_FLAGS_AT] |= _SKIP_METADATA
        f.write(params)


class RawResultMessage(ResultMessage):  # type: ignore[misc]  # the driver has no types
    """Leaves rows of user tables as bytes: an error while decoding in the driver's own thread would end its pool."""

    def recv_results_rows(
        self, f: _Readable, protocol_version: int, user_type_map: object, result_metadata: Any, policy: object
    ) -> None:
        start = f.tell()
        _, columns = _ROWS_HEAD.unpack(f.read(_ROWS_HEAD.size))
        f.seek(start)
        self.recv_results_metadata(f, user_type_map)
        named: Sequence[tuple[str, ...]] = self.column_metadata or result_metadata
        if named and named[0][0] in _SYSTEM_KEYSPACES:
            f.seek(start)
            super().recv_results_rows(f, protocol_version, user_type_map, result_metadata, policy)
            return
        (count,) = _SIZE.unpack(f.read(4))
        self.column_names = self.column_types = ()
        self.parsed_rows = RawPage(f.read(), count, columns, self.paging_state)


class RawProtocolHandler(ProtocolHandler):  # type: ignore[misc]  # the driver has no types
    """Sends requests as `_RowsOnly`, and reads answers as `RawResultMessage`."""

    message_types_by_opcode: Final = {
        **ProtocolHandler.message_types_by_opcode,
        ResultMessage.opcode: RawResultMessage,
    }

    @classmethod
    def encode_message(cls, msg: Any, *args: Any, **kwargs: Any) -> Any:
        if type(msg) is ExecuteMessage and msg.skip_meta:
            asked, msg = msg, _RowsOnly.__new__(_RowsOnly)
            vars(msg).update(vars(asked))
        return super().encode_message(msg, *args, **kwargs)
