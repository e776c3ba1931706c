"""The embedded sandbox when things break: crashes, hangs, kills. Nothing stays, and the failure says what it was."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.errors import EnvironmentFailure
from optimizer.processes import descendants
from optimizer.records.deployment import Deployment
from optimizer.sandbox import _local, launchers
from optimizer.sandbox._base import SandboxOptions
from optimizer.triton.client import TritonClient, TritonError, build_request

pytestmark = pytest.mark.system

CONFIG = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: 1 }
output { name: "Y" data_type: TYPE_FP32 dims: 1 }
instance_group { kind: KIND_CPU count: 1 }
"""

# X says what execute() does: 1 answers, 2 crashes, 3 hangs.
MODEL = """
import os, signal, time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        {initialize}
    def execute(self, requests):
        responses = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            if x[0] == 2:
                os.kill(os.getpid(), signal.SIGSEGV)
            if x[0] == 3:
                time.sleep(600)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x + 1)]))
        return responses
"""


def model(directory: Path, initialize: str = "pass") -> dict[str, Path]:
    path = directory / "model.py"
    path.write_text(MODEL.format(initialize=initialize))
    return {"1/model.py": path}


def start(workdir: Path, **options: Any) -> Any:
    return launchers.launcher("embedded").start(SandboxOptions(workdir=workdir, **options))


