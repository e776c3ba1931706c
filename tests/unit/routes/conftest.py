"""A Model from a config text, without files: serving knobs and spaces look at nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer.records.model import Model, ModelFormat, ModelVersion, TensorSpec
from optimizer.triton.protobuf import datatype_name, parse_config

MakeModel = Callable[..., Model]


def model_from(text: str, *, file_format: ModelFormat = ModelFormat.ONNX) -> Model:
    config = parse_config(text)
    directory = Path("repository") / "m"
    version = ModelVersion(1, directory / "1", directory / "1" / "model.onnx", file_format, 100, served=True)

    def specs(tensors: object) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(one.name, datatype_name(one.data_type), tuple(one.dims), shape_tensor=one.is_shape_tensor)
            for one in tensors  # type: ignore[attr-defined]
        )

    return Model(
        name="m",
        directory=directory,
        config_path=directory / "config.pbtxt",
        config_text=text,
        effective_config_text=text,
        platform=config.platform,
        backend=config.backend
        or {"onnxruntime_onnx": "onnxruntime", "tensorrt_plan": "tensorrt"}.get(config.platform, ""),
        max_batch_size=config.max_batch_size,
        inputs=specs(config.input),
        outputs=specs(config.output),
        versions=(version,),
        version_policy="latest(1)",
        default_model_filename="",
        ensemble_members=("a",) if config.HasField("ensemble_scheduling") else (),
        sequence_batching=config.HasField("sequence_batching"),
        dynamic_batching=config.HasField("dynamic_batching"),
    )


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    return model_from
