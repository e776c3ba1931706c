"""A study is bound to the content of every file that the user gives beside the model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from optimizer.config import Settings, parse_settings
from optimizer.errors import InputError
from optimizer.given_files import given_facts
from optimizer.ledger import STUDY_FILE
from optimizer.preparation import Preparation, prepare, refuse_changed
from optimizer.records.environment import GIVEN_FILES
from optimizer.studies import begin, reopen
from optimizer.testing.models import null_model
from optimizer.tuning import apply_study


def _samples(path: Path, first: float) -> Path:
    np.savez(path, INPUT0=np.arange(first, first + 40, dtype=np.float32).reshape(10, 4))
    return path


@pytest.fixture
def given(tmp_path: Path, tiny_onnx: Path) -> dict[str, Path]:
    """One file of each role."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at_s": 0.1}\n')
    source = tmp_path / "source.onnx"
    onnx.save(onnx.load(tiny_onnx), source)
    return {
        "inputs": _samples(tmp_path / "inputs.npz", 0),
        "held_out": _samples(tmp_path / "held_out.npz", 100),
        "calibration": _samples(tmp_path / "calibration.npz", 200),
        "trace": trace,
        "onnx": source,
    }


def _settings(given: dict[str, Path], **load: str) -> Settings:
    return parse_settings({
        "inputs": {
            "file": str(given["inputs"]), "held_out_file": str(given["held_out"]),
            "calibration_file": str(given["calibration"]),
        },
        "load": {"arrival": "trace", "trace": str(given["trace"]), **load},
        "builder": {"family": "onnxruntime", "onnx": str(given["onnx"])},
    })  # fmt: skip


@pytest.fixture
def preparation(tmp_path: Path, given: dict[str, Path]) -> Preparation:
    null_model("m").write(tmp_path / "models")
    return prepare(tmp_path / "models", "m", _settings(given), tmp_path / "study")


def _edit(role: str, path: Path) -> None:
    """Still a file of its kind, of the same shapes."""
    if role == "trace":
        path.write_text('{"at_s": 0.2}\n')
    elif role == "onnx":
        model = onnx.load(path)
        model.producer_name = "another"
        onnx.save(model, path)
    else:
        _samples(path, 1000)


def test_every_role_is_in_the_fingerprint(preparation: Preparation, given: dict[str, Path]) -> None:
    facts = preparation.fingerprint.facts
    assert set(given) == set(GIVEN_FILES) <= set(facts)
    assert all(facts[role].startswith(f"{path} (sha256 ") for role, path in given.items())


@pytest.mark.parametrize("role", GIVEN_FILES)
def test_after_an_edit_nothing_goes_on(preparation: Preparation, given: dict[str, Path], role: str) -> None:
    begin(preparation).close()
    directory = preparation.plan.directory
    refuse_changed(reopen(directory))
    _edit(role, given[role])
    told = rf"a file given with it has changed: {role}: \S+ \(sha256 \w{{64}}\) -> [^;]*\n  remedy: .*restore what has"
    for goes_on in (reopen, apply_study):
        with pytest.raises(InputError, match=told):
            goes_on(directory)
    with pytest.raises(InputError, match=rf"{given[role]}: {role}: was changed during the study"):
        refuse_changed(preparation)


@pytest.mark.parametrize("role", GIVEN_FILES)
def test_a_file_that_is_gone_is_told_by_name(preparation: Preparation, given: dict[str, Path], role: str) -> None:
    given[role].unlink()
    with pytest.raises(InputError, match=rf"{given[role]}: {role}: .*No such file"):
        refuse_changed(preparation)


def test_a_study_of_a_version_that_did_not_write_them_down_still_opens(preparation: Preparation) -> None:
    begin(preparation).close()
    header = preparation.plan.directory / STUDY_FILE
    document = json.loads(header.read_text())
    for role in GIVEN_FILES:
        del document["fingerprint"]["facts"][role]
    header.write_text(json.dumps(document))
    reopen(preparation.plan.directory)


def test_a_trace_that_is_not_replayed_binds_nothing(given: dict[str, Path]) -> None:
    assert set(given_facts(_settings(given, arrival="closed"))) == set(GIVEN_FILES) - {"trace"}


@pytest.mark.parametrize("named", ["model.onnx", "."], ids=["file", "directory"])
def test_external_data_belong_to_the_onnx_file(tmp_path: Path, tiny_onnx: Path, named: str) -> None:
    directory = tmp_path / "source"
    directory.mkdir()
    model = onnx.load(tiny_onnx)
    for tensor in model.graph.initializer:  # Only raw data can be external.
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(
        model, directory / "model.onnx",
        save_as_external_data=True, location="weights.bin", size_threshold=0,
    )  # fmt: skip
    (directory / "notes.txt").write_text("of no concern")
    settings = parse_settings({"builder": {"onnx": str(directory / named)}})
    before = given_facts(settings)
    (directory / "notes.txt").write_text("nor is this")
    assert given_facts(settings) == before
    weights = directory / "weights.bin"
    weights.write_bytes(bytes(len(weights.read_bytes())))
    assert given_facts(settings) != before
    weights.unlink()
    with pytest.raises(InputError, match=r"'weights\.bin' is missing"):
        given_facts(settings)


def test_a_directory_of_samples_is_bound_by_its_samples(tmp_path: Path) -> None:
    directory = tmp_path / "samples"
    directory.mkdir()
    for number in range(2):
        _samples(directory / f"{number}.npz", number)
    settings = parse_settings({"inputs": {"file": str(directory)}})
    before = given_facts(settings)
    (directory / "notes.txt").write_text("of no concern")
    assert given_facts(settings) == before
    (directory / "1.npz").rename(directory / "2.npz")
    assert given_facts(settings) != before
