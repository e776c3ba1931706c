"""Candidates with one fault each against an honest baseline, on real servers: what comes of them, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from optimizer.progress import silent
from optimizer.testing.canaries import QUICK, complaint, play, server

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with server(tmp_path_factory.mktemp("canaries")) as running:
        yield running


@pytest.mark.parametrize("name", QUICK)
def test_a_canary_ends_as_it_must(name, sandbox, tmp_path):
    scenario = QUICK[name]
    document = play(scenario, sandbox, tmp_path, silent)
    assert complaint(scenario, document) == ""
    first = scenario.options.get("steps", "shadow").split(",")[0]
    if name in ("wrong", "dies", "leaks"):
        assert document["reason"].startswith(f"step {first}:")
    for verdict in document["verdicts"].values():
        assert "comparisons: a wrong answer in 1 of" in verdict["power"]
