"""The tiny entry, and builds with the stand-in modules."""

from __future__ import annotations

import pytest
from tensorrt_entries import family, tiny_onnx, write_entry

from optimizer.engines._base import BuildRequest
from optimizer.records.route import Route


@pytest.fixture
def entry(tmp_path):
    return write_entry(tmp_path / "repository", tiny_onnx())


@pytest.fixture
def build(tmp_path):
    """Builds with the stand-in of that name; options of :class:`BuildRequest` by keyword."""
    count = 0

    def build(module, model, route=None, **options):
        nonlocal count
        count += 1
        directory = tmp_path / f"engine-{count}"
        directory.mkdir()
        return family(module).build(
            BuildRequest(
                engine_id=f"engine-{count}", model=model, route=Route.of(route or {}), directory=directory, **options
            )
        )

    return build
