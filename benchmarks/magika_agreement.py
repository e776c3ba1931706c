"""How often INT8 and FP16 versions of the magika classifier agree with FP32 on real files, and what that decides.

    python -m benchmarks.magika_agreement [--count 4000] [--seed 0] [--output FILE]

ONNX Runtime on the CPU, one thread, no server: FP32 one file at a time is the reference. INT8 is ONNX Runtime's dynamic
quantization, whose activation scales depend on what else is in the batch, so it is asked one by one and in batches of
32. FP16 is onnxconverter-common's conversion. Decisions at the floors are given by what was observed and by the exact
95% bound. On one core FP32 and FP16 take about 10 ms a file, dynamic INT8 about 60 ms.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from examples.magika_features import OUTPUT, probabilities, real_file_samples
from examples.models import MODELS, fetch
from optimizer.accuracy.hard_cases import tag_lowest_margin, what_samples_support
from optimizer.accuracy.validator import Answer, parse_tolerance, validate
from optimizer.durable import sha256_file, write_json
from optimizer.records.model import Array
from optimizer.records.parity import Parity
from optimizer.records.samples import SampleSet

FLOORS = ("0.99", "0.995", "0.999")
RESULT = Path(__file__).parent / "results" / "magika_agreement.json"


def quantize_dynamic(source: Path, target: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)
    quantize_dynamic(str(source), str(target))


def convert_to_fp16(source: Path, target: Path) -> None:
    import onnx
    from onnxconverter_common import float16

    model = onnx.load(str(source))
    own = {node.name for node in model.graph.node}
    converted = float16.convert_float_to_float16(model, keep_io_types=True)
    for node in converted.graph.node:
        # The converter leaves the model's own casts to FLOAT as they are, next to inputs that are now FLOAT16.
        for attribute in node.attribute:
            is_own_cast = node.op_type == "Cast" and node.name in own
            if is_own_cast and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.FLOAT16
    onnx.save(converted, str(target))


def compare(name: str, samples: SampleSet, answers: Sequence[Array]) -> dict[str, Any]:
    """Agreement with its bound, the decision at every floor, and the losses of one version."""
    datatypes = {OUTPUT: "FP32"}

    def stream() -> Iterator[Answer]:
        return (Answer(index, {OUTPUT: row}, datatypes) for index, row in enumerate(answers))

    losses = validate(name, samples, stream(), (), datatypes)
    decisions = []
    parity: Parity | None = None
    for floor in FLOORS:
        observed = validate(name, samples, stream(), [parse_tolerance(f"top1>={floor}")], datatypes)
        bounded = validate(name, samples, stream(), [parse_tolerance(f"top1>={floor}@0.95")], datatypes)
        parity = observed
        decisions.append({
            "floor": float(floor), "observed_passes": observed.passed, "bound_passes": bounded.passed,
            "reason": bounded.reason or "supported",
        })  # fmt: skip
    assert parity is not None
    top1 = parity.outputs[0]
    misses, rows = top1.misses or 0, top1.units or 0
    return {
        "version": name,
        "files": rows,
        "disagreements": misses,
        "agreement": 1 - top1.loss,
        "agreement_lower_bound_95": 1 - (top1.bound or 0.0),
        "supports": what_samples_support(rows, misses),
        "agreement_on_hard": 1 - parity.per_tag["hard"][f"{OUTPUT}:top1"],
        "decisions": decisions,
        "worst_losses": {output.metric: output.loss for output in losses.outputs},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    started = time.time()
    source = fetch("magika")
    samples = real_file_samples(options.count, options.seed)
    reference = probabilities(samples, source)
    samples = replace(
        samples,
        references="onnxruntime-fp32",
        samples=tuple(
            replace(sample, expected={OUTPUT: row}) for sample, row in zip(samples.samples, reference, strict=True)
        ),
    )
    samples = tag_lowest_margin(samples, OUTPUT, count=max(1, options.count // 10))
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        int8, fp16 = Path(directory) / "int8.onnx", Path(directory) / "fp16.onnx"
        quantize_dynamic(source, int8)
        convert_to_fp16(source, fp16)
        for name, path, batch in (
            ("fp32, batches of 32", source, 32),
            ("int8, one by one", int8, 1),
            ("int8, batches of 32", int8, 32),
            ("fp16, one by one", fp16, 1),
        ):
            print(name, file=sys.stderr)
            rows.append(compare(name, samples, probabilities(samples, path, batch=batch)))
    kinds: dict[str, int] = {}
    for sample in samples.samples:
        for tag in sample.tags:
            kinds[tag] = kinds.get(tag, 0) + 1
    import onnxruntime

    write_json(options.output, {
        "command": f"python -m benchmarks.magika_agreement --count {options.count} --seed {options.seed}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores", "python": platform.python_version(),
        "onnxruntime": onnxruntime.__version__,
        "model": {"wheel": f"{MODELS['magika'].package} {MODELS['magika'].version}", "sha256": sha256_file(source)},
        "seconds": round(time.time() - started), "kinds": kinds, "versions": rows,
    })  # fmt: skip
    for row in rows:
        verdicts = ", ".join(
            f"{d['floor']:.1%}: {'yes' if d['observed_passes'] else 'no'}/{'yes' if d['bound_passes'] else 'no'}"
            for d in row["decisions"]
        )
        print(f"{row['version']:22} {row['disagreements']:4} of {row['files']} differ  {row['supports']}  {verdicts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
