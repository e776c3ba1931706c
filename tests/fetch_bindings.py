"""Makes real TensorRT Python bindings importable without TensorRT's library, to look at their API.

    python tests/fetch_bindings.py tensorrt-cu12-bindings==11.4.0.106

The wheel comes from a package index and is cached (``$TRITON_OPTIMIZER_CACHE/bindings``, by default under
``~/.cache/triton-optimizer``). The libraries that it loads are replaced by empty ones, made with gcc, whose entry
points return null: every class, enum member and property is there, and nothing can be built or run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from optimizer.processes import run

DOWNLOAD_LIMIT_S = 300.0


class NoBindings(Exception):
    """Why they cannot be had here: no package index, no compiler, no wheel for this Python."""


@dataclass(frozen=True)
class Bindings:
    """``module`` can be imported by a fresh process with ``environment`` added to its own."""

    directory: Path
    module: str

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.directory / "lib"), "PYTHONPATH": str(self.directory)}


def cache_directory() -> Path:
    configured = os.environ.get("TRITON_OPTIMIZER_CACHE")
    return (Path(configured) if configured else Path.home() / ".cache" / "triton-optimizer") / "bindings"


def fetch_bindings(requirement: str) -> Bindings:
    """``requirement`` pins a version. Raises :class:`NoBindings`."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    target = cache_directory() / f"{requirement.replace('==', '-')}-{python}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            directory = Path(temporary) / "bindings"
            directory.mkdir()
            _download(requirement, directory)
            _stand_ins(directory)
            directory.rename(target)
    (package,) = target.glob("*/tensorrt.so")
    return Bindings(target, package.parent.name)


def _download(requirement: str, directory: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        status, output = run([*command, "--dest", directory, requirement], timeout_s=DOWNLOAD_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise NoBindings(f"downloading {requirement} took longer than {DOWNLOAD_LIMIT_S:g} s") from None
    wheels = list(directory.glob("*.whl"))
    if status or not wheels:
        errors = [line for line in output.splitlines() if line.startswith("ERROR")] or ["no output"]
        raise NoBindings(f"pip cannot download {requirement}: {errors[-1]}")
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(directory)
    wheels[0].unlink()


def _stand_ins(directory: Path) -> None:
    (binding,) = directory.glob("*/tensorrt.so")
    names = [line.split()[-1].split("@")[0] for line in _tool("nm", "-D", "--undefined-only", str(binding))]
    entry_points = [name for name in names if re.match(r"(create|get|init)\w*(Infer|Onnx|Plugin|Nv)\w*$", name)]
    lib = directory / "lib"
    lib.mkdir()
    source = lib / "stand_in.c"
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in entry_points), encoding="ascii")
    for line in _tool("readelf", "-d", str(binding)):
        for soname in re.findall(r"\[(libnv\w+\.so\.\d+)\]", line):
            _tool("gcc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{soname}", "-o", str(lib / soname), str(source))
    source.unlink()


def _tool(*command: str) -> list[str]:
    try:
        status, output = run(command, timeout_s=60)
    except FileNotFoundError:
        raise NoBindings(f"{command[0]} is not installed") from None
    if status:
        raise NoBindings(f"{' '.join(command)}: {output.strip()}")
    return output.splitlines()


if __name__ == "__main__":
    for each in sys.argv[1:]:
        found = fetch_bindings(each)
        print(" ".join(f"{key}={value}" for key, value in found.environment.items()), found.module)
