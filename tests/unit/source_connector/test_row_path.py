"""The fast paths for rows give the same bytes, events and errors as the slow paths, compiled or not."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from change_agent.decoder_build import native_obstacle, obstacle
from runtime.native_core import native_folder
from schemas.cql_type import parse_cql_type
from schemas.cql_value import CqlValueError
from schemas.mutation_event import (
    MalformedEventsError,
    MutationEvent,
    MutationEvents,
    MutationKind,
    RangeBounds,
    decode_events,
    encode_events,
)
from schemas.system_schema import tables_of
from schemas.table_metadata import ColumnMetadata, TableMetadata
from source_connector.compiled import COMPILED_MODULES, compiled_folder, row_path
from source_connector.data_format import DataFormat
from source_connector.encoding.native_rows import has_any
from source_connector.encoding.row_encoder import row_encoder
from source_connector.events.events_reader import read_events
from source_connector.rows.raw_page import RawPage
from tests.cql.native_types import NATIVE_TYPES
from tests.unit.source_connector.events import column, table

_ROOT = Path(__file__).parents[3]
_GOLDEN = _ROOT / "tests" / "golden" / "datastax" / "types-rows.json"
_TYPES = (
    "counter",
    *NATIVE_TYPES,
    *(f"list<{each}>" for each in NATIVE_TYPES),
    *(f"frozen<set<{each}>>" for each in NATIVE_TYPES),
    "list<frozen<list<int>>>",
)
_TRIES = 150

needs_compiled = pytest.mark.skipif(
    not compiled_folder().is_dir(), reason=f"the row path is not compiled: {obstacle() or 'run `make compile`'}"
)


def _run(choice: str, *arguments: str, root: Path = _ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CDC_CONNECTOR": choice, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=root, env=environment
    )


def _outcome(write: Callable[[], bytes]) -> bytes | str:
    try:
        return write()
    except (CqlValueError, ValueError, TypeError, OverflowError) as error:
        return f"{type(error).__name__}: {error}"


def _ways(
    metadata: TableMetadata, columns: tuple[ColumnMetadata, ...], values: tuple[bytes | None, ...]
) -> tuple[bytes | str, bytes | str]:
    encoder = row_encoder(DataFormat.KEY_VALUE_AVRO, metadata, columns)
    transcoder = encoder.transcoder
    assert transcoder is not None
    return _outcome(lambda: transcoder.write(values, 0)), _outcome(lambda: encoder.value(columns, values, ()))


def _value(chance: random.Random, cql_type: str, depth: int = 0) -> bytes:
    """Mostly valid bytes of the type; sometimes of another length, or bytes that only look like a list."""
    if chance.random() < 0.1:
        return chance.randbytes(chance.choice((0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 40)))
    inner = cql_type.removeprefix("frozen<").removeprefix("list<").removeprefix("set<").rstrip(">")
    if depth < 2 and cql_type.startswith(("list<", "frozen<list<", "frozen<set<")):
        items = [_value(chance, inner, depth + 1) for _ in range(chance.choice((0, 1, 2, 70)))]
        return len(items).to_bytes(4, "big") + b"".join(len(each).to_bytes(4, "big") + each for each in items)
    lengths = {"bigint": 8, "counter": 8, "timestamp": 8, "time": 8, "double": 8, "int": 4, "float": 4, "date": 4}
    lengths |= {"smallint": 2, "tinyint": 1, "boolean": 1, "uuid": 16, "timeuuid": 16}
    if inner in ("text", "ascii"):
        return chance.choice(("", "a", "käse", "x" * 9_000)).encode()
    size = lengths.get(inner, chance.choice((1, 2, 4, 16)))
    edge = chance.choice((b"\0", b"\x7f", b"\x80", b"\xff"))
    return edge + chance.randbytes(size - 1) if chance.random() < 0.5 else chance.randbytes(size)


@pytest.mark.parametrize("cql_type", _TYPES)
def test_bytes_transcoded_are_those_of_fastavro_and_so_are_the_errors(cql_type: str) -> None:
    """The values include nulls, every length, and damaged ones."""
    chance, metadata = random.Random(cql_type), table()
    one = column("v", cql_type="int")
    columns = (ColumnMetadata(name="v", kind=one.kind, type=parse_cql_type(cql_type, {}), position=-1, reversed=False),)
    encoder = row_encoder(DataFormat.KEY_VALUE_AVRO, metadata, columns)
    transcoder = encoder.transcoder
    assert transcoder is not None
    assert transcoder.write((None,), 0) == b"\0" == encoder.value(columns, (None,), ())
    good = 0
    for _ in range(_TRIES):
        data = _value(chance, cql_type)
        fast = _outcome(lambda data=data: transcoder.write((data,), 0))  # type: ignore[misc]  # mypy and defaults
        slow = _outcome(lambda data=data: encoder.value(columns, (data,), ()))  # type: ignore[misc]
        (row,) = RawPage(_cell(None) + _cell(data), 1, 2, None).rows()  # of the native core, if it is there
        answered = _outcome(lambda row=row: transcoder.write(row, 1))  # type: ignore[misc]
        assert fast == slow == answered, data.hex()
        good += isinstance(fast, bytes)
    assert good > 0


def _cell(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else len(data).to_bytes(4, "big") + data


def test_a_page_is_cut_into_the_columns_that_it_has() -> None:
    """Rows are sequences of bytes and None, as tuples are. Slices are tuples."""
    rows = [(b"a", None, b"", b"x" * 300), (b"b", b"c", None, b"")]
    page = RawPage(b"".join(_cell(each) for row in rows for each in row), 2, 4, b"more")
    found = page.rows()
    assert found == rows
    assert [list(each) for each in found] == [list(each) for each in rows]
    assert [len(each) for each in found] == [4, 4]
    assert [each[-1] for each in found] == [b"x" * 300, b""]
    assert [each[1:3] for each in found] == [(None, b""), (b"c", None)]
    assert [each[3:9] + each[2:1] for each in found] == [(b"x" * 300,), (b"",)]
    with pytest.raises(IndexError):
        _ = found[0][4]
    assert page.rows_by_key(2) == {(b"a", None): rows[0][2:], (b"b", b"c"): rows[1][2:]}
    assert [each[0] for each in page.rows_by_key(3).values()] == [b"x" * 300, b""]
    assert [has_any(each, 1, 3) for each in found] == [False, True]
    assert [has_any(each, 1, 3) for each in rows] == [False, True]
    assert RawPage(b"", 0, 4, None).rows() == []
    assert RawPage(b"", 0, 4, None).rows_by_key(1) == {}


def test_a_page_that_ends_too_early_is_refused_at_every_byte() -> None:
    """The error is an IndexError, also if a column or the page claims more than memory holds."""
    data = b"".join(_cell(each) for each in (b"a", None, b"xyz", b""))
    for at in range(len(data)):
        for cut in (RawPage.rows, lambda page: page.rows_by_key(1)):
            with pytest.raises(IndexError):
                cut(RawPage(data[:at], 2, 2, None))
    huge = b"\x7f\xff\xff\xff" + data
    for page in (RawPage(huge, 1, 1, None), RawPage(data, 2**31 - 1, 2**16 - 1, None)):
        with pytest.raises(IndexError):
            page.rows()


def test_rows_of_every_type_that_cassandra_stored_are_transcoded_to_the_same_bytes() -> None:
    """The golden rows have the records of DataStax's connector."""
    golden = json.loads(_GOLDEN.read_text())
    tables = {each.name: each for each in tables_of(golden["schema"]).values()}
    compared = 0
    for name, rows in golden["rows"].items():
        metadata = tables[name]
        width = len(metadata.primary_key)
        for row in rows:
            values = tuple(None if each is None else bytes.fromhex(each) for each in row)
            columns = metadata.value_columns
            if columns:
                fast, slow = _ways(metadata, columns, values[width : width + len(columns)])
                assert fast == slow
                compared += isinstance(fast, bytes)
    assert compared > 100


