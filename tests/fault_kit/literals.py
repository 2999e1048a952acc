"""Random CQL literals of the workload's types."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final
from uuid import UUID

__all__ = ["ELEMENT_TYPES", "NATIVE_TYPES", "literal"]

_WORDS: Final = ("", "amber", "größe", "snow ☃", "𝄞", "it''s", "x" * 200)


def _integer(bits: int) -> Callable[[random.Random], str]:
    def write(rng: random.Random) -> str:
        size = rng.randint(1, bits) - 1
        return str(rng.randint(-(1 << size), (1 << size) - 1))

    return write


def _float(rng: random.Random) -> str:
    return rng.choice(["NaN", "Infinity", "-0.0", "1.5", str(rng.uniform(-1e6, 1e6))])


def _clock(rng: random.Random) -> str:
    return f"'{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}.{rng.randint(0, 10**9 - 1):09}'"


def _duration(rng: random.Random) -> str:
    return f"{rng.randint(0, 99)}mo{rng.randint(0, 99)}d{rng.randint(0, 10**9)}ns"


def _date(rng: random.Random) -> str:
    return f"'{rng.randint(1, 9999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}'"


NATIVE_TYPES: Final[dict[str, Callable[[random.Random], str]]] = {
    "ascii": lambda rng: "'" + "".join(rng.choices("abcXYZ 019_-", k=rng.randint(0, 12))) + "'",
    "bigint": _integer(64),
    "blob": lambda rng: "0x" + rng.randbytes(rng.choice([0, 1, 5, 200])).hex(),
    "boolean": lambda rng: rng.choice(["true", "false"]),
    "date": _date,
    "decimal": lambda rng: f"{rng.randint(-(10**20), 10**20)}.{rng.randint(0, 999)}",
    "double": _float,
    "duration": _duration,
    "float": _float,
    "inet": lambda rng: rng.choice(["'127.0.0.1'", "'::1'", "'2001:db8::ff'"]),
    "int": _integer(32),
    "smallint": _integer(16),
    "text": lambda rng: "'" + rng.choice(_WORDS) + "'",
    "time": _clock,
    "timestamp": lambda rng: str(rng.randint(-(10**12), 10**13)),
    "timeuuid": lambda rng: str(UUID(int=rng.getrandbits(128), version=1)),
    "tinyint": _integer(8),
    "uuid": lambda rng: str(UUID(int=rng.getrandbits(128), version=4)),
    "varint": _integer(200),
}
"""By native type of a column: the function that draws a literal."""

ELEMENT_TYPES: Final = tuple(name for name in NATIVE_TYPES if name != "duration")
"""Native types that have an order. Only these may be elements of sets and keys."""


def literal(cql_type: str, rng: random.Random) -> str:
    """A literal of a native type, or of a `list<..>`, `set<..>`, `map<..>`, `tuple<..>`, `vector<.., n>` or
    `frozen<..>`."""
    if cql_type in NATIVE_TYPES:
        return NATIVE_TYPES[cql_type](rng)
    name, _, inside = cql_type.removesuffix(">").partition("<")
    match name:
        case "frozen":
            return literal(inside, rng)
        case "list":
            return "[" + ", ".join(literal(inside, rng) for _ in range(rng.randint(1, 3))) + "]"
        case "set":
            return "{" + ", ".join(sorted({literal(inside, rng) for _ in range(rng.randint(1, 3))})) + "}"
        case "map":
            key, value = inside.split(", ", 1)
            keys = sorted({literal(key, rng) for _ in range(rng.randint(1, 3))})
            return "{" + ", ".join(f"{each}: {literal(value, rng)}" for each in keys) + "}"
        case "tuple":
            return "(" + ", ".join(_or_null(each, rng) for each in inside.split(", ")) + ")"
        case "vector":
            element, size = inside.rsplit(", ", 1)
            return "[" + ", ".join(literal(element, rng) for _ in range(int(size))) + "]"
    raise ValueError(f"no literal of {cql_type}")


def _or_null(cql_type: str, rng: random.Random) -> str:
    return "null" if rng.random() < 0.2 else literal(cql_type, rng)
