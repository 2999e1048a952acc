"""Makes what is given out, in dist/: the work of `make dist`.

    cassandra_cdc-VERSION-py3-none-any.whl             plain Python, for any machine
    cassandra_cdc-VERSION-cp311-cp311-linux_x86_64.whl the same with the compiled modules, for this Python and platform
    cassandra_cdc-VERSION.tar.gz                       the sources
    cassandra-cdc-source-VERSION.nar                   the connector, for this Python and platform
    cassandra-cdc-VERSION.tgz                          the Helm chart
    agent.Containerfile, pulsar.Containerfile          images of these files
    cassandra-cdc-*.service                            units of systemd
    alerts.yaml, prometheus.yaml, cassandra-cdc-dashboard.json    for Prometheus and Grafana
    agent.schema.json, line.schema.json, source.schema.json       of the configurations, for editors
    requirements.lock                                  versions and hashes of all that the wheels need
    cassandra-cdc-VERSION.cdx.json                     what is in it (SBOM, CycloneDX)
    SHA256SUMS

`--check` installs the wheel with the compiled modules in a new environment and runs it there.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from setuptools import build_meta

from change_agent.decoder import compiled_folder
from runtime.native_core import native_folder
from source_connector import compiled as row_path
from source_connector.nar_build import build_nar

_ROOT: Final = Path(__file__).resolve().parent.parent
_DIST: Final = _ROOT / "dist"
_SBOM: Final = "cyclonedx-bom>=7,<8"


def main() -> None:
    """`python deploy/make_dist.py [--check]`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="install what is there, and run it")
    if parser.parse_args().check:
        check()
        return
    # build/lib would add modules that are no longer in the sources.
    for folder in (_DIST, _ROOT / "build" / "lib"):
        shutil.rmtree(folder, ignore_errors=True)
    _DIST.mkdir()
    os.chdir(_ROOT)
    # setuptools prints a line for each file that it copies.
    with redirect_stdout(io.StringIO()):
        pure = _DIST / build_meta.build_wheel(str(_DIST))
        build_meta.build_sdist(str(_DIST))
    _platform_wheel(pure)
    # The files that the build downloads stay in build/ for the next time.
    shutil.copy(build_nar(_ROOT / "build"), _DIST)
    for path in (*_for_operators(), _ROOT / "requirements.lock"):
        shutil.copy(path, _DIST)
    _chart(pure.name.split("-")[1])
    _bill(pure)
    _sums()
    for path in sorted(_DIST.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.relative_to(_ROOT)}")


def _platform_wheel(pure: Path) -> None:
    """Make the wheel of this platform: the pure wheel and the folders that `cdc compile` has made of the same
    sources."""
    modules = (compiled_folder(), row_path.compiled_folder())
    folders = [folder for folder in (*modules, native_folder()) if folder.is_dir()]
    if not all(folder.is_dir() for folder in modules):
        print("no wheel with compiled modules: nothing was compiled here (`make compile` says why)", file=sys.stderr)
        return
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = f"{python}-{python}-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    target = pure.with_name(pure.name.replace("py3-none-any", tag))
    records = []
    with zipfile.ZipFile(pure) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(name: str, content: bytes) -> None:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(content)}")
            wheel.writestr(name, content)

        for name in source.namelist():
            content = source.read(name)
            if name.endswith("/WHEEL"):
                content = content.replace(b"py3-none-any", tag.encode())
                content = content.replace(b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
            if not name.endswith("/RECORD"):
                add(name, content)
        for folder in folders:
            for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                add(path.relative_to(_ROOT).as_posix(), path.read_bytes())
        [record] = [name for name in source.namelist() if name.endswith("/RECORD")]
        wheel.writestr(record, "\n".join([*records, f"{record},,", ""]))


def _for_operators() -> Iterator[Path]:
    deploy = _ROOT / "deploy"
    yield from (deploy / "images").iterdir()
    yield from deploy.glob("*.service")
    for name in ("alerts.yaml", "prometheus.yaml", "cassandra-cdc-dashboard.json"):
        yield deploy / "monitoring" / name
    yield from (_ROOT / "docs" / "schemas").glob("*.json")


def _chart(version: str) -> None:
    """Make the chart's archive as `helm package` does, without helm."""
    with tarfile.open(_DIST / f"cassandra-cdc-{version}.tgz", "w:gz") as archive:
        archive.add(_ROOT / "deploy" / "helm" / "cassandra-cdc", "cassandra-cdc", filter=_of_nobody)


def _of_nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _bill(pure: Path) -> None:
    """Make the SBOM: the packages that the lock pins, with their hashes, and this project."""
    # cyclonedx-py has its own environment, so that its dependencies do not change the environment of the tests.
    python = _ROOT / "build" / "sbom-env" / "bin" / "python"
    _run(sys.executable, "-m", "venv", "--clear", python.parent.parent)
    _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _SBOM)
    name = f"cassandra-cdc-{pure.name.split('-')[1]}.cdx.json"
    where = ("--pyproject", _ROOT / "pyproject.toml", "--output-reproducible", "--output-file", _DIST / name)
    _run(python, "-m", "cyclonedx_py", "requirements", *where, _ROOT / "requirements.lock")


def _sums() -> None:
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(_DIST.iterdir())]
    (_DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def check() -> None:
    """Check SHA256SUMS. Check that the wheel, installed in a new environment, runs its compiled modules and builds the
    NAR."""
    _run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=_DIST)
    wheels = sorted(_DIST.glob("*.whl"), key=lambda path: path.name.endswith("-py3-none-any.whl"))
    with tempfile.TemporaryDirectory(prefix="cdc-dist-") as scratch:
        python = Path(scratch) / "venv" / "bin" / "python"
        _run(sys.executable, "-m", "venv", Path(scratch) / "venv")
        _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheels[0], cwd=scratch)
        version = _run(python.with_name("cdc"), "--version", cwd=scratch)
        compiled = "native" if native_folder().is_dir() else "compiled"
        expected = "plain Python" if wheels[0].name.endswith("-py3-none-any.whl") else compiled
        if f"decoder: {expected}" not in version:
            sys.exit(f"dist: {wheels[0].name} runs as {version.strip()!r}, and should run {expected}")
        print(f"{wheels[0].name}: {version.strip()}")
        archive = Path(_run(python.with_name("cdc"), "nar", "--out", scratch, cwd=scratch).strip())
        [given] = _DIST.glob("*.nar")
        with zipfile.ZipFile(archive) as made, zipfile.ZipFile(given) as wanted:
            if made.namelist() != wanted.namelist():
                sys.exit(f"dist: the installed wheel makes another archive than {given.name}")
        print(f"{archive.name}: the installed wheel makes the same archive")


def _run(*command: str | Path, cwd: str | Path = _ROOT) -> str:
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"dist: {' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
