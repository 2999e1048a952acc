"""Fuzzes one target, or all: `python -m tests.fuzz.run [TARGET ...] --seconds 60`, or `--inputs 1000000`, with `--seed`.

Two engines. `coverage` (atheris, which is libFuzzer) keeps the inputs that reach code which no other one reached; it needs
the plain decoder, and for the target `native` a core with counters, which cargo builds first. `blind` changes inputs of the
corpus at random, at several times the speed, and is the one for the compiled decoder. Either begins with the seeds of the
target and the corpus in `tests/fuzz/corpus`.

An input may take thirty seconds, and the process 2 GiB: what takes more is a finding as a crash is. A finding's input is kept
in `build/fuzz`; `--replay FILE` runs it again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import mmap
import os
import random
import re
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fuzz.names import CORE_VARIABLE, NAMES

__all__ = ["CORPUS", "ENGINES", "Finding", "FuzzRun", "corpus_of", "fuzz", "main"]

_REPOSITORY: Final = Path(__file__).parents[2]
CORPUS: Final = Path(__file__).parent / "corpus"
ENGINES: Final = ("coverage", "blind")
_FINDINGS: Final = _REPOSITORY / "build" / "fuzz"
_CORE: Final = _REPOSITORY / "build" / "fuzz-core"
_INPUT_LIMIT_S: Final = 30
_MEMORY_LIMIT: Final = 2 * 1024**3
_MAX_INPUT: Final = 4096
_KEPT: Final = 200
_GRACE_S: Final = 300
_DONE: Final = re.compile(r"(?:Done|number_of_executed_units:) +(\d+)")
_BRANCHES: Final = re.compile(r"\((\d+) inline 8-bit counters\)")
_LARGE: Final = (
    b"\xff" * 9,
    b"\xf0\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\0\0\0\0",
    b"\xff\x80" + bytes(7),
)


class Finding(Exception):  # noqa: N818  # what fuzzing is for, not an error of it
    """An input that the target does not handle; the message says how to run it again."""


class FuzzRun:
    """The result of one run: `inputs` that were tried, and `branches` of compiled code that the engine could follow."""

    def __init__(self, target: str, engine: str, inputs: int, seconds: float, branches: int) -> None:
        self.engine: Final = engine
        self.inputs: Final = inputs
        self.branches: Final = branches
        self.text: Final = f"{target}: {inputs:,} inputs, {engine}, {seconds:.0f} s"


def corpus_of(target: str) -> list[bytes]:
    """The seeds of a target, and the inputs that fuzzing has added to the corpus."""
    from tests.fuzz.targets import TARGETS

    kept = CORPUS / f"{target}.hex"
    lines = kept.read_text(encoding="ascii").splitlines() if kept.exists() else []
    return [*TARGETS[target].seeds(), *map(bytes.fromhex, lines)]


def fuzz(
    target: str, engine: str, *, seconds: int = 0, inputs: int = 0, seed: int, corpus: Path | None = None
) -> FuzzRun:
    """Fuzz one target in a process of its own. `corpus` is a folder in which new inputs are kept. Raises Finding.

    Without cargo, the target `native` has no coverage, and the engine is `blind`.
    """
    _FINDINGS.mkdir(parents=True, exist_ok=True)
    core = None
    if (target, engine) == ("native", "coverage"):
        from tests.fuzz.instrumented_core import build_instrumented_core

        core = build_instrumented_core(_CORE)
        engine = "coverage" if core is not None else "blind"
    arguments = [target, "--engine", engine, "--seconds", str(seconds), "--inputs", str(inputs), "--seed", str(seed)]
    arguments += ["--child"] if corpus is None else ["--child", "--corpus", str(corpus)]
    environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY)}
    if engine == "coverage":
        environment["CDC_DECODER"] = "python"
    if core is not None:
        environment |= {CORE_VARIABLE: str(core), "LD_PRELOAD": str(_libfuzzer())}
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", *arguments],
        cwd=_REPOSITORY,
        env=environment,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=seconds + _GRACE_S if seconds else None,
        errors="replace",
    )
    found = _DONE.search(done.stdout)
    if done.returncode or found is None:
        raise Finding(f"{target}, {engine}, --seed {seed}, exit code {done.returncode}:\n{done.stdout[-6000:]}")
    branches = sum(map(int, _BRANCHES.findall(done.stdout)))
    return FuzzRun(target, engine, int(found[1]), time.monotonic() - started, branches)


def _libfuzzer() -> Path:
    """Atheris' libFuzzer as a separate library: compiled code finds its counters' functions only in a preloaded one."""
    import atheris

    return Path(atheris.path()) / "ubsan_with_fuzzer.so"


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_LIMIT, _MEMORY_LIMIT))


def _guided(options: argparse.Namespace, target: str) -> None:
    import atheris

    with atheris.instrument_imports(include=["change_agent", "schemas", "source_connector"]):
        from tests.fuzz.targets import TARGETS

        take = TARGETS[target].prepare()
    begin = options.corpus or _FINDINGS / f"corpus-{target}"
    begin.mkdir(parents=True, exist_ok=True)
    for data in corpus_of(target):
        (begin / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)
    arguments = [
        "fuzz",
        str(begin),
        f"-max_total_time={options.seconds}",
        f"-seed={options.seed or 1}",
        f"-max_len={_MAX_INPUT}",
        f"-timeout={_INPUT_LIMIT_S}",
        f"-artifact_prefix={_FINDINGS}/{target}-",
        "-rss_limit_mb=2048",
        "-verbosity=1",
        "-print_final_stats=1",
    ]
    if options.inputs:
        arguments.append(f"-runs={options.inputs}")
    _limit_memory()

    def take_one(data: bytes) -> None:
        take(data)

    atheris.Setup(arguments, take_one)
    atheris.Fuzz()


def _blind(options: argparse.Namespace, target: str) -> None:
    from tests.fuzz.targets import TARGETS

    take, corpus, rng = TARGETS[target].prepare(), corpus_of(target), random.Random(options.seed)
    if options.corpus is not None:
        corpus += [path.read_bytes() for path in sorted(options.corpus.glob("*"))]
    _limit_memory()
    # The last input remains after the process ends, for any reason.
    trace = _FINDINGS / f"{target}-{os.getpid()}"
    trace.write_bytes(bytes(8 + 2 * _MAX_INPUT))
    with trace.open("r+b") as file, mmap.mmap(file.fileno(), 0) as current:
        tried = _try_many(take, corpus, rng, current, options)
    trace.unlink()
    print(f"Done {tried} inputs")


def _try_many(
    take: Callable[[bytes], str],
    corpus: list[bytes],
    rng: random.Random,
    current: mmap.mmap,
    options: argparse.Namespace,
) -> int:
    end = time.monotonic() + (options.seconds or 10**9)
    tried = 0
    while (not options.inputs or tried < options.inputs) and time.monotonic() < end:
        # The alarm's default action ends the process, also within C code.
        signal.alarm(_INPUT_LIMIT_S)
        for _ in range(200):
            data = changed(rng, rng.choice(corpus), corpus)
            current[: 4 + len(data)] = len(data).to_bytes(4, "big") + data
            take(data)
        tried += 200
    signal.alarm(0)
    return tried


def changed(rng: random.Random, content: bytes, others: list[bytes]) -> bytes:
    """Apply a few changes that parsers often handle wrongly."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 30))
        match rng.randrange(8):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.randrange(256)
            case 2:
                data[at:at] = rng.randbytes(length)
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length]
            case 5:
                large = rng.choice(_LARGE)
                data[at : at + len(large)] = large
            case 6:
                del data[at:]
            case _:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                data[at : at + length] = other[start : start + length]
    return bytes(data[:_MAX_INPUT])


