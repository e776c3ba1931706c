"""Two sandboxes of one study on one running server: the second takes a model over and gives it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.records.deployment import Deployment
from optimizer.sandbox._base import SandboxOptions
from optimizer.sandbox.remote import RemoteLauncher
from optimizer.triton.client import TritonClient

pytestmark = pytest.mark.system

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_a_model_is_taken_over_and_given_back(
    embedded_sandbox: Any, tiny_onnx: Path, tiny_config: str, tmp_path: Path
) -> None:
    repository = embedded_sandbox.directory / "models"
    launcher = RemoteLauncher(url=embedded_sandbox.info.grpc_url, repository=str(repository))
    first_config = tiny_config.replace("max_batch_size: 8", "max_batch_size: 4")
    with TritonClient(embedded_sandbox.info.grpc_url) as client:
        with launcher.start(SandboxOptions(workdir=tmp_path)) as first:
            assert first.load(Deployment("shared", first_config, {"1/model.onnx": tiny_onnx})) is None
            with launcher.start(SandboxOptions(workdir=tmp_path)) as second:
                assert second.load(Deployment("shared", tiny_config, {"1/model.onnx": tiny_onnx})) is None
                assert client.model_config("shared").max_batch_size == 8
                # A load that fails gives it back as well.
                assert second.load(Deployment("shared", "nonsense", {"1/model.onnx": tiny_onnx})) is not None
                assert client.model_config("shared").max_batch_size == 4
                assert second.load(Deployment("shared", tiny_config, {"1/model.onnx": tiny_onnx})) is None
            assert client.model_config("shared").max_batch_size == 4
            np.testing.assert_array_equal(client.infer("shared", {"X": X}, {"X": "FP32"})["Y"], 2 * X + 1)
        assert not client.model_ready("shared")
        assert not (repository / "shared").exists()
