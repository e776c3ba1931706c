"""Right answers of the ``tensorrt`` backend, and right failures: ``python -m tests.gpu.backend_correctness --out DIR``.

Every case serves an engine under a native config with two instances, sends requests of varied batch sizes with 32 in
flight, and compares all answers with ONNX Runtime on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import networks
from optimizer.sandbox._base import Sandbox
from optimizer.triton.client import TritonClient
from tests.gpu import serving
from tests.gpu.build import BuildError, Profile, build
from tests.gpu.results import Steps

Inputs = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """``make`` gives one request's inputs for a number of rows; ``allowed`` is the largest relative difference."""

    name: str
    model: Callable[[], Any]
    profiles: Sequence[Profile]
    inputs: serving.Tensors
    outputs: serving.Tensors
    make: Callable[[np.random.Generator, int], Inputs]
    allowed: float = 0.0
    max_batch: int = 8
    flags: Sequence[str] = ()
    rows: Sequence[int] = (1, 2, 3, 1, 4, 8, 5, 1)
    requests: int = 96
    extra: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    shape_values: Mapping[str, Any] | None = None
    scalars: Sequence[str] = ()
    """Inputs that are [1] to Triton and a scalar to the engine."""


def normal(*dims: int, kind: Any = np.float32) -> Callable[[np.random.Generator, int], Inputs]:
    return lambda random, rows: {"x": random.standard_normal((rows, *dims)).astype(kind)}


def whole(low: int, high: int, kind: Any) -> Callable[[np.random.Generator, int], Inputs]:
    return lambda random, rows: {"x": random.integers(low, high, (rows, 16)).astype(kind)}


def rows_profile(*dims: int, high: int = 8, name: str = "x", low: int = 1) -> Profile:
    return {name: ((low, *dims), (high, *dims), (high, *dims))}


OWN, PIPELINED = ", own engines", ", pipelined"
IMAGE = (3, 56, 56)
X16 = {"x": ("FP32", [16])}
Y16 = {"y": ("FP32", [16])}
CONV = {"x": ("FP32", list(IMAGE))}
CLASSES = {"y": ("FP32", [100])}


def _mixed(random: np.random.Generator, rows: int) -> Inputs:
    return {
        "single": random.standard_normal((rows, 16)).astype(np.float32),
        "half": random.standard_normal((rows, 16)).astype(np.float16),
        "count": random.integers(-1000, 1000, (rows, 16)).astype(np.int64),
        "keep": random.random((rows, 16)) > 0.5,
    }


def _free_size(random: np.random.Generator, rows: int) -> Inputs:
    height, width = random.choice([16, 24, 40, 64], 2)
    return {"x": random.standard_normal((rows, 3, height, width)).astype(np.float32)}


def _scalar(random: np.random.Generator, rows: int) -> Inputs:
    return {
        "x": random.standard_normal((rows, 8)).astype(np.float32),
        "factor": np.array([random.standard_normal()], np.float32),
    }


def _expand(random: np.random.Generator, rows: int) -> Inputs:
    return {"x": random.standard_normal((1, 8)).astype(np.float32), "shape": np.array([rows, 8], np.int32)}


