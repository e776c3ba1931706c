"""What the contract suite cannot ask of every launcher: memory, disk, images, the engine itself, and what is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer import container
from optimizer.errors import EnvironmentFailure
from optimizer.records.deployment import Deployment
from optimizer.sandbox import launchers
from optimizer.sandbox._base import SandboxOptions
from optimizer.sandbox.leftovers import remove_leftovers

pytestmark = pytest.mark.docker

PYTHON_CONFIG = """
backend: "python"
max_batch_size: 0
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""

PYTHON_MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        {body}
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(r, "X").as_numpy())])
                for r in requests]
"""


def python_model(directory: Path, body: str) -> Deployment:
    path = directory / "model.py"
    path.write_text(PYTHON_MODEL.replace("{body}", body), encoding="utf-8")
    return Deployment("own", PYTHON_CONFIG, {"1/model.py": path})


def start(image: str, workdir: Path, **more: Any) -> Any:
    extra = more.pop("extra", {})
    return launchers.launcher("docker", image=image, **extra).start(SandboxOptions(workdir=workdir, **more))


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@pytest.fixture
def engine(docker_image: str) -> Iterator[Any]:
    import docker

    with contextlib.closing(docker.from_env()) as client:
        yield client


def containers_of(engine: Any, study: str) -> list[Any]:
    label = f"{container.STUDY_LABEL}={study}"
    return list(engine.containers.list(all=True, filters={"label": label}, ignore_removed=True))


def test_a_container_says_whose_it_is_and_what_it_may(docker_image: str, engine: Any, tmp_path: Path) -> None:
    with start(docker_image, tmp_path, study_id="labels", memory_limit_bytes=600 << 20) as sandbox:
        (found,) = containers_of(engine, "labels")
        host = found.attrs["HostConfig"]
        assert container.owner_is_dead(found.labels[container.OWNER_LABEL]) is False
        assert (host["NetworkMode"], host["Memory"], host["ShmSize"]) == ("host", 600 << 20, 1 << 30)
        assert host["CapDrop"] == ["ALL"]
        assert {mount["Destination"]: mount["RW"] for mount in found.attrs["Mounts"]} == {
            str(sandbox.directory / "models"): False,
            "/opt/tritonserver/backends/onnxruntime": False,
            "/opt/tritonserver/backends/tensorrt": False,
        }
        assert found.attrs["Config"]["User"] == f"{os.getuid()}:{os.getgid()}"
        assert set(sandbox.info.python_backends) == {"onnxruntime", "tensorrt"}
        assert sandbox.info.facts["image_id"] == found.attrs["Image"]
        # Both ways of asking count the same server.
        assert (sandbox.memory_bytes() or 0) > 10 << 20
        assert (sandbox._engines_memory_bytes() or 0) > 5 << 20
        ports = {int(url.rsplit(":", 1)[1]) for url in (sandbox.info.grpc_url, sandbox.info.http_url)}
        assert listening_addresses(ports) == {"127.0.0.1"}
    assert containers_of(engine, "labels") == []


def listening_addresses(ports: set[int]) -> set[str]:
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        address, port = line.split()[1].split(":")
        if line.split()[3] == "0A" and int(port, 16) in ports:
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(address))))
    return found


def test_a_model_that_does_not_fit_is_out_of_memory_and_the_next_one_loads(
    docker_image: str, engine: Any, tmp_path: Path
) -> None:
    with start(docker_image, tmp_path, study_id="oom", memory_limit_bytes=400 << 20) as sandbox:
        failure = sandbox.load(python_model(tmp_path, "self.kept = b'x' * (700 << 20)"))
        assert failure is not None
        assert failure.code == "out_of_memory", failure
        assert "the kernel killed" in failure.message
        assert "limit 400 MiB" in failure.message
        if sandbox.alive():
            assert sandbox.load(python_model(tmp_path, "pass")) is None


def test_a_server_that_the_kernel_killed_is_said_to_be_out_of_memory(
    docker_image: str, engine: Any, tmp_path: Path
) -> None:
    with start(docker_image, tmp_path, study_id="oom-server", memory_limit_bytes=400 << 20) as sandbox:
        # A native backend's memory is the server's own. Here it is a stub's, so the kernel is told whom to take.
        Path(f"/proc/{sandbox.info.pid}/oom_score_adj").write_text("1000")
        model = python_model(
            tmp_path, "open('/proc/self/oom_score_adj', 'w').write('0'); self.kept = b'x' * (700 << 20)"
        )
        failure = sandbox.load(model)
        assert failure is not None
        assert failure.code == "out_of_memory", failure
        assert not sandbox.alive()
        with pytest.raises(EnvironmentFailure, match=r"the kernel killed a process .*limit 400 MiB"):
            sandbox.load(model)
    assert containers_of(engine, "oom-server") == []


def test_a_full_disk_in_the_container_is_a_failure_of_the_model(docker_image: str, tmp_path: Path) -> None:
    with start(docker_image, tmp_path, extra={"tmp_size": "8m"}) as sandbox:
        failure = sandbox.load(python_model(tmp_path, "open('/tmp/engine', 'wb').write(b'x' * (16 << 20))"))
        assert failure is not None
        assert (failure.code, "No space left on device" in failure.message) == ("out_of_memory", True), failure
        assert sandbox.load(python_model(tmp_path, "pass")) is None


def test_the_repository_cannot_be_written_from_inside(docker_image: str, tmp_path: Path) -> None:
    with start(docker_image, tmp_path) as sandbox:
        failure = sandbox.load(python_model(tmp_path, "open(args['model_repository'] + '/1/x', 'w')"))
        assert failure is not None
        assert "Read-only file system" in failure.message


def test_a_gpu_without_a_runtime_is_one_line_with_the_remedy(docker_image: str, engine: Any, tmp_path: Path) -> None:
    if "nvidia" in engine.info()["Runtimes"]:
        pytest.skip("this engine has a GPU runtime")
    with pytest.raises(EnvironmentFailure) as raised:
        start(docker_image, tmp_path, study_id="gpu", gpu="GPU-00000000-0000-0000-0000-000000000000")
    assert "has no GPU runtime" in raised.value.message
    assert "nvidia-container-toolkit" in (raised.value.remedy or "")
    assert list(tmp_path.iterdir()) == []
    assert containers_of(engine, "gpu") == []


def test_an_image_that_is_missing_or_no_server_is_one_line_with_the_remedy(docker_image: str) -> None:
    problem = launchers.launcher("docker", image="no-such-image:1").available()
    assert problem == "no-such-image:1: image: no such image on this machine; remedy: docker pull no-such-image:1"
    problem = launchers.launcher("docker", image="debian:bookworm-slim").available()
    assert problem is not None
    assert "there is no tritonserver in this image" in problem or "no such image" in problem


def test_an_image_may_be_named_by_its_hash(docker_image: str, engine: Any) -> None:
    identifier = engine.images.get(docker_image).id
    facts = launchers.launcher("docker", image=identifier).facts()
    assert facts["image_id"] == identifier
    assert facts["triton"]


OWNER = """
import sys, time
from pathlib import Path
from optimizer.sandbox import launchers
from optimizer.sandbox._base import SandboxOptions
image, workdir = sys.argv[1:]
sandbox = launchers.launcher("docker", image=image).start(SandboxOptions(workdir=Path(workdir), study_id="orphan"))
print(sandbox._process.guardian_pid, flush=True)
time.sleep(600)
"""


def test_a_container_whose_guardian_was_killed_as_well_is_found_and_removed(
    docker_image: str, engine: Any, tmp_path: Path
) -> None:
    arguments = [sys.executable, "-c", OWNER, docker_image, str(tmp_path)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        guardian = int(owner.stdout.readline())
        # While its owner lives it is nobody's leftover.
        assert not [line for line in remove_leftovers(tmp_path) if "orphan" in line]
        os.kill(guardian, signal.SIGKILL)
        owner.kill()
    (found,) = containers_of(engine, "orphan")
    assert found.status == "running"
    removed = remove_leftovers(tmp_path)
    assert f"container {found.name} (running) of study orphan" in removed
    assert containers_of(engine, "orphan") == []
    assert [path for path in tmp_path.iterdir() if path.name.startswith("sandbox-")] == []


def test_nothing_of_this_run_is_left(docker_image: str, engine: Any) -> None:
    mine = [one for one in engine.containers.list(all=True) if container.OWNER_LABEL in one.labels]
    assert [one.name for one in mine if one.labels[container.OWNER_LABEL] == container.owner()] == []
    assert engine.volumes.list(filters={"dangling": True}) == []
