"""Real nginx, real servers, real users: who gets which request, and what is left when the canary's owner is killed."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer import processes
from optimizer.canary.nginx import INCLUDE_FILE, NginxProxy, nginx_path
from optimizer.canary.plan import ProxyPlan, read_plan
from optimizer.canary.planning import make_plan
from optimizer.errors import EnvironmentFailure
from optimizer.ledger import Ledger
from optimizer.sandbox._local import free_ports
from optimizer.testing.canaries import DEFAULTS, WIDE, serve, server
from optimizer.testing.models import DATATYPES, INPUT, faulty_model
from optimizer.triton.client import TritonClient

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path(nginx_path()).exists(), reason="nginx is not installed: apt-get install nginx"),
]

MODEL = "canary_twin"
BODY = json.dumps({"inputs": [{"name": INPUT, "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    """Two servers with one model of the same name on each."""
    directory = tmp_path_factory.mktemp("twins")
    with server(directory / "baseline") as first, server(directory / "candidate") as second:
        for sandbox, place in ((first, "baseline"), (second, "candidate")):
            serve(sandbox, faulty_model(MODEL, service_s=0.001, instances=2), directory / place)
        yield first, second


def addresses(first: Any, second: Any) -> dict[str, str | None]:
    return {
        "baseline_http": first.info.http_url, "candidate_http": second.info.http_url,
        "baseline_metrics": first.info.metrics_url, "candidate_metrics": second.info.metrics_url,
    }  # fmt: skip


@pytest.fixture
def planned(twins: tuple[Any, Any], tmp_path: Path) -> Iterator[Callable[..., tuple[Path, ProxyPlan]]]:
    """A plan with nginx, which runs."""
    first, second = twins
    with contextlib.ExitStack() as stack:

        def make(baseline: str, candidate: str, other: Any = second, **options: Any) -> tuple[Path, ProxyPlan]:
            http_port, grpc_port = free_ports(2)
            directory = tmp_path / "nginx"
            proxy = ProxyPlan(
                str(directory), http_listen=f"127.0.0.1:{http_port}", grpc_listen=f"127.0.0.1:{grpc_port}"
            )
            make_plan(
                tmp_path / "state",
                **{
                    **DEFAULTS, "baseline": baseline, "candidate": candidate, "addresses": addresses(first, other),
                    "proxy": proxy, "margins": WIDE, "detect": "1/20", "concurrency": 4, "window_s": 0.3, **options,
                },
            )  # fmt: skip
            stack.enter_context(
                processes.start(
                    [nginx_path(), "-p", directory, "-c", "nginx.conf", "-g", "daemon off;"],
                    log_path=tmp_path / "nginx.log",
                )
            )
            deadline = time.monotonic() + 30
            while not (directory / "nginx.pid").exists() or not (directory / "nginx.pid").read_text():
                assert time.monotonic() < deadline, (tmp_path / "nginx.log").read_text()
                time.sleep(0.05)
            return tmp_path / "state", proxy

        yield make


def proxy_of(state: Path) -> NginxProxy:
    plan = read_plan(state)
    return NginxProxy(plan, plan.candidate, state)


def ask(address: str, model: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", f"/v2/models/{model}/infer", BODY, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def answered(sandbox: Any, model: str = MODEL) -> int:
    with TritonClient(sandbox.info.grpc_url) as client:
        return sum(int(row.inference_stats.success.count) for row in client.statistics(model).rows)


@pytest.mark.parametrize("percent", [0, 25, 100])
def test_nginx_gives_the_candidate_its_share_of_both_protocols(twins, planned, percent):
    first, second = twins
    state, proxy = planned(f"{first.info.grpc_url}/{MODEL}", f"{second.info.grpc_url}/{MODEL}")
    nginx = proxy_of(state)
    nginx.set_weight(percent)
    assert nginx.weight() == percent
    before = answered(first), answered(second)
    for _ in range(40):
        assert ask(proxy.http_listen, MODEL)[0] == 200
    with TritonClient(proxy.grpc_listen) as client:
        for _ in range(40):
            got = client.infer(MODEL, {INPUT: np.ones((1, 4), np.float32)}, DATATYPES)
            assert got["OUTPUT0"].tolist() == [[1.0] * 4]
    shares = answered(first) - before[0], answered(second) - before[1]
    assert sum(shares) == 80
    # By weight and in turn: exact but for where the turns of the two protocols begin.
    assert abs(shares[1] - 80 * percent / 100) <= 2


def test_two_models_of_one_server_are_split_by_the_url(twins, planned, tmp_path):
    first, _ = twins
    other = "canary_twin_two"
    serve(first, faulty_model(other), tmp_path)
    state, proxy = planned(f"{first.info.grpc_url}/{MODEL}", f"{first.info.grpc_url}/{other}", first)
    nginx = proxy_of(state)
    names: dict[int, set[str]] = {}
    for percent in (0, 50, 100):
        nginx.set_weight(percent)
        answers = [ask(proxy.http_listen, MODEL) for _ in range(60)]
        assert {status for status, _ in answers} == {200}
        names[percent] = {document["model_name"] for _, document in answers}
    assert names == {0: {MODEL}, 50: {MODEL, other}, 100: {other}}
    first.unload(other)


def test_a_broken_include_is_not_loaded_and_said(twins, planned):
    first, second = twins
    state, proxy = planned(f"{first.info.grpc_url}/{MODEL}", f"{second.info.grpc_url}/{MODEL}")
    config = Path(proxy.directory or "") / "nginx.conf"
    config.write_text(config.read_text() + "\nnonsense on;\n")
    with pytest.raises(EnvironmentFailure, match="unknown directive"):
        proxy_of(state).set_weight(50)
    assert ask(proxy.http_listen, MODEL)[0] == 200


class Users:
    """Somebody who asks through the proxy all the time, and remembers what was not answered."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_on)
        self.asked = 0
        self.failed: list[str] = []

    def _ask_on(self) -> None:
        while not self._stop.wait(0.02):
            try:
                status, document = ask(self._address, MODEL)
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
            else:
                self.asked += 1
                if status != 200:
                    self.failed.append(str(document))

    def __enter__(self) -> Users:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def command(verb: str, state: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "optimizer", "canary", verb, "--state", str(state), "--json", *more]


