"""The columns that patterns hide, and their new values. The hashes were made with `openssl dgst -sha256 -hmac`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.cql_type import NativeType, TupleType
from schemas.cql_value import CqlValueError
from schemas.errors import ConfigError
from schemas.hidden_columns import ColumnPattern, HiddenColumns, Hiding, PublishedTable
from schemas.table_metadata import ColumnKind, DroppedColumn
from tests.cql.tables import table_of

KEY = b"0123456789abcdef0123456789abcdef"


USERS = table_of(
    {"id": "int"},
    {"at": "int"},
    static={"note": "text"},
    regular={"big": "varint", "body": "blob", "email": "text", "tags": "set<text>", "yes": "boolean"},
    name="shop.users",
    dropped_columns=(DroppedColumn(name="phone", kind=ColumnKind.REGULAR, type=NativeType("text"), dropped_time_us=1),),
)
BY_NAME = {each.name: each for each in USERS.primary_key + USERS.value_columns}


def hidden(*, serves_one_table: bool = True, has_range_markers: bool = True, **options: str) -> HiddenColumns:
    patterns = [
        ColumnPattern.parse(Hiding(f"columns.{name}"), entry)
        for name, text in options.items()
        for entry in text.split(",")
    ]
    return HiddenColumns(
        patterns=patterns, hash_key=KEY, serves_one_table=serves_one_table, has_range_markers=has_range_markers
    )


def published(**options: str) -> PublishedTable:
    found = hidden(**options).of(USERS)
    assert found is not None
    return found


def shown(name: str, value: bytes | None, **options: str) -> bytes | None:
    (found,) = published(**options).shown([BY_NAME[name]], [value])
    return found


def test_a_hash_is_hmac_sha_256_of_the_cql_bytes_in_hexadecimal_digits() -> None:
    """`printf alice | openssl dgst -sha256 -hmac 0123...`. The input for an int is its four bytes."""
    assert shown("email", b"alice", hash="shop.users.email") == (
        b"433deb45467e4e53dbaba594c88bc3a200f705a2150788c3d11e6040e63e8510"
    )
    assert shown("id", b"\0\0\0\1", hash="shop.users.id") == (
        b"35f4de17037e6bda7c5405ab920c2fbab00399741622a75b8d89a64e9230a911"
    )
    assert shown("email", None, hash="shop.users.email") is None


def test_values_that_are_one_in_clear_have_one_hash() -> None:
    """Cassandra stores the client's bytes: a varint may have redundant bytes, and true may have any nonzero bits."""
    both = "shop.users.big,shop.users.yes"
    assert shown("big", b"\0\0\5", hash=both) == shown("big", b"\5", hash=both) != shown("big", b"\6", hash=both)
    assert shown("yes", b"\x02", hash=both) == shown("yes", b"\x01", hash=both) != shown("yes", b"\x00", hash=both)


def test_decimals_that_are_one_row_have_one_hash() -> None:
    """Of a clustering column. In a partition key, 1.0 and 1.00 are two rows."""
    decimal = NativeType("decimal")
    one, one_too, two, empty = b"\0\0\0\1\x0a", b"\0\0\0\2\x64", b"\0\0\0\0\2", b""
    table = replace(
        USERS,
        partition_key=(replace(BY_NAME["id"], type=decimal),),
        clustering_key=(replace(BY_NAME["at"], type=decimal),),
    )
    found = hidden(hash="shop.users.id,shop.users.at", has_range_markers=False).of(table)
    assert found is not None
    ids, ats = ([found.shown([each], [value]) for value in (one, one_too, two, empty)] for each in table.primary_key)
    assert ats[0] == ats[1] not in ats[2:]
    assert ids[0] != ids[1]
    with pytest.raises(CqlValueError):
        found.shown(table.clustering_key, [b"\0\0"])


def test_all_nan_of_a_clustering_column_have_one_hash() -> None:
    """They are one row. Other numbers keep the hash of their bytes."""
    one, one_too, two = (bytes.fromhex(each) for each in ("7ff8000000000000", "fff8000000000001", "3ff8000000000000"))
    table = replace(USERS, clustering_key=(replace(BY_NAME["at"], type=NativeType("double")),))
    found = hidden(hash="shop.users.at", has_range_markers=False).of(table)
    assert found is not None
    hashes = [found.shown(table.clustering_key, [value]) for value in (one, one_too, two)]
    assert hashes[0] == hashes[1] != hashes[2]
    as_bytes = replace(USERS, clustering_key=(replace(BY_NAME["at"], type=NativeType("blob")),))
    plain = hidden(hash="shop.users.at", has_range_markers=False).of(as_bytes)
    assert plain is not None
    assert [plain.shown(as_bytes.clustering_key, [value]) for value in (one, two)] == [hashes[0], hashes[2]]


def test_equal_values_inside_of_a_clustering_column_have_one_hash() -> None:
    """The elements of a tuple are compared like columns."""
    pairs = TupleType((NativeType("double"), NativeType("decimal")))
    table = replace(USERS, clustering_key=(replace(BY_NAME["at"], type=pairs),))
    found = hidden(hash="shop.users.at", has_range_markers=False).of(table)
    assert found is not None
    values = [
        b"".join(len(each).to_bytes(4, "big") + each for each in map(bytes.fromhex, both))
        for both in (
            ("7ff8000000000000", "000000010a"),
            ("fff8000000000001", "0000000264"),  # also NaN, and 1.0 as 1.00
            ("7ff8000000000000", "000000010b"),
        )
    ]
    hashes = [found.shown(table.clustering_key, [value]) for value in values]
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_collection_is_hidden_as_a_whole() -> None:
    """It becomes one text, which shows neither its elements nor their number."""
    one = b"\0\0\0\1\0\0\0\1a"
    assert len(shown("tags", one, hash="shop.users.tags") or b"") == 64
    assert shown("tags", one, mask="shop.users.tags") == b"****"
    table = published(hash="shop.users.tags").table
    assert {each.name: str(each.type) for each in table.regular_columns}["tags"] == "text"


