from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optimizer.summary import study_document
from optimizer.testing.studies import write_invented_study

Document = dict[str, Any]


@pytest.fixture(scope="session")
def invent(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Document]:
    """Makes the document of an invented study; arguments as :func:`write_invented_study`'s."""

    def make(**arguments: Any) -> Document:
        return study_document(write_invented_study(tmp_path_factory.mktemp("study"), **arguments))

    return make


@pytest.fixture(scope="session")
def _decided(invent: Callable[..., Document]) -> Document:
    return invent(candidates=40)


@pytest.fixture
def decided(_decided: Document) -> Document:
    """A study of 40 candidates with a winner; may be changed."""
    return copy.deepcopy(_decided)


@pytest.fixture
def failed(tmp_path: Path, decided: Document) -> Document:
    """A study in which the model as found did not load."""
    row = next(row for row in decided["candidates"] if row["id"] == "as-found")
    row |= {
        "throughput": None, "p50_us": None, "p90_us": None, "p99_us": None, "percentiles_us": {},
        "latency_mean_us": None, "breakdown_us": None, "mean_batch": None, "gpu_memory_bytes": None,
    }  # fmt: skip
    return decided | {
        "decision": None, "state": "stopped", "candidates": [row], "pairs": [], "search": [], "engines": [],
        "facts": {}, "stopped": {"problem": "does not load: no <weights>", "remedy": "mend it"},
    }  # fmt: skip