def begun(state: Path) -> str | None:
    with contextlib.suppress(Exception):
        return [entry.key for entry in Ledger.view(state).records("begin")][-1]
    return None


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_killed_at_every_step_the_traffic_is_on_the_baseline_and_the_canary_goes_on(twins, planned, tmp_path):
    first, second = twins
    steps = ["shadow", "5", "25", "50", "100"]
    # What is shown here is what a kill leaves; judging is made easy, so that there is time to be killed often.
    state, proxy = planned(
        f"{first.info.grpc_url}/{MODEL}", f"{second.info.grpc_url}/{MODEL}", confidence=0.6, min_pairs=2,
        check_memory=False, synthetic_count=16, margins=["latency=300%", "p99=900%", "throughput=90%"],
    )  # fmt: skip
    include = Path(proxy.directory or "") / INCLUDE_FILE
    with Users(proxy.http_listen) as users:
        for step in steps:
            with (tmp_path / f"{step}.log").open("wb") as log:
                owner = subprocess.Popen(command("run", state), stdout=log, stderr=log)
                wait_for(lambda step=step: begun(state) == step, f"step {step} never began")
                weight = 0 if step == "shadow" else int(step)
                wait_for(lambda weight=weight: f"weight: {weight}%" in include.read_text(), f"never at {weight}%")
                os.kill(owner.pid, signal.SIGKILL)
                owner.wait()
            wait_for(lambda: "weight: 0%" in include.read_text(), f"killed at {step}, the weight stayed")
            # The guard has ended when it has written down what it did.
            wait_for(lambda: not (state / "armed").exists(), "the guard never ended")
        done = subprocess.run(command("run", state), capture_output=True, text=True, check=False, timeout=200)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
    assert (document["state"], document["proxy_weight"]) == ("promoted", 100)
    assert sorted(document["verdicts"]) == sorted(steps)
    assert users.asked > 0
    assert users.failed == []
    aborted = subprocess.run(command("abort", state), capture_output=True, text=True, check=False, timeout=100)
    assert aborted.returncode == 0, aborted.stderr
    assert (json.loads(aborted.stdout)["state"], proxy_of(state).weight()) == ("aborted", 0)


@pytest.mark.parametrize("way", ["SIGTERM", "abort"])
def test_stopped_the_traffic_is_on_the_baseline(twins, planned, tmp_path, way):
    first, second = twins
    state, _ = planned(
        f"{first.info.grpc_url}/{MODEL}", f"{second.info.grpc_url}/{MODEL}", steps="50,100", window_s=2.0
    )
    log = (tmp_path / "run.log").open("w+")
    owner = subprocess.Popen(command("run", state), stdout=log, stderr=log)
    wait_for(lambda: proxy_of(state).weight() == 50, "never at 50%")
    if way == "SIGTERM":
        owner.send_signal(signal.SIGTERM)
    else:
        aborted = subprocess.run(command("abort", state), capture_output=True, text=True, check=False, timeout=100)
        assert aborted.returncode == 0, aborted.stderr
        assert json.loads(aborted.stdout)["state"] == "aborted"
    assert owner.wait(100) == 5, (tmp_path / "run.log").read_text()
    log.close()
    assert proxy_of(state).weight() == 0
    shown = subprocess.run(command("status", state), capture_output=True, text=True, check=False, timeout=100)
    assert json.loads(shown.stdout)["state"] == ("interrupted" if way == "SIGTERM" else "aborted")
