"""TensorRT builds in containers: the real TensorRT-RTX, which builds without a GPU, in an image made for this."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optimizer import container
from optimizer.engines._base import BuildRequest
from optimizer.engines.tensorrt import TensorRTFamily
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.route import Route
from optimizer.repository.reader import read_model

pytestmark = pytest.mark.docker

TAG = "triton-optimizer:test-tensorrt-rtx"
PACKAGES = ("tensorrt_rtx_bindings", "tensorrt_rtx_libs")


@pytest.fixture(scope="module")
def builder_image(docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The project's image with this environment's TensorRT-RTX put in: nothing is downloaded."""
    import docker

    context = tmp_path_factory.mktemp("context")
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            pytest.skip(f"{name} is not installed")
        shutil.copytree(next(iter(spec.submodule_search_locations)), context / name)
    (context / "Dockerfile").write_text(f"FROM {docker_image}\nCOPY . /opt/rtx/\n", encoding="utf-8")
    with contextlib.closing(docker.from_env(timeout=300)) as client:
        client.images.build(path=str(context), tag=TAG, rm=True)
        try:
            yield TAG
        finally:
            client.images.remove(TAG, force=True)


@pytest.fixture
def family(builder_image: str) -> TensorRTFamily:
    return TensorRTFamily(
        module="tensorrt_rtx_bindings",
        image=builder_image,
        python="/opt/triton-optimizer/bin/python",
        python_path="/opt/rtx",
    )


@pytest.fixture
def request_of(tiny_repository: Path, tmp_path: Path) -> Callable[..., BuildRequest]:
    def make(**more: Any) -> BuildRequest:
        directory = tmp_path / "build"
        directory.mkdir()
        (tmp_path / "cache").mkdir()
        return BuildRequest(
            engine_id="e", model=read_model(tiny_repository, "tiny"), route=Route(), directory=directory,
            cache_directory=tmp_path / "cache", shapes=[{"X": (4, 4)}], **more,
        )  # fmt: skip

    return make


def left() -> list[str]:
    import docker

    with contextlib.closing(docker.from_env()) as client:
        found = client.containers.list(all=True, filters={"label": container.OWNER_LABEL})
        return [one.name for one in found if one.labels[container.OWNER_LABEL] == container.owner()]


def test_an_engine_is_built_with_the_images_own_builder(
    family: TensorRTFamily, request_of: Callable[..., BuildRequest]
) -> None:
    assert family.available() is None
    facts = family.facts()
    assert facts["builder"].startswith("TensorRT-RTX")
    assert facts["image"] == TAG
    request = request_of()
    built = family.build(request)
    assert isinstance(built, Engine), built
    plan = built.files["model.plan"]
    assert plan == request.directory / "model.plan"
    assert plan.stat().st_size == built.size_bytes
    # Whoever reads the plan here owns it.
    assert plan.stat().st_uid == request.directory.stat().st_uid
    assert built.details["build_peak_memory_bytes"] > 10 << 20
    assert left() == []


def test_limits_of_a_build_are_kept_and_told_apart(
    family: TensorRTFamily, request_of: Callable[..., BuildRequest], tmp_path: Path
) -> None:
    failed = family.build(request_of(memory_limit_bytes=24 << 20))
    assert isinstance(failed, BuildFailure)
    assert failed.reason is BuildFailureReason.OUT_OF_MEMORY, failed
    assert "24 MiB" in failed.message
    shutil.rmtree(tmp_path / "build")
    shutil.rmtree(tmp_path / "cache")
    failed = family.build(request_of(time_limit_s=1.0))
    assert isinstance(failed, BuildFailure)
    assert failed.reason is BuildFailureReason.TIMEOUT, failed
    assert left() == []


def test_an_image_that_is_not_there_is_not_the_models_fault(docker_image: str) -> None:
    missing = TensorRTFamily(image="no-such-image:1").available()
    assert missing is not None
    assert "no container to build in" in missing
    assert "no-such-image:1" in missing.lower()
