"""The TensorRT backend with two batches in flight on the real server; TensorRT and CUDA are doubles on the CPU.

The server has no GPU here, so a python model stands where the backend's own model would and tells it of one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triton_templates
from optimizer.records.deployment import Deployment
from optimizer.triton.client import TritonClient, build_request, parse_response

pytestmark = pytest.mark.system

DOUBLES = Path(__file__).parents[1] / "unit" / "tensorrt_doubles"

WRAPPER = """
import importlib.util, json, sys
sys.path[:0] = [{template!r}]
sys.path.append({doubles!r})
spec = importlib.util.spec_from_file_location("tensorrt_backend", {template!r} + "/model.py")
backend = importlib.util.module_from_spec(spec)
spec.loader.exec_module(backend)
class TritonPythonModel(backend.TritonPythonModel):
    def initialize(self, args):
        config = json.loads(args["model_config"])
        config["default_model_filename"] = "model.plan"
        more = {{"model_instance_kind": "GPU", "model_instance_device_id": "0", "model_config": json.dumps(config)}}
        super().initialize({{**args, **more}})
"""

CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1 ] }
instance_group { kind: KIND_CPU count: 2 }
dynamic_batching { }
parameters { key: "pipeline" value { string_value: "on" } }
parameters { key: "engine_process" value { string_value: "own" } }
"""

PLAN = {
    "function": "affine",
    "tensors": [
        {"name": "x", "shape": [-1, -1], "type": "FLOAT", "input": True},
        {"name": "y", "shape": [-1, -1], "type": "FLOAT"},
    ],
    "profiles": [{"x": [[1, 4], [8, 4], [8, 4]]}],
}


@pytest.fixture
def client(embedded_sandbox: Any, tmp_path: Path) -> Iterator[TritonClient]:
    wrapper, plan = tmp_path / "model.py", tmp_path / "model.plan"
    wrapper.write_text(WRAPPER.format(template=str(triton_templates.path("tensorrt")), doubles=str(DOUBLES)))
    plan.write_text(json.dumps(PLAN))
    failure = embedded_sandbox.load(Deployment("pipelined", CONFIG, {"1/model.py": wrapper, "1/model.plan": plan}))
    assert failure is None, failure.message
    with TritonClient(embedded_sandbox.info.grpc_url) as connected:
        yield connected
    embedded_sandbox.unload("pipelined")


def request(rows: int, value: float, width: int = 4) -> tuple[np.ndarray, bytes]:
    x = np.arange(rows * width, dtype=np.float32).reshape(rows, width) + value
    return x, build_request("pipelined", {"x": x}, {"x": "FP32"})


def test_every_request_gets_its_own_answer_or_its_own_error(client: TritonClient) -> None:
    before = client.statistics("pipelined")
    sent = []
    for number in range(240):
        x, body = request(1 + number % 3, 10 * number, 5 if number % 40 == 7 else 4)
        sent.append((x, client.infer_future(body)))
    refused = 0
    for x, future in sent:
        if x.shape[1] == 5:
            assert "no optimization profile in use admits" in future.exception().details()
            refused += 1
            continue
        np.testing.assert_array_equal(parse_response(future.result())[0]["y"], 2 * x + 1)
    did = client.statistics("pipelined").since(before)
    assert refused == 6
    # Triton 2.51 counts a python model's refusals among its inferences.
    assert did.inference_count == sum(x.shape[0] for x, _ in sent)
    assert did.execution_count < 200, "requests did share runs"


def test_cancelled_requests_leave_the_others_alone(client: TritonClient) -> None:
    sent = [(x, client.infer_future(body)) for x, body in (request(1, number) for number in range(120))]
    for _, future in sent[::3]:
        future.cancel()
    for index, (x, future) in enumerate(sent):
        if index % 3:
            np.testing.assert_array_equal(parse_response(future.result())[0]["y"], 2 * x + 1)
    x, body = request(3, 0.5)
    np.testing.assert_array_equal(parse_response(client.infer_future(body).result())[0]["y"], 2 * x + 1)


def test_unload_with_requests_in_flight_ends_every_one(client: TritonClient, embedded_sandbox: Any) -> None:
    sent = [(x, client.infer_future(body)) for x, body in (request(1, number) for number in range(60))]
    embedded_sandbox.unload("pipelined")
    answered = 0
    for x, future in sent:
        # A request that came after the unload is refused by the server; none may wait for ever.
        if future.exception(timeout=30) is None:
            np.testing.assert_array_equal(parse_response(future.result())[0]["y"], 2 * x + 1)
            answered += 1
    assert answered
