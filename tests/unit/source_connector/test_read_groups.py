"""Which reads share a statement, and what that statement selects."""

from __future__ import annotations

import random
from collections import deque
from uuid import UUID

import pytest

from schemas.cql_value import CqlValueError
from schemas.mutation_event import MutationKind, RangeBounds
from source_connector.encoding.projection import Projection
from source_connector.rows.read_groups import (
    GROUP_SIZE,
    LOOK_AHEAD,
    WaitingRead,
    group_condition,
    is_exact_by_bytes,
    take_group,
)
from source_connector.rows.read_request import ReadLevel, ReadRequest
from source_connector.rows.row_fetcher import range_condition
from tests.unit.source_connector.events import NODE, int32, table
from tests.unit.source_connector.task_owner import a_task

SIMPLE = Projection(table())
KEYED = Projection(table(clustering_key=("c",)))


def read(projection: Projection, partition: int | bytes, /, *clustering: int, **other: object) -> WaitingRead:
    usual: dict[str, object] = {
        "projection": projection,
        "kind": MutationKind.ROW,
        "partition_key": int32(partition) if isinstance(partition, int) else partition,
        "clustering": tuple(map(int32, clustering)),
        "level": ReadLevel.FIRST,
        "node": NODE,
    }
    return WaitingRead(a_task(), ReadRequest(**(usual | other)))  # type: ignore[arg-type]  # by name


def composite(*parts: int) -> bytes:
    return b"".join(b"\0\4" + int32(each) + b"\0" for each in parts)


def condition(reads: list[WaitingRead]) -> tuple[str, list[bytes | None]]:
    where, values = group_condition(reads)
    return where, list(values)


def counted(*items: bytes) -> bytes:
    return int32(len(items)) + b"".join(int32(len(item)) + item for item in items)


def test_keys_of_single_rows_become_one_list() -> None:
    """A list has at most the keys of one group; the others wait for the next statement."""
    waiting = deque(read(SIMPLE, number) for number in range(GROUP_SIZE + 5))
    group = take_group(waiting, allow_product=True)
    assert (len(group), len(waiting)) == (GROUP_SIZE, 5)
    assert condition(group[:2]) == ('"pk" IN ?', [counted(int32(0), int32(1))])


def test_one_key_is_asked_for_by_equality() -> None:
    """Single reads, and lists of one key, need no IN."""
    assert condition([read(KEYED, 1, 2)]) == ('"pk" = ? AND "c" = ?', [int32(1), int32(2)])


def test_keys_of_one_partition_share_the_partition() -> None:
    """Clustering keys of one column become a list, and those of several columns a list of tuples."""
    group = take_group(deque([read(KEYED, 1, 2), read(KEYED, 1, 3)]), allow_product=False)
    assert condition(group) == ('"pk" = ? AND "c" IN ?', [int32(1), counted(int32(2), int32(3))])
    wide = Projection(table(clustering_key=("c", "d")))
    group = take_group(deque([read(wide, 1, 2, 3), read(wide, 1, 2, 4)]), allow_product=False)
    pairs = counted(counted(int32(2), int32(3))[4:], counted(int32(2), int32(4))[4:])
    assert condition(group) == ('"pk" = ? AND ("c", "d") IN ?', [int32(1), pairs])


def test_keys_with_the_same_clustering_share_it() -> None:
    """Only the requested rows are selected, whether products are allowed or not."""
    group = take_group(deque([read(KEYED, 1, 7), read(KEYED, 2, 7)]), allow_product=False)
    assert condition(group) == ('"pk" IN ? AND "c" = ?', [counted(int32(1), int32(2)), int32(7)])


@pytest.mark.parametrize(("allow_product", "together"), [(True, 2), (False, 1)])
def test_unrelated_keys_share_a_statement_only_as_a_product(allow_product: bool, together: int) -> None:
    """The statement may return rows that no read wants: the caller sees how many, and can turn products off."""
    waiting = deque([read(KEYED, 1, 7), read(KEYED, 2, 8)])
    group = take_group(waiting, allow_product=allow_product)
    assert len(group) == together
    if allow_product:
        where, values = condition(group)
        assert where == '"pk" IN ? AND "c" IN ?'
        assert values == [counted(int32(1), int32(2)), counted(int32(7), int32(8))]


