"""ModelOpt is an external command: its command line, its calibration file, and how its end is told."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tensorrt_entries import STAND_INS

from optimizer.engines._base import BuildRequest
from optimizer.engines.tensorrt import TensorRTFamily
from optimizer.engines.tensorrt.modelopt import command, write_calibration
from optimizer.records.engine import BuildFailure, Engine
from optimizer.records.engine import BuildFailureReason as Reason
from optimizer.records.route import Route
from optimizer.records.samples import Sample, SampleSet

STAND_IN = """#!{python}
import shutil, sys
words = dict(zip(sys.argv[3::2], sys.argv[4::2]))
print("as called:", sys.argv)
{what}
"""


@pytest.fixture
def build_with(tmp_path, entry):
    """An interpreter that stands in for the one that has ModelOpt: a script that is called as ``SCRIPT -m MODULE …``"""

    def build_with(what, precision):
        script = tmp_path / "modelopt-python"
        script.write_text(STAND_IN.format(python=sys.executable, what=what), encoding="utf-8")
        script.chmod(0o755)
        directory = tmp_path / "engine"
        directory.mkdir()
        family = TensorRTFamily(module="fake_weak", python_path=str(STAND_INS), modelopt_python=script)
        assert precision in {knob.name: knob for knob in family.knobs(entry)}["precision"].values
        samples = SampleSet("tune", (Sample("a", {"x": np.zeros((1, 16), np.float32)}),), "here")
        return family.build(
            BuildRequest(engine_id="e", model=entry, route=Route.of({"precision": precision}), directory=directory),
            samples,
        )

    return build_with


def test_a_quantized_model_is_built_with_its_flag(build_with, tmp_path):
    engine = build_with('shutil.copy(words["--onnx_path"], words["--output_path"])', "quantize_int8")

    assert isinstance(engine, Engine), engine
    assert engine.details["taken"]["flags"] == {"tf32": True, "int8": True}
    assert not list((tmp_path / "engine").glob("rewritten*"))
    assert "--calibration_data_path" in (tmp_path / "engine" / "modelopt.log").read_text()


def test_its_failure_is_the_candidates(build_with):
    failure = build_with('sys.exit("ValueError: this model has a custom operator")', "autocast_fp16")

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.CRASH
    assert "custom operator" in failure.log_excerpt


def test_no_file_is_a_failure(build_with):
    failure = build_with("pass", "autocast_fp16")

    assert isinstance(failure, BuildFailure)
    assert "wrote no model" in failure.message


def test_without_modelopt_its_precisions_are_not_available(build, entry):
    failure = build("fake_weak", entry, {"precision": "quantize_fp8"})

    assert isinstance(failure, BuildFailure)
    assert failure.reason is Reason.NOT_AVAILABLE


def test_command_lines(tmp_path):
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"

    assert command("py", "autocast_bf16", a, b, keep_fp32=["Pow", "Softmax"])[1:] == [
        "-m", "modelopt.onnx.autocast", "--onnx_path", str(a), "--output_path", str(b),
        "--low_precision_type", "bf16", "--keep_io_types", "--op_types_to_exclude", "Pow", "Softmax",
    ]  # fmt: skip
    assert command("py", "quantize_fp8", a, b)[1:] == [
        "-m", "modelopt.onnx.quantization", "--onnx_path", str(a), "--output_path", str(b),
        "--quantize_mode", "fp8", "--high_precision_dtype", "fp32",
    ]  # fmt: skip


def test_calibration_stacks_samples_of_one_shape(entry, tmp_path):
    rows = [np.full((1, 16), value, np.float32) for value in range(3)]
    odd = Sample("odd", {"x": np.zeros((1, 17), np.float32)})
    samples = SampleSet("tune", (*(Sample(str(i), {"x": row}) for i, row in enumerate(rows)), odd), "here")

    path = write_calibration(samples, entry, tmp_path / "c.npz")

    assert np.load(path)["x"][:, 0].tolist() == [0.0, 1.0, 2.0]
    assert write_calibration(SampleSet("tune", (), "here"), entry, tmp_path / "d.npz") is None