def _replay(target: str, path: Path) -> None:
    from tests.fuzz.targets import TARGETS

    data = path.read_bytes()
    if path.stat().st_size == 8 + 2 * _MAX_INPUT:
        data = data[4 : 4 + int.from_bytes(data[:4], "big")]
    _limit_memory()
    print(TARGETS[target].prepare()(data))


def _keep(target: str, found: Path) -> None:
    """Keep the shortest of a folder's inputs and of the target's corpus, as the corpus in the repository."""
    inputs = {path.read_bytes() for path in found.iterdir()} | set(corpus_of(target))
    lines = [data.hex() for data in sorted(inputs - {b""}, key=lambda data: (len(data), data))[:_KEPT]]
    (CORPUS / f"{target}.hex").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def _print_outcomes(target: str) -> None:
    from tests.fuzz.targets import TARGETS

    take = TARGETS[target].prepare()
    for data in corpus_of(target):
        print(data.hex()[:200], take(data))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], help="all of them where none is named")
    parser.add_argument("--engine", choices=ENGINES, help="both where none is named")
    parser.add_argument("--seconds", type=int, default=0, help="for each target and engine")
    parser.add_argument("--inputs", type=int, default=0, help="for each target and engine")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--corpus", type=Path, help="a folder to keep new inputs in, below it one for each target")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="put what one target's run found into the corpus")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one target on the input of a finding")
    parser.add_argument("--outcomes", action="store_true", help="print what becomes of each input of one corpus")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replay is not None:
        _replay(options.targets[0], options.replay)
    elif options.keep is not None:
        _keep(options.targets[0], options.keep)
    elif options.outcomes:
        _print_outcomes(options.targets[0])
    elif options.child:
        (_guided if options.engine == "coverage" else _blind)(options, options.targets[0])
    else:
        _fuzz_all(options, options.targets or NAMES)


def _fuzz_all(options: argparse.Namespace, names: list[str]) -> None:
    engines = [options.engine] if options.engine else ENGINES
    if importlib.util.find_spec("atheris") is None:
        print("there is no atheris for this Python: inputs are changed at random, and not guided by coverage")
        engines = ["blind"]
    seconds = options.seconds if options.seconds or options.inputs else 60
    total = 0
    for name in names:
        for engine in engines:
            folder = None if options.corpus is None else options.corpus / name
            try:
                run = fuzz(name, engine, seconds=seconds, inputs=options.inputs, seed=options.seed, corpus=folder)
            except Finding as finding:
                sys.exit(f"{finding}\nits input is the newest file of {_FINDINGS}; run it again with --replay")
            total += run.inputs
            print(run.text, flush=True)
    print(f"{total:,} inputs, no finding (--seed {options.seed})")


if __name__ == "__main__":
    main()
