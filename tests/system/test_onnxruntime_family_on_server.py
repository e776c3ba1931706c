"""Routes of the ONNX Runtime family and of Triton's own knobs on a real server: they load, answer and show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.engines._base import BuildRequest
from optimizer.engines.onnxruntime import OnnxRuntimeFamily
from optimizer.records.deployment import Deployment
from optimizer.records.engine import Engine
from optimizer.records.route import Route
from optimizer.repository.reader import read_model
from optimizer.routes.serving import apply_serving
from optimizer.triton.client import TritonClient
from optimizer.triton.protobuf import parse_config, print_config

pytestmark = pytest.mark.system

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize(
    ("values", "instances"),
    [
        ({}, 1),
        ({"graph_optimization": "disabled", "intra_op_threads": "1"}, 1),
        ({"graph_optimization": "extended", "instances": "2", "dynamic_batching": "on"}, 2),
        (
            {
                "dynamic_batching": "on",
                "queue_delay_us": "1000",
                "preferred_batch_sizes": "4,8",
                "max_batch_size": "16",
            },
            1,
        ),
    ],
)
def test_routes_load_and_answer(
    tmp_path: Path, tiny_repository: Path, embedded_sandbox: Any, values: dict[str, str], instances: int
) -> None:
    model = read_model(tiny_repository, "tiny")
    route = Route.of(values)
    family = OnnxRuntimeFamily(cores=2)
    engine = family.build(BuildRequest("e", model, route, tmp_path, time_limit_s=120))
    assert isinstance(engine, Engine), engine
    config = apply_serving(family.configure(parse_config(model.effective_config_text), engine, route), route)
    deployment = Deployment("routed", print_config(config), {f"1/{name}": path for name, path in engine.files.items()})
    failure = embedded_sandbox.load(deployment)
    try:
        assert failure is None, failure
        with TritonClient(embedded_sandbox.info.grpc_url) as client:
            live = client.model_config("routed")
            outputs = client.infer("routed", {"X": ROWS}, {"X": "FP32"})
    finally:
        embedded_sandbox.unload("routed")
    np.testing.assert_array_equal(outputs["Y"], 2 * ROWS + 1)
    assert [group.count for group in live.instance_group] == [instances]
    assert live.backend == "onnxruntime"
    assert live.HasField("dynamic_batching") == ("dynamic_batching" in values)
    if "queue_delay_us" in values:
        assert live.dynamic_batching.max_queue_delay_microseconds == 1000
        assert list(live.dynamic_batching.preferred_batch_size) == [4, 8]
        assert live.max_batch_size == 16


def test_without_a_count_triton_runs_two_instances_of_onnx_runtime_on_a_cpu(
    tiny_repository: Path, embedded_sandbox: Any
) -> None:
    """The default of the knob ``instances`` rests on it; so does that of the preferred batch size."""
    model = read_model(tiny_repository, "tiny")
    config = parse_config(model.config_text)
    config.ClearField("instance_group")
    config.dynamic_batching.SetInParent()
    file = model.directory / "1" / "model.onnx"
    assert embedded_sandbox.load(Deployment("bare", print_config(config), {"1/model.onnx": file})) is None
    try:
        with TritonClient(embedded_sandbox.info.grpc_url) as client:
            live = client.model_config("bare")
    finally:
        embedded_sandbox.unload("bare")
    assert [group.count for group in live.instance_group] == [2]
    assert list(live.dynamic_batching.preferred_batch_size) == [8]
