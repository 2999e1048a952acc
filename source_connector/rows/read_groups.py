"""Groups waiting reads that one statement can answer: `IN` over partition keys and clustering keys of one node. Pure.

A statement for 100 keys costs client and server a fraction of what 100 statements cost. These keys are requested
exactly:

- keys of one partition;
- keys with the same clustering whose partition keys differ in one column: `sensor IN ? AND day = ? AND ck = ?`.

If the clusterings differ as well, the product of both lists is requested, for at most 20 keys. This may return rows
that were not requested. They are dropped, and the caller forbids products when there are too many of them. If rows are
large, a statement has fewer keys, because its answer is in memory as a whole.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar, final

from schemas.cql_identifier import quoted
from schemas.cql_type import NativeType, has_empty_value
from schemas.mutation_event import MutationKind
from source_connector.encoding.projection import Projection, RawValues
from source_connector.rows.read_request import ReadRequest
from source_connector.rows.task import Task

__all__ = ["GROUP_SIZE", "LOOK_AHEAD", "WaitingRead", "group_condition", "is_exact_by_bytes", "take_group"]

GROUP_SIZE: Final = 100
LOOK_AHEAD: Final = 8 * GROUP_SIZE
"""How many waiting reads are looked through for keys of one statement."""
_PRODUCT_SIZE: Final = 20
# The search ends after the first look, unless it has found as many exact keys as are worth it. So many exact keys are
# also better than a product.
_FIRST_LOOK: Final = 160
_WORTH_IT: Final = 10
# Instead of a column's index, for partition keys that differ in no column or in several ones.
_NONE: Final = -1
_SEVERAL: Final = -2
_SIZE: Final = struct.Struct(">i")
_Item = TypeVar("_Item")
_ROW: Final = MutationKind.ROW
_ROW_DELETION: Final = MutationKind.ROW_DELETION
# Types that have several serialized forms of one value: the row may be stored under another form than the event's. An
# inet may be ::ffff:10.0.0.1, which Java writes as the four bytes of 10.0.0.1.
_SEVERAL_FORMS: Final = frozenset({"boolean", "decimal", "varint", "double", "float", "inet"})


@final
class WaitingRead:
    """A request, the attempt of a task that it belongs to, and the bytes that its row was expected to have.

    Raises CqlValueError when the event's partition key is not one of the table.
    """

    __slots__ = ("attempt", "bytes", "is_groupable", "partition", "request", "task")

    def __init__(self, task: Task, request: ReadRequest) -> None:
        self.task: Final = task
        self.attempt: Final[int] = task.attempts
        self.request: Final = request
        self.bytes: float = 0.0
        self.partition: Final[tuple[bytes, ...]] = request.projection.partition_values(request.partition_key)
        """The values of the partition key's columns."""
        self.is_groupable: Final[bool] = _is_groupable(request, self.partition)
        """False if only a statement of its own can answer it."""


def take_group(waiting: deque[WaitingRead], *, allow_product: bool, largest: int = GROUP_SIZE) -> list[WaitingRead]:
    """Take the first waiting read and later ones that the same statement can answer, at most `largest` in all."""
    first = waiting.popleft()
    if largest < 2 or not first.is_groupable:
        return [first]
    choose = _choose if len(first.partition) == 1 else _choose_composite
    chosen = choose(first, waiting, allow_product, largest - 1)
    if chosen:
        _remove(waiting, chosen)
    return [first, *chosen]


def _remove(waiting: deque[WaitingRead], chosen: Sequence[WaitingRead]) -> None:
    """Remove the chosen reads, which are in the queue's order. What is behind the last of them is not touched."""
    kept: list[WaitingRead] = []
    for each in chosen:
        while (first := waiting.popleft()) is not each:
            kept.append(first)
    waiting.extendleft(reversed(kept))


def group_condition(reads: Sequence[WaitingRead]) -> tuple[str, RawValues]:
    """The WHERE clause and the values of its markers for reads that were taken together."""
    projection = reads[0].request.projection
    clusterings = _distinct([each.request.clustering for each in reads])
    conditions: list[str] = []
    values: list[bytes | None] = []
    for at, part in enumerate(projection.table.partition_key):
        found = _distinct([each.partition[at] for each in reads])
        conditions.append(f"{quoted(part.name)} = ?" if len(found) == 1 else f"{quoted(part.name)} IN ?")
        values.append(found[0] if len(found) == 1 else _list(found))
    columns = [quoted(column.name) for column in projection.table.clustering_key]
    if columns and len(clusterings) == 1:
        conditions += [f"{column} = ?" for column in columns]
        values += clusterings[0]
    elif len(columns) == 1:
        conditions.append(f"{columns[0]} IN ?")
        values.append(_list([_present(clustering)[0] for clustering in clusterings]))
    elif columns:
        conditions.append(f"({', '.join(columns)}) IN ?")
        values.append(_list([_parts(_present(clustering)) for clustering in clusterings]))
    return " AND ".join(conditions), values


