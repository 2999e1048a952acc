"""Avro names for CQL names. Avro names have only letters, digits and underscores, and do not start with a digit.

A name that Avro allows stays unchanged. In any other name, each character that Avro refuses becomes `_u<hex>_` (its
code point in at least four lower-case hex digits), and an underscore is put before a leading digit: `a b` ->
`a_u0020_b`, `1st` -> `_1st`. If another field of the record has that name already, `_2`, `_3`, ... is added. The schema
has the CQL name of each changed name in the attribute `cql_name`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from typing import Final

__all__ = ["CQL_NAME", "avro_name", "avro_names", "free_name"]

CQL_NAME: Final = "cql_name"
"""The attribute of a field or record with its CQL name, if the Avro name differs."""

_REFUSED: Final = re.compile("[^A-Za-z0-9_]")


def avro_name(name: str) -> str:
    """The Avro name of one CQL name, without regard to other fields of the record."""
    plain = _REFUSED.sub(lambda found: f"_u{ord(found[0]):04x}_", name)
    return f"_{plain}" if plain[:1].isdigit() or not plain else plain


def avro_names(names: Sequence[str]) -> tuple[str, ...]:
    """The Avro names of the fields of one record, all different, in the same order."""
    taken = {name for name in names if avro_name(name) == name}
    found: list[str] = []
    for name in names:
        plain = avro_name(name)
        if plain != name:
            plain = free_name(plain, taken)
            taken.add(plain)
        found.append(plain)
    return tuple(found)


def free_name(name: str, taken: Collection[str]) -> str:
    """The name, or the first of `<name>_2`, `<name>_3`, ... that is not taken."""
    if name not in taken:
        return name
    return next(each for number in itertools.count(2) if (each := f"{name}_{number}") not in taken)
