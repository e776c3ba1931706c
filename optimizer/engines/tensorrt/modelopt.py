"""NVIDIA ModelOpt as an external command: AutoCast (FP16, BF16) and Q/DQ quantization (INT8, FP8) of an ONNX file.

It pins torch and onnxruntime-gpu, so it has an environment of its own; ``modelopt`` names that interpreter. Checked
against the command line of nvidia-modelopt 0.47.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.records.model import Model

if TYPE_CHECKING:
    from optimizer.records.samples import SampleSet

AUTOCAST = {"autocast_fp16": "fp16", "autocast_bf16": "bf16"}
QUANTIZE = {"quantize_int8": "int8", "quantize_fp8": "fp8"}
PRECISIONS = (*AUTOCAST, *QUANTIZE)
MAXIMAL_CALIBRATION_SAMPLES = 512


def command(
    python: Path | str,
    precision: str,
    source: Path,
    target: Path,
    *,
    keep_fp32: Sequence[str] = (),
    calibration: Path | None = None,
) -> list[str]:
    """The command line. Without ``calibration`` ModelOpt calibrates on random data of its own."""
    words = [str(python), "-m"]
    if precision in AUTOCAST:
        words += ["modelopt.onnx.autocast", "--onnx_path", str(source), "--output_path", str(target)]
        words += ["--low_precision_type", AUTOCAST[precision], "--keep_io_types"]
        if keep_fp32:
            words += ["--op_types_to_exclude", *keep_fp32]
        if calibration is not None:
            words += ["--calibration_data", str(calibration)]
        return words
    words += ["modelopt.onnx.quantization", "--onnx_path", str(source), "--output_path", str(target)]
    # What is not quantized stays FP32: its default would turn it into FP16, which is another knob here.
    words += ["--quantize_mode", QUANTIZE[precision], "--high_precision_dtype", "fp32"]
    if calibration is not None:
        words += ["--calibration_data_path", str(calibration)]
    return words


def write_calibration(samples: SampleSet, model: Model, target: Path) -> Path | None:
    """An ``.npz`` with one array an input, the samples stacked along the batch; ``None`` where they cannot be stacked.

    A model that does not batch is calibrated on its first sample.
    """
    import numpy as np

    usable = samples.samples[:MAXIMAL_CALIBRATION_SAMPLES]
    if not usable:
        return None
    if not model.batched:
        usable = usable[:1]
    first = {name: array.shape[1:] for name, array in usable[0].inputs.items()}
    alike = [sample for sample in usable if {name: array.shape[1:] for name, array in sample.inputs.items()} == first]
    names = [spec.name for spec in model.inputs]
    if any(name not in sample.inputs for sample in alike for name in names):
        return None
    arrays = {name: np.concatenate([sample.inputs[name] for sample in alike]) for name in names if first[name] != ()}
    arrays.update({name: np.asarray(alike[0].inputs[name]) for name in names if name not in arrays})
    np.savez(target, **arrays)
    return target