def is_exact_by_bytes(projection: Projection) -> bool:
    """True when a row is always found under exactly the bytes of the key in its event.

    Also for the partition key: Cassandra reads the values of `IN` and writes them again, so it looks for their usual
    form.
    """
    types = [column.type for column in projection.table.primary_key]
    return all(isinstance(each, NativeType) and each.name not in _SEVERAL_FORMS for each in types)


def _is_groupable(request: ReadRequest, partition: tuple[bytes, ...]) -> bool:
    """True if a statement for several reads can answer this one.

    Cassandra refuses a list with an empty value of a type such as int ("Invalid null value in condition"). In a tuple,
    and after `=`, it takes such a value.
    """
    kind, clustering = request.kind, request.clustering
    if (kind is not _ROW and kind is not _ROW_DELETION) or None in clustering:
        return False
    # Clusterings of several columns are a list of tuples.
    is_listed = len(clustering) == 1
    if b"" not in partition and not (is_listed and b"" in clustering):
        return True
    table = request.projection.table
    columns = table.partition_key + (table.clustering_key if is_listed else ())
    values = partition + (clustering if is_listed else ())
    return all(value != b"" or has_empty_value(each.type) for each, value in zip(columns, values, strict=True))


def _goes_with(first: ReadRequest, waiting: WaitingRead) -> bool:
    other = waiting.request
    return (
        other.projection is first.projection
        and other.level is first.level
        and (other.node is first.node or other.node == first.node)
        and waiting.is_groupable
    )


def _choose(first: WaitingRead, waiting: Iterable[WaitingRead], allow_product: bool, room: int) -> list[WaitingRead]:
    """Choose as many waiting reads as fit into one statement. Exact groups are preferred to products."""
    wanted = first.request
    mates: list[WaitingRead] = []
    same_partition: list[WaitingRead] = []
    same_clustering: list[WaitingRead] = []
    exact = same_partition
    for looked_at, each in enumerate(waiting):
        if looked_at == LOOK_AHEAD or (looked_at == _FIRST_LOOK and len(exact) < _WORTH_IT):
            break
        request = each.request
        if not _goes_with(wanted, each):
            continue
        mates.append(each)
        if request.partition_key == wanted.partition_key:
            same_partition.append(each)
        elif request.clustering == wanted.clustering:
            same_clustering.append(each)
        exact = same_clustering if len(same_clustering) > len(same_partition) else same_partition
        if len(exact) == room:
            break
    if not allow_product or len(exact) >= min(_WORTH_IT, room, len(mates)):
        return exact
    return mates[: min(room, _PRODUCT_SIZE - 1)]


def _choose_composite(
    first: WaitingRead, waiting: Iterable[WaitingRead], allow_product: bool, room: int
) -> list[WaitingRead]:
    """The same for a partition key of several columns, of which one may differ. `_choose` is faster, for most tables.

    Few reads may have all other columns in common, so the search goes on when the first look has found one of them.
    """
    wanted, columns = first.request, range(len(first.partition))
    same_partition: list[WaitingRead] = []
    exact: list[list[WaitingRead]] = [[] for _ in columns]
    products: list[list[WaitingRead]] = [[] for _ in columns]
    most = 0
    for looked_at, each in enumerate(waiting):
        if looked_at == LOOK_AHEAD or (looked_at == _FIRST_LOOK and not most) or most == room:
            break
        if not _goes_with(wanted, each):
            continue
        different = _different_column(first.partition, each.partition)
        if different == _SEVERAL:
            continue
        if different == _NONE:
            same_partition.append(each)
            most = max(most, len(same_partition))
            continue
        products[different].append(each)
        if each.request.clustering == wanted.clustering:
            exact[different].append(each)
            most = max(most, len(exact[different]))
    best = max(same_partition, *exact, key=len)
    product = max(products, key=len)
    if not allow_product or len(best) >= min(_WORTH_IT, room, len(product)):
        return best
    return product[: min(room, _PRODUCT_SIZE - 1)]


def _different_column(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    """The index of the only column in which two partition keys differ, or `_NONE`, or `_SEVERAL`."""
    found = _NONE
    for at in range(len(one)):
        if one[at] != other[at]:
            if found != _NONE:
                return _SEVERAL
            found = at
    return found


def _present(clustering: tuple[bytes | None, ...]) -> list[bytes]:
    return [each for each in clustering if each is not None]


def _distinct(items: list[_Item]) -> list[_Item]:
    """The items without repetitions, in their order."""
    return list(dict.fromkeys(items))


def _list(items: list[bytes]) -> bytes:
    """The CQL bytes of a list."""
    return _SIZE.pack(len(items)) + _parts(items)


def _parts(items: list[bytes]) -> bytes:
    """Each of the items after its length."""
    parts: list[bytes] = []
    length, packed = -1, b""
    for item in items:
        if len(item) != length:  # the values of a key mostly have one length
            length = len(item)
            packed = _SIZE.pack(length)
        parts.append(packed)
        parts.append(item)
    return b"".join(parts)
