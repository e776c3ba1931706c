"""Apply and rollback, round after round, on a model that a server serves to a steady stream of requests."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.apply import apply_winner, rollback
from optimizer.config import parse_settings
from optimizer.durable import sha256_tree
from optimizer.preparation import Preparation
from optimizer.records.route import Route
from optimizer.testing.decided import decided_study
from optimizer.triton.client import TritonClient, build_request, from_wire

NAME = "echo"
MARK = 2.0**-12
"""What a version adds to its input for each of its number: far within the tolerance, exact in FP32."""
CONFIG = """\
# A model that answers in well under a millisecond.
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
SOURCE = f"""\
import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.mark = numpy.float32(int(args["model_version"]) * {MARK})

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", array + self.mark)]) for array in inputs]
"""


def write_model(repository: Path, *, source: str = SOURCE) -> Path:
    directory = repository / NAME
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(source)
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


def study(repository: Path, directory: Path) -> Preparation:
    """Two instances win over one."""
    settings = parse_settings(
        {
            "tolerance": ["*:lInf<=0.5"],
            "inputs": {"synthetic_count": 12},
            "builder": {"family": "unchanged"},
            "search": {"routes": "-instances=[1|2]"},
        },
        where="test",
    )
    route = Route.of({"instances": "2"})
    return decided_study(repository, NAME, directory, settings, lambda inputs: {"Y": inputs["X"]}, route=route)


@dataclass
class Traffic:
    """Requests at a steady rate, each with inputs of its own, each answer looked at: right, and of which version."""

    url: str
    rate_per_s: float
    sent: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)
    late: int = 0

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._open = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        with TritonClient(self.url) as client:
            began = time.monotonic()
            while not self._stop.is_set():
                due = began + self.sent / self.rate_per_s
                delay = due - time.monotonic()
                if delay > 0:
                    time.sleep(delay)
                elif delay < -0.01:
                    self.late += 1
                x = np.array([[self.sent % 1000, 1]], np.float32)
                future = client.infer_future(build_request(NAME, {"X": x}, {"X": "FP32"}), timeout_s=20.0)
                self.sent += 1
                with self._lock:
                    self._open += 1
                future.add_done_callback(self._check(x, time.monotonic()))
            deadline = time.monotonic() + 30
            while self._open and time.monotonic() < deadline:
                time.sleep(0.01)

    def _check(self, x: Any, began: float) -> Callable[[Any], None]:
        from tritonclient.grpc import service_pb2

        def done(future: Any) -> None:
            took = (time.monotonic() - began) * 1e3
            error = future.exception()
            with self._lock:
                self._open -= 1
                self.latencies_ms.append(took)
                if error is not None:
                    self.failures[f"{error.code().name}: {error.details()}"] += 1
                    return
                response = service_pb2.ModelInferResponse.FromString(future.result())
                self.versions[response.model_version] += 1
                y = from_wire(response.raw_output_contents[0], "FP32", (1, 2))
                if not np.array_equal(y, x + np.float32(int(response.model_version) * MARK)):
                    self.wrong.append(f"{x} -> {y} by version {response.model_version}")

        return done


def rounds(preparation: Preparation, url: str, count: int, rate_per_s: float) -> tuple[Traffic, list[dict[str, Any]]]:
    """The traffic, and one row a round: how long each half took and whether the tree was the same afterwards."""
    repository = preparation.repository
    before = sha256_tree(repository)
    rows = []
    with Traffic(url, rate_per_s) as traffic:
        time.sleep(0.5)
        for _ in range(count):
            started = time.monotonic()
            applied = options_applied(preparation, url)
            half = time.monotonic()
            time.sleep(0.2)
            again = time.monotonic()
            rollback(repository, NAME, server_url=url)
            rows.append(
                {
                    "version": applied["version"], "way": applied["way"], "apply_s": round(half - started, 3),
                    "rollback_s": round(time.monotonic() - again, 3), "same_tree": sha256_tree(repository) == before,
                }
            )  # fmt: skip
            time.sleep(0.2)
    return traffic, rows


def options_applied(preparation: Preparation, url: str | None) -> dict[str, Any]:
    return apply_winner(
        preparation, dry_run=False, server_url=url, replace_served_versions=False, accept_unserved_baseline=False
    )
