"""CompiledGroup: the key of compiled modules, and choices that cannot be met."""

from __future__ import annotations

import sys

import pytest

from runtime.compiled_modules import CompiledGroup, abi, build_key
from schemas.errors import ConfigError

_GROUP = CompiledGroup(name="rows", option="CDC_ROWS", modules=("package.rows",))


def test_the_key_is_a_hash_of_names_and_contents() -> None:
    """The key also has the kind of Python. Content that moves to a name, or to the next source, changes the key."""
    assert build_key([("a", b"b")]) == f"{abi()}-8fb20ef63ced4145"
    assert (
        len({build_key(each) for each in ([("a", b"b")], [("ab", b"")], [("", b"ab")], [("a", b""), ("b", b"")])}) == 4
    )


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ("rust", "CDC_ROWS: 'rust' is not one of auto, compiled, python"),
        ("compiled", "CDC_ROWS: the sources changed; run `cdc compile`"),
    ],
)
def test_a_choice_that_cannot_be_met_is_refused(choice: str, reason: str) -> None:
    """Nothing else is loaded instead, and no finder is left installed."""
    before = list(sys.meta_path)
    with pytest.raises(ConfigError) as refused:
        _GROUP.load(choice, "/no/such", "the sources changed")
    assert str(refused.value) == reason
    assert sys.meta_path == before


@pytest.mark.parametrize(
    ("choice", "missing"), [("python", None), ("python", "not compiled"), ("auto", "not compiled")]
)
def test_the_sources_run_where_they_are_chosen_or_nothing_was_compiled(choice: str, missing: str | None) -> None:
    """Python imports the modules as usual."""
    before = list(sys.meta_path)
    assert not _GROUP.load(choice, "/no/such", missing)
    assert sys.meta_path == before


def test_compiled_modules_are_looked_for_before_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the modules of the group and its library are found in the folder."""
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    assert _GROUP.load("auto", "/compiled", None)
    finder = sys.meta_path[0]
    found, library = finder.find_spec("package.rows", None), finder.find_spec("rows__mypyc", None)
    assert found is not None
    assert library is not None
    assert found.origin == f"/compiled/package/rows.{abi()}.so"
    assert library.origin == f"/compiled/rows__mypyc.{abi()}.so"
    assert finder.find_spec("package.others", None) is None
