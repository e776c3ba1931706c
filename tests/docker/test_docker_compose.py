"""compose/: what it says, and the short demo through docker-compose on the CPU profile with a canary beside it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from optimizer.triton.client import TritonClient

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
PROJECT = "triton-optimizer-test"
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return loaded


def test_every_service_is_hardened_pinned_and_on_loopback(document: dict[str, Any]) -> None:
    for name, service in document["services"].items():
        assert service["network_mode"] == "host", name
        assert "ports" not in service, name
        assert service["cap_drop"] == ["ALL"], name
        user = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["user"])
        assert int(user.split(":")[0]) > 0, name
        assert re.search(r":[\w.$}{-]*\d|triton-optimizer:cpu", service["image"]), name
        assert "latest" not in service["image"]
        assert "@sha256" not in service["image"]
        if "optimizer" not in name:
            assert service["healthcheck"]["test"], name
        words = " ".join(map(str, service.get("command", [])))
        if "tritonserver" in words:
            assert re.findall(r"--(\w+)-address=(\S+)", words) == [
                ("http", "127.0.0.1"), ("grpc", "127.0.0.1"), ("metrics", "127.0.0.1"),
            ]  # fmt: skip
    for listen in re.findall(r"listen (\S+?);?(?: http2)?;", (COMPOSE / "canary" / "nginx.conf").read_text()):
        assert listen.startswith("127.0.0.1:")


def test_the_canary_starts_with_all_traffic_at_the_baseline() -> None:
    from optimizer.canary.nginx import include_text
    from optimizer.canary.plan import Endpoint

    text = (COMPOSE / "canary" / "triton-canary.conf").read_text()
    expected = include_text(
        Endpoint("127.0.0.1:8001", "", "127.0.0.1:8000"), Endpoint("127.0.0.1:8101", "", "127.0.0.1:8100"), 0
    )
    assert [line.strip() for line in text.splitlines()] == [line.strip() for line in expected.splitlines()]


def expressions() -> list[str]:
    rules = yaml.safe_load((COMPOSE / "prometheus" / "rules.yml").read_text())
    dashboard = json.loads((COMPOSE / "grafana" / "dashboards" / "triton.json").read_text())
    return [
        *(rule["expr"] for group in rules["groups"] for rule in group["rules"]),
        *(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]),
    ]


def test_the_dashboard_uses_rules_that_there_are_and_metrics_that_are_kept() -> None:
    rules = yaml.safe_load((COMPOSE / "prometheus" / "rules.yml").read_text())
    recorded = {rule.get("record") for group in rules["groups"] for rule in group["rules"]}
    (job,) = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    kept = re.compile(job["metric_relabel_configs"][0]["regex"])
    names = {name for text in expressions() for name in re.findall(r"\b(?:nv_\w+|triton:[\w:]+)", text)}
    assert {name for name in names if name.startswith("triton:")} <= recorded
    assert [name for name in names if name.startswith("nv_") and not kept.fullmatch(name)] == []


Compose = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def compose(docker_image: str, tiny_repository: Path, tmp_path: Path) -> Iterator[Compose]:
    """docker-compose on the tiny repository; nothing of it is left at the end. Its ports are fixed: one at a time."""
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed")
    studies = tmp_path / "studies"
    (studies / "sandbox-repository").mkdir(parents=True)
    environment = {
        "MODELS": str(tiny_repository),
        "CANDIDATE_MODELS": str(tiny_repository),
        "STUDIES": str(studies),
        "TRITON_UID": str(os.getuid()),
        "TRITON_GID": str(os.getgid()),
        "COMPOSE_PROJECT_NAME": PROJECT,
    }

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [program, "-f", str(COMPOSE / "compose.yaml"), *arguments]
        done = subprocess.run(
            command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    with Path("/tmp/triton-optimizer-compose-test.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield run
        finally:
            run("--profile", "cpu", "--profile", "canary-cpu", "down", "--volumes", "--timeout", "1")


@pytest.mark.docker
def test_the_short_demo_runs_through_compose_and_leaves_nothing(
    compose: Compose, short: tuple[str, ...], tiny_repository: Path, tiny_samples: Path, tmp_path: Path
) -> None:
    import docker

    compose("--profile", "cpu", "up", "-d", "--no-build", "triton-cpu", "sandbox-cpu")
    shutil.copy(tiny_samples, tmp_path / "studies" / "samples.npz")
    before = (tiny_repository / "tiny" / "config.pbtxt").read_text()
    # `run` waits for the sandbox to be healthy.
    done = compose(
        "--profile", "cpu", "run", "--rm", "-T", "optimizer-cpu", "optimize", "/models", "--model", "tiny",
        "--config", "/etc/triton-optimizer/sandbox.yaml", "--inputs", "/studies/samples.npz", "--study",
        "/studies/tiny", *short, "--write-back",
    )  # fmt: skip
    decision = json.loads((tmp_path / "studies" / "tiny" / "decision.json").read_text())["decision"]
    assert decision["verdict"] in ("winner", "keep"), done.stdout
    assert decision["sentence"]
    # The sandbox has been given back as it was.
    assert list((tmp_path / "studies" / "sandbox-repository").iterdir()) == []
    assert "onnxruntime_onnx" in before
    with TritonClient("127.0.0.1:8001") as client:
        assert client.wait_ready(60)
        wait_for_port(8002)
        np.testing.assert_array_equal(client.infer("tiny", {"X": X}, {"X": "FP32"})["Y"], 2 * X + 1)
    with urllib.request.urlopen("http://127.0.0.1:8002/metrics", timeout=10) as answer:
        offered = set(re.findall(r"^(nv_\w+)", answer.read().decode(), re.MULTILINE))
    wanted = {name for text in expressions() for name in re.findall(r"\bnv_\w+", text)}
    # The embedded server is built without NVIDIA's libraries, so it has no metrics of a GPU.
    missing = {name for name in wanted - offered if not name.startswith(("nv_gpu", "nv_energy"))}
    assert missing == set()
    compose("--profile", "cpu", "down", "--volumes", "--timeout", "1")
    client = docker.from_env()
    try:
        label = {"label": f"com.docker.compose.project={PROJECT}"}
        assert client.containers.list(all=True, filters=label) == []
        assert client.networks.list(filters=label) == []
        assert client.volumes.list(filters=label) == []
    finally:
        client.close()


@pytest.fixture(scope="module")
def nginx_image(docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Debian's nginx in place of the image that compose.yaml names, which no registry gives here."""
    import docker

    context = tmp_path_factory.mktemp("nginx")
    (context / "Dockerfile").write_text(
        "FROM debian:bookworm-slim\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends nginx-light && rm -rf /var/lib/apt/lists/*\n"
    )
    client = docker.from_env(timeout=240)
    try:
        client.images.build(path=str(context), tag="triton-optimizer:test-nginx", rm=True, network_mode="host")
    except docker.errors.DockerException as error:
        client.close()
        pytest.skip(f"no image of nginx can be made: {error}")
    yield "triton-optimizer:test-nginx"
    client.images.remove("triton-optimizer:test-nginx", force=True)
    client.close()


