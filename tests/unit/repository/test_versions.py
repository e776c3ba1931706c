from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.records.model import ModelFormat
from optimizer.repository.versions import (
    first_version_directory,
    model_format,
    parse_version,
    recognize,
    scan_versions,
    select_versions,
    version_files,
)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("1", 1),
        ("2.tmp", 2),
        ("1.bak", 1),
        (" 3", 3),
        ("+4", 4),
        ("-5", -5),
        ("6 7", 6),
        ("0", 0),
        ("9" * 18, int("9" * 18)),
    ],
)
def test_a_name_is_read_as_stoll_reads_it(name: str, number: int) -> None:
    assert parse_version(name) == number


@pytest.mark.parametrize("name", ["", "v1", "tmp.2", ".1", "-", "１"])
def test_a_name_that_is_no_number_is_no_version(name: str) -> None:
    assert parse_version(name) is None


def test_a_number_beyond_64_bits_is_an_error() -> None:
    assert parse_version(str(2**63 - 1)) == 2**63 - 1
    with pytest.raises(OverflowError):
        parse_version(str(2**63))


def make(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).mkdir(parents=True)
    return directory


def test_directories_become_versions_highest_first(tmp_path: Path) -> None:
    make(tmp_path, "1", "10", "2", "2.tmp", "3.bak", "01", "configs", "warmup", "initial_state", "docs")
    (tmp_path / "7").write_text("a file is no version")
    scan = scan_versions(tmp_path)
    assert [(version.number, version.misnamed) for version in scan.versions] == [
        (10, False),
        (3, True),
        (2, False),
        (1, False),
    ]
    assert [path.name for path in scan.versions[2].found] == ["2", "2.tmp"]
    assert scan.versions[1].path == tmp_path / "3"
    assert dict(scan.ignored) == {"01": "it has leading zeros", "docs": "it is no number"}


def test_a_link_to_a_directory_is_a_version(tmp_path: Path) -> None:
    make(tmp_path, "elsewhere", "model")
    (tmp_path / "model" / "1").symlink_to(tmp_path / "elsewhere")
    assert [version.number for version in scan_versions(tmp_path / "model").versions] == [1]


def test_policies_select() -> None:
    there = [1, 2, 5]
    assert select_versions(there) == {5}
    assert select_versions(there, latest=2) == {2, 5}
    assert select_versions(there, latest=9) == {1, 2, 5}
    assert select_versions(there, latest=0) == set()
    assert select_versions(there, latest=None) == {1, 2, 5}
    assert select_versions(there, specific=[1, 5, 7]) == {1, 5}
    assert select_versions([], latest=None) == set()


def test_the_first_directory_by_bytes_decides_the_backend(tmp_path: Path) -> None:
    assert first_version_directory(tmp_path) is None
    assert first_version_directory(make(tmp_path, "2", "10", "configs")) == tmp_path / "10"
    assert first_version_directory(make(tmp_path, ".git")) == tmp_path / ".git"


def test_formats() -> None:
    assert model_format("tensorrt", "tensorrt_plan", "model.plan") is ModelFormat.PLAN
    assert model_format("pytorch", "pytorch_libtorch", "model.pt") is ModelFormat.TORCHSCRIPT
    assert model_format("pytorch", "torch_aoti", "model.pt2") is ModelFormat.PYTORCH_EXPORT
    assert model_format("", "ensemble", "") is ModelFormat.ENSEMBLE
    assert model_format("vllm", "", "model.json") is ModelFormat.UNKNOWN


def test_a_directory_is_recognized_in_the_order_of_triton(tmp_path: Path) -> None:
    assert recognize(tmp_path) is ModelFormat.UNKNOWN
    (tmp_path / "model.onnx").touch()
    assert recognize(tmp_path) is ModelFormat.ONNX
    (tmp_path / "model.plan").touch()
    assert recognize(tmp_path) is ModelFormat.PLAN


def test_the_files_of_a_version_leave_provenance_out(tmp_path: Path) -> None:
    make(tmp_path, "weights")
    for name in ("model.onnx", "optimizer.json", "weights/optimizer.json", "weights/0.bin"):
        (tmp_path / name).touch()
    names = [path.relative_to(tmp_path).as_posix() for path in version_files(tmp_path)]
    assert names == ["model.onnx", "weights/0.bin", "weights/optimizer.json"]
    assert version_files(tmp_path / "absent") == []