def test_a_product_has_fewer_keys_than_what_is_asked_for_exactly() -> None:
    """The server looks for every clustering in every partition; a statement without extra rows takes a full group."""
    unrelated = deque(read(KEYED, number, number) for number in range(2 * GROUP_SIZE))
    assert len(take_group(unrelated, allow_product=True)) == 20
    with_equals = deque(read(KEYED, number, number % 2) for number in range(2 * GROUP_SIZE))
    group = take_group(with_equals, allow_product=True)
    assert {each.request.clustering for each in group} == {(int32(0),)}
    assert len(group) == GROUP_SIZE == 100


def test_a_full_statement_is_found_among_keys_of_several_clusterings() -> None:
    """The first look shows that they are worth the search: every seventh key has the clustering of the first one."""
    waiting = deque(read(KEYED, number, number % 7) for number in range(LOOK_AHEAD))
    group = take_group(waiting, allow_product=True)
    assert len(group) == GROUP_SIZE
    assert {each.request.clustering for each in group} == {(int32(0),)}
    assert [each.request.partition_key for each in waiting if each.request.clustering == (int32(0),)] == [
        int32(number) for number in range(7 * GROUP_SIZE, LOOK_AHEAD, 7)
    ]


def test_the_search_ends_early_among_keys_that_have_little_in_common() -> None:
    """Then the next keys become a product, and the search costs no more than before."""
    few = deque(read(KEYED, number, number if number < 400 else 0) for number in range(LOOK_AHEAD))
    assert [each.request.partition_key for each in take_group(few, allow_product=True)] == list(map(int32, range(20)))
    many = deque(read(KEYED, number, number if 20 < number < 400 else 0) for number in range(LOOK_AHEAD))
    assert len(take_group(many, allow_product=True)) == GROUP_SIZE


@pytest.mark.parametrize(("largest", "together"), [(1, 1), (2, 2), (0, 1)])
def test_where_rows_are_large_fewer_go_together(largest: int, together: int) -> None:
    """The number goes down to one: the first read is always included."""
    waiting = deque(read(KEYED, number, 1) for number in range(10))
    assert len(take_group(waiting, allow_product=True, largest=largest)) == together


PAIRED = Projection(table(partition_key=("a", "b")))
PAIRED_AND_KEYED = Projection(table(partition_key=("a", "b"), clustering_key=("c",)))


def test_composite_partition_keys_that_differ_in_one_column_share_a_statement() -> None:
    """The others are asked for by equality, so no partition is asked for that nobody wants."""
    same_b = [read(PAIRED, composite(number, 7)) for number in range(3)]
    group = take_group(deque([*same_b, read(PAIRED, composite(1, 8))]), allow_product=False)
    assert group == same_b
    assert condition(group) == ('"a" IN ? AND "b" = ?', [counted(*map(int32, range(3))), int32(7)])
    same_a = [read(PAIRED, composite(7, number)) for number in range(3)]
    group = take_group(deque([*same_a, read(PAIRED, composite(8, 1))]), allow_product=False)
    assert condition(group) == ('"a" = ? AND "b" IN ?', [int32(7), counted(*map(int32, range(3)))])


def test_the_column_that_more_keys_share_is_chosen() -> None:
    """The first key shares each of its columns with others."""
    few = [read(PAIRED, composite(1, number)) for number in range(3)]
    many = [read(PAIRED, composite(number, 0)) for number in range(2, 9)]
    group = take_group(deque([*few, *many]), allow_product=True)
    assert group == [few[0], *many]
    assert condition(group)[0] == '"a" IN ? AND "b" = ?'


def test_composite_partition_keys_without_a_common_column_are_read_one_by_one() -> None:
    """A product of their columns would ask for partitions that nobody wants."""
    waiting = deque(read(PAIRED, composite(number, number)) for number in range(3))
    assert len(take_group(waiting, allow_product=True)) == 1
    assert len(waiting) == 2


