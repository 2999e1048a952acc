"""The changes of rows on Arrow tables (spark_bridge.rows.row_chain): values pass through as they are, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_bridge.rows.fold import Bounds
from spark_bridge.rows.row_chain import ChainRules, Compared, Image, Op, Said, Step, Texts

__all__ = ["IMAGE_COLUMNS", "chain_batches", "chained_table"]

IMAGE_COLUMNS: Final = (
    "owner",
    "kind",
    "id",
    "is_row",
    "clock_us",
    "ledger",
    "entry",
    "batch_index",
    "cells",
    "statics",
    "changed_us",
    "bounds",
    "key_version",
    "image",
    "source",
)
"""Columns of the input, with the content of `Said`.

`owner`: the Cassandra partition. `cells`, `statics`: columns of the image as text. `image`: a struct of the table's
columns and the mirror's own columns; null if the input row gives no value of them.
"""
_TIMES: Final = ("_cdc_writetime", "_cdc_expires_at")
_EARLIEST: Final = -(1 << 63)


def chain_batches(
    rules: ChainRules, statics: Sequence[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow`.

    Its rows must be sorted by `owner`. `statics`: names of the static columns.
    """

    def chain(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for rows in _whole_partitions(batches):
            yield from chained_table(rows, rules, statics).combine_chunks().to_batches()

    return chain


def chained_table(rows: pa.Table, rules: ChainRules, statics: Sequence[str]) -> pa.Table:
    """The changes of complete Cassandra partitions: all steps, and the comparison of each row with its result.

    The rows of a partition must stand together. The columns are `is_step`, `op`, `_cdc_id`, `before`, `after`,
    `changed_us`, `step`, `next_us`, `source`, `expires_at`. A comparison has only `op`, `_cdc_id`, `after` (if the row
    changed) and `expires_at`.
    """
    changes = [each for said in _partitions(rows) for each in rules.changes(said)]
    steps = [each for each in changes if isinstance(each, Step)]
    compared = [each for each in changes if isinstance(each, Compared)]
    image = _whole(rows["image"])
    results = pa.array([each.after for each in compared], pa.int64())
    shown = [None if each.op is Op.SAME or each.after is None else _whole_image(each.after) for each in compared]
    nothing = [None] * len(compared)
    columns = {
        "is_step": pa.array([*[True] * len(steps), *[False] * len(compared)], pa.bool_()),
        "op": pa.array([*[str(each.op) for each in steps], *[str(each.op) for each in compared]], pa.string()),
        "_cdc_id": pa.array([*[each.identity for each in steps], *[each.identity for each in compared]], pa.string()),
        "before": _images(image, [*[each.before for each in steps], *nothing], statics),
        "after": _images(image, [*[each.after for each in steps], *shown], statics),
        "changed_us": pa.array([*[each.changed_us for each in steps], *nothing], pa.int64()),
        "step": pa.array([*[each.step for each in steps], *nothing], pa.int32()),
        "next_us": pa.array([*[each.next_us for each in steps], *nothing], pa.int64()),
        "source": _whole(rows["source"]).take(pa.array([*[each.source for each in steps], *nothing], pa.int64())),
        "expires_at": pa.concat_arrays(
            [pa.nulls(len(steps), pa.int64()), pc.struct_field(image, [_TIMES[1]]).take(results)]
        ),
    }
    return pa.table(columns)


def _whole_partitions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of complete Cassandra partitions. The last partition of a batch may continue in the next batch."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        owners = batch.column("owner")
        last = owners[len(batch) - 1]
        begins = pc.index(owners, last).as_py()
        is_other = bool(waiting) and waiting[-1].column("owner")[-1] != last
        if begins or is_other:
            yield pa.Table.from_batches([*waiting, batch.slice(0, begins)])
            waiting = []
        waiting.append(batch.slice(begins))
    if waiting:
        yield pa.Table.from_batches(waiting)


def _partitions(rows: pa.Table) -> Iterator[Iterator[Said]]:
    """The input about each Cassandra partition. Its numbers are those of the table's rows."""
    columns: list[list[Any]] = [rows[name].to_pylist() for name in IMAGE_COLUMNS if name not in ("image", "source")]
    image = _whole(rows["image"])
    times = [pc.struct_field(image, [name]).to_pylist() for name in _TIMES]
    numbered = zip(range(len(rows)), zip(*columns, strict=True), zip(*times, strict=True), strict=True)
    for _, together in groupby(numbered, key=lambda each: each[1][0]):
        yield (_said(number, values, its_times) for number, values, its_times in together)


def _said(number: int, values: Sequence[Any], times: tuple[int | None, int | None]) -> Said:
    _, kind, identity, is_row, clock_us, ledger, entry, index, cells, statics, changed_us, bounds, version = values
    return Said(
        number=number,
        kind=kind,
        identity=identity,
        is_row=is_row,
        place=(_EARLIEST if clock_us is None else clock_us, ledger or 0, entry or 0, index or 0),
        texts=Texts(cells, statics),
        changed_us=changed_us,
        bounds=None if bounds is None else Bounds(**bounds),
        times=times,
        key_version=version,
    )


def _whole_image(number: int) -> Image:
    return Image(number, number, Texts(None, None))


def _images(image: pa.StructArray, wanted: Sequence[Image | None], statics: Sequence[str]) -> pa.StructArray:
    """One struct for each wanted image. Its static columns may come from another row of `image` than the others."""
    cells = pa.array([None if each is None else each.cells for each in wanted], pa.int64())
    named = pa.array([None if each is None else each.statics for each in wanted], pa.int64())
    fields = list(image.type)
    columns = [image.field(each.name).take(named if each.name in statics else cells) for each in fields]
    return pa.StructArray.from_arrays(
        columns, fields=fields, mask=pa.array([each is None for each in wanted], pa.bool_())
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
