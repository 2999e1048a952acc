"""The parts of a CQL type as a text."""

from __future__ import annotations

__all__ = ["split_arguments"]


def split_arguments(cql_type: str) -> tuple[str, list[str]]:
    """`map<int, frozen<list<int>>>` -> `map` and `int`, `frozen<list<int>>`."""
    name, bracket, rest = cql_type.partition("<")
    if not bracket:
        return cql_type, []
    arguments, depth, start = [], 0, 0
    inside = rest[:-1]
    for at, char in enumerate(inside):
        depth += {"<": 1, ">": -1}.get(char, 0)
        if char == "," and depth == 0:
            arguments.append(inside[start:at].strip())
            start = at + 1
    return name, [*arguments, inside[start:].strip()]
