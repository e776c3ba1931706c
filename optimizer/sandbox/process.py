"""The ``process`` launcher: a ``tritonserver`` that is installed on this machine, as in Triton's own images.

Its native backends are used as they are. Where it has a python backend but no native ``tensorrt`` or ``onnxruntime``,
the python-based one of :mod:`triton_templates` stands in, and ``info.python_backends`` says so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import triton_templates
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.sandbox import _known_answer, _local
from optimizer.sandbox._base import SandboxOptions
from optimizer.sandbox._stand_ins import stand_ins as stand_ins_of

EXTRA = ("executable", "backend_directory", "python_backends", "version_compatible", "unload_timeout_s")
TENSORRT_LIBRARIES = (
    "usr/lib/*/libnvinfer.so.*.*.*",
    "usr/local/lib/libnvinfer.so.*.*.*",
    "opt/tensorrt/lib/libnvinfer.so.*.*.*",
)
IMAGE_EXECUTABLE = Path("/opt/tritonserver/bin/tritonserver")


class ProcessLauncher:
    """``executable``: a path, or a name on PATH (``tritonserver``). ``backend_directory``: where its backends are.

    ``python_backends``: ``auto`` (those that are missing), ``none``, or names separated by commas.
    ``version_compatible``: ``on`` lets the server load version-compatible TensorRT plans.
    """

    name = "process"

    def __init__(self, **extra: str) -> None:
        self._extra = extra

    def available(self) -> str | None:
        try:
            self._executable(self._extra)
        except (EnvironmentFailure, InputError) as failure:
            return failure.message.replace("\n ", ";")
        return None

    def facts(self) -> Mapping[str, str]:
        executable = self._executable(self._extra)
        return self._facts(
            executable, self._backends(executable, self._extra), self._stand_ins(executable, self._extra)
        )

    def start(self, options: SandboxOptions) -> _local.LocalSandbox:
        options = _local.with_extra(options, self._extra, EXTRA)
        executable = self._executable(options.extra)
        stand_ins = self._stand_ins(executable, options.extra)
        sandbox = _local.start(options, lambda private: self._command(executable, stand_ins, private, options))
        if stand_ins:
            try:
                _known_answer.check(sandbox, None, where=str(executable))
            except BaseException:
                sandbox.close()
                raise
        return sandbox

    def _executable(self, extra: Mapping[str, str]) -> Path:
        asked = extra.get("executable")
        found = shutil.which(asked or "tritonserver")
        if found is None and asked is None and os.access(IMAGE_EXECUTABLE, os.X_OK):
            return IMAGE_EXECUTABLE
        if found is None:
            raise EnvironmentFailure(
                f"no executable {asked or 'tritonserver'} found",
                field="executable",
                remedy="put tritonserver on PATH, or use the embedded or docker sandbox",
            )
        return Path(found).absolute()

    def _backends(self, executable: Path, extra: Mapping[str, str]) -> Path:
        directory = Path(extra.get("backend_directory") or executable.resolve().parent.parent / "backends")
        if not directory.is_dir():
            raise InputError(
                "not a directory", where=directory, field="backend_directory", remedy="name the server's own directory"
            )
        return directory.absolute()

    def _stand_ins(self, executable: Path, extra: Mapping[str, str]) -> tuple[str, ...]:
        def automatic() -> tuple[str, ...]:
            backends = self._backends(executable, extra)
            if not (backends / "python").is_dir():
                return ()
            return tuple(name for name in triton_templates.names() if not (backends / name).exists())

        return stand_ins_of(extra, automatic)

    def _command(
        self, executable: Path, stand_ins: tuple[str, ...], private: _local.PrivateDirectory, options: SandboxOptions
    ) -> _local.ServerCommand:
        backends = self._backends(executable, options.extra)
        directory = backends
        if stand_ins:
            directory = private.path / "backends"
            directory.mkdir()
            for native in backends.iterdir():
                if native.name not in stand_ins:
                    (directory / native.name).symlink_to(native)
            for name in stand_ins:
                shutil.copytree(
                    triton_templates.path(name), directory / name, ignore=shutil.ignore_patterns("__pycache__")
                )
        (private.path / "tmp").mkdir()
        return _local.ServerCommand(
            executable=executable,
            arguments=[
                f"--backend-directory={directory}",
                *(
                    ["--backend-config=tensorrt,version-compatible=true"]
                    if options.extra.get("version_compatible") == "on"
                    else []
                ),
            ],
            environment={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": options.gpu or "",
                "TMPDIR": str(private.path / "tmp"),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1",
            },
            launcher=self.name,
            python_backends=stand_ins,
            facts=self._facts(executable, backends, stand_ins),
        )

    def _facts(self, executable: Path, backends: Path, stand_ins: tuple[str, ...]) -> dict[str, str]:
        facts = {
            "executable": str(executable),
            "backends": ",".join(sorted(path.name for path in backends.iterdir() if path.is_dir())),
            "python_backends": ",".join(stand_ins),
        }
        version = executable.resolve().parent.parent / "TRITON_VERSION"
        if version.is_file():
            facts["triton"] = version.read_text(encoding="utf-8").strip()
        if (backends / "tensorrt" / "libtriton_tensorrt.so").exists():
            # The release is in the name of the library's file.
            libraries = [match for pattern in TENSORRT_LIBRARIES for match in Path("/").glob(pattern)]
            if libraries:
                facts["tensorrt"] = libraries[0].name.removeprefix("libnvinfer.so.")
        return facts
