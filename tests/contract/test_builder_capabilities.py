"""What the capability record says of real TensorRT bindings: 10.x, 11.1 and 11.4 over stand-in libraries.

Nothing of them runs, so this checks names: that every attribute and enum member which the worker uses is there, and
that the record tells apart what differs between releases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from optimizer.engines.tensorrt.capabilities import Capabilities
from optimizer.engines.tensorrt.supervisor import PROJECT_ROOT

sys.path.insert(0, str(PROJECT_ROOT / "tests"))
from fetch_bindings import NoBindings, fetch_bindings

RELEASES = {
    "10.0": "tensorrt-cu12-bindings==10.0.1",
    "10.5": "tensorrt-cu12-bindings==10.5.0",
    "10.13": "tensorrt-cu12-bindings==10.13.0.35",
    "11.1": "tensorrt-cu12-bindings==11.1.0.106",
    "11.4": "tensorrt-cu12-bindings==11.4.0.106",
}

PROGRAM = """
import importlib, json, sys
from optimizer.engines.tensorrt.capabilities import describe
module = importlib.import_module(sys.argv[1])
used = json.loads(sys.argv[2])
missing = [f"{owner}.{name}" for owner, names in used.items() for name in names
           if not hasattr(getattr(module, owner, None), name)]
print(json.dumps({"capabilities": describe(module, "tensorrt").as_json(), "missing": missing}))
"""

USED = {
    "Builder": ["create_network", "create_builder_config", "create_optimization_profile", "build_serialized_network"],
    "OnnxParser": ["parse", "parse_from_file", "num_errors", "get_error"],
    "ParserError": ["code", "desc", "node", "node_name", "node_operator"],
    "INetworkDefinition": ["get_input", "get_output", "num_inputs", "num_outputs", "unmark_output", "get_layer"],
    "ITensor": ["name", "dtype", "shape", "is_shape_tensor"],
    "IBuilderConfig": [
        "set_flag", "clear_flag", "get_flag", "get_tactic_sources", "set_tactic_sources", "set_memory_pool_limit",
        "get_memory_pool_limit", "add_optimization_profile", "create_timing_cache", "set_timing_cache",
        "get_timing_cache", "profiling_verbosity",
    ],
    "IOptimizationProfile": ["set_shape", "set_shape_input"],
    "ITimingCache": ["combine", "serialize"],
    "Runtime": ["deserialize_cuda_engine"],
    "ICudaEngine": [
        "num_io_tensors", "get_tensor_name", "get_tensor_mode", "get_tensor_dtype", "get_tensor_shape",
        "get_tensor_format", "get_tensor_location", "is_shape_inference_io", "get_tensor_profile_shape",
        "num_optimization_profiles", "num_layers", "create_engine_inspector",
    ],
    "EngineInspector": ["get_engine_information"],
    "LayerInformationFormat": ["JSON"],
    "ProfilingVerbosity": ["DETAILED"],
    "MemoryPoolType": ["WORKSPACE"],
    "TensorLocation": ["HOST", "DEVICE"],
    "BuilderFlag": ["TF32", "SPARSE_WEIGHTS", "VERSION_COMPATIBLE"],
}  # fmt: skip


@cache
def look_at(release):
    try:
        bindings = fetch_bindings(RELEASES[release])
    except NoBindings as error:
        pytest.skip(str(error))
    environment = {**os.environ, **bindings.environment}
    environment["PYTHONPATH"] = f"{PROJECT_ROOT}:{bindings.directory}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, bindings.module, json.dumps(USED)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    document = json.loads(done.stdout)
    return Capabilities.from_json(document["capabilities"]), document["missing"]


@pytest.mark.parametrize("release", RELEASES)
def test_everything_that_the_worker_uses_is_there(release):
    have, missing = look_at(release)

    assert not missing
    assert have.version.startswith(f"{release}.")


@pytest.mark.parametrize(
    ("release", "weak", "explicit", "int64", "max_tactics", "tiling", "build_route", "memory"),
    [
        ("10.0", True, True, True, False, False, False, (True, False)),
        ("10.5", True, True, True, True, False, False, (True, True)),
        ("10.13", True, True, True, True, True, False, (True, True)),
        ("11.1", False, False, True, True, True, True, (False, True)),
        ("11.4", False, False, True, True, True, True, (False, True)),
    ],
)
def test_releases_differ_where_they_do(release, weak, explicit, int64, max_tactics, tiling, build_route, memory):
    have, _ = look_at(release)

    assert (have.weak_typing, have.explicit_batch_flag, have.int64) == (weak, explicit, int64)
    assert (have.max_tactics, bool(have.tiling_levels), have.build_route) == (max_tactics, tiling, build_route)
    assert (have.device_memory_v1, have.device_memory_v2) == memory
    assert have.timing_cache
    assert have.inspector
    assert have.runtime_for_triton
    assert have.strong_typing


def test_precision_flags_are_gone_in_11():
    assert set(look_at("10.13")[0].precision_flags) >= {"fp16", "bf16", "int8", "fp8"}
    assert look_at("11.1")[0].precision_flags == ()
