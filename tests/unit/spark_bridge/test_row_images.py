"""Changes of rows, compared with a dictionary that applies records one by one, on Arrow tables as from Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_bridge.rows.fold import ROW, STATIC
from spark_bridge.rows.range_scope import RangeScope
from spark_bridge.rows.row_chain import STATIC_ID, ChainRules, SaidKind
from spark_bridge.rows.row_images import IMAGE_COLUMNS, chain_batches, chained_table
from spark_bridge.topics.topic_schemas import AvroRecord
from tests.unit.spark_bridge.test_fold import (
    CHANGES,
    KEY,
    TOLD,
    VERSION,
    Change,
    Delete,
    Model,
    Row,
    Static,
    Told,
    key_of,
    read,
    told_of,
)

IMAGE: Final = pa.struct(
    [
        ("a", pa.int32()),
        ("b", pa.string()),
        ("v", pa.int32()),
        ("s", pa.int32()),
        ("_cdc_writetime", pa.int64()),
        ("_cdc_expires_at", pa.int64()),
    ]
)
SOURCE: Final = pa.struct([("position", pa.int64())])
TYPES: Final = {
    "owner": pa.string(),
    "kind": pa.string(),
    "id": pa.string(),
    "is_row": pa.bool_(),
    "clock_us": pa.int64(),
    "ledger": pa.int64(),
    "entry": pa.int64(),
    "batch_index": pa.int32(),
    "cells": pa.string(),
    "statics": pa.string(),
    "changed_us": pa.int64(),
    "bounds": TOLD.field("bounds").type,
    "key_version": pa.int64(),
    "image": IMAGE,
    "source": SOURCE,
}
SAID: Final = pa.schema([(name, TYPES[name]) for name in IMAGE_COLUMNS])
GONE_US: Final = 5_000
RESULT_US: Final = 4_000
RULES: Final = ChainRules(
    has_clustering=True, covers=RangeScope([(VERSION, cast("AvroRecord", KEY))]), key_version=VERSION, gone_us=GONE_US
)
Key = tuple[int, str]
State = Mapping[str, tuple[int | None, int | None]]
"""A shown state: the row's value and the static value, by identity."""


class Wanted(NamedTuple):
    """One step: the row's and the static value before and after, the time, and the position of the record."""

    before: tuple[int | None, int | None] | None
    after: tuple[int | None, int | None] | None
    changed_us: int
    source: int | None


def identity_of(key: Key) -> str:
    return key_of(*key).hex().upper()


def state_of(model: Model, owner: str, without: Key | None = None) -> State:
    rows = {identity_of(key): (v, model.static) for key, v in model.rows.items() if key != without}
    if not rows and model.static is not None:
        return {STATIC_ID + owner: (None, model.static)}
    return rows


def texts(v: int | None, s: int | None, identity: str) -> tuple[str, str]:
    return json.dumps([identity, v]), json.dumps({} if s is None else {"s": s})


def shown_as(kind: SaidKind, state: State, owner: str, writetime: int) -> list[Told]:
    """Rows of the mirror, or of the result."""
    found = list[Told]()
    for identity, (v, s) in state.items():
        cells, statics = texts(v, s, identity)
        image = {"a": None, "b": None, "v": v, "s": s, "_cdc_writetime": writetime, "_cdc_expires_at": None}
        found.append(
            {
                "owner": owner,
                "kind": kind,
                "id": identity,
                "is_row": True,
                "cells": cells,
                "statics": statics,
                "image": image,
                "changed_us": RESULT_US,
            }
        )
    return found


def gone_as(identity: str, owner: str) -> Told:
    return {"owner": owner, "kind": SaidKind.AFTER, "id": identity, "is_row": False, "changed_us": GONE_US}


def record_as(change: Change, position: int, owner: str) -> Told:
    """The change as spark_bridge.jobs.row_steps passes a record of the data topic."""
    told = told_of(change, position)
    key = cast("bytes", told["key"])
    said: Told = {name: told[name] for name in ("clock_us", "ledger", "entry", "batch_index", "bounds")}
    said.update(
        owner=owner, kind=told["scope"], id="", is_row=False, changed_us=position, source={"position": position}
    )
    if told["scope"] == ROW:
        said["id"] = key.hex().upper()
    if isinstance(change, Row | Static):
        v, s = (change.v, change.s) if isinstance(change, Row) else (None, change.s)
        cells, statics = texts(v, s, cast("str", said["id"]))
        said["image"] = {"a": read(key, KEY)["a"], "b": None, "v": v, "s": s, "_cdc_writetime": position}
        said.update(is_row=told["scope"] == ROW, statics=statics, cells=cells if told["scope"] == ROW else None)
    assert told["scope"] != STATIC or said["image"]
    return said