@pytest.mark.docker
def test_nginx_splits_between_the_two_servers_as_its_file_says(
    compose: Compose, nginx_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optimizer.canary.nginx import include_text
    from optimizer.canary.plan import Endpoint

    directory = tmp_path / "canary"
    shutil.copytree(COMPOSE / "canary", directory)
    monkeypatch.setenv("NGINX_IMAGE", nginx_image)
    monkeypatch.setenv("CANARY", str(directory))
    profiles = ("--profile", "cpu", "--profile", "canary-cpu")
    compose(*profiles, "up", "-d", "--no-build", "triton-cpu", "candidate-cpu", "nginx")
    with TritonClient("127.0.0.1:8001") as baseline, TritonClient("127.0.0.1:8101") as candidate:
        assert baseline.wait_ready(90)
        assert candidate.wait_ready(90)
        # gRPC answers a moment before HTTP and metrics do.
        for port in (8002, 8102, 8080):
            wait_for_port(port)
        assert shares(50) == (50, 0)
        arms = (
            Endpoint("127.0.0.1:8001", "tiny", "127.0.0.1:8000"),
            Endpoint("127.0.0.1:8101", "tiny", "127.0.0.1:8100"),
        )
        (directory / "triton-canary.conf").write_text(include_text(*arms, 100))
        compose(
            *profiles, "exec", "-T", "nginx", "nginx", "-p", "/etc/triton-canary", "-c", "nginx.conf", "-s", "reload"
        )
        # A reload is in force when the workers of before take no more connections.
        assert any(shares(10) == (0, 10) for _ in range(50))
        with TritonClient("127.0.0.1:8081") as client:
            np.testing.assert_array_equal(client.infer("tiny", {"X": X}, {"X": "FP32"})["Y"], 2 * X + 1)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on {port}"
            time.sleep(0.1)


def shares(count: int) -> tuple[int, int]:
    """How many of ``count`` requests over nginx came to each server."""

    def answered() -> tuple[int, int]:
        found = []
        for port in (8002, 8102):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                match = re.search(
                    r'^nv_inference_request_success\{model="tiny"[^}]*\} (\d+)', answer.read().decode(), re.M
                )
                found.append(int(match[1]) if match else 0)
        return found[0], found[1]

    before = answered()
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()
    for _ in range(count):
        request = urllib.request.Request(
            "http://127.0.0.1:8080/v2/models/tiny/infer", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert json.load(answer)["outputs"][0]["data"] == [3, 5, 7, 9]
    after = answered()
    return after[0] - before[0], after[1] - before[1]
