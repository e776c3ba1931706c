"""A repository of six models tuned as a whole: ``python -m benchmarks.whole_repository [--minutes 14]``.

magika and three OCR networks from PyPI wheels, an ensemble of two of them, and a model with string inputs. magika gets
real files of this machine, the others random images (their decisions say so). Nothing is written back. The summary goes
to ``benchmarks/results/whole_repository.json``, its page to ``build/whole_repository/run.html``.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from pathlib import Path

from examples.magika_features import write_samples
from examples.models import fetch, write_repository_entry
from optimizer import optimize
from optimizer.durable import write_json
from optimizer.terminal import LiveProgress
from optimizer.tuning import report_document

DIRECTORY = Path("build/whole_repository")
RESULT = Path("benchmarks/results/whole_repository.json")

ENSEMBLE = """\
# Where is text, and is it upside down? Both networks on one picture.
name: "ocr_both"
platform: "ensemble"
max_batch_size: 4
input [ { name: "picture" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] } ]
output [
  { name: "direction" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "places" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }
]
ensemble_scheduling {
  step { model_name: "ocr_direction" model_version: -1 input_map { key: "x" value: "picture" }
         output_map { key: "save_infer_model/scale_0.tmp_1" value: "direction" } }
  step { model_name: "ocr_detection" model_version: -1 input_map { key: "x" value: "picture" }
         output_map { key: "sigmoid_0.tmp_0" value: "places" } }
}
"""

TEXTS = """\
name: "upper_case"
backend: "python"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "UPPER" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

UPPER_CASE = """\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            upper = np.array([text.upper() for text in texts.flat], dtype=object).reshape(texts.shape)
            answers.append(pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("UPPER", upper)]))
        return answers
"""


def settings(minutes: float, samples: Path) -> dict[str, object]:
    pictures = {"inputs": {"synthetic_count": 24}, "load": {"concurrency": [2], "duration_s": 2.0}}
    return {
        "tolerance": ["*:rel_l2<=0.05"],
        "search": {"routes": "-intra_op_threads=[0|1] -instances=[1|2] -dynamic_batching=[off|on]"},
        "load": {"concurrency": [4], "duration_s": 1.0, "warmup_s": 1.0},
        "judge": {"finalists": 1, "max_pairs": 8, "p99_guard": "off"},
        "budget": {"minutes": minutes},
        "per_model": {
            "magika": {"tolerance": ["target_label:top1>=0.95"], "inputs": {"file": str(samples)}},
            "ocr_direction": {**pictures, "inputs": {"synthetic_count": 24, "shapes": ["x=3x48x192"]}},
            "ocr_detection": {**pictures, "inputs": {"synthetic_count": 24, "shapes": ["x=3x96x192"]}},
            "ocr_recognition": {**pictures, "inputs": {"synthetic_count": 24, "shapes": ["x=3x48x160"]}},
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=14)
    minutes = parser.parse_args().minutes
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    repository = DIRECTORY / "models"
    for name in ("magika", "ocr_direction", "ocr_detection", "ocr_recognition"):
        write_repository_entry(name, repository)
    for name, config, source in (("ocr_both", ENSEMBLE, None), ("upper_case", TEXTS, UPPER_CASE)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
        if source is not None:
            (repository / name / "1" / "model.py").write_text(source)
    write_samples(DIRECTORY / "magika.npz", count=120, seed=0, onnx=fetch("magika"))
    started = time.monotonic()
    document = optimize(
        repository, settings=settings(minutes, DIRECTORY / "magika.npz"), study=DIRECTORY / "run",
        progress=LiveProgress(),
    )  # fmt: skip
    seconds = time.monotonic() - started
    report_document(DIRECTORY / "run", DIRECTORY / "run.html")
    together = document["together"] or {}
    result = {
        "command": f"python -m benchmarks.whole_repository --minutes {minutes:g}",
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load average {os.getloadavg()[2]:.1f}",
        "python": platform.python_version(),
        "seconds": round(seconds),
        "columns": document["columns"],
        "rows": document["rows"],
        "weights": {one["model"]: one["weight"] for one in document["models"] if "weight" in one},
        "together": {
            key: together.get(key)
            for key in ("verdict", "code", "reason", "winners", "taken_back", "ratio", "memory", "models", "left_out")
        },
        "exit_code": document["exit_code"],
    }
    write_json(RESULT, result)
    for row in document["rows"]:
        print("  ".join(row))
    return int(document["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
