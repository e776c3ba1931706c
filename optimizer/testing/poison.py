"""Tiny models for Triton's python backend that are fast and wrong in one known way, and the honest ones beside them.

Every model takes ``INPUT0`` FP32 [4] and answers ``SCORES`` [classes], FP32 or BF16, and ``SUM`` FP32 [1]; it sleeps a
known time for every execution. What the faults are is in :data:`FAULTS`. Rows of all requests that the server batched
are computed together, so that a fault which needs a batch shows under dynamic batching too. Standard library and NumPy
only, and ONNX Runtime for BF16, which NumPy has not.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from optimizer.records.model import Array
from optimizer.records.samples import Sample, SampleSet
from optimizer.testing.models import ToyModel

SCORES, SUM, INPUT = "SCORES", "SUM", "INPUT0"
OUTPUT_DATATYPES = {SCORES: "FP32", SUM: "FP32"}
INPUT_DATATYPES = {INPUT: "FP32"}

HARD_MARK = 7.0
"""First value of the input of the one hard sample."""
HELD_OUT_MARK = -1.0
"""Last value of every held-out input; 1 in the others."""

FAULTS = {
    "honest": "",
    "fp16": "scores rounded to FP16: noisy within 1e-3, and right",
    "swap": "swaps the first two rows of an execution of three or more",
    "inf": "Inf on the one hard sample",
    "nan": "NaN in one of the values of every fourth input, by content",
    "held_out": "right on tune, 20% off on held-out inputs",
    "stale": "every second execution answers what the one before did",
    "later": "right at first, from the 160th execution on every second one answers what the one before did",
    "off": "scores 5% off",
    "batch8": "10% off in executions of exactly eight rows",
    "dtype": "scores as FP64",
    "missing": "leaves SUM out",
    "flips": "moves the best class of one in 200 inputs, by content",
}


def poison_model(
    fault: str, *, name: str | None = None, classes: int = 10, service_s: float = 0.0, max_batch_size: int = 16,
    queue_delay_us: int = 0, scores: Literal["FP32", "BF16"] = "FP32",
) -> ToyModel:  # fmt: skip
    """``queue_delay_us`` > 0 turns dynamic batching on; ``scores`` is the data type of that output."""
    if fault not in FAULTS:
        raise ValueError(f"no fault is called {fault!r}; choose one of {', '.join(FAULTS)}")
    name = name or f"poison_{fault}"
    batching = f"dynamic_batching {{ max_queue_delay_microseconds: {queue_delay_us} }}\n" if queue_delay_us else ""
    parameters = {"fault": fault, "classes": str(classes), "service_s": repr(service_s), "scores": scores}
    config = (
        f'name: "{name}"\nbackend: "python"\nmax_batch_size: {max_batch_size}\n'
        f'input [ {{ name: "{INPUT}" data_type: TYPE_FP32 dims: [ 4 ] }} ]\n'
        f'output [ {{ name: "{SCORES}" data_type: TYPE_{scores} dims: [ {classes} ] }},\n'
        f'  {{ name: "{SUM}" data_type: TYPE_FP32 dims: [ 1 ] }} ]\n'
        "instance_group [ { kind: KIND_CPU count: 1 } ]\n"
        + batching
        + "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in parameters.items()
        )
    )
    return ToyModel(name, config, SOURCE)


def right_answer(inputs: Array, classes: int = 10) -> dict[str, Array]:
    """What an honest model answers: scores = sin(input · W), W[i, j] = (i + 1)·(j + 1); sum = the inputs' sum."""
    weights = np.outer(np.arange(1, 5), np.arange(1, classes + 1)).astype(np.float32)
    return {
        SCORES: np.sin(inputs @ weights).astype(np.float32),
        SUM: inputs.sum(axis=1, keepdims=True).astype(np.float32),
    }


def poison_samples(
    count: int, seed: int = 0, *, name: str = "tune", held_out: bool = False, classes: int = 10
) -> SampleSet:
    """Random inputs with the right answers; the last one is the hard one."""
    generator = np.random.default_rng([seed, int(held_out)])
    samples = []
    for index in range(count):
        values = generator.uniform(-1, 1, (1, 4)).astype(np.float32)
        values[0, 3] = HELD_OUT_MARK if held_out else -HELD_OUT_MARK
        hard = index == count - 1
        if hard:
            values[0, 0] = HARD_MARK
        samples.append(
            Sample(
                f"{name}-{index}",
                {INPUT: values},
                right_answer(values, classes),
                frozenset({"hard"} if hard else set()),
            )
        )
    return SampleSet(name, tuple(samples), f"poison (seed {seed})", references="golden")


SOURCE = '''"""Wrong in one known way."""

import json
import time
import zlib

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.fault = config["parameters"]["fault"]["string_value"]
        self.service_s = float(config["parameters"]["service_s"]["string_value"])
        self.bfloat16 = config["parameters"]["scores"]["string_value"] == "BF16"
        classes = int(config["parameters"]["classes"]["string_value"])
        self.weights = np.outer(np.arange(1, 5), np.arange(1, classes + 1)).astype(np.float32)
        self.turn = 0
        self.last = None

    def execute(self, requests):
        parts = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        x = np.concatenate(parts)
        if self.service_s:
            time.sleep(self.service_s)
        scores = self.poison(x, np.sin(x @ self.weights).astype(np.float32))
        total = x.sum(axis=1, keepdims=True).astype(np.float32)
        responses, start = [], 0
        for part in parts:
            rows = slice(start, start + len(part))
            start += len(part)
            tensors = [self.tensor("SCORES", np.ascontiguousarray(scores[rows]))]
            if self.fault != "missing":
                tensors.append(pb_utils.Tensor("SUM", np.ascontiguousarray(total[rows])))
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses

    def tensor(self, name, values):
        if not self.bfloat16:
            return pb_utils.Tensor(name, values)
        import onnxruntime

        bits = values.astype(np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(rounded, 16)
        return pb_utils.Tensor.from_dlpack(name, value.__dlpack__())

    def poison(self, x, scores):
        self.turn += 1
        numbers = np.array([zlib.crc32(row.tobytes()) for row in x])
        if self.fault == "fp16":
            scores = scores.astype(np.float16).astype(np.float32)
        elif self.fault == "swap" and len(x) >= 3:
            scores[[0, 1]] = scores[[1, 0]]
        elif self.fault == "inf":
            scores[x[:, 0] == 7.0, 0] = np.inf
        elif self.fault == "nan":
            chosen = numbers % 4 == 0
            scores[chosen, numbers[chosen] % scores.shape[1]] = np.nan
        elif self.fault == "held_out":
            scores[x[:, 3] == -1.0] *= np.float32(1.2)
        elif self.fault == "off":
            scores *= np.float32(1.05)
        elif self.fault == "batch8" and len(x) == 8:
            scores *= np.float32(1.1)
        elif self.fault == "dtype":
            scores = scores.astype(np.float64)
        elif self.fault == "flips":
            for row in np.flatnonzero(numbers % 200 == 0):
                scores[row, (scores[row].argmax() + 1) % scores.shape[1]] = 2.0
        elif self.fault == "stale" or (self.fault == "later" and self.turn >= 160):
            fresh = scores
            if self.turn % 2 == 0 and self.last is not None and self.last.shape == scores.shape:
                scores = self.last
            self.last = fresh
        return scores
'''