def cases(int64: bool) -> list[Case]:
    """``int64``: this TensorRT keeps INT64 (from 10 on); else the backend narrows, as the parameter asks."""
    narrow = "" if int64 else 'parameters { key: "int64_as_int32" value { string_value: "true" } }'
    specs = "graph_spec { batch_size: 8 graph_lower_bound { batch_size: 5 } } graph_spec { batch_size: 2 }"
    bounded = f"optimization {{ cuda {{ graphs: true {specs} }} }}"
    small, large = rows_profile(16, high=2), rows_profile(16, high=8, low=2)
    mixed_types = {"single": "FP32", "half": "FP16", "count": "INT64", "keep": "BOOL"}
    mixed_outputs = {"chosen": "FP32", "doubled": "FP16", "later": "INT64", "positive": "BOOL"}
    mixed_profile = dict.fromkeys(mixed_types, ((1, 16), (8, 16), (8, 16)))
    tokens = lambda random, rows: {"ids": random.integers(0, 1000, (rows, 128)).astype(np.int32)}  # noqa: E731
    identity = networks.identity
    return [
        Case("fp32", networks.affine, [rows_profile(16)], X16, Y16, normal(16), 1e-6),
        Case(
            "fp16", partial(identity, "FLOAT16"), [rows_profile(16)], {"x": ("FP16", [16])}, {"y": ("FP16", [16])},
            normal(16, kind=np.float16),
        ),
        Case(
            "int32", partial(identity, "INT32"), [rows_profile(16)], {"x": ("INT32", [16])}, {"y": ("INT32", [16])},
            whole(-(2**31), 2**31, np.int32),
        ),
        Case(
            "int64", partial(identity, "INT64"), [rows_profile(16)], {"x": ("INT64", [16])}, {"y": ("INT64", [16])},
            whole(-(2**31), 2**31, np.int64), extra=narrow,
        ),
        Case(
            "bool", partial(identity, "BOOL"), [rows_profile(16)], {"x": ("BOOL", [16])}, {"y": ("BOOL", [16])},
            lambda random, rows: {"x": random.random((rows, 16)) > 0.5},
        ),
        Case(
            "several tensors and types", networks.mixed, [mixed_profile],
            {name: (kind, [16]) for name, kind in mixed_types.items()},
            {name: (kind, [16]) for name, kind in mixed_outputs.items()},
            _mixed, 2e-3, extra=narrow,
        ),
        Case(
            "convolutional, TF32", networks.convolutional, [rows_profile(*IMAGE)], CONV, CLASSES, normal(*IMAGE), 1e-2,
            requests=48,
        ),
        Case(
            "convolutional, FP16", networks.convolutional, [rows_profile(*IMAGE)], CONV, CLASSES, normal(*IMAGE), 3e-2,
            flags=("FP16",), requests=48,
        ),
        Case(
            "convolutional, FP16, CUDA graphs", networks.convolutional, [rows_profile(*IMAGE)], CONV, CLASSES,
            normal(*IMAGE), 3e-2, flags=("FP16",), extra=serving.GRAPHS, requests=48,
        ),
        Case("CUDA graphs, alternating", networks.affine, [rows_profile(16)], X16, Y16, normal(16), 1e-6,
             extra=serving.GRAPHS, requests=300),
        Case("CUDA graphs with a lower bound", networks.affine, [rows_profile(16)], X16, Y16, normal(16), 1e-6,
             extra=bounded, requests=300),
        Case(
            "transformer", networks.transformer, [rows_profile(128, name="ids")], {"ids": ("INT32", [128])},
            {"y": ("FP32", [512])}, tokens, 1e-2, requests=48,
        ),
        Case(
            "free height and width", networks.convolutional_free_size,
            [{"x": ((1, 3, 16, 16), (4, 3, 32, 32), (8, 3, 64, 64))}],
            {"x": ("FP32", [3, -1, -1])}, {"y": ("FP32", [4, -1, -1])}, _free_size, 1e-2,
        ),
        Case(
            "two profiles", networks.affine, [small, large], X16, Y16, normal(16), 1e-6,
            config={"group": 'instance_group { kind: KIND_GPU count: 2 gpus: [0] profile: ["0", "1"] }'},
        ),
        Case("fixed batch", partial(networks.affine, 8), [], X16, Y16, normal(16), 1e-6, rows=(8,)),
        Case(
            "scalar input, no batch dimension", networks.scalar_input,
            [{"x": ((1, 8), (4, 8), (16, 8))}], {"x": ("FP32", [-1, 8]), "factor": ("FP32", [1])},
            {"y": ("FP32", [-1, 8]), "sum": ("FP32", [1])}, _scalar, 1e-4, max_batch=0,
            scalars=("factor",),
        ),
        Case(
            "shape tensor", networks.shape_input, [{}], {"x": ("FP32", [1, 8]), "shape": ("INT32", [2])},
            {"y": ("FP32", [-1, -1])}, _expand, 0.0, max_batch=0, config={"shape_tensors": ["shape"]},
            shape_values={"shape": ((1, 8), (8, 8), (64, 8))},
        ),
        Case(
            "reshape", networks.affine, [rows_profile(16)], {"x": ("FP32", [4, 4])}, {"y": ("FP32", [2, 8])},
            normal(4, 4), 1e-6, config={"reshape": {"x": [16], "y": [16]}},
        ),
    ]  # fmt: skip


