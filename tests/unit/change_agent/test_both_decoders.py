"""The native, the compiled and the plain decoder give equal values and errors. `CDC_DECODER` chooses one of them."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from change_agent.decoder import COMPILED_MODULES, INTERFACES, compiled_folder, running
from change_agent.decoder_build import native_obstacle, obstacle
from runtime.native_core import native_folder

_ROOT = Path(__file__).parents[3]
_HERE = Path(__file__).parent
_TESTS_OF_THE_DECODER = [
    "test_avro_key.py",
    "test_data_input.py",
    "test_descriptor.py",
    "test_encoded_segments.py",
    "test_events_writer.py",
    "test_golden_segments.py",
    "test_inflight.py",
    "test_mutation.py",
    "test_mutation_events.py",
    "test_publisher.py",
    "test_publisher_holding.py",
    "test_publisher_too_large.py",
    "test_section_decoding.py",
    "test_segment_reader.py",
]

# The tests of the path from the reader to messages, which differs with the native core.
_TESTS_OF_THE_WAY = ["test_segment_follower.py", "test_unsynced_reading.py", "test_unknown_tables.py"]

needs_native = pytest.mark.skipif(
    not native_folder().is_dir(), reason=f"there is no native core: {native_obstacle() or 'run `make compile`'}"
)
needs_compiled = pytest.mark.skipif(
    not compiled_folder().is_dir(), reason=f"the decoder is not compiled: {obstacle() or 'run `make compile`'}"
)

_BEST = "native" if native_folder().is_dir() else "compiled"


def _run(choice: str, *arguments: str, root: Path = _ROOT) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"CDC_DECODER": choice, "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *arguments], check=False, capture_output=True, text=True, cwd=root, env=environment
    )


@pytest.mark.exhaustive
@needs_compiled
def test_the_other_decoder_passes_the_same_tests() -> None:
    """The present run tests one decoder. Run the same tests with the other one."""
    other = "python" if running().is_compiled else "compiled"
    files = [str(_HERE / name) for name in _TESTS_OF_THE_DECODER]
    done = _run(other, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout


@pytest.mark.exhaustive
@needs_native
@needs_compiled
def test_the_way_to_messages_passes_the_same_tests_with_and_without_the_core() -> None:
    """The present run tests the path with or without the core. Run the same tests the other way."""
    other = "compiled" if running().is_native else "native"
    done = _run(
        other, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *(str(_HERE / name) for name in _TESTS_OF_THE_WAY)
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.exhaustive
@needs_compiled
def test_good_and_bad_bytes_give_equal_values_and_equal_errors() -> None:
    """All decoders read thousands of damaged mutations and hundreds of damaged segments. Each outcome is one line."""
    choices = ["compiled", "native"] if native_folder().is_dir() else ["compiled"]
    plain, *others = (_run(choice, "-m", "tests.agent.both_decoders") for choice in ("python", *choices))
    for other in others:
        assert other.returncode == plain.returncode == 0, other.stderr + plain.stderr
        assert other.stdout.splitlines() == plain.stdout.splitlines()
    assert len(plain.stdout.splitlines()) > 3000


@needs_compiled
def test_the_choice_is_what_runs() -> None:
    """`cdc --version` names the decoder, and the modules are loaded from its files."""
    print_it = "import change_agent.db.rows as rows; from change_agent.decoder import running\n"
    print_it += "print(rows.__file__.rpartition('.')[2], running().is_compiled)"
    assert _run("compiled", "-c", print_it).stdout.split() == ["so", "True"]
    assert _run("auto", "-c", print_it).stdout.split() == ["so", "True"]
    assert _run("python", "-c", print_it).stdout.split() == ["py", "False"]
    assert f"decoder: {_BEST}" in _run("auto", "-m", "cdc.main", "--version").stdout
    assert "decoder: compiled\n" in _run("compiled", "-m", "cdc.main", "--version").stdout


@needs_native
def test_the_native_core_of_other_sources_does_not_run(tmp_path: Path) -> None:
    """`cdc --version` says that the core is stale. With `CDC_DECODER=native`, `cdc` ends with one line."""
    for package in ("schemas", "runtime", "change_agent", "cdc"):
        shutil.copytree(_ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert "decoder: native" in _run("native", "-m", "cdc.main", "--version", root=tmp_path).stdout
    with (tmp_path / "runtime" / "native" / "src" / "core.rs").open("a") as source:
        source.write("// edited\n")
    said = _run("auto", "-m", "cdc.main", "--version", root=tmp_path).stdout
    assert "native" not in said.partition("(")[0]
    refused = _run("native", "-m", "cdc.main", "--version", root=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "cdc: CDC_DECODER: there is no native core: its sources changed since it was built; run `cdc compile` where there is"
        " cargo\n"
    )


def test_a_wrong_choice_is_refused_in_one_line() -> None:
    """The variable is refused like any wrong option."""
    done = _run("rust", "-m", "cdc.main", "--version")
    assert done.returncode == 2
    assert done.stderr == "cdc: CDC_DECODER: 'rust' is not one of auto, compiled, native, python\n"


@needs_compiled
def test_a_changed_source_is_not_shadowed_by_what_was_compiled(tmp_path: Path) -> None:
    """The edited source runs, and `cdc --version` says that the compiled modules are stale.

    With `CDC_DECODER=compiled`, `cdc` ends with one line.
    """
    for package in ("schemas", "runtime", "clients", "change_agent", "cdc"):
        shutil.copytree(_ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    assert f"decoder: {_BEST}" in _run("auto", "-m", "cdc.main", "--version", root=tmp_path).stdout
    with (tmp_path / "change_agent" / "db" / "rows.py").open("a") as source:
        source.write("EDITED = True\n")
    edited = _run("auto", "-c", "import change_agent.db.rows as rows; print(rows.EDITED)", root=tmp_path)
    assert edited.stdout == "True\n"
    said = _run("auto", "-m", "cdc.main", "--version", root=tmp_path).stdout
    assert "plain Python (the sources changed since it was compiled" in said
    refused = _run("compiled", "-m", "cdc.main", "--version", root=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "run `cdc compile`" in refused.stderr


def test_without_a_compiler_the_command_says_what_to_install(tmp_path: Path) -> None:
    """Each missing part is one line. The exit code is 1, or 0 with `--if-possible`, as `make` calls it."""
    for package in ("schemas", "runtime", "clients", "change_agent", "source_connector", "cdc"):
        shutil.copytree(_ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "_compiled"))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "CC": "no-such-compiler", "CARGO": sys.executable}
    command = [sys.executable, "-m", "cdc.main", "compile"]
    missing = "runs uncompiled, which is slower: there is no C compiler (on Debian: apt install gcc python3-dev)\n"
    core = "native core: not built, Python does its work: there is no C compiler (on Debian: apt install gcc python3-dev)\n"
    lines = f"{core}decoder: {missing}row path: {missing}"
    for arguments, code in (([], 1), (["--if-possible"], 0)):
        done = subprocess.run(
            [*command, *arguments], check=False, capture_output=True, text=True, cwd=tmp_path, env=environment
        )
        assert (done.returncode, done.stderr) == (code, lines)


@pytest.mark.parametrize("module", COMPILED_MODULES)
def test_a_compiled_module_keeps_to_what_the_compiler_knows(module: str) -> None:
    """mypyc ignores the `from` of a `raise`, so none is allowed. Own imports must be part of the build key."""
    tree = ast.parse(_ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text())
    assert not [each.lineno for each in ast.walk(tree) if isinstance(each, ast.Raise) and each.cause is not None]
    ours = {
        each.module
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and each.module and each.module.startswith(("change_agent", "schemas"))
    }
    assert ours <= {*COMPILED_MODULES, *INTERFACES}
