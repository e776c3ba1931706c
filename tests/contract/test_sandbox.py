"""What every launcher promises, on a real server each. A new launcher is one more fixture and one name in ``NAMES``."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.deployment import Deployment
from optimizer.sandbox import launchers
from optimizer.sandbox._base import SandboxOptions
from optimizer.sandbox.embedded import find
from optimizer.triton.client import TritonClient

NAMES = [
    *(pytest.param(name, marks=pytest.mark.system) for name in ("embedded", "process", "remote")),
    pytest.param("docker", marks=pytest.mark.docker),
]


@pytest.fixture(scope="module")
def tritonserver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The embedded server laid out as an installed one: an executable and its backends."""
    distribution = find()
    if distribution is None:
        pytest.skip("nvidia-pytriton is not installed")
    root = tmp_path_factory.mktemp("tritonserver")
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    shutil.copytree(distribution.backends, root / "backends")
    shutil.copy(distribution.stub(version), root / "backends" / "python")
    (root / "bin").mkdir()
    executable = root / "bin" / "tritonserver"
    library = Path(sys.base_prefix) / "lib"
    executable.write_text(
        "#!/bin/sh\n"
        f'export LD_LIBRARY_PATH="{library}:{distribution.libraries}" PATH="{sys.prefix}/bin:$PATH"\n'
        f'exec "{distribution.server}" "$@"\n'
    )
    executable.chmod(0o755)
    return {"executable": str(executable)}


@pytest.fixture(scope="module", params=NAMES)
def extra(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "process":
        return {"launcher": "process", **request.getfixturevalue("tritonserver")}
    if request.param == "remote":
        server = request.getfixturevalue("embedded_sandbox")
        return {"launcher": "remote", "url": server.info.grpc_url, "repository": str(server.directory / "models")}
    if request.param == "docker":
        return {"launcher": "docker", "image": request.getfixturevalue("docker_image")}
    return {"launcher": "embedded"}


def make(extra: dict[str, str]) -> Any:
    return launchers.launcher(extra["launcher"], **{key: value for key, value in extra.items() if key != "launcher"})


@pytest.fixture(scope="module")
def sandbox(extra: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with make(extra).start(SandboxOptions(workdir=tmp_path_factory.mktemp("work"))) as started:
        yield started


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def ask(sandbox: Any, name: str) -> np.ndarray:
    with TritonClient(sandbox.info.grpc_url) as client:
        return client.infer(name, {"X": X}, {"X": "FP32"})["Y"]


def test_says_what_it_is(extra: dict[str, str], sandbox: Any) -> None:
    launcher = make(extra)
    assert launcher.available() is None
    assert launcher.name == extra["launcher"] == sandbox.info.launcher
    assert sandbox.info.facts["triton"] == sandbox.info.version
    assert all(isinstance(value, str) and value is not None for value in launcher.facts().values())
    assert sandbox.alive()


def test_loads_answers_replaces_and_unloads(sandbox: Any, tiny_onnx: Path, tiny_config: str, tmp_path: Path) -> None:
    name = "contract_cycle"
    before = tiny_onnx.stat()
    assert sandbox.load(Deployment(name, tiny_config, {"1/model.onnx": tiny_onnx})) is None
    np.testing.assert_array_equal(ask(sandbox, name), 2 * X + 1)
    # The same name again, with another config and version: the first is gone.
    other = tiny_config.replace("max_batch_size: 8", "max_batch_size: 4")
    assert sandbox.load(Deployment(name, other, {"3/model.onnx": tiny_onnx}, version=3)) is None
    with TritonClient(sandbox.info.grpc_url) as client:
        assert client.model_config(name).max_batch_size == 4
        assert [row[1] for row in client.repository_index(ready_only=True) if row[0] == name] == ["3"]
    np.testing.assert_array_equal(ask(sandbox, name), 2 * X + 1)
    sandbox.unload(name)
    with TritonClient(sandbox.info.grpc_url) as client:
        assert not client.model_ready(name)
    sandbox.unload(name)
    sandbox.unload("never_loaded")
    after = tiny_onnx.stat()
    assert (before.st_ctime_ns, before.st_nlink, before.st_mtime_ns) == (
        after.st_ctime_ns,
        after.st_nlink,
        after.st_mtime_ns,
    )


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("dims: [ 4 ] } ]\noutput", "dims: [ 5 ] } ]\noutput"), "invalid_config", "the model expects 2 dimensions"),
        (("onnxruntime_onnx", "no_such_platform"), "invalid_config", "no_such_platform"),
        (('platform: "onnxruntime_onnx"', 'backend: "openvino"'), "missing_backend", "openvino"),
    ],
)
def test_a_failed_load_has_a_code_and_the_servers_own_words(
    sandbox: Any, tiny_onnx: Path, tiny_config: str, change: tuple[str, str], code: str, words: str
) -> None:
    assert change[0] in tiny_config
    failure = sandbox.load(Deployment("contract_bad", tiny_config.replace(*change), {"1/model.onnx": tiny_onnx}))
    assert failure is not None
    # A config that the server cannot even read is explained in its log only, which a remote server keeps.
    if sandbox.info.launcher == "remote" and "failed to poll" in failure.message:
        words = "log"
    assert (failure.code, words in failure.message) == (code, True), failure.message
    assert "\n  /" not in failure.message
    assert sandbox.alive()