def test_keys_of_a_composite_partition_share_it() -> None:
    """Only the clustering keys are a list then."""
    rows = [read(PAIRED_AND_KEYED, composite(1, 1), number) for number in (1, 2)]
    group = take_group(deque([*rows, read(PAIRED_AND_KEYED, composite(1, 2), 3)]), allow_product=False)
    assert group == rows
    assert condition(group) == ('"a" = ? AND "b" = ? AND "c" IN ?', [int32(1), int32(1), counted(int32(1), int32(2))])


def test_composite_partition_keys_with_a_common_column_become_a_product_with_their_clusterings() -> None:
    """Like those with one column: at most 20, and only as long as products are allowed."""
    waiting = deque(read(PAIRED_AND_KEYED, composite(number, 7), number) for number in range(50))
    group = take_group(waiting, allow_product=True)
    assert (len(group), condition(group)[0]) == (20, '"a" IN ? AND "b" = ? AND "c" IN ?')
    assert len(take_group(waiting, allow_product=False)) == 1
    exact = deque(read(PAIRED_AND_KEYED, composite(number, 7), number % 2) for number in range(50))
    group = take_group(exact, allow_product=True)
    assert (len(group), condition(group)[0]) == (25, '"a" IN ? AND "b" = ? AND "c" = ?')


def test_every_read_is_taken_once(random_reads: list[WaitingRead]) -> None:
    """The first of those that wait is always among them, and all share projection, node and level."""
    waiting, left = deque(random_reads), list(random_reads)
    while left:
        assert list(waiting) == left
        group = take_group(waiting, allow_product=len(left) % 3 > 0, largest=len(left) % 30)
        assert group[0] is left[0]
        assert len({len(each.partition) for each in group}) == 1
        assert len({(each.request.projection, each.request.node, each.request.level) for each in group}) == 1
        assert group == sorted(group, key=left.index)
        left = [each for each in left if each not in group]
    assert len(waiting) == 0


@pytest.fixture(params=range(5))
def random_reads(request: pytest.FixtureRequest) -> list[WaitingRead]:
    """Reads of several tables and nodes, in a random order."""
    chance = random.Random(request.param)
    found = [read(SIMPLE, number, node=UUID(int=number % 3)) for number in range(60)]
    found += [read(KEYED, chance.randrange(9), chance.randrange(9)) for _ in range(60)]
    found += [read(PAIRED, composite(chance.randrange(9), chance.randrange(9))) for _ in range(60)]
    found += [read(PAIRED_AND_KEYED, composite(chance.randrange(4), 1), chance.randrange(9)) for _ in range(60)]
    found += [read(KEYED, number, 1, kind=MutationKind.STATIC_ROW) for number in range(9)]
    chance.shuffle(found)
    return found


def test_a_partition_key_that_is_none_of_the_table_is_an_error_of_its_read() -> None:
    """The key of another table, or a damaged one."""
    with pytest.raises(CqlValueError, match="ends too early"):
        read(PAIRED, b"\0\4\0")


@pytest.mark.parametrize(
    "other",
    [
        {"node": UUID(int=5)},
        {"level": ReadLevel.HIGHER},
        {"kind": MutationKind.STATIC_ROW},
        {"projection": Projection(table())},
        {"clustering": (None,)},
    ],
)
def test_reads_that_differ_in_more_than_their_key_are_not_grouped(other: dict[str, object]) -> None:
    """The reads differ in coordinator, level, kind, state of the schema, or have a missing clustering value."""
    first = read(SIMPLE, 1)
    second = read(SIMPLE, 2, **other)
    assert take_group(deque([first, second]), allow_product=True) == [first]
    assert take_group(deque([second, first]), allow_product=True) == [second]


