"""The ``embedded`` launcher: the Triton server inside the wheel of nvidia-pytriton. No GPU and no Docker needed.

That server has only the python backend, so the native backends ``onnxruntime`` and ``tensorrt`` are stood in for by
the python-based ones of :mod:`triton_templates`; configs stay as they are.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import triton_templates
from optimizer.errors import EnvironmentFailure
from optimizer.sandbox import _interpreter, _known_answer, _local
from optimizer.sandbox._base import SandboxOptions
from optimizer.sandbox._interpreter import Interpreter

INSTALL = "pip install 'triton-optimizer[embedded]'"
EXTRA = ("python", "unload_timeout_s")
# The server has no --version; without starting it, its release follows from the wheel's.
TRITON_IN_WHEEL = {"0.7.0": "2.51.0"}


@dataclass(frozen=True)
class Distribution:
    """The parts of an installed nvidia-pytriton."""

    root: Path
    libraries: Path
    version: str

    @property
    def server(self) -> Path:
        return self.root / "bin" / "tritonserver"

    @property
    def backends(self) -> Path:
        return self.root / "backends"

    def stub(self, python_version: str) -> Path:
        return self.root / "python_backend_stubs" / python_version / "triton_python_backend_stub"

    def python_versions(self) -> list[str]:
        found = (path.parent.name for path in self.root.glob("python_backend_stubs/*/triton_python_backend_stub"))
        return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def find() -> Distribution | None:
    """Looks it up without importing it: the package starts threads and changes logging when imported."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        return None
    package = Path(next(iter(spec.submodule_search_locations)))
    try:
        version = metadata.version("nvidia-pytriton")
    except metadata.PackageNotFoundError:
        version = ""
    found = Distribution(package / "tritonserver", package.parent / "nvidia_pytriton.libs", version)
    return found if found.server.is_file() else None


class EmbeddedLauncher:
    """``python``: the interpreter of the python backend's stubs; the one that runs the optimizer if not given."""

    name = "embedded"

    def __init__(self, *, python: str | None = None, unload_timeout_s: str | None = None) -> None:
        self._python = python
        self._extra = {"unload_timeout_s": unload_timeout_s} if unload_timeout_s is not None else {}

    def available(self) -> str | None:
        if find() is None:
            return f"nvidia-pytriton with its tritonserver is not installed: {INSTALL}"
        try:
            self._interpreter(None)
        except EnvironmentFailure as failure:
            return failure.message.replace("\n ", ";")
        return None

    def facts(self) -> Mapping[str, str]:
        distribution = self._distribution()
        return self._facts(distribution, self._interpreter(None))

    def start(self, options: SandboxOptions) -> _local.LocalSandbox:
        options = _local.with_extra(options, self._extra, EXTRA)
        distribution = self._distribution()
        interpreter = self._interpreter(options.extra.get("python"))
        if "numpy" not in interpreter.packages:
            raise EnvironmentFailure(
                "NumPy is not installed for the interpreter of the python backend",
                where=str(interpreter.executable),
                remedy=f"{interpreter.executable} -m pip install 'numpy<2'",
            )
        sandbox = _local.start(options, lambda private: self._command(distribution, interpreter, private, options))
        try:
            _known_answer.check(sandbox, interpreter)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _distribution(self) -> Distribution:
        found = find()
        if found is None:
            raise EnvironmentFailure("nvidia-pytriton with its tritonserver is not installed", remedy=INSTALL)
        return found

    def _interpreter(self, python: str | None) -> Interpreter:
        chosen = _interpreter.examine(python or self._python or sys.executable)
        distribution = self._distribution()
        if not distribution.stub(chosen.version).is_file():
            raise EnvironmentFailure(
                f"the embedded server has no python backend stub for Python {chosen.version}",
                where=str(chosen.executable),
                remedy="use one of: " + ", ".join(distribution.python_versions()),
            )
        return chosen

    def _command(
        self,
        distribution: Distribution,
        interpreter: Interpreter,
        private: _local.PrivateDirectory,
        options: SandboxOptions,
    ) -> _local.ServerCommand:
        backends = private.path / "backends"
        shutil.copytree(distribution.backends, backends, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(distribution.stub(interpreter.version), backends / "python")
        for name in triton_templates.names():
            shutil.copytree(triton_templates.path(name), backends / name, ignore=shutil.ignore_patterns("__pycache__"))
        base = dict(os.environ)
        base["CUDA_VISIBLE_DEVICES"] = options.gpu or ""
        return _local.ServerCommand(
            executable=distribution.server,
            arguments=[f"--backend-directory={backends}"],
            environment=_interpreter.environment(interpreter, private.path, distribution.libraries, base),
            launcher=self.name,
            python_backends=triton_templates.names(),
            facts=self._facts(distribution, interpreter),
        )

    def _facts(self, distribution: Distribution, interpreter: Interpreter) -> dict[str, str]:
        triton = TRITON_IN_WHEEL.get(distribution.version)
        return {
            **({"triton": triton} if triton else {}),
            "nvidia_pytriton": distribution.version,
            "python": interpreter.full_version,
            **interpreter.packages,
            "python_backends": ",".join(triton_templates.names()),
        }