def _message() -> bytes:
    bounds = RangeBounds(start=(b"\1", b""), start_inclusive=True, end=(), end_inclusive=False)
    events = (
        MutationEvent(
            100, 0, MutationKind.ROW, b"k", b"pk", bytes(16), (b"c", None), 1 << 50, -5, None, 77, None, ("v", "ä")
        ),
        MutationEvent(70_000, 1, MutationKind.ROW_DELETION, b"", b"", bytes(range(16)), (), None, None, -1 << 40),
        MutationEvent(
            2**31 - 1, 2, MutationKind.RANGE_DELETION, b"k" * 200, b"p", bytes(16), bounds=bounds, columns=()
        ),
        MutationEvent(0, 3, MutationKind.STATIC_ROW, b"k", b"p", bytes(16), columns=("v", "ä")),
        MutationEvent(0, 4, MutationKind.PARTITION_DELETION, b"k", b"p", bytes(16), deletion_time_us=3),
    )
    content = MutationEvents(
        node_id=UUID(int=3),
        segment_id=1 << 44,
        keyspace="ks",
        table="T",
        table_id=UUID(int=9),
        key_schema="{}" * 99,
        events=events,
    )
    return encode_events(content)


def _read_in_parts(data: bytes, first: int = 2) -> MutationEvents:
    """The message, with its later events taken two at a time."""
    content, later = read_events(data, first)
    events = list(content.events)
    while later is not None and later.left:
        events += later.take(2)
    return replace(content, events=tuple(events))


def _read(read: Callable[[bytes], MutationEvents], data: bytes) -> MutationEvents | str:
    try:
        return read(data)
    except MalformedEventsError as error:
        return str(error)


