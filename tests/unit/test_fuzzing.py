"""A minute of fuzzing, and all inputs that fuzzing has found so far. `make fuzz` does the same for hours.

A failure shows the seed of its run, and CDC_TEST_SEED repeats it.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.sandbox.prerequisites import java_home
from change_agent.decoder import running
from change_agent.decoder_build import native_obstacle
from tests.fuzz.names import NAMES
from tests.fuzz.run import CORPUS, FuzzRun, corpus_of, fuzz
from tests.fuzz.targets import TARGETS
from tests.unit.source_connector.test_host_protocol import FROM_CHILD

pytestmark = pytest.mark.exhaustive

SEED = int(os.environ.get("CDC_TEST_SEED") or secrets.randbelow(10**6))
REPOSITORY = Path(__file__).parents[2]
ENGINE = "coverage" if importlib.util.find_spec("atheris") else "blind"
# Seconds for each target. The decoder is the most important one.
SECONDS = {"mutation": 12, "framing": 9, "segment": 6}
JAVA_INPUTS = 300_000


def test_every_target_is_fuzzed() -> None:
    """The names are listed separately, because the targets are imported later.

    No corpus belongs to a removed target.
    """
    assert list(TARGETS) == NAMES
    assert {path.stem for path in CORPUS.glob("*.hex")} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_before_is_read_or_refused(name: str) -> None:
    """The inputs are read by the decoder that is in use."""
    take, corpus = TARGETS[name].prepare(), corpus_of(name)
    assert all(isinstance(take(data), str) for data in corpus)
    assert len(corpus) >= 3


def _outcomes(name: str, decoder: str) -> str:
    command = [sys.executable, "-m", "tests.fuzz.run", name, "--outcomes"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "CDC_DECODER": decoder}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment, timeout=300)
    return done.stdout


@pytest.mark.skipif(not running().is_compiled, reason="there is one decoder here, which the test above runs")
@pytest.mark.parametrize("name", ["mutation", "segment", "framing", "key"])
def test_both_decoders_make_the_same_of_what_was_found(name: str) -> None:
    """The values and the errors are equal."""
    assert _outcomes(name, "compiled") == _outcomes(name, "python")


@pytest.mark.parametrize("name", NAMES)
def test_no_input_is_more_than_read_or_refused(name: str) -> None:
    """Each target is fuzzed for some seconds, with coverage if atheris is installed.

    An input may take 30 s, and the process 2 GiB.
    """
    # A native core with counters takes longer to build than the fuzzing, so the test below uses it.
    run: FuzzRun = fuzz(name, "blind" if name == "native" else ENGINE, seconds=SECONDS.get(name, 4), seed=SEED)
    print(run.text)
    assert run.inputs > 10


@pytest.mark.extended
@pytest.mark.skipif(native_obstacle() is not None, reason=f"the native core cannot be built: {native_obstacle()}")
@pytest.mark.skipif(ENGINE == "blind", reason="there is no atheris for this Python")
def test_fuzzing_follows_the_branches_of_the_native_core(tmp_path: Path) -> None:
    """The fuzzer has a counter for each branch of the core's Rust code."""
    run = fuzz("native", "coverage", inputs=5_000, seed=SEED, corpus=tmp_path)
    print(run.text)
    assert run.engine == "coverage"
    assert run.branches > 3_000


def test_the_java_side_reads_or_refuses_every_frame(tmp_path: Path) -> None:
    """The heap has 96 MB, although a frame may have 64 MiB and claim 2 GB."""
    java, host = java_home() / "bin", REPOSITORY / "source_connector" / "nar"
    sources = [str(host / "Frames.java"), str(REPOSITORY / "tests" / "java" / "FramesFuzz.java")]
    subprocess.run([str(java / "javac"), "-d", str(tmp_path), *sources], check=True, capture_output=True, timeout=120)
    command = [str(java / "java"), "-Xmx96m", "-XX:+UseSerialGC", "-cp", str(tmp_path)]
    command += [
        "org.cassandracdc.source.FramesFuzz",
        str(SEED),
        str(JAVA_INPUTS),
        *(frame.hex() for frame, _, _ in FROM_CHILD),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"CDC_TEST_SEED={SEED} {done.stdout} {done.stderr}"
    assert done.stdout.startswith(f"Done {JAVA_INPUTS} inputs")
