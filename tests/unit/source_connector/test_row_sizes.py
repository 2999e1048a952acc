"""The assumed size of a table's rows, before and after answers."""

from __future__ import annotations

from source_connector.encoding.row_sizes import RowSize

_MIB = 1024 * 1024


def _answered(size: RowSize, row_bytes: int, answers: int) -> list[int]:
    """The number of rows that each statement requests, one after the other."""
    groups = []
    for _ in range(answers):
        groups.append(max(1, min(40, size.rows_of_group())))
        size.answered(row_bytes * groups[-1], groups[-1])
    return groups


def test_the_first_statements_ask_for_one_row_each_and_groups_grow_answer_by_answer() -> None:
    """Rows of unknown size count as 1 MiB."""
    size = RowSize()
    assert size.value == _MIB
    assert _answered(size, 100, 10) == [1, 1, 1, 2, 4, 8, 16, 32, 40, 40]


def test_large_rows_are_asked_for_one_by_one_for_good() -> None:
    """The rows have 4 MiB: no group ever has two of them."""
    size = RowSize()
    assert _answered(size, 4 * _MIB, 50) == [1] * 50
    assert (size.value, size.rows_of_page()) == (4 * _MIB, 1)


def test_a_large_row_counts_at_once_and_is_forgotten_slowly() -> None:
    """Sizes are halved only while they are unknown; in a known table, large rows may come again."""
    size = RowSize()
    _answered(size, 100, 40)
    size.answered(4 * _MIB, 1)
    assert _answered(size, 100, 100) == [1] * 100
    assert _answered(size, 100, 600)[-1] == 40


def test_answers_without_rows_say_little_but_not_nothing() -> None:
    """A table that only has deletions is read in groups after some hundred answers."""
    size = RowSize()
    size.answered(0, 0)
    assert 0.9 * _MIB < size.value < _MIB
    for _ in range(300):
        size.answered(0, 0)
    assert size.rows_of_group() >= 40


def test_pages_follow_the_size_of_rows() -> None:
    """A page has 4 rows for an unknown table, and up to 500."""
    size = RowSize()
    assert size.rows_of_page() == 4
    _answered(size, 100, 20)
    assert size.rows_of_page() == 500
