"""Versions of builder and server, and where engines are built. Pure but for the absence of an engine."""

from __future__ import annotations

import pytest

from optimizer.config import parse_settings
from optimizer.errors import EnvironmentFailure
from optimizer.placement import place_of_builds, refuse_mismatch
from optimizer.sandbox.embedded import EmbeddedLauncher


@pytest.mark.parametrize(
    ("builder", "server", "compatible"),
    [
        ("10.7.0.23", "10.7.0", False),
        ("10.7.0", "10.7.0.23", False),
        ("10.7", "10.7.0", False),
        ("10.7.0", "", False),
        ("", "10.7.0", False),
        ("10.7.0", "10.9.0", True),
    ],
)
def test_versions_that_fit(builder: str, server: str, compatible: bool) -> None:
    refuse_mismatch({"tensorrt": builder}, {"tensorrt": server}, version_compatible=compatible)


@pytest.mark.parametrize(
    ("builder", "server", "compatible", "remedy"),
    [
        ("10.4.0.26", "8.6.1", False, "--builder-image"),
        ("10.7.0", "10.9.0", False, "--version-compatible"),
        ("10.9.0", "10.7.0", True, "not older"),
        ("10.7.0", "11.0.0", True, "same major"),
        ("10.13.2", "10.13.3", False, "compose/Dockerfile.gpu"),
    ],
)
def test_a_mismatch_is_refused_with_both_versions_named(
    builder: str, server: str, compatible: bool, remedy: str
) -> None:
    with pytest.raises(EnvironmentFailure) as raised:
        refuse_mismatch(
            {"tensorrt": builder}, {"tensorrt": server, "image": "triton:24.01"}, version_compatible=compatible
        )
    for word in (builder, server, "triton:24.01", remedy):
        assert word in raised.value.message


def test_without_an_image_engines_are_built_here() -> None:
    settings = parse_settings({"builder": {"python": "/usr/bin/python3"}})
    place = place_of_builds(settings, EmbeddedLauncher())
    assert (place.image, str(place.python)) == (None, "/usr/bin/python3")
    assert place_of_builds(parse_settings({"builder": {"image": "none"}}), EmbeddedLauncher()).image is None


def test_an_image_that_was_named_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///no/such/docker.sock")
    with pytest.raises(EnvironmentFailure, match="no Docker engine answers"):
        place_of_builds(parse_settings({"builder": {"image": "triton:gpu"}}), EmbeddedLauncher())