def ask(sandbox: Any, name: str, value: float, timeout_s: float = 30.0) -> float:
    with TritonClient(sandbox.info.grpc_url) as client:
        answer = client.infer(name, {"X": np.array([value], np.float32)}, {"X": "FP32"}, timeout_s=timeout_s)
    return float(answer["Y"][0])


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def nothing_left(workdir: Path, pids: list[int], token: str) -> bool:
    return (
        not list(workdir.glob("sandbox-*"))
        and not list(Path("/dev/shm").glob(f"*{token}*"))
        and not any(Path(f"/proc/{pid}").exists() for pid in pids)
    )


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One server for everything that a server survives."""
    with start(tmp_path_factory.mktemp("w"), load_timeout_s=20.0, extra={"unload_timeout_s": "2"}) as started:
        yield started


def test_a_crashing_stub_fails_its_request_and_the_sandbox_goes_on(sandbox: Any, tmp_path: Path) -> None:
    assert sandbox.load(Deployment("crash", CONFIG, model(tmp_path))) is None
    assert ask(sandbox, "crash", 1) == 2
    with pytest.raises(TritonError, match=r"[Ss]tub process"):
        ask(sandbox, "crash", 2)
    assert sandbox.alive()
    # Triton itself never lets go of a model whose process died: the name is lost, the server is not.
    sandbox.unload("crash")
    assert not (sandbox.directory / "models" / "crash").exists()
    with pytest.raises(EnvironmentFailure, match="still holds an earlier model crash"):
        sandbox.load(Deployment("crash", CONFIG, model(tmp_path)))
    assert sandbox.load(Deployment("crash_again", CONFIG, model(tmp_path))) is None
    assert ask(sandbox, "crash_again", 1) == 2
    sandbox.unload("crash_again")


def test_a_hanging_stub_is_unloaded_within_the_limit(sandbox: Any, tmp_path: Path) -> None:
    assert sandbox.load(Deployment("hang", CONFIG, model(tmp_path))) is None
    with TritonClient(sandbox.info.grpc_url) as client:
        request = build_request("hang", {"X": np.array([3], np.float32)}, {"X": "FP32"})
        pending = client.infer_future(request, timeout_s=120.0)
        assert eventually(lambda: client.statistics("hang").rows[0].inference_stats.queue.count >= 0)
        time.sleep(0.5)
        sandbox.unload("hang")
        assert pending.exception(timeout=60.0) is not None
    assert not (sandbox.directory / "models" / "hang").exists()
    assert sandbox.alive()


def test_a_load_that_hangs_ends_at_its_limit(tmp_path: Path, sandbox: Any) -> None:
    with start(tmp_path, load_timeout_s=2.0, extra={"unload_timeout_s": "3"}) as own:
        failure = own.load(Deployment("slow", CONFIG, model(tmp_path, "time.sleep(600)")))
        assert failure is not None
        assert failure.code == "timeout"
        assert "2 s" in failure.message
        assert own.load(Deployment("quick", CONFIG, model(tmp_path))) is None
        assert ask(own, "quick", 1) == 2


@pytest.mark.parametrize(
    ("initialize", "code", "words"),
    [
        ("raise ValueError('no good')", "model_error", "no good"),
        ("import no_such_module", "model_error", "no_such_module"),
        ("x = bytearray(1 << 60)", "out_of_memory", "MemoryError"),
        ("raise RuntimeError('CUDA out of memory')", "out_of_memory", "CUDA out of memory"),
        ("os._exit(3)", "model_error", "ub"),
    ],
)
def test_failures_of_a_model_are_classified(
    sandbox: Any, tmp_path: Path, initialize: str, code: str, words: str
) -> None:
    failure = sandbox.load(Deployment("classified", CONFIG, model(tmp_path, initialize)))
    assert failure is not None
    assert (failure.code, words in failure.message) == (code, True), failure.message
    assert "\n" not in failure.message


def test_several_models_load_and_answer_at_once(sandbox: Any, tmp_path: Path) -> None:
    files = model(tmp_path)
    names = [f"parallel_{index}" for index in range(3)]

    def cycle(name: str) -> float:
        assert sandbox.load(Deployment(name, CONFIG, files)) is None
        answer = ask(sandbox, name, 1)
        sandbox.unload(name)
        return answer

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(cycle, names)) == [2, 2, 2]


def test_memory_counts_what_a_model_holds(sandbox: Any, tmp_path: Path) -> None:
    before = sandbox.memory_bytes()
    assert (
        sandbox.load(Deployment("fat", CONFIG, model(tmp_path, "self.x = bytearray(os.urandom(1)) * (200 << 20)")))
        is None
    )
    during = sandbox.memory_bytes()
    sandbox.unload("fat")
    after = sandbox.memory_bytes()
    assert 200 << 20 < during - before < 400 << 20
    assert after < during - (150 << 20)


def test_a_study_below_a_path_with_blanks_is_served_from_elsewhere(tmp_path: Path) -> None:
    study = tmp_path / "my study; (1)"
    study.mkdir()
    # It answers: the start asks a model with a known answer.
    with launchers.launcher("embedded").start(SandboxOptions(workdir=study, load_timeout_s=30)) as started:
        private = started._private.path
        assert not private.is_relative_to(study)
    assert not private.exists()


def test_a_killed_server_is_noticed_and_cleaned_up(tmp_path: Path) -> None:
    own = start(tmp_path)
    token = own.directory.name.removeprefix("sandbox-")
    assert own.load(Deployment("m", CONFIG, model(tmp_path))) is None
    pid = own.info.pid
    pids = [pid, *descendants(pid)]
    assert len(pids) > 1
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not own.alive())
    with pytest.raises(EnvironmentFailure, match=r"server is gone .exit status 137"):
        own.load(Deployment("m", CONFIG, model(tmp_path)))
    with pytest.raises(EnvironmentFailure, match="server is gone"):
        own.unload("m")
    assert own.memory_bytes() is None
    own.close()
    assert nothing_left(tmp_path, pids, token)


def test_a_model_that_takes_the_server_down(tmp_path: Path) -> None:
    with start(tmp_path) as own:
        failure = own.load(Deployment("killer", CONFIG, model(tmp_path, "os.kill(os.getppid(), signal.SIGKILL)")))
        assert failure is not None
        assert failure.code == "server_died"
        assert not own.alive()


def test_a_stolen_port_means_another_try(tmp_path: Path) -> None:
    from optimizer.sandbox.embedded import EmbeddedLauncher

    launcher = EmbeddedLauncher()
    options = SandboxOptions(workdir=tmp_path)
    distribution, interpreter = launcher._distribution(), launcher._interpreter(None)

    def command(private: _local.PrivateDirectory) -> _local.ServerCommand:
        return launcher._command(distribution, interpreter, private, options)

    with socket.create_server(("127.0.0.1", 0)) as thief:
        stolen = thief.getsockname()[1]
        for place in range(3):
            offers = [_local.free_ports(3), [*_local.free_ports(place), stolen, *_local.free_ports(2 - place)]]
            with _local.start(options, command, lambda _, offers=offers: offers.pop()) as own:
                assert own.alive()
                assert f":{stolen}" not in own.info.grpc_url + own.info.http_url + str(own.info.metrics_url)
            assert offers == []
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"not ready after 0\.01 s"):
        start(tmp_path, ready_timeout_s=0.01)
    with pytest.raises(EnvironmentFailure, match=r"status \d+(.|\n)*memory limit"):
        start(tmp_path, memory_limit_bytes=100 << 20)
    assert list(tmp_path.iterdir()) == []


OWNER = """
import sys, threading, time
from pathlib import Path
import numpy as np
from optimizer.records.deployment import Deployment
from optimizer.sandbox import launchers
from optimizer.sandbox._base import SandboxOptions
from optimizer.triton.client import TritonClient
workdir, config, model, mode = sys.argv[1:]
sandbox = launchers.launcher("embedded").start(SandboxOptions(workdir=Path(workdir)))
pid = sandbox.info.pid
if mode == "loading":
    print(pid, flush=True)
sandbox.load(Deployment("m", config, {"1/model.py": Path(model)}))
def work():
    with TritonClient(sandbox.info.grpc_url) as client:
        while True:
            client.infer("m", {"X": np.array([1], np.float32)}, {"X": "FP32"})
            if mode == "under load" and said.acquire(blocking=False):
                print(pid, flush=True)
said = threading.Semaphore(1)
for _ in range(4):
    threading.Thread(target=work).start()
"""


@pytest.mark.parametrize("mode", ["loading", "under load"])
def test_nothing_stays_when_the_optimizer_is_killed_in_the_middle(tmp_path: Path, mode: str) -> None:
    workdir = tmp_path / "w"
    workdir.mkdir()
    (path,) = model(tmp_path, "time.sleep(600)" if mode == "loading" else "pass").values()
    arguments = [sys.executable, "-c", OWNER, str(workdir), CONFIG, str(path), mode]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        (private,) = workdir.iterdir()
        # The stub of the model is there: the server is busy starting it, or answering.
        assert eventually(lambda: len(list(descendants(pid))) >= 1)
        pids = [pid, *descendants(pid)]
        owner.kill()
    token = private.name.removeprefix("sandbox-")
    assert eventually(lambda: nothing_left(workdir, pids, token))
