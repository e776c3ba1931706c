from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from optimizer.config import parse_settings
from optimizer.errors import ReferenceFailure, StudyInterrupted
from optimizer.ledger import Ledger
from optimizer.study import why_it_stopped
from optimizer.summary import study_document
from optimizer.testing.studies import write_invented_study

Document = dict[str, Any]


def test_the_document_is_json(decided: Document) -> None:
    assert json.loads(json.dumps(decided, allow_nan=False)) == decided


def test_changed_settings_repeat_the_study(decided: Document) -> None:
    changed = decided["changed_settings"]
    assert changed["budget"] == {"minutes": 180}
    assert "load" not in changed
    assert parse_settings(changed).model_dump(mode="json") == decided["settings"]


def test_rows_carry_what_was_measured(decided: Document) -> None:
    pairs = [pair for pair in decided["pairs"] if pair["purpose"] == "race"]
    for row in decided["candidates"]:
        own = [pair["log_ratio"] for pair in pairs if pair["candidate_id"] == row["id"]]
        assert row["race_pairs"] == len(own)
        if own:
            assert row["race_ratio"] == pytest.approx(math.exp(sum(own) / len(own)))
        assert set(row["percentiles_us"]) == ({"p50", "p90", "p95", "p99"} if row["throughput"] else set())


def test_engines_hold_builds_and_failures(decided: Document) -> None:
    by_id = {engine["id"]: engine for engine in decided["engines"]}
    failed = [row for row in decided["candidates"] if row["rejected_at"] == "build"]
    assert failed
    assert len(by_id) == len(decided["engines"])
    for engine in by_id.values():
        assert (engine["failure"] is None) == (engine["sha256"] is not None)
    assert decided["time"]["build_s"] == pytest.approx(sum(engine["build_s"] for engine in by_id.values()), rel=0.5)


def test_a_study_that_stopped_says_why_until_it_goes_on(tmp_path: Path) -> None:
    directory = write_invented_study(tmp_path / "study", candidates=3, decided=False)
    assert study_document(directory)["state"] == "unfinished"
    with Ledger.open(directory) as ledger:
        ledger.append("fact", "spent", {"wall_s": 1.0, "builds": 0, "gpu_s": 0.0})
        ledger.append("fact", "stopped", {"problem": "interrupted"})
    document = study_document(directory)
    assert document["state"] == "stopped"
    assert document["stopped"]["problem"] == "interrupted"
    with Ledger.open(directory) as ledger:
        ledger.append("screened", "x", {"route": "-x=1"})
    document = study_document(directory)
    assert (document["state"], document["stopped"]) == ("unfinished", None)


def test_an_interruption_is_recorded_and_says_what_is_kept(tmp_path: Path) -> None:
    directory = write_invented_study(tmp_path / "study", candidates=3, decided=False)
    kept = study_document(directory)
    with Ledger.open(directory) as ledger, pytest.raises(StudyInterrupted) as told, why_it_stopped(ledger):
        raise KeyboardInterrupt
    assert f"{len(kept['pairs'])} measured pairs are kept" in told.value.problem
    assert told.value.remedy == f"go on with it: triton-optimizer resume {directory}"
    assert study_document(directory)["stopped"]["problem"] == "interrupted"


def test_an_error_is_recorded_with_its_remedy(tmp_path: Path) -> None:
    directory = write_invented_study(tmp_path / "study", candidates=3, decided=False)
    with Ledger.open(directory) as ledger, pytest.raises(ReferenceFailure), why_it_stopped(ledger):
        raise ReferenceFailure("does not load", remedy="mend it")
    stopped = study_document(directory)["stopped"]
    assert (stopped["problem"], stopped["remedy"], stopped["exit_code"]) == ("does not load", "mend it", 4)


def test_a_decision_outlasts_an_earlier_stop(tmp_path: Path) -> None:
    directory = write_invented_study(tmp_path / "study", candidates=10)
    with Ledger.open(directory) as ledger:
        ledger.append("fact", "stopped", {"problem": "interrupted"})
    assert study_document(directory)["state"] == "decided"
