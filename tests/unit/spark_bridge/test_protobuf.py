"""Protocol Buffers' encoding, compared with the bytes in its documentation, and damaged bytes."""

from __future__ import annotations

import pytest

from spark_bridge.topics.protobuf import encoded, first_bytes, first_int, first_text, parsed


def test_the_examples_of_the_documentation() -> None:
    """https://protobuf.dev/programming-guides/encoding: 150 in field 1, "testing" in field 2, -2 as ten bytes."""
    assert encoded((1, 150)) == bytes.fromhex("089601")
    assert encoded((2, "testing"), (3, None)) == bytes.fromhex("120774657374696e67")
    assert encoded((1, -2)) == bytes.fromhex("08feffffffffffffffff01")


def test_what_was_encoded_is_read_again() -> None:
    """Fields keep their order, also repeated ones; unknown fields of fixed size are skipped."""
    found = parsed(
        encoded((1, -1), (2, b"a"), (2, "ä"), (3, 1 << 40)) + bytes.fromhex("21" + "00" * 8 + "2d" + "00" * 4)
    )
    assert (first_int(found, 1), found[2], first_text({2: found[2][1:]}, 2)) == (-1, [b"a", "ä".encode()], "ä")
    assert (first_int(found, 3), first_int(found, 9, 7), first_bytes(found, 9)) == (1 << 40, 7, b"")


def test_damaged_bytes_are_a_value_error() -> None:
    """The bytes are cut within a field, have an unknown wire type, or have another type than requested."""
    whole = encoded((1, 300), (2, "text"))
    for end in (1, 2, 4, 5, 8):
        with pytest.raises(ValueError, match="cut off"):
            parsed(whole[:end])
    with pytest.raises(ValueError, match="kind 7"):
        parsed(b"\x0f")
    with pytest.raises(ValueError, match="no integer"):
        first_int(parsed(whole), 2)
    with pytest.raises(ValueError, match="no bytes"):
        first_bytes(parsed(whole), 1)
