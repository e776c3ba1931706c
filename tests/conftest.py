"""Fixtures that several stages share. Keep it small: what one stage needs alone belongs to that stage's tests.

* ``tiny_onnx``: a file, ``Y = 2 X + 1``, FP32 [N, 4], made once a run; ``tiny_config``: a native config for it.
* ``make_onnx``: writes other tiny models.
* ``tiny_repository``: a fresh, writable Triton repository with that model as ``tiny``, version 1.
* ``embedded_sandbox``: one running embedded server for the whole run. Load under
  names of your own and unload them; for tests that harm the server start your own.
* ``docker_image``: this project's image (compose/Dockerfile) on a running Docker engine; skips with the reason where
  there is none.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No test depends on time, and a run on a busy machine is the run on an idle one.
settings.register_profile("shared", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

TINY_CONFIG = """\
# Serves Y = 2 X + 1.
name: "tiny"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


REAL_SERVERS = tuple(Path(__file__).parent / name for name in ("contract", "docker", "system"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test on real servers that fails is run once more, and pytest says so: two shared cores can starve a server for
    seconds. A test that fails twice has failed; unit tests get no second chance."""
    for item in items:
        if any(directory in item.path.parents for directory in REAL_SERVERS):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What failed at first, and how: a test that needs its second chance often has something to say."""
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        terminalreporter.write_line(f"RUN TWICE {report.nodeid}: {crash.message if crash else report.longrepr}")


def save_onnx(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, Sequence[int | str]]],
    outputs: Sequence[tuple[str, int, Sequence[int | str]]],
    initializers: Sequence[Any] = (),
    opset: int = 17,
) -> Path:
    """Writes and checks a model of ``onnx.helper`` nodes; tensors are (name, ``TensorProto`` type, shape)."""
    import onnx
    from onnx import helper

    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(*tensor) for tensor in inputs],
        [helper.make_tensor_value_info(*tensor) for tensor in outputs],
        list(initializers),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def make_onnx() -> Callable[..., Path]:
    return save_onnx


@pytest.fixture(scope="session")
def tiny_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from onnx import TensorProto, helper

    return save_onnx(
        tmp_path_factory.mktemp("tiny") / "model.onnx",
        [helper.make_node("Mul", ["X", "two"], ["T"]), helper.make_node("Add", ["T", "one"], ["Y"])],
        [("X", TensorProto.FLOAT, ["N", 4])],
        [("Y", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor("two", 1, [], [2.0]), helper.make_tensor("one", 1, [], [1.0])],
    )


@pytest.fixture(scope="session")
def tiny_config() -> str:
    return TINY_CONFIG


@pytest.fixture
def tiny_repository(tmp_path: Path, tiny_onnx: Path) -> Path:
    repository = tmp_path / "repository"
    (repository / "tiny" / "1").mkdir(parents=True)
    shutil.copy(tiny_onnx, repository / "tiny" / "1" / "model.onnx")
    (repository / "tiny" / "config.pbtxt").write_text(TINY_CONFIG, encoding="utf-8")
    return repository


@pytest.fixture(scope="session")
def embedded_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from optimizer.sandbox._base import SandboxOptions
    from optimizer.sandbox.launchers import launcher

    embedded = launcher("embedded")
    problem = embedded.available()
    if problem:
        pytest.skip(problem)
    with embedded.start(SandboxOptions(workdir=tmp_path_factory.mktemp("sandbox"))) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def docker_image() -> str:
    """``$TRITON_OPTIMIZER_IMAGE``, by default the tag that .ci/docker gives it."""
    from optimizer.sandbox.launchers import launcher

    image = os.environ.get("TRITON_OPTIMIZER_IMAGE", "triton-optimizer:cpu")
    problem = launcher("docker", image=image).available()
    if problem:
        pytest.skip(problem.replace("\n", " "))
    return image
