"""Families by name, and the choice between them where no TensorRT builder and no GPU is at hand."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from optimizer.engines import families
from optimizer.engines._base import BuildRequest
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.model import Model
from optimizer.records.route import Route
from optimizer.repository.reader import read_model
from optimizer.testing.models import null_model
from optimizer.triton.protobuf import parse_config

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [ {
  model_name: "tiny" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } ] }
"""


@pytest.fixture
def tiny(tiny_repository: Path) -> Model:
    return read_model(tiny_repository, "tiny")


@pytest.fixture
def python_model(tiny_repository: Path) -> Model:
    null_model().write(tiny_repository)
    return read_model(tiny_repository, "null")


@pytest.fixture
def ensemble(tiny_repository: Path) -> Model:
    (tiny_repository / "all" / "1").mkdir(parents=True)
    (tiny_repository / "all" / "config.pbtxt").write_text(ENSEMBLE, encoding="utf-8")
    return read_model(tiny_repository, "all")


def test_auto_takes_onnx_runtime_for_onnx_without_a_gpu(tiny: Model) -> None:
    chosen, why = families.choose("auto", tiny)
    assert chosen.name == "onnxruntime"
    assert why == "onnxruntime: an ONNX model; not tensorrt: no GPU"


def test_auto_says_what_tensorrt_lacks(tiny: Model) -> None:
    chosen, why = families.choose("auto", tiny, gpu=True, builder_python=sys.executable, module="no_such_tensorrt")
    assert chosen.name == "onnxruntime"
    assert "not tensorrt: " in why
    assert "no_such_tensorrt" in why


def test_auto_leaves_other_backends_as_they_are(python_model: Model) -> None:
    chosen, why = families.choose("auto", python_model)
    assert chosen.name == "unchanged"
    assert "not onnxruntime: the model is python" in why


def test_auto_refuses_an_ensemble_with_every_reason(ensemble: Model) -> None:
    with pytest.raises(InputError, match="tune its members") as caught:
        families.choose("auto", ensemble)
    assert caught.value.where == str(ensemble.directory)


def test_a_family_that_was_asked_for(tiny: Model, python_model: Model) -> None:
    assert families.choose("unchanged", tiny)[1] == "unchanged was asked for"
    with pytest.raises(InputError, match="not ONNX"):
        families.choose("onnxruntime", python_model)
    with pytest.raises(InputError, match="unknown engine family 'tensorflow'"):
        families.choose("tensorflow", tiny)
    with pytest.raises(EnvironmentFailure, match="no_such_tensorrt"):
        families.choose("tensorrt", tiny, builder_python=sys.executable, module="no_such_tensorrt")


def test_unchanged_serves_every_file_of_the_version(tmp_path: Path, python_model: Model) -> None:
    version = python_model.directory / "1"
    (version / "weights.bin").write_bytes(b"w")
    (version / "optimizer.json").write_text("{}", encoding="utf-8")
    family = families.family("unchanged")
    engine = family.build(BuildRequest("e", python_model, Route(), tmp_path))
    assert isinstance(engine, Engine)
    assert set(engine.files) == {"model.py", "weights.bin"}
    assert family.knobs(python_model) == ()
    config = parse_config(python_model.config_text)
    assert family.configure(config, engine, Route()) == config
    shutil.rmtree(version)
    gone = family.build(BuildRequest("e", read_model(python_model.directory.parent, "null"), Route(), tmp_path))
    assert isinstance(gone, BuildFailure)
    assert gone.reason is BuildFailureReason.REFUSED
