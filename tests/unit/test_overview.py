"""A whole repository's run as a document and as a page, from runs whose end is known."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.config import Settings, parse_settings
from optimizer.errors import InputError
from optimizer.fleet import read_fleet
from optimizer.ledger import Ledger
from optimizer.overview import fleet_document
from optimizer.records.route import Route
from optimizer.report.repository_page import repository_page, verdict
from optimizer.testing.decided import decided_study

ENSEMBLE = {"code": "ensemble", "reason": "an ensemble has no engine of its own", "remedy": "its members are tuned"}
FRESH = {"code": "fresh", "reason": "already fresh", "remedy": "name it"}


def write_run(directory: Path, models: dict[str, Any], records: list[tuple[str, str, dict[str, Any]]] = []) -> None:  # noqa: B006
    directory.mkdir(exist_ok=True)
    document = {
        "schema": 1, "kind": "fleet", "repository": "/models", "settings": Settings().model_dump(mode="json"),
        "models": models, "own_settings": {},
    }  # fmt: skip
    (directory / "fleet.json").write_text(json.dumps(document))
    with Ledger.open(directory) as ledger:
        for kind, key, data in records:
            ledger.append(kind, key, data)


@pytest.fixture
def run(tiny_repository: Path, tmp_path: Path) -> Path:
    settings = parse_settings({"tolerance": ["lInf<=1e-3"]})
    decided_study(
        tiny_repository, "tiny", tmp_path / "run" / "tiny", settings, lambda inputs: {"Y": np.asarray(inputs["X"])},
        route=Route.parse("-instances=2"),
    )  # fmt: skip
    return tmp_path / "run"


def together(**changes: Any) -> dict[str, Any]:
    return {
        "verdict": "passed", "code": "passed", "reason": "+20.0% requests/s", "blamed": None, "winners": ["tiny"],
        "taken_back": [], "models": [{"model": "tiny", "tuned": True, "asked": True, "latency_ratio": 0.8}],
        "left_out": {}, "memory": {"as_found_bytes": 100_000_000, "tuned_bytes": 150_000_000},
        "ratio": {"ratio": 1.2, "lower": 1.1, "upper": 1.3, "confidence": 0.975, "pairs": 4}, "pairs": [],
        "side_by_side": True, **changes,
    }  # fmt: skip


def test_a_winner_that_passed_is_to_be_written(run: Path) -> None:
    write_run(run, {"both": ENSEMBLE, "tiny": None}, [("together", "tiny=x", together())])
    document = fleet_document(run)
    assert [row[:2] for row in document["rows"]] == [["both", "not tuned"], ["tiny", "winner"]]
    assert document["rows"][1][2:4] == ["+50.0%", "+40.0%"]
    assert document["exit_code"] == 0
    assert any(f"triton-optimizer apply {run}" in note for note in document["notes"])


def test_a_winner_that_was_taken_back_says_why_and_is_no_failure(run: Path) -> None:
    back = together(verdict="refused", code="none_left", reason="no winner is left", winners=[], ratio=None,
                    taken_back=[{"model": "tiny", "code": "slows", "reason": "slows other down"}])  # fmt: skip
    write_run(run, {"tiny": None}, [("together", "tiny=x", back)])
    document = fleet_document(run)
    assert document["rows"][0][1] == "taken back"
    assert document["rows"][0][5] == "slows other down"
    assert document["exit_code"] == 0


@pytest.mark.parametrize(
    ("models", "records", "status"),
    [
        ({"a": None}, [], 5),
        ({"a": None}, [("failed", "a", {"problem": "does not load", "exit_code": 4})], 4),
        ({"a": ENSEMBLE}, [], 2),
        ({"a": FRESH, "b": ENSEMBLE}, [], 0),
        ({"tiny": None}, [("together", "tiny=x", together(verdict="refused", code="undecided", winners=[]))], 5),
        ({"tiny": None}, [("together", "k", together()), ("refused", "tiny", {"error": "x", "problem": "no"})], 6),
        ({"tiny": None}, [("refused", "tiny", {"error": "x", "problem": "no"}),
                          ("written", "tiny", {"changed": True, "version": 2})], 0),
    ],
)  # fmt: skip
def test_the_exit_code_tells_how_the_run_ended(
    run: Path, models: dict[str, Any], records: list[tuple[str, str, dict[str, Any]]], status: int
) -> None:
    write_run(run, models, records)
    assert fleet_document(run)["exit_code"] == status


def test_the_page_links_models_and_escapes_their_names(run: Path) -> None:
    write_run(run, {"<b>": ENSEMBLE, "tiny": None}, [("together", "tiny=x", together(reason="<script>"))])
    document = fleet_document(run)
    page = repository_page(document, {"tiny": "run-tiny.html"})
    assert '<a href="run-tiny.html">tiny</a>' in page
    assert "<script>" not in page
    assert "<b>" not in page.replace("<b>Result</b>", "")
    assert verdict(document) == "2 models: 1 not tuned, 1 with a winner; all together: passed"
    assert "+20.0% (+10.0% to +30.0%)" in page


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}'])
def test_a_damaged_or_newer_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.json").write_text(text)
    with pytest.raises(InputError, match="remedy"):
        read_fleet(tmp_path)
