"""Random CQL types and literals, for random schemas and statements."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from tests.cql.native_types import NATIVE_TYPES
from tests.cql.type_text import split_arguments

__all__ = ["RandomTypes"]

# duration has no order, so it cannot be a key or an element of a set.
_UNORDERED: Final = {"duration"}

_INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "varint": 200}
_FIXED_LENGTH: Final = ("bigint", "boolean", "double", "float", "int", "timestamp", "timeuuid", "uuid")
_TEXTS: Final = ("", "a", "it''s", "snow ☃", "𝄞", "x" * 300)


@dataclass(kw_only=True)
class RandomTypes:
    """Types of one keyspace; `user_types` maps the names of its user types to the types of their fields."""

    rng: random.Random
    with_vectors: bool
    user_types: dict[str, list[str]] = field(default_factory=dict)

    def key_type(self) -> str:
        """A type that is allowed in a primary key."""
        if self.rng.random() < 0.2:
            return f"frozen<{self.rng.choice(['list', 'set'])}<{self.native(ordered=True)}>>"
        return self.native(ordered=True)

    def column_type(self) -> str:
        """Any type of a regular or static column."""
        choice = self.rng.random()
        if choice < 0.5:
            return self.native()
        if choice < 0.75:
            return self._collection(self.element_type())
        if choice < 0.85 and self.user_types:
            return self.rng.choice(sorted(self.user_types))
        if choice < 0.9 and self.with_vectors:
            return f"vector<{self.rng.choice([*_FIXED_LENGTH, 'text', 'smallint'])}, {self.rng.randint(1, 5)}>"
        return self.element_type()

    def element_type(self) -> str:
        """A type within another type; it is frozen if it has parts."""
        choice = self.rng.random()
        if choice < 0.6:
            return self.native()
        if choice < 0.75:
            return f"frozen<{self._collection(self.native())}>"
        if choice < 0.9 or not self.user_types:
            return f"frozen<tuple<{', '.join(self.native() for _ in range(self.rng.randint(1, 3)))}>>"
        return f"frozen<{self.rng.choice(sorted(self.user_types))}>"

    def native(self, *, ordered: bool = False) -> str:
        """A scalar type."""
        return self.rng.choice([name for name in NATIVE_TYPES if not (ordered and name in _UNORDERED)])

    def _collection(self, inner: str) -> str:
        ordered = self.native(ordered=True)
        return self.rng.choice([f"list<{inner}>", f"set<{ordered}>", f"map<{ordered}, {inner}>"])

    def literal(self, cql_type: str) -> str:
        """A random literal of the type."""
        name, arguments = split_arguments(cql_type)
        match name:
            case "frozen":
                return self.literal(arguments[0])
            case "list" | "set":
                brackets = "[]" if name == "list" else "{}"
                items = sorted({self.literal(arguments[0]) for _ in range(self.rng.randint(1, 4))})
                return brackets[0] + ", ".join(items) + brackets[1]
            case "map":
                keys = sorted({self.literal(arguments[0]) for _ in range(self.rng.randint(1, 4))})
                return "{" + ", ".join(f"{key}: {self.literal(arguments[1])}" for key in keys) + "}"
            case "tuple":
                return "(" + ", ".join(map(self._literal_or_null, arguments)) + ")"
            case "vector":
                return "[" + ", ".join(self.literal(arguments[0]) for _ in range(int(arguments[1]))) + "]"
            case _ if name in self.user_types:
                fields = [(f"f{index}", each) for index, each in enumerate(self.user_types[name])]
                return "{" + ", ".join(f"{label}: {self._literal_or_null(each)}" for label, each in fields) + "}"
            case _:
                return self._native_literal(name)

    def _literal_or_null(self, cql_type: str) -> str:
        return "null" if self.rng.random() < 0.15 else self.literal(cql_type)

    def _native_literal(self, name: str) -> str:
        rng = self.rng
        if name in _INTEGER_BITS:
            bits = rng.randint(1, _INTEGER_BITS[name]) - 1
            return str(rng.randint(-(1 << bits), (1 << bits) - 1))
        match name:
            case "ascii":
                return "'" + "".join(rng.choices("abcXYZ 019_-", k=rng.randint(0, 12))) + "'"
            case "blob":
                return "0x" + rng.randbytes(rng.choice([0, 1, 5, 200])).hex()
            case "boolean":
                return rng.choice(["true", "false"])
            case "date":
                return f"'{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}'"
            case "decimal":
                return f"{rng.randint(-(10**20), 10**20)}.{rng.randint(0, 999)}"
            case "double" | "float":
                return rng.choice(["NaN", "Infinity", "-0.0", "1.5", str(rng.uniform(-1e6, 1e6))])
            case "duration":
                return f"{rng.randint(0, 99)}mo{rng.randint(0, 99)}d{rng.randint(0, 10**9)}ns"
            case "inet":
                return rng.choice(["'127.0.0.1'", "'::1'", "'2001:db8::ff'"])
            case "text":
                return "'" + rng.choice(_TEXTS) + "'"
            case "time":
                return f"'{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}.{rng.randint(0, 999999999):09}'"
            case "timestamp":
                return str(rng.randint(-(10**13), 10**14))
            case "timeuuid":
                return f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-1{rng.getrandbits(12):03x}-8a{rng.getrandbits(8):02x}-{rng.getrandbits(48):012x}"
            case "uuid":
                return f"{rng.getrandbits(32):08x}-{rng.getrandbits(16):04x}-4{rng.getrandbits(12):03x}-9a{rng.getrandbits(8):02x}-{rng.getrandbits(48):012x}"
        raise AssertionError(name)
