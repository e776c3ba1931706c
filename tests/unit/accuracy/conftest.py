"""A model to load samples for, and sets with expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.records.model import Model, TensorSpec
from optimizer.records.samples import Sample, SampleSet


def make_model(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int = 8) -> Model:
    return Model(
        name="m",
        directory=Path("/repository/m"),
        config_path=None,
        config_text="",
        effective_config_text="",
        platform="",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        versions=(),
        version_policy="latest(1)",
        default_model_filename="",
    )


@pytest.fixture
def model() -> Model:
    """Two inputs (FP32 [3, free], INT64 [2]) and one output (FP32 [4]), batched up to 8."""
    return make_model(
        [TensorSpec("image", "FP32", (3, -1)), TensorSpec("tokens", "INT64", (2,))],
        [TensorSpec("scores", "FP32", (4,))],
    )


@pytest.fixture
def build_model() -> Callable[..., Model]:
    return make_model


@pytest.fixture
def build_set() -> Callable[..., SampleSet]:
    """``build_set(expected, tags)``: a set with one sample for each expected ``y`` array; input ``x`` is its index."""

    def build(expected: Sequence[Any], tags: Sequence[Sequence[str]] = ()) -> SampleSet:
        samples = tuple(
            Sample(
                id=f"s{index}",
                inputs={"x": np.array([[index]], np.float32)},
                expected={"y": np.asarray(array)},
                tags=frozenset(tags[index] if tags else ()),
            )
            for index, array in enumerate(expected)
        )
        return SampleSet("tune", samples, "test", references="golden")

    return build