def test_a_missing_or_broken_file_is_a_failure_of_the_model(sandbox: Any, tiny_config: str, tmp_path: Path) -> None:
    failure = sandbox.load(Deployment("contract_file", tiny_config, {"1/other.onnx": Path(__file__)}))
    assert failure is not None
    assert "contract_file/1/model.onnx" in failure.message
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    failure = sandbox.load(Deployment("contract_file", tiny_config, {"1/model.onnx": tmp_path / "broken.onnx"}))
    assert failure is not None
    assert failure.code == "model_error"
    assert "protobuf" in failure.message.lower()


HUNGRY = """
class TritonPythonModel:
    def initialize(self, args):
        raise MemoryError("Unable to allocate 9.00 TiB for an array")
    def execute(self, requests):
        return []
"""

PYTHON_CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""


def test_a_model_without_enough_memory_is_told_apart(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(HUNGRY)
    failure = sandbox.load(Deployment("contract_hungry", PYTHON_CONFIG, {"1/model.py": tmp_path / "model.py"}))
    assert failure is not None
    assert failure.code == "out_of_memory", failure
    assert sandbox.alive()


def test_a_server_that_was_killed_is_an_environment_failure(
    extra: dict[str, str], tmp_path: Path, tiny_onnx: Path, tiny_config: str
) -> None:
    if extra["launcher"] == "remote":
        pytest.skip("the server is somebody else's, and other tests need it")
    with make(extra).start(SandboxOptions(workdir=tmp_path)) as sandbox:
        assert sandbox.info.pid is not None
        os.kill(sandbox.info.pid, signal.SIGKILL)
        assert eventually(lambda: not sandbox.alive())
        with pytest.raises(EnvironmentFailure, match="is gone"):
            sandbox.load(Deployment("late", tiny_config, {"1/model.onnx": tiny_onnx}))
        assert "Started" in sandbox.log_tail(200)
    assert list(tmp_path.iterdir()) == []


def test_names_that_are_no_directory_name_are_refused(sandbox: Any, tiny_onnx: Path, tiny_config: str) -> None:
    for name in ("../outside", "a/b", "", ".hidden", "sp ace"):
        failure = sandbox.load(Deployment(name, tiny_config, {"1/model.onnx": tiny_onnx}))
        assert failure is not None
        assert failure.code == "invalid_config"
        sandbox.unload(name)
    # Neither did any of them remove the repository that they would have named.
    assert sandbox.load(Deployment("contract_name", tiny_config, {"1/model.onnx": tiny_onnx})) is None


def test_closing_twice_and_using_it_afterwards(extra: dict[str, str], tmp_path: Path, tiny_config: str) -> None:
    sandbox = make(extra).start(SandboxOptions(workdir=tmp_path))
    sandbox.close()
    sandbox.close()
    assert not sandbox.alive()
    assert isinstance(sandbox.log_tail(), str)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EnvironmentFailure, match="closed"):
        sandbox.load(Deployment("late", tiny_config, {}))


def test_unknown_settings_name_the_nearest(extra: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'unload_timeout_s'"):
        launchers.launcher(extra["launcher"], unload_timeout="3")
    with pytest.raises(InputError, match="unknown setting"):
        make(extra).start(SandboxOptions(workdir=tmp_path, extra={"nonsense": "1"}))
    assert list(tmp_path.iterdir()) == []


OWNER = """
import json, sys, time
from pathlib import Path
from optimizer.records.deployment import Deployment
from optimizer.sandbox import launchers
from optimizer.sandbox._base import SandboxOptions
workdir, extra, name, config, model = sys.argv[1:]
extra = json.loads(extra)
sandbox = launchers.launcher(extra.pop("launcher"), **extra).start(SandboxOptions(workdir=Path(workdir)))
assert sandbox.load(Deployment(name, config, {"1/model.onnx": Path(model)})) is None
print(sandbox.info.grpc_url, sandbox.info.pid, flush=True)
time.sleep(600)
"""


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_nothing_stays_when_the_optimizer_is_killed(
    extra: dict[str, str], tmp_path: Path, tiny_onnx: Path, tiny_config: str
) -> None:
    import json

    name = f"killed_{extra['launcher']}"
    arguments = [sys.executable, "-c", OWNER, str(tmp_path), json.dumps(extra), name, tiny_config, str(tiny_onnx)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        url, pid = owner.stdout.readline().split()
        (private,) = tmp_path.iterdir()
        token = private.name.removeprefix("sandbox-")
        owner.kill()
    assert eventually(lambda: not private.exists())
    assert not list(Path("/dev/shm").glob(f"*{token}*"))
    if extra["launcher"] == "remote":
        # The server is somebody else's: it stays, without our model.
        assert not (Path(extra["repository"]) / name).exists()
        with TritonClient(url) as client:
            assert client.server_ready()
            assert not client.model_ready(name)
    else:
        assert not Path(f"/proc/{pid}").exists()