@pytest.mark.parametrize(("cql_type", "together"), [("int", 2), ("uuid", 2), ("text", 3), ("blob", 3), ("ascii", 3)])
def test_an_empty_value_that_no_list_may_have_is_asked_for_by_equality(cql_type: str, together: int) -> None:
    """Cassandra refuses such a list ("Invalid null value in condition"), and the table's groups would be halved."""
    empty = b"\0\0\0" + b"\0\1x\0"
    keys = [b"\0\4" + int32(number) + b"\0\0\1x\0" for number in range(2)]
    paired = Projection(table(partition_key=("a", "b"), partition_type=cql_type))
    waiting = deque(read(paired, each) for each in [*keys, empty])
    assert len(take_group(waiting, allow_product=True)) == together
    first = take_group(deque([read(paired, each) for each in (empty, *keys)]), allow_product=True)
    assert len(first) == (3 if together == 3 else 1)
    keyed = Projection(table(clustering_key=("c",), clustering_type=cql_type))
    rows = [read(keyed, 1, clustering=(each,)) for each in (int32(1), int32(2), b"")]
    assert len(take_group(deque(rows), allow_product=True)) == together


def test_an_empty_value_in_a_tuple_may_be_in_a_group() -> None:
    """Cassandra takes it there: clusterings of several columns are a list of tuples."""
    wide = Projection(table(clustering_key=("c", "d")))
    rows = [read(wide, 1, clustering=(each, b"")) for each in (int32(1), b"")]
    assert len(take_group(deque(rows), allow_product=True)) == 2


@pytest.mark.parametrize(
    ("cql_type", "exact"), [("int", True), ("text", True), ("decimal", False), ("boolean", False), ("inet", False)]
)
def test_a_clustering_value_with_several_forms_is_looked_for_again(cql_type: str, exact: bool) -> None:
    """1.0 and 1.00 are one decimal: the row may be stored with the other form."""
    assert is_exact_by_bytes(Projection(table(clustering_key=("c",), clustering_type=cql_type))) is exact


@pytest.mark.parametrize(("cql_type", "exact"), [("int", True), ("varint", False)])
def test_a_partition_key_with_several_forms_is_looked_for_again(cql_type: str, exact: bool) -> None:
    """Cassandra writes the values of `IN` anew: 0x0001 is looked for as 0x01, which is another partition."""
    assert is_exact_by_bytes(Projection(table(partition_type=cql_type))) is exact


def bounds(start: tuple[int, ...], end: tuple[int, ...], *, inclusive: bool = False) -> RangeBounds:
    return RangeBounds(
        start=tuple(map(int32, start)), start_inclusive=inclusive, end=tuple(map(int32, end)), end_inclusive=inclusive
    )


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (bounds((1,), (5,)), (['"c" > ?', '"c" < ?'], [1, 5])),
        (bounds((1,), (5,), inclusive=True), (['"c" >= ?', '"c" <= ?'], [1, 5])),
        (bounds((), (5,)), (['"c" < ?'], [5])),
        (bounds((1,), (1,), inclusive=True), (['"c" = ?'], [1])),
        # The second column is descending: a range starts at its greatest value.
        (bounds((1, 9), (1, 2)), (['"c" = ?', '"d" < ?', '"d" > ?'], [1, 9, 2])),
        (bounds((1, 9), (1,), inclusive=True), (['"c" = ?', '"d" <= ?'], [1, 9])),
        # The first columns differ: deeper columns are not compared, and the reader gets a few rows too many.
        (bounds((1, 9), (3, 2)), (['"c" >= ?', '"c" <= ?'], [1, 3])),
        (bounds((1, 2, 3), (1, 2, 3), inclusive=True), (['"c" = ?', '"d" = ?', '"e" = ?'], [1, 2, 3])),
    ],
)
def test_the_scope_of_a_range_deletion_as_conditions(scope: RangeBounds, expected: tuple[list[str], list[int]]) -> None:
    """Every row in the scope meets the conditions, in ascending and in descending order."""
    projection = Projection(table(clustering_key=("c", "d", "e"), descending=("d",)))
    conditions, values = range_condition(projection, scope)
    assert (conditions, values) == (expected[0], [int32(each) for each in expected[1]])
