"""A Triton server as somebody else runs it: on a repository of its own, in any control mode. For tests of write-back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer import processes
from optimizer.sandbox import _local
from optimizer.sandbox._base import SandboxOptions
from optimizer.sandbox.launchers import launcher
from optimizer.triton.client import TritonClient


@dataclass
class Production:
    url: str
    client: TritonClient
    log_path: Path
    process: processes.Process

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ready(self, model: str) -> list[int]:
        rows = self.client.repository_index()
        return sorted(int(row[1]) for row in rows if row[0] == model and row[1] and row[2] == "READY")


@contextlib.contextmanager
def production_server(
    repository: Path, workdir: Path, *, mode: str = "explicit", models: Sequence[str] = (), more: Sequence[str] = ()
) -> Iterator[Production]:
    """``models`` are loaded at the start (explicit mode)."""
    embedded = launcher("embedded")
    problem = embedded.available()
    if problem:
        pytest.skip(problem)
    workdir.mkdir(parents=True, exist_ok=True)
    private = _local.PrivateDirectory(workdir)
    command = embedded._command(  # type: ignore[attr-defined]
        embedded._distribution(),
        embedded._interpreter(None),
        private,
        SandboxOptions(workdir=workdir),  # type: ignore[attr-defined]
    )
    ports = _local.free_ports(3)
    arguments = [
        argument
        for argument in _local.server_arguments(private, ports, command.python_backends)
        if not argument.startswith(("--model-repository", "--model-control-mode", "--disable-auto-complete"))
    ]
    arguments += [f"--model-repository={repository}", f"--model-control-mode={mode}", *more]
    arguments += [f"--load-model={name}" for name in models]
    log_path = workdir / "production.log"
    process = processes.start(
        [command.executable, *command.arguments, *arguments],
        env=command.environment, cwd=private.path, log_path=log_path,
        remove=(f"/dev/shm/{private.shared_memory_prefix}*", private.path), grace_s=0.5,
    )  # fmt: skip
    try:
        with TritonClient(f"127.0.0.1:{ports[1]}") as client:
            assert client.wait_ready(60), log_path.read_text(errors="replace")
            yield Production(client.url, client, log_path, process)
    finally:
        process.stop()
