"""A Triton server as somebody else runs it: a repository of its own, any control mode. For tests of write-back."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import triton_templates
from optimizer import processes
from optimizer.sandbox.embedded import find
from optimizer.triton.client import TritonClient


@dataclass
class Production:
    url: str
    client: TritonClient

    def ready(self, model: str) -> list[int]:
        rows = self.client.repository_index()
        return sorted(int(row[1]) for row in rows if row[0] == model and row[1] and row[2] == "READY")


@contextlib.contextmanager
def production_server(
    repository: Path, workdir: Path, *, mode: str = "explicit", models: Sequence[str] = (), more: Sequence[str] = ()
) -> Iterator[Production]:
    """``models`` are loaded at the start (explicit mode). Everything of the server's own is below ``workdir``."""
    distribution = find()
    if distribution is None:
        pytest.skip("nvidia-pytriton is not installed")
    backends = workdir / "backends"
    shutil.copytree(distribution.backends, backends)
    shutil.copy(distribution.stub(f"{sys.version_info[0]}.{sys.version_info[1]}"), backends / "python")
    for name in triton_templates.names():
        shutil.copytree(triton_templates.path(name), backends / name)
    http, grpc, metrics = _free_ports(3)
    token = secrets.token_hex(6)
    arguments = [
        f"--id={token}", f"--model-repository={repository}", f"--model-control-mode={mode}",
        f"--backend-directory={backends}", "--strict-readiness=false", "--exit-timeout-secs=1",
        "--http-address=127.0.0.1", f"--http-port={http}", "--grpc-address=127.0.0.1", f"--grpc-port={grpc}",
        "--metrics-address=127.0.0.1", f"--metrics-port={metrics}",
        *(f"--backend-config={name},shm-region-prefix-name=production-{token}-"
          for name in ("python", *triton_templates.names())),
        *(f"--load-model={name}" for name in models), *more,
    ]  # fmt: skip
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "LD_LIBRARY_PATH": f"{Path(sys.base_prefix) / 'lib'}:{distribution.libraries}",
        "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
    }
    log = workdir / "production.log"
    process = processes.start(
        [distribution.server, *arguments], env=environment, cwd=workdir, log_path=log,
        remove=(f"/dev/shm/production-{token}-*",), grace_s=0.5,
    )  # fmt: skip
    try:
        with TritonClient(f"127.0.0.1:{grpc}") as client:
            assert client.wait_ready(60), log.read_text(errors="replace")
            assert client.server_identity()[0] == token
            yield Production(client.url, client)
    finally:
        process.stop()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
