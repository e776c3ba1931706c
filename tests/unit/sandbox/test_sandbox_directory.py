"""The private model directory: what is written, what is linked, and what is never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.errors import InputError
from optimizer.records.deployment import Deployment
from optimizer.sandbox import _repository
from optimizer.triton.protobuf import parse_config

CONFIG = """
# A comment.
name: "theirs"
platform: "onnxruntime_onnx"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "Y" data_type: TYPE_FP32 dims: 1 label_filename: "labels.txt" }
parameters { key: "b" value { string_value: "2" } }
parameters { key: "a" value { string_value: "\\001\\"" } }
optimization { graph { level: -1 } }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def source(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "weights").mkdir(exist_ok=True)
    (tmp_path / "weights" / "model.onnx").write_bytes(b"onnx")
    (tmp_path / "labels.txt").write_text("cat")
    return {"2/model.onnx": tmp_path / "weights", "labels.txt": tmp_path / "labels.txt"}


def test_only_the_name_changes(repository: Path, tmp_path: Path) -> None:
    directory = _repository.write(repository, Deployment("private", CONFIG, source(tmp_path)))
    written, given = parse_config((directory / "config.pbtxt").read_text()), parse_config(CONFIG)
    assert written.name == "private"
    given.name = "private"
    assert written == given


def test_files_are_symbolic_links(repository: Path, tmp_path: Path) -> None:
    files = source(tmp_path)
    before = files["labels.txt"].stat()
    directory = _repository.write(repository, Deployment("m", CONFIG, files))
    assert (directory / "labels.txt").is_symlink()
    assert (directory / "2" / "model.onnx").is_symlink()
    assert (directory / "2" / "model.onnx" / "model.onnx").read_bytes() == b"onnx"
    after = files["labels.txt"].stat()
    assert (before.st_ctime_ns, before.st_nlink) == (after.st_ctime_ns, after.st_nlink)
    _repository.remove(repository, "m")
    assert not directory.exists()
    assert files["2/model.onnx"].is_dir()
    assert files["labels.txt"].read_text() == "cat"


def test_copies_where_links_would_lead_nowhere(repository: Path, tmp_path: Path) -> None:
    directory = _repository.write(repository, Deployment("m", CONFIG, source(tmp_path)), copy=True)
    assert not any(path.is_symlink() for path in directory.rglob("*"))
    assert (directory / "2" / "model.onnx" / "model.onnx").read_bytes() == b"onnx"


def test_writing_again_replaces_everything(repository: Path, tmp_path: Path) -> None:
    files = source(tmp_path)
    _repository.write(repository, Deployment("m", CONFIG, files))
    directory = _repository.write(repository, Deployment("m", CONFIG, {"7/x": files["labels.txt"]}))
    assert sorted(path.name for path in directory.iterdir()) == ["7", "config.pbtxt"]


def test_an_ensemble_without_files_gets_its_version_directory(repository: Path) -> None:
    directory = _repository.write(repository, Deployment("e", CONFIG, {}, version=3))
    assert (directory / "3").is_dir()


@pytest.mark.parametrize("inside", ["../x", "/etc/x", "1/../../x", ""])
def test_paths_that_leave_the_directory_are_refused(repository: Path, tmp_path: Path, inside: str) -> None:
    with pytest.raises(InputError, match="not a path inside"):
        _repository.write(repository, Deployment("m", CONFIG, {inside: source(tmp_path)["labels.txt"]}))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-x", ".x", "a b", "a\n", "a\0"])
def test_names_that_are_no_name_remove_nothing(repository: Path, name: str) -> None:
    (repository / "kept").mkdir()
    with pytest.raises(InputError, match="private model name"):
        _repository.remove(repository, name)
    with pytest.raises(InputError, match="private model name"):
        _repository.write(repository, Deployment(name, CONFIG, {}))
    assert (repository / "kept").is_dir()


def test_a_missing_file_is_named(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.onnx: m/1/model.onnx: no such file"):
        _repository.write(repository, Deployment("m", CONFIG, {"1/model.onnx": tmp_path / "nothing.onnx"}))