def wanted_steps(states: Sequence[State], first: int, owner: str, last: State) -> dict[str, list[Wanted]]:
    """The steps of each row, from the states after each record and the result."""
    steps = dict[str, list[Wanted]]()
    of_rows = [{name: each for name, each in state.items() if not name.startswith(STATIC_ID)} for state in states]
    for identity in {name for state in of_rows for name in state} | set(last) - {STATIC_ID + owner}:
        found = steps.setdefault(identity, [])
        for position, (before, after) in enumerate(pairwise(of_rows), start=first):
            if before.get(identity) != after.get(identity):
                found.append(Wanted(before.get(identity), after.get(identity), position, position))
        if of_rows[-1].get(identity) != last.get(identity):
            time_us = RESULT_US if identity in last else GONE_US
            found.append(Wanted(of_rows[-1].get(identity), last.get(identity), time_us, None))
    alone = states[0].get(STATIC_ID + owner), last.get(STATIC_ID + owner)
    if alone[0] != alone[1]:
        steps[STATIC_ID + owner] = [Wanted(*alone, GONE_US if alone[1] is None else RESULT_US, None)]
    return {identity: found for identity, found in steps.items() if found}


def image_of(image: Mapping[str, Any] | None) -> tuple[int | None, int | None] | None:
    return None if image is None else (image["v"], image["s"])


def told_steps(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Wanted]]:
    """The steps that were found; checks their numbers and next times."""
    found = dict[str, list[Wanted]]()
    for row in sorted((each for each in rows if each["is_step"]), key=lambda each: each["step"]):
        source = None if row["source"] is None else row["source"]["position"]
        steps = found.setdefault(row["_cdc_id"], [])
        steps.append(Wanted(image_of(row["before"]), image_of(row["after"]), row["changed_us"], source))
        assert row["step"] == len(steps) + 1, "1 is that of rows which were there before"
        ops = {(True, False): "insert", (False, False): "update", (False, True): "delete"}
        assert row["op"] == ops[row["before"] is None, row["after"] is None]
    for row in rows:
        if row["is_step"]:
            later = found[row["_cdc_id"]][row["step"] - 1 :]
            assert row["next_us"] == (later[0].changed_us if later else None)
    return found


def op_of(before: object, after: object, *, is_touched: bool) -> str:
    if before is None:
        return "insert"
    if after is None:
        return "delete"
    return "update" if before != after else "touch" if is_touched else "same"


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.lists(CHANGES, max_size=6), st.lists(CHANGES, max_size=12), st.booleans()), max_size=4),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_each_row_changes_as_a_dictionary_does(
    partitions: Sequence[tuple[Sequence[Change], Sequence[Change], bool]], size: int, random: Any
) -> None:
    """The rows are of several Cassandra partitions, in any order; at the end, one row may be gone without a record.

    The tables are also divided into batches that end anywhere.
    """
    said, wanted, compared = list[Told](), dict[str, list[Wanted]](), dict[str, str]()
    for number, (earlier, changes, loses_one) in enumerate(partitions):
        owner, model = f"p{number}", Model()
        for each in earlier:
            model.apply(each)
        states = [state_of(model, owner)]
        records = [record_as(each, len(earlier) + at, owner) for at, each in enumerate(changes)]
        for each in changes:
            model.apply(each)
            states.append(state_of(model, owner))
        lost = min(model.rows) if loses_one and len(model.rows) > 1 else None
        last = state_of(model, owner, lost)
        gone = [gone_as(each, owner) for state in states for each in state if each not in last]
        told = [
            *shown_as(SaidKind.BEFORE, states[0], owner, 1),
            *shown_as(SaidKind.AFTER, last, owner, 1 + loses_one),
            *{cast("str", each["id"]): each for each in gone}.values(),
            *records,
        ]
        random.shuffle(told)
        said += told
        # Identities are the same in all partitions here, so the owner distinguishes them.
        steps = wanted_steps(states, len(earlier), owner, last)
        wanted |= {f"{owner} {identity}": each for identity, each in steps.items()}
        for identity in {*states[0], *last}:
            op = op_of(states[0].get(identity), last.get(identity), is_touched=loses_one)
            compared[f"{owner} {identity}"] = op
    rows = pa.Table.from_pylist(said, schema=SAID)
    whole = chained_table(rows, RULES, ["s"])
    parts = list(chain_batches(RULES, ["s"])(rows.to_batches(max_chunksize=size)))
    found = dict[str, list[Wanted]]()
    found_ops = dict[str, str]()
    for number in range(len(partitions)):
        owner = f"p{number}"
        of_owner = chained_table(rows.filter(pc.equal(rows["owner"], owner)), RULES, ["s"]).to_pylist()
        found |= {f"{owner} {identity}": each for identity, each in told_steps(of_owner).items()}
        found_ops |= {f"{owner} {each['_cdc_id']}": each["op"] for each in of_owner if not each["is_step"]}
    assert found == wanted
    assert found_ops == compared
    assert sorted(map(str, whole.to_pylist())) == sorted(str(row) for each in parts for row in each.to_pylist())


def test_a_deletion_of_what_nobody_had_changes_nothing() -> None:
    """The columns keep their types although there is no row."""
    for said in ([record_as(Delete(1, "a"), 3, "p"), gone_as(identity_of((1, "a")), "p")], []):
        changes = chained_table(pa.Table.from_pylist(said, schema=SAID), RULES, ["s"])
        assert (len(changes), changes.schema.field("is_step").type) == (0, pa.bool_())
        assert len(changes.filter(changes["is_step"])) == 0
        assert changes.schema.field("op").type == changes.schema.field("_cdc_id").type == pa.string()