def run_case(case: Case, sandbox: Sandbox, plans: Path, instances: int = 2) -> dict[str, Any]:
    model = case.model().SerializeToString()
    file = case.name.removesuffix(OWN).replace(" ", "_").replace(",", "")
    plan = build(model, plans, file, case.profiles, flags=case.flags, shape_values=case.shape_values)
    config = serving.config_text(
        case.inputs, case.outputs, max_batch=case.max_batch, instances=instances, extra=case.extra, **case.config
    )
    started = time.perf_counter()
    failure = sandbox.load(serving.deployment("case", config, plan.file))
    if failure is not None:
        raise RuntimeError(f"did not load: {failure.message}")
    load_s = time.perf_counter() - started
    try:
        random = np.random.default_rng(7)
        requests = [case.make(random, case.rows[i % len(case.rows)]) for i in range(case.requests)]
        datatypes = {name: kind for name, (kind, _) in case.inputs.items()}
        with TritonClient(sandbox.info.grpc_url) as client:
            answers = serving.ask(client, "case", requests, datatypes)
            batches = client.statistics("case").rows
        errors = [answer for answer in answers if isinstance(answer, str)]
        if errors:
            raise RuntimeError(f"{len(errors)} of {len(answers)} failed: {errors[0]}")
        reference = serving.Reference(model)
        expected = [reference(_for_reference(case, request)) for request in requests]
        shaped = [_shaped(want, answer) for want, answer in zip(expected, answers, strict=True)]
        worst = serving.worst_difference(answers, shaped)
    finally:
        sandbox.unload("case")
    executions = sum(row.execution_count for row in batches)
    if max(worst.values()) > case.allowed:
        raise RuntimeError(f"answers differ by {worst}, allowed is {case.allowed}")
    return {
        "worst": worst,
        "allowed": case.allowed,
        "requests": len(requests),
        "executions": executions,
        "build_s": round(plan.seconds, 2),
        "plan_bytes": plan.size_bytes,
        "load_s": round(load_s, 2),
    }


def _for_reference(case: Case, request: Inputs) -> Inputs:
    reshape = {**case.config.get("reshape", {}), **dict.fromkeys(case.scalars, ())}
    rows = (next(iter(request.values())).shape[0],) if case.max_batch else ()
    return {
        name: value.reshape((*rows, *reshape[name])) if name in reshape else value for name, value in request.items()
    }


def _shaped(expected: Inputs, answer: Any) -> Inputs:
    """The reference in the client's shape, where ``reshape`` changed it."""
    return {
        name: value.reshape(answer[name].shape) if value.size == answer[name].size else value
        for name, value in expected.items()
    }


# Failures


def _load_error(sandbox: Sandbox, name: str, config: str, plan: Path) -> str:
    failure = sandbox.load(serving.deployment(name, config, plan))
    if failure is None:
        sandbox.unload(name)
        raise RuntimeError("it loaded, which it must not")
    return failure.message


def _expect(text: str, *parts: str) -> dict[str, Any]:
    missing = [part for part in parts if part not in text]
    if missing:
        raise RuntimeError(f"{missing} is not in: {text}")
    return {"message": text[:600]}


