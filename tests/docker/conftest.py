"""What the tests over a Docker engine share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).resolve().parents[2]

_SHORT = (
    "--tolerance", "lInf<=1e-3", "--routes", "-instances=[1|2]", "--duration-s", "0.3", "--warmup-s", "0.2",
    "--noise-pairs", "3", "--max-pairs", "4", "--finalists", "1", "--concurrency", "2", "--processes", "1",
)  # fmt: skip


@pytest.fixture
def short() -> tuple[str, ...]:
    """Flags of a whole study in a few windows: too short to find anything, long enough to go through every stage."""
    return _SHORT


@pytest.fixture
def optimizer(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str | Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "optimizer", *map(str, arguments)],
            cwd=tmp_path, capture_output=True, text=True, timeout=timeout_s, check=False, env=dict(os.environ),
        )  # fmt: skip

    return run


@pytest.fixture
def tiny_samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.npz"
    np.savez(path, X=np.random.default_rng(0).standard_normal((24, 4), dtype=np.float32))
    return path


@pytest.fixture
def own_engine(docker_image: str) -> Path:
    """``.ci/docker``, where it is what started the engine: then it may also be stopped."""
    if not os.environ.get("TRITON_OPTIMIZER_ENGINE"):
        pytest.skip("the Docker engine is not the tests' own (.ci/docker up): it is not stopped")
    return PROJECT / ".ci" / "docker"
