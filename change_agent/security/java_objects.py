"""Reads serialized Java objects of key stores: objects with byte arrays, texts and numbers.

    Stream    => Magic(0xACED0005) Object
    Object    => TC_OBJECT ClassDesc {values of each class, the root class first}
    ClassDesc => TC_CLASSDESC Name Uid Flags Fields {Annotation} TC_ENDBLOCKDATA SuperClassDesc

Source: Java Object Serialization Specification, section 6.4. Nothing is executed and no class is looked up. Pure.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from change_agent.errors import KeyStoreError

__all__ = ["JavaObject", "read_java_object"]

_MAGIC: Final = b"\xac\xed\x00\x05"
_BLOCK_DATA: Final = b"\x77"
_END_BLOCK_DATA: Final = b"\x78"
_FIRST_HANDLE: Final = 0x7E0000
_WRITE_METHOD: Final = 0x01
# Formats of numbers by their type code.
_NUMBERS: Final = {"B": ">b", "C": ">H", "D": ">d", "F": ">f", "I": ">i", "J": ">q", "S": ">h", "Z": ">?"}
# A SealedObject and a key are nested less deeply than this.
_MAX_DEPTH: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaObject:
    """An object: the name of its class, and its fields by name. An enum has the field `name`."""

    class_name: str
    fields: dict[str, object] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ClassDesc:
    name: str
    flags: int
    fields: tuple[tuple[str, str], ...]  # type code, name
    parent: _ClassDesc | None


def read_java_object(content: bytes, offset: int = 0) -> tuple[JavaObject, int]:
    """The object whose stream starts at `offset`, and the end of the stream. Raises KeyStoreError."""
    reader = _Reader(content, offset)
    if reader.take(len(_MAGIC)) != _MAGIC:
        raise KeyStoreError("there is no serialized Java object where one is expected")
    try:
        found = reader.content(0)
    except UnicodeDecodeError as error:
        raise KeyStoreError("a serialized Java object holds a text that is not valid") from error
    if not isinstance(found, JavaObject):
        raise KeyStoreError("a serialized Java value is not an object")
    return found, reader.position


class _Reader:
    def __init__(self, content: bytes, offset: int) -> None:
        self._content = content
        self.position = offset
        self._handles: list[object] = []

    def take(self, length: int) -> bytes:
        taken = self._content[self.position : self.position + length]
        if len(taken) < length:
            raise KeyStoreError("a serialized Java object ends too early")
        self.position += length
        return taken

    def content(self, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise KeyStoreError("a serialized Java object is nested too deep")
        code = self._number("B") & 0xFF
        match code:
            case 0x70:  # TC_NULL
                return None
            case 0x71:  # TC_REFERENCE
                return self._referenced()
            case 0x72:  # TC_CLASSDESC
                return self._class_desc(depth)
            case 0x73:  # TC_OBJECT
                return self._object(depth)
            case 0x74:  # TC_STRING
                text = self._text()
                self._handles.append(text)
                return text
            case 0x75:  # TC_ARRAY
                return self._byte_array(depth)
            case 0x7E:  # TC_ENUM
                return self._enum(depth)
        raise KeyStoreError(f"a serialized Java object holds what is not expected in a key (0x{code:02x})")

    def _number(self, code: str) -> int:
        layout = _NUMBERS[code]
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return int(value)

    def _text(self) -> str:
        # modified UTF-8, which is UTF-8 for the names of classes, fields and algorithms
        return self.take(self._number("C")).decode()

    def _referenced(self) -> object:
        handle = self._number("I") - _FIRST_HANDLE
        if not 0 <= handle < len(self._handles):
            raise KeyStoreError("a serialized Java object refers to what is not there")
        return self._handles[handle]

    def _class(self, depth: int) -> _ClassDesc | None:
        found = self.content(depth + 1)
        if found is not None and not isinstance(found, _ClassDesc):
            raise KeyStoreError("a serialized Java object has no class where one is expected")
        return found

    def _class_desc(self, depth: int) -> _ClassDesc:
        name = self._text()
        self._number("J")
        handle = len(self._handles)
        self._handles.append(None)
        flags = self._number("B")
        fields = []
        for _ in range(self._number("C")):
            code, field_name = self.take(1).decode("ascii"), self._text()
            if code in "L[":
                self.content(depth + 1)
            elif code not in _NUMBERS:
                raise KeyStoreError("a serialized Java object has a field of an unknown type")
            fields.append((code, field_name))
        self._skip_annotation(depth)
        desc = _ClassDesc(name=name, flags=flags, fields=tuple(fields), parent=self._class(depth))
        self._handles[handle] = desc
        return desc

    def _skip_annotation(self, depth: int) -> None:
        while (code := self._content[self.position : self.position + 1]) != _END_BLOCK_DATA:
            if code == _BLOCK_DATA:
                self.take(1)
                self.take(self._number("B") & 0xFF)
            else:
                self.content(depth + 1)
        self.take(1)

    def _object(self, depth: int) -> JavaObject:
        desc = self._class(depth)
        if desc is None:
            raise KeyStoreError("a serialized Java object has no class")
        made = JavaObject(class_name=desc.name, fields={})
        self._handles.append(made)
        lineage: list[_ClassDesc] = []
        while desc is not None:
            lineage.insert(0, desc)
            desc = desc.parent
        for each in lineage:
            for code, name in each.fields:
                made.fields[name] = self.content(depth + 1) if code in "L[" else self._number(code)
            if each.flags & _WRITE_METHOD:
                self._skip_annotation(depth)
        return made

    def _byte_array(self, depth: int) -> bytes:
        desc = self._class(depth)
        if desc is None or desc.name != "[B":
            raise KeyStoreError("a serialized Java object holds an array of something else than bytes")
        handle = len(self._handles)
        self._handles.append(None)
        length = self._number("I")
        if length < 0:
            raise KeyStoreError("a serialized Java object has an array of a negative length")
        self._handles[handle] = value = self.take(length)
        return value

    def _enum(self, depth: int) -> JavaObject:
        desc = self._class(depth)
        handle = len(self._handles)
        self._handles.append(None)
        name = self.content(depth + 1)
        made = JavaObject(class_name="" if desc is None else desc.name, fields={"name": name})
        self._handles[handle] = made
        return made
