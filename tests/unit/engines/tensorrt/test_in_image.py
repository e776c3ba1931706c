"""Which directories a build in a container sees."""

from __future__ import annotations

from pathlib import Path

from optimizer.engines.tensorrt.in_image import mounts


def test_the_build_and_the_caches_are_written_and_the_model_is_read(tmp_path: Path) -> None:
    for name in ("build", "cache", "model", "elsewhere", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "real.onnx").touch()
    (tmp_path / "data" / "weights.bin").touch()
    (tmp_path / "model" / "model.onnx").symlink_to(tmp_path / "elsewhere" / "real.onnx")
    (tmp_path / "model" / "weights.bin").symlink_to(tmp_path / "data" / "weights.bin")
    request = {
        "onnx": str(tmp_path / "model" / "model.onnx"),
        "weights_of": None,
        "plan": str(tmp_path / "build" / "model.plan"),
        "timing_cache_directory": str(tmp_path / "cache"),
    }
    found = {Path(mount.source).name: mount.read_only for mount in mounts(request, tmp_path / "build")}
    assert found == {"model": True, "elsewhere": True, "data": True, "build": False, "cache": False}


def test_a_model_that_was_rewritten_into_the_build_directory_is_mounted_once(tmp_path: Path) -> None:
    (tmp_path / "rewritten.onnx").touch()
    request = {"onnx": str(tmp_path / "rewritten.onnx"), "plan": str(tmp_path / "model.plan")}
    (mount,) = mounts(request, tmp_path)
    assert (mount.source, mount.read_only) == (str(tmp_path), False)
