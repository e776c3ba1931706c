"""Whole studies on the real server, each with a candidate that is faster than what is there and wrong in one way.

A wrong candidate would win by far if it were let in: the honest noisy one, slower than each of them, does.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from poison_study import NOISY_S, POISONS, poison_study, thrown_out

from optimizer.records.decision import KeepReason, Verdict
from optimizer.testing.poison import poison_model
from optimizer.testing.variants import Variant


@pytest.mark.system
@pytest.mark.parametrize("fault", POISONS)
def test_a_faster_wrong_candidate_is_thrown_out(tmp_path: Path, fault: str) -> None:
    result = poison_study(tmp_path, POISONS[fault])
    thrown_out(result, POISONS[fault])
    assert result.decision.verdict is Verdict.KEEP
    assert result.decision.keep_reason in (KeepReason.NOTHING_ELIGIBLE, KeepReason.ACCURACY)


@pytest.mark.system
def test_an_honest_noisy_candidate_wins_beside_a_faster_wrong_one(tmp_path: Path) -> None:
    noisy = Variant.of(poison_model("fp16", service_s=NOISY_S))
    result = poison_study(tmp_path, POISONS["inf"], also={"fp16": noisy}, window_s=0.3)
    thrown_out(result, POISONS["inf"])
    assert result.decision.winner_label == "-variant=fp16", result.decision.sentence
    caveats = " ".join(result.decision.caveats)
    assert "40 samples with 0 disagreements support" in caveats
    assert "sampled requests were checked" in caveats