def test_a_text_is_cut_by_characters_and_a_blob_by_bytes() -> None:
    """A character is never split. A shorter value stays as it is."""
    cut = "shop.users.email:3,shop.users.body:2"
    assert shown("email", "ünïcode".encode(), truncate=cut) == "ünï".encode()
    assert shown("email", b"ab", truncate=cut) == b"ab"
    assert shown("body", b"\xff\xfe\xfd", truncate=cut) == b"\xff\xfe"
    table = published(truncate=cut).table
    assert {each.name: str(each.type) for each in table.regular_columns}["body"] == "blob"


def test_the_error_of_a_text_that_cannot_be_cut_shows_nothing_of_it() -> None:
    """Errors are written to logs and dead letters."""
    with pytest.raises(CqlValueError, match="a value of type text: 5 bytes are no UTF-8") as raised:
        shown("email", b"se\xffet", truncate="shop.users.email:3")
    assert raised.value.__cause__ is None and raised.value.__suppress_context__


def test_types_follow_and_dropped_columns_are_gone() -> None:
    """The schemas of the data topic are made from this table."""
    found = published(hash="shop.users.id,*.*.big", mask="*.users.yes", drop="shop.*.not?,shop.users.body").table
    assert [(each.name, str(each.type)) for each in found.primary_key] == [("id", "text"), ("at", "int")]
    assert [(each.name, str(each.type)) for each in found.value_columns] == [
        ("big", "text"),
        ("email", "text"),
        ("tags", "set<text>"),
        ("yes", "text"),
    ]


def test_of_several_patterns_the_one_that_shows_least_counts() -> None:
    """Drop before mask, mask before hash, hash before truncate. Of two lengths, the shorter one counts."""
    every = {"hash": "*.*.email", "mask": "*.*.email", "truncate": "*.*.email:3"}
    assert published(**every, drop="*.*.email").hidden == {"email": Hiding.DROP}
    assert shown("email", b"alice", **every) == b"****"
    assert shown("email", b"alice", truncate="*.*.email:3,*.*.email:2") == b"al"


def test_nothing_is_hidden_of_a_table_that_no_pattern_names() -> None:
    """Rows of such a table are processed as without these options."""
    assert hidden(hash="shop.orders.email", serves_one_table=False).of(USERS) is None
    assert hidden(hash="*.*.ssn", serves_one_table=False).of(USERS) is None


def test_every_problem_of_a_table_is_told_at_once() -> None:
    """A misspelled column, a key that is dropped, a hash that changes the order, and a type without characters."""
    with pytest.raises(ConfigError) as raised:
        hidden(
            hash="shop.users.e-mail,shop.users.at", drop="shop.users.id", truncate="shop.users.tags:3", mask="*.*.ssn"
        ).of(USERS)
    assert [str(each).partition(": ")[2][:60] for each in raised.value.problems] == [
        "shop.users.e-mail matches no column of shop.users",
        "*.*.ssn matches no column of shop.users",
        "shop.users.id matches the key column shop.users.id, which id",
        "shop.users.at matches the clustering column shop.users.at: h",
        "shop.users.tags:3 matches shop.users.tags, a set<text>; only",
    ]


def test_a_clustering_column_is_hashed_where_no_marker_needs_its_order() -> None:
    """That is the case with `publish.rangeDeletions: false`."""
    found = hidden(hash="shop.users.at", has_range_markers=False).of(USERS)
    assert found is not None and found.hides_key and not found.hides_partition_key


def test_the_pattern_of_a_column_that_was_dropped_may_stay() -> None:
    """The column is not published. A renamed column is an error, because its values would be published unchanged."""
    assert hidden(hash="shop.users.phone").of(USERS) is None
    assert hidden(hash="shop.users.phone").matched(USERS) == {"shop.users.phone"}


def test_a_name_is_taken_literally_but_for_its_wildcards() -> None:
    """A name may have dots and special characters of regular expressions."""
    pattern = ColumnPattern.parse(Hiding.HASH, "ks.t.a.b[c]*")
    assert (pattern.table, pattern.column) == ("ks.t", "a.b[c]*")
    assert pattern.matches("a.b[c]d") and not pattern.matches("a.bcd")


@pytest.mark.parametrize("entry", ["", "a", "ks.t", "ks..c", ".t.c", "ks.t."])
def test_an_entry_that_names_no_column_is_refused(entry: str) -> None:
    """An entry needs keyspace, table and column."""
    with pytest.raises(ConfigError, match=r"columns.drop: each entry is keyspace.table.column"):
        ColumnPattern.parse(Hiding.DROP, entry)


@pytest.mark.parametrize("entry", ["ks.t.c", "ks.t.c:", "ks.t.c:x", "ks.t.c:-1", "ks.t:3"])
def test_an_entry_to_truncate_has_a_length(entry: str) -> None:
    """The length is a number of characters or bytes."""
    with pytest.raises(ConfigError, match=r"columns.truncate: each entry is keyspace.table.column"):
        ColumnPattern.parse(Hiding.TRUNCATE, entry)


def test_the_key_is_not_shown() -> None:
    """The same holds for the table that uses the key."""
    assert KEY.decode() not in repr(hidden(hash="shop.users.id")) + repr(published(hash="shop.users.id"))
