"""Models that are wrong in one known way, on the real server: each is thrown out with the right reason, and an honest
noisy one stays in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.accuracy.references import with_references
from optimizer.accuracy.requests import ask, discriminating, plan_requests
from optimizer.accuracy.tensors import round_to_bf16
from optimizer.accuracy.tolerances import parse_tolerances
from optimizer.accuracy.under_load import answers_of, check_under_load
from optimizer.accuracy.validator import Answer, FailedAnswer, validate
from optimizer.errors import ReferenceFailure
from optimizer.records.deployment import Deployment
from optimizer.records.model import Model, TensorSpec
from optimizer.records.parity import Parity
from optimizer.records.samples import Arrays, Sample, SampleSet
from optimizer.testing.models import ToyModel
from optimizer.testing.poison import (
    INPUT,
    INPUT_DATATYPES,
    OUTPUT_DATATYPES,
    SCORES,
    SUM,
    poison_model,
    poison_samples,
)
from optimizer.triton.client import TritonClient, build_request, parse_response

pytestmark = pytest.mark.system

TOLERANCES = parse_tolerances(["rel_l2<=5e-3"])
MODEL = Model(
    "poison", Path("/none"), None, "", "", "", "python", 16, (TensorSpec(INPUT, "FP32", (4,)),),
    (TensorSpec(SCORES, "FP32", (10,)), TensorSpec(SUM, "FP32", (1,))), (), "latest(1)", "",
)  # fmt: skip


@pytest.fixture
def serve(embedded_sandbox: Any, tmp_path: Path) -> Iterator[Callable[[ToyModel], TritonClient]]:
    names: list[str] = []
    client = TritonClient(embedded_sandbox.info.grpc_url)

    def load(model: ToyModel) -> TritonClient:
        source = tmp_path / f"{model.name}.py"
        source.write_text(model.source)
        failure = embedded_sandbox.load(Deployment(model.name, model.config_text, {"1/model.py": source}))
        assert failure is None, failure
        names.append(model.name)
        return client

    yield load
    client.close()
    for name in names:
        embedded_sandbox.unload(name)


def asking(client: TritonClient, name: str) -> Callable[[Arrays], tuple[Arrays, Mapping[str, str]]]:
    def infer(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
        return parse_response(client.infer_raw(build_request(name, inputs, INPUT_DATATYPES)))

    return infer


def judged(client: TritonClient, name: str, samples: SampleSet) -> Parity:
    answers = ask(samples, plan_requests(samples, MODEL), asking(client, name))
    return validate(name, samples, answers, TOLERANCES, OUTPUT_DATATYPES)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("honest", ""),
        ("fp16", ""),
        ("swap", "output SCORES: rel_l2 loss"),
        ("inf", "non_finite: output SCORES: inf where"),
        ("nan", "non_finite: output SCORES: nan where"),
        ("stale", "output SCORES: rel_l2 loss"),
        ("batch8", "of a batch of 8)"),
        ("dtype", "wrong_datatype: output SCORES: expected FP32, got FP64"),
        ("missing", "missing_output: output SUM"),
    ],
)
def test_every_fault_has_its_reason(serve: Callable[[ToyModel], TritonClient], fault: str, reason: str) -> None:
    model = poison_model(fault)
    parity = judged(serve(model), model.name, poison_samples(40))
    assert parity.passed is (reason == ""), parity.reason
    assert reason in parity.reason
    if fault == "inf":
        assert "sample tune-39" in parity.reason
    if fault == "batch8":
        assert parity.outputs[0].loss == pytest.approx(0.1, rel=1e-3)


def test_one_nan_in_ten_thousand_values(serve: Callable[[ToyModel], TritonClient]) -> None:
    model = poison_model("nan", classes=10_000)
    samples = poison_samples(32, classes=10_000)
    parity = judged(serve(model), model.name, samples)
    assert "1 of 10000 values" in parity.reason


def test_right_on_tune_and_wrong_on_held_out(serve: Callable[[ToyModel], TritonClient]) -> None:
    model = poison_model("held_out")
    client = serve(model)
    assert judged(client, model.name, poison_samples(20)).passed
    parity = judged(client, model.name, poison_samples(20, name="held_out", held_out=True))
    assert not parity.passed
    assert parity.sample_set == "held_out"
    assert parity.outputs[0].loss == pytest.approx(0.2, rel=1e-3)


def test_half_a_percent_of_flips_at_a_floor_of_99_9(serve: Callable[[ToyModel], TritonClient]) -> None:
    floor = parse_tolerances([f"{SCORES}:top1>=0.999", f"{SUM}:lInf<=1e-4"])
    samples = poison_samples(3_000)
    plan = [tuple(range(start, min(start + 60, 3_000))) for start in range(0, 3_000, 60)]
    for fault, passes in (("flips", False), ("fp16", True)):
        model = poison_model(fault, max_batch_size=64)
        infer = asking(serve(model), model.name)
        parity = validate(model.name, samples, ask(samples, plan, infer), floor, OUTPUT_DATATYPES)
        assert parity.passed is passes, parity.reason
        scores = next(output for output in parity.outputs if output.output == SCORES)
        assert scores.units == 3_000
        if not passes:
            assert 5 <= (scores.misses or 0) <= 35
            assert "exceeds 0.001" in parity.reason


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.05, False)])
def test_bf16_output_that_is_off_by_five_percent(
    embedded_sandbox: Any, tmp_path: Path, make_onnx: Callable[..., Path], factor: float, passes: bool
) -> None:
    from onnx import TensorProto, helper

    path = make_onnx(
        tmp_path / "bf16.onnx",
        [
            helper.make_node("Mul", ["X", "factor"], ["T"]),
            helper.make_node("Cast", ["T"], ["Y"], to=TensorProto.BFLOAT16),
        ],
        [("X", TensorProto.FLOAT, ["N", 4])],
        [("Y", TensorProto.BFLOAT16, ["N", 4])],
        [helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])],
    )
    config = (
        'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
        'input { name: "X" data_type: TYPE_FP32 dims: 4 }\noutput { name: "Y" data_type: TYPE_BF16 dims: 4 }\n'
        "instance_group { kind: KIND_CPU count: 1 }\n"
    )
    values = np.random.default_rng(0).uniform(1, 2, (6, 1, 4)).astype(np.float32)
    samples = SampleSet(
        "tune", tuple(Sample(f"s{i}", {"X": x}, {"Y": round_to_bf16(x)}) for i, x in enumerate(values)), "test"
    )
    failure = embedded_sandbox.load(Deployment("poison_bf16", config, {"1/model.onnx": path}))
    assert failure is None, failure
    try:
        with TritonClient(embedded_sandbox.info.grpc_url) as client:

            def infer(inputs: Arrays) -> tuple[Arrays, Mapping[str, str]]:
                return parse_response(client.infer_raw(build_request("poison_bf16", inputs, {"X": "FP32"})))

            answers = list(ask(samples, [(index,) for index in range(6)], infer))
    finally:
        embedded_sandbox.unload("poison_bf16")
    parity = validate("c", samples, answers, parse_tolerances(["rel_l2<=0.01"]), {"Y": "BF16"})
    assert parity.passed is passes, parity.reason
    assert parity.outputs[0].loss == pytest.approx(factor - 1, abs=4e-3)


def test_rows_swapped_by_dynamic_batching_are_found_under_load(serve: Callable[[ToyModel], TritonClient]) -> None:
    samples = poison_samples(40)
    loose = parse_tolerances(["rel_l2<=100"])
    apart = discriminating(samples)
    for fault, passes in (("fp16", True), ("swap", False)):
        model = poison_model(fault, queue_delay_us=50_000, service_s=0.002)
        client = serve(model)
        order = [apart[turn % len(apart)] for turn in range(64)]
        futures = [
            client.infer_future(build_request(model.name, samples.samples[index].inputs, INPUT_DATATYPES))
            for index in order
        ]
        responses = [(index, bytes(future.result())) for index, future in zip(order, futures, strict=True)]
        parity = check_under_load(model.name, samples, answers_of(responses), loose, OUTPUT_DATATYPES)
        assert parity.passed is passes, parity.reason
        if not passes:
            assert parity.reason.startswith("misplaced: the answer to sample ")


def test_the_reference_is_checked_through_the_server(serve: Callable[[ToyModel], TritonClient]) -> None:
    samples = poison_samples(24)

    def answers_from(client: TritonClient, name: str) -> Callable[[SampleSet], Iterator[Answer | FailedAnswer]]:
        def answers(asked: SampleSet) -> Iterator[Answer | FailedAnswer]:
            for index, sample in enumerate(asked.samples):
                outputs, datatypes = parse_response(
                    client.infer_raw(build_request(name, sample.inputs, INPUT_DATATYPES))
                )
                yield Answer(index, outputs, datatypes)

        return answers

    honest, batch8 = poison_model("honest"), poison_model("batch8")
    (checked,) = with_references(
        [samples], MODEL, kind="as-found", answers=answers_from(serve(honest), honest.name), tolerances=TOLERANCES
    )
    noise = checked.details["noise"]
    assert isinstance(noise, dict)
    assert noise[f"{SCORES}:rel_l2"] < 1e-5
    assert np.allclose((checked.samples[3].expected or {})[SUM], (samples.samples[3].expected or {})[SUM])
    with pytest.raises(ReferenceFailure, match="asked in batches, does not repeat its answers"):
        with_references([samples], MODEL, kind="as-found", answers=answers_from(serve(batch8), batch8.name))
