"""The Python that runs Triton's python backend: which one, with what in it, and can the stub load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from optimizer import processes
from optimizer.errors import EnvironmentFailure

# Runs in the interpreter that is asked about, so it must be plain and old-fashioned Python.
_QUESTION = """
import json, os, site, sys, sysconfig
try:
    from importlib import metadata
except ImportError:
    metadata = None
def version(name):
    try:
        return metadata.version(name)
    except Exception:
        return ""
standard = [sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib")]
standard += [os.path.join(path, "lib-dynload") for path in standard]
sites = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
print(json.dumps({
    "executable": sys.executable, "base_executable": getattr(sys, "_base_executable", None) or sys.executable,
    "base_prefix": sys.base_prefix,
    "version": "%d.%d" % sys.version_info[:2], "full_version": "%d.%d.%d" % sys.version_info[:3],
    "sites": [path for path in sys.path if path in sites],
    "path": [path for path in sys.path if os.path.isdir(path) and path not in standard and path not in sites],
    "libdir": sysconfig.get_config_var("LIBDIR") or "", "library": sysconfig.get_config_var("INSTSONAME") or "",
    "numpy": version("numpy"), "onnxruntime": version("onnxruntime") or version("onnxruntime-gpu"),
    "tensorrt": version("tensorrt"),
}))
"""

OLDEST = (3, 10)


@dataclass(frozen=True)
class Interpreter:
    executable: Path
    base_executable: Path
    """The same, unless ``executable`` is that of a virtual environment."""
    base_prefix: Path
    version: str
    """Major and minor, as in the names of the stubs: ``3.11``."""
    full_version: str
    library: Path
    """The shared ``libpython`` that the stub links against."""
    sites: tuple[str, ...]
    """Directories with installed packages, whose ``.pth`` files count."""
    path: tuple[str, ...]
    """Other directories of modules (PYTHONPATH), without the standard library."""
    packages: Mapping[str, str]
    """Versions of numpy, onnxruntime, tensorrt where installed."""


@lru_cache(maxsize=8)
def examine(python: str) -> Interpreter:
    """Asks ``python`` about itself. Raises :class:`EnvironmentFailure`."""
    try:
        status, output = processes.run([python, "-c", _QUESTION], timeout_s=60.0, env=clean(os.environ, python))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFailure(
            f"cannot run the interpreter: {error}", where=python, remedy="name a Python executable that runs"
        ) from None
    try:
        answer = json.loads(output.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = output.strip().splitlines()[-1:] or [f"exit status {status}"]
        raise EnvironmentFailure(
            f"this is not a working Python: {last[0]}", where=python, remedy="name a Python executable that runs"
        ) from None
    if tuple(map(int, answer["version"].split("."))) < OLDEST:
        raise EnvironmentFailure(
            f"Python {answer['full_version']} is too old for the python-based backends",
            where=python,
            remedy=f"name an interpreter of version {OLDEST[0]}.{OLDEST[1]} or later",
        )
    return Interpreter(
        executable=Path(answer["executable"] or python),
        base_executable=Path(answer["base_executable"] or python),
        base_prefix=Path(answer["base_prefix"]),
        version=answer["version"],
        full_version=answer["full_version"],
        library=find_library(
            answer["version"],
            # A Python that was moved (a relocatable build, PYTHONHOME) no longer knows where its library is.
            [
                answer["libdir"],
                str(Path(answer["base_prefix"]) / "lib"),
                *os.environ.get("LD_LIBRARY_PATH", "").split(":"),
                *_LIBRARY_DIRECTORIES,
            ],
            where=python,
        ),
        sites=tuple(answer["sites"]),
        path=tuple(answer["path"]),
        packages={name: answer[name] for name in ("numpy", "onnxruntime", "tensorrt") if answer[name]},
    )


_LIBRARY_DIRECTORIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")


def find_library(version: str, directories: list[str], *, where: str) -> Path:
    """``libpythonX.Y.so.1.0``. Raises :class:`EnvironmentFailure` with how to get it."""
    name = f"libpython{version}.so.1.0"
    for directory in directories:
        if directory and (Path(directory) / name).exists():
            return Path(directory) / name
    raise EnvironmentFailure(
        f"{name} is missing: Triton's python backend needs a Python with a shared library",
        where=where,
        remedy=f"install it (Debian and Ubuntu: apt-get install libpython{version}; pyenv: "
        "PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install), or name another interpreter with a shared library",
    )


def environment(interpreter: Interpreter, private: Path, libraries: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the server starts its stubs; makes ``python``, ``lib`` and ``tmp`` below ``private``.

    A stub is an embedded interpreter that looks for ``python3`` on PATH and takes its prefix from there; it ignores
    PYTHONPATH, PYTHONHOME and the user's site-packages. So it gets a virtual environment of its own, over the chosen
    interpreter, that names every directory in which that one finds modules.
    """
    overlay = private / "python"
    packages = overlay / "lib" / f"python{interpreter.version}" / "site-packages"
    packages.mkdir(parents=True)
    (overlay / "bin").mkdir()
    (overlay / "bin" / "python3").symlink_to(interpreter.base_executable)
    (overlay / "pyvenv.cfg").write_text(
        f"home = {interpreter.base_executable.parent}\ninclude-system-site-packages = false\n"
        f"version = {interpreter.full_version}\n",
        encoding="utf-8",
    )
    lines = [*interpreter.path, *(f"import site; site.addsitedir({directory!r})" for directory in interpreter.sites)]
    (packages / "interpreter.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (private / "tmp").mkdir()
    (private / "lib").mkdir()
    (private / "lib" / interpreter.library.name).symlink_to(interpreter.library)
    return clean(base, str(interpreter.executable)) | {
        "PATH": os.pathsep.join(
            [str(overlay / "bin"), str(interpreter.executable.parent), base.get("PATH", os.defpath)]
        ),
        "LD_LIBRARY_PATH": os.pathsep.join(
            [str(private / "lib"), str(libraries), *filter(None, [base.get("LD_LIBRARY_PATH", "")])]
        ),
        "TMPDIR": str(private / "tmp"),
        "PYTHONUNBUFFERED": "1",
        # Every instance is a process: pools of NumPy's BLAS, one thread a core each, would only disturb.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }


def clean(base: Mapping[str, str], python: str) -> dict[str, str]:
    """``base`` without what would change the interpreter; paths of modules stay for the one that runs the optimizer."""
    dropped = {"PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "LD_PRELOAD"}
    if Path(python) != Path(sys.executable):
        dropped |= {"PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"}
    return {key: value for key, value in base.items() if key not in dropped}