def bad_plans(sandbox: Sandbox, plans: Path) -> dict[str, Any]:
    good = build(networks.affine().SerializeToString(), plans, "fp32", [rows_profile(16)]).file
    config = serving.config_text(X16, Y16, max_batch=8)
    found = {}
    data = bytearray(good.read_bytes())
    for name, content in {
        "cut off": bytes(data[: len(data) // 2]),
        "not a plan": b"this is no plan" * 100,
        "another release": _with_version(data),
    }.items():
        file = plans / f"bad {name}.plan"
        file.write_bytes(content)
        text = _load_error(sandbox, "bad", config, file)
        found[name] = _expect(text, "unable to create TensorRT engine")["message"]
    wide = serving.config_text(X16, Y16, max_batch=64)
    found["max batch"] = _expect(_load_error(sandbox, "bad", wide, good), "only supports max-batch 8")["message"]
    typed = serving.config_text({"x": ("FP16", [16])}, Y16, max_batch=8)
    found["type"] = _expect(_load_error(sandbox, "bad", typed, good), "unexpected datatype TYPE_FP32")["message"]
    profile = 'instance_group { kind: KIND_GPU gpus: [0] profile: ["3"] }'
    third = serving.config_text(X16, Y16, max_batch=8, group=profile)
    found["profile"] = _expect(_load_error(sandbox, "bad", third, good), "Optimization Profile")["message"]
    return {"messages": found}


def _with_version(data: bytearray) -> bytes:
    changed = bytearray(data)
    # The header's first bytes: magic, then versions; a plan of another release differs there.
    for offset in range(8, 24):
        changed[offset] ^= 0x5A
    return bytes(changed)


def bad_requests(sandbox: Sandbox, plans: Path) -> dict[str, Any]:
    """Requests that fail stand alone: their neighbours in the same batch are answered right."""
    model = networks.convolutional_free_size().SerializeToString()
    profile = {"x": ((1, 3, 16, 16), (4, 3, 32, 32), (8, 3, 64, 64))}
    plan = build(model, plans, "free_height_and_width", [profile])
    config = serving.config_text({"x": ("FP32", [3, -1, -1])}, {"y": ("FP32", [4, -1, -1])}, max_batch=8)
    failure = sandbox.load(serving.deployment("case", config, plan.file))
    if failure is not None:
        raise RuntimeError(failure.message)
    try:
        random = np.random.default_rng(1)
        sizes = [(16, 16), (128, 16), (64, 64), (16, 8)] * 16
        requests = [{"x": random.standard_normal((1, 3, *size)).astype(np.float32)} for size in sizes]
        with TritonClient(sandbox.info.grpc_url) as client:
            answers = serving.ask(client, "case", requests, {"x": "FP32"})
        reference = serving.Reference(model)
        worst = 0.0
        messages = set()
        for size, request, answer in zip(sizes, requests, answers, strict=True):
            if size in ((128, 16), (16, 8)):
                found = _expect(str(answer), "no optimization profile in use admits", "[1,3,16,16] to [8,3,64,64]")
                messages.add(found["message"])
            elif isinstance(answer, str):
                raise RuntimeError(f"a good request failed: {answer}")
            else:
                worst = max(worst, *serving.worst_difference([answer], [reference(request)]).values())
        if worst > 1e-2:
            raise RuntimeError(f"answers differ by {worst}")
    finally:
        sandbox.unload("case")
    return {"messages": sorted(messages), "worst": worst}


def engine(kind: str, *, pipelined: bool = False) -> str:
    values = {"engine_process": kind, **({"pipeline": "on"} if pipelined else {})}
    return "".join(f'parameters {{ key: "{k}" value {{ string_value: "{v}" }} }}\n' for k, v in values.items())


def cuda_error(sandbox: Sandbox, plans: Path, kind: str) -> dict[str, Any]:
    """A real illegal address in one request: a typed answer, and the server lives.

    With an engine of its own, an instance serves again after a load; with a shared engine, from the next request on.
    """
    plan = build(networks.affine().SerializeToString(), plans, "fp32", [rows_profile(16)]).file
    extra = engine(kind) + 'parameters { key: "fault_injection" value { string_value: "true" } }'
    config = serving.config_text(X16, Y16, max_batch=8, extra=extra)
    one = [{"x": np.ones((1, 16), np.float32)}]
    x = {"x": "FP32"}
    failure = sandbox.load(serving.deployment("case", config, plan))
    if failure is not None:
        raise RuntimeError(failure.message)
    with TritonClient(sandbox.info.grpc_url) as client:
        before = serving.ask(client, "case", one, x)[0]
        hurt = serving.ask(client, "case", one, x, parameters=[{"inject_cuda_error": True}])[0]
        after = serving.ask(client, "case", one, x)[0]
        live = client.server_live()
    sandbox.unload("case")
    failure = sandbox.load(serving.deployment("case", config, plan))
    if failure is not None:
        raise RuntimeError(f"did not load again: {failure.message}")
    with TritonClient(sandbox.info.grpc_url) as client:
        again = serving.ask(client, "case", one, x)[0]
    sandbox.unload("case")
    if isinstance(before, str) or isinstance(again, str) or not live or isinstance(after, str) != (kind == "own"):
        raise RuntimeError(f"before: {before}; hurt: {hurt}; after: {after}; again: {again}; server live: {live}")
    said = "GPU context is lost" if kind == "own" else "the engine process ends"
    return {**_expect(str(hurt), said), "after": str(after)[:300], "right_again": bool((again["y"] == 3).all())}


def out_of_memory(sandbox: Sandbox, plans: Path) -> dict[str, Any]:
    """Too many instances for what is free on the GPU: this process takes nearly all of it first."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "triton_templates" / "tensorrt"))
    from trt_device import Device

    wide = partial(networks.perceptron, width=8192, layers=4)
    plan = build(wide().SerializeToString(), plans, "wide_perceptron", [rows_profile(512, high=8)], level=1)
    config = serving.config_text(
        {"x": ("FP32", [512])}, {"y": ("FP32", [1])}, max_batch=8, instances=8, extra=engine("own")
    )
    device = Device(0)
    hog = device.free_bytes() - (3 << 30)
    address = device.allocate(hog)
    try:
        text = _load_error(sandbox, "case", config, plan.file)
    finally:
        device.free(address)
    few = config.replace("count: 8", "count: 1")
    failure = sandbox.load(serving.deployment("case", few, plan.file))
    if failure is not None:
        raise RuntimeError(f"one instance with all memory did not load: {failure.message}")
    sandbox.unload("case")
    return {"message": text[:600], "plan_bytes": plan.size_bytes, "hog_bytes": hog}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--only", default="", help="part of a step's name")
    options = parser.parse_args()
    import tensorrt

    steps = Steps(options.out, "backend_correctness", options.seconds, serving.facts())
    plans = options.out / "plans"
    used_before = serving.gpu_used_bytes()
    with serving.start(options.out / "work") as sandbox:
        idle = serving.gpu_used_bytes()
        for name, work in (
            ("bad plans", bad_plans),
            ("bad requests", bad_requests),
            ("CUDA error, own engine", partial(cuda_error, kind="own")),
            ("CUDA error, shared engine", partial(cuda_error, kind="shared")),
            ("out of memory", out_of_memory),
        ):
            if options.only in name:
                steps.step(f"failure: {name}", partial(work, sandbox, plans), reserve_s=25)
        # Two instances share an engine by default; then with two batches in flight, and with an engine for each.
        for label, extra in (
            ("", ""),
            (PIPELINED, engine("shared", pipelined=True)),
            (OWN, engine("own")),
            (OWN + PIPELINED, engine("own", pipelined=True)),
        ):
            for case in cases(hasattr(tensorrt, "int64")):
                each = replace(case, name=case.name + label, extra=extra + case.extra)
                if options.only in each.name:
                    steps.step(each.name, partial(_case_or_not_built, each, sandbox, plans))
        unloaded = serving.gpu_used_bytes()
        log = sandbox.log_tail(200)
    (options.out / "backend_correctness.server.log").write_text(log, encoding="utf-8")
    time.sleep(2)
    used_after = serving.gpu_used_bytes()
    steps.step("memory", partial(_memory, used_before, idle, unloaded, used_after), reserve_s=0)
    return steps.finish()


def _case_or_not_built(case: Case, sandbox: Sandbox, plans: Path) -> dict[str, Any]:
    try:
        return run_case(case, sandbox, plans)
    except BuildError as error:
        # The builder's limits are not the backend's: said, not hidden.
        return {"not_buildable": str(error)[:400]}


def _memory(before: int | None, idle: int | None, unloaded: int | None, after: int | None) -> dict[str, Any]:
    """GPU memory in use; the difference from before may be this process's own CUDA context, made by the builder."""
    result = {"before": before, "idle_server": idle, "all_unloaded": unloaded, "server_closed": after}
    if before is not None and after is not None and after - before > 2 << 30:
        raise RuntimeError(f"GPU memory did not come back: {result}")
    return result


if __name__ == "__main__":
    sys.exit(main())
