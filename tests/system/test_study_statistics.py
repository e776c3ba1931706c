"""Short forms of the statistical soak tests, on the real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from sleeping_study import sleeping_study

from optimizer.records.decision import Verdict

pytestmark = pytest.mark.system


def test_an_equal_candidate_is_not_promoted(tmp_path: Path) -> None:
    decision = sleeping_study(tmp_path, [0.0], pairs=4, noise_pairs=3)
    assert decision.verdict is Verdict.KEEP, decision.sentence
    assert len(decision.finalists) == 1


def test_a_better_candidate_is_found_among_equal_ones(tmp_path: Path) -> None:
    decision = sleeping_study(tmp_path, [0.0, 1.0, 0.0], pairs=5, noise_pairs=3)
    assert decision.winner_label == "-variant=v01", decision.sentence
    assert [finalist.accepted for finalist in decision.finalists].count(True) == 1