def test_events_read_by_hand_are_those_that_fastavro_reads() -> None:
    """The messages have every kind of event, with and without each nullable field, are cut at every byte, and have
    every byte changed."""
    data = _message()
    assert read_events(data, 5) == (decode_events(data), None)
    assert [_read_in_parts(data, first) for first in range(1, 6)] == [decode_events(data)] * 5
    chance = random.Random(6)
    damaged = [data[:at] for at in range(len(data))]
    damaged += [data[:at] + chance.randbytes(1) + data[at + 1 :] for at in range(len(data))]
    for each in damaged:
        assert _read(_read_in_parts, each) == _read(decode_events, each), each.hex()


def test_a_message_with_a_damaged_later_event_is_unreadable_as_a_whole() -> None:
    """Its first events are not published: it becomes one dead letter, as if all of its events had been decoded."""
    data = _message()
    with pytest.raises(MalformedEventsError):
        read_events(data[:-20], 1)


def test_messages_share_the_columns_that_they_name() -> None:
    """The write times of many changes are remembered with their columns, and each change may come in its own message."""
    data = _message()
    first, second = (read_events(data, 9)[0] for _ in range(2))
    assert [each.columns for each in first.events] == [each.columns for each in decode_events(data).events]
    assert all(one.columns is other.columns for one, other in zip(first.events, second.events, strict=True))


@pytest.mark.parametrize("first", [1, 4, 5, 9])
@pytest.mark.parametrize("tail", [b"\0", b"x" * 20, _message()], ids=["one byte", "some bytes", "a second message"])
def test_a_message_with_more_bytes_than_its_schema_says_is_unreadable(tail: bytes, first: int) -> None:
    """The first events were published, and the message was acknowledged: what came behind them was lost unseen."""
    with pytest.raises(MalformedEventsError, match="more bytes than its schema says"):
        read_events(_message() + tail, first)


def test_later_events_come_in_their_order_and_name_their_columns() -> None:
    """A message knows how many there are, and their columns, before they are decoded."""
    content, later = read_events(data := _message(), 2)
    whole = decode_events(data)
    assert later is not None
    assert (content.events, later.left) == (whole.events[:2], 3)
    assert later.columns == {name for each in whole.events[2:] for name in each.columns}
    assert [*later.take(1), *later.take(9)] == list(whole.events[2:])
    assert (later.left, later.take(1)) == (0, [])


@needs_compiled
def test_the_choice_is_what_runs() -> None:
    """The modules come from where the program says, and a wrong choice is refused."""
    print_it = "import source_connector.table_line as t; from source_connector.compiled import row_path\n"
    print_it += "print(t.__file__.rpartition('.')[2], row_path())"
    assert _run("compiled", "-c", print_it).stdout == "so compiled\n"
    assert _run("python", "-c", print_it).stdout == "py plain Python (CDC_CONNECTOR=python)\n"
    assert "CDC_CONNECTOR: 'rust' is not one of auto, compiled, native, python" in _run("rust", "-c", print_it).stderr
    if native_folder().is_dir():
        assert _run("auto", "-c", print_it).stdout == "so compiled, with the native core\n"
        assert _run("native", "-c", print_it).stdout == "so compiled, with the native core\n"
    else:
        assert _run("auto", "-c", print_it).stdout == "so compiled (no native core: not built)\n"
        assert "there is no native core: not built; run `cdc compile`" in _run("native", "-c", print_it).stderr


@needs_compiled
def test_a_changed_source_is_not_shadowed_by_what_was_compiled(tmp_path: Path) -> None:
    """The edited source runs; if the compiled code is requested, the program refuses."""
    for package in ("schemas", "runtime", "clients", "source_connector"):
        shutil.copytree(_ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "source_connector" / "rows" / "row_task.py").open("a") as source:
        source.write("EDITED = True\n")
    print_it = "import source_connector.rows.row_task as t; print(t.EDITED)"
    assert _run("auto", "-c", print_it, root=tmp_path).stdout == "True\n"
    assert "run `cdc compile`" in _run("compiled", "-c", print_it, root=tmp_path).stderr


@pytest.mark.exhaustive
@needs_compiled
@pytest.mark.parametrize("choice", ["native", "compiled", "python"])
def test_the_other_row_paths_pass_the_same_tests(choice: str) -> None:
    """This run tests one row path, and this test runs the same tests with the others."""
    if choice == "native" and not native_folder().is_dir():
        pytest.skip(f"there is no native core: {native_obstacle() or 'run `make compile`'}")
    running = {"compiled, with the native core": "native", "compiled": "compiled"}.get(row_path(), "python")
    if choice == running:
        return
    names = ("row_path", "row_task", "table_line", "row_fetcher", "read_groups", "partition_lanes", "publication")
    names += ("mutation_cache",)
    files = [f"tests/unit/source_connector/test_{name}.py" for name in names]
    done = _run(choice, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "not other_row_path", *files)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", COMPILED_MODULES)
def test_a_compiled_module_keeps_to_what_the_compiler_knows(module: str) -> None:
    """mypyc leaves out the `from` of a `raise`."""
    tree = ast.parse(_ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text())
    assert not [each.lineno for each in ast.walk(tree) if isinstance(each, ast.Raise) and each.cause is not None]
