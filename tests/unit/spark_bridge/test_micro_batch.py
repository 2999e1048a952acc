"""The position of a query, from the offset log of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_bridge.errors import CheckpointError
from spark_bridge.reading.micro_batch import limited_ends, logged_end
from spark_bridge.topics.options import BridgeOptions
from spark_bridge.topics.positions import BEGINNING, Position
from tests.unit.spark_bridge.test_completeness import GIVEN

TOPICS = {"persistent://public/default/t-partition-0", "persistent://public/default/t-partition-1"}
BATCH = '{"batchWatermarkMs":0}'


def log(checkpoint: Path, batch: int, *sources: str) -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(exist_ok=True)
    (folder / str(batch)).write_text("\n".join(["v1", BATCH, *sources]))


def test_a_query_without_a_log_is_new(tmp_path: Path) -> None:
    """There is no folder, or an empty one."""
    assert logged_end(str(tmp_path), TOPICS) is None
    (tmp_path / "offsets").mkdir()
    assert logged_end(tmp_path.as_uri(), TOPICS) is None


def test_the_newest_batch_tells_by_number(tmp_path: Path) -> None:
    """Batch 10 comes after batch 9; other sources and Spark's own files in the folder do not count."""
    first, second = sorted(TOPICS)
    log(tmp_path, 9, f'{{"{first}": "1:1"}}')
    log(tmp_path, 10, '{"logOffset":3}', f'{{"{first}": ">5:6", "{second}": "-1:-1"}}')
    (tmp_path / "offsets" / ".11.crc").write_bytes(b"crc")
    assert logged_end(str(tmp_path), TOPICS) == {first: Position(5, 6), second: Position(-1, -1)}


def test_a_folder_that_python_cannot_look_into_is_named() -> None:
    """There is a library for s3a://, but it is not installed here."""
    with pytest.raises(CheckpointError, match=r"checkpoint s3a://lake/c: its offsets cannot be read \(Install s3fs"):
        logged_end("s3a://lake/c", TOPICS)


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        (['{"other": "1:1"}'], "batch 0 has 0 sources with these topics; limits need exactly one"),
        (["no json"], "its offsets cannot be read"),
        ([f'{{"{min(TOPICS)}": [8]}}'], "its offsets cannot be read ([8] is neither a position nor the bytes of a"),
    ],
)
def test_a_log_of_something_else_is_named(tmp_path: Path, sources: list[str], reason: str) -> None:
    """The error names the checkpoint, and the option to check."""
    log(tmp_path, 0, *sources)
    with pytest.raises(CheckpointError) as error:
        logged_end(str(tmp_path), TOPICS)
    assert str(error.value).startswith(f"checkpoint {tmp_path}: {reason}")
    assert str(error.value).endswith("the option checkpointLocation is that of the query itself")


def test_a_limit_does_not_hide_that_unread_records_are_gone() -> None:
    """All ledgers of a topic partition were deleted. With an unchanged position, no micro-batch would be planned, and a
    job that waits for the end would never reach it."""
    options = BridgeOptions.from_mapping({**GIVEN, "maxRowsPerTrigger": "10", "checkpointLocation": "/c"})
    first, second = sorted(TOPICS)
    starts = {first: Position(5, 50), second: Position(5, 50)}
    ends = {first: Position(6, -1), second: BEGINNING}
    assert limited_ends(options, starts, ends) == ends
