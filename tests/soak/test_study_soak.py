"""Whole studies on the real server, many times: wrong candidates, equal ones, a better one among many, kill −9 at every
record. Each prints its seeds, command and machine, and writes ``benchmarks/results/``.

``STUDY_SOAK_MINUTES`` ends each of them after that time, with what was run so far written down as such.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))
from poison_study import NOISY_S, POISONS, poison_study, thrown_out
from sleeping_study import SERVICE_S, sleeping_study
from test_study_resume import live, outcome, repeated_windows

from optimizer.ledger import Ledger
from optimizer.records.decision import Decision, Verdict
from optimizer.testing.poison import poison_model
from optimizer.testing.variants import Variant

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def within_the_time(count: int) -> Iterator[int]:
    """Seeds, until the time is up."""
    minutes = float(os.environ.get("STUDY_SOAK_MINUTES", "inf"))
    until = time.monotonic() + minutes * 60
    for seed in range(count):
        if seed and time.monotonic() > until:
            return
        yield seed


def write(name: str, test: str, asked: int, run: int, **results: Any) -> None:
    document = {
        "command": f"python -m pytest -m soak tests/soak/test_study_soak.py::{test}",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f} at the end",
        "studies_asked": asked,
        "studies_run": run,
        "seeds": f"0 to {run - 1}",
        **results,
    }
    print(json.dumps(document, indent=2))
    (RESULTS / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def told(decision: Decision) -> dict[str, Any]:
    return {"sentence": decision.sentence, "noise": decision.noise}


def test_every_wrong_candidate_is_thrown_out_every_time(tmp_path: Path) -> None:
    reasons: dict[str, Counter[str]] = {fault: Counter() for fault in POISONS}
    rounds, honest = 0, 0
    for seed in within_the_time(20):
        for fault, poison in POISONS.items():
            reason = thrown_out(poison_study(tmp_path / f"{fault}-{seed}", poison, seed=seed), poison)
            reasons[fault][reason.split(": ")[0]] += 1
        noisy = Variant.of(poison_model("fp16", service_s=NOISY_S))
        result = poison_study(
            tmp_path / f"fp16-{seed}", POISONS["missing"], seed=seed, also={"fp16": noisy}, window_s=0.4
        )
        honest += result.decision.winner_label == "-variant=fp16"
        rounds += 1
        write(
            "poison_studies.json", "test_every_wrong_candidate_is_thrown_out_every_time", 20, rounds,
            thrown_out={fault: dict(counted) for fault, counted in reasons.items()}, honest_noisy_won=honest,
        )  # fmt: skip
    assert honest == rounds


def test_of_equal_candidates_none_is_ever_promoted(tmp_path: Path) -> None:
    decisions = []
    for seed in within_the_time(50):
        decisions.append(sleeping_study(tmp_path / str(seed), [0.0, 0.0, 0.0], seed=seed))
        promoted = sum(one.verdict is Verdict.WINNER for one in decisions)
        write(
            "equal_studies.json", "test_of_equal_candidates_none_is_ever_promoted", 50, len(decisions),
            service_s=SERVICE_S, candidates=3, promoted=promoted, decisions=[told(one) for one in decisions],
        )  # fmt: skip
    assert promoted == 0


def test_a_candidate_that_is_10_percent_better_is_found_among_30(tmp_path: Path) -> None:
    decisions = []
    for seed in within_the_time(20):
        gains = [0.0] * 30
        gains[7 * seed % 30] = 0.1
        decision = sleeping_study(tmp_path / str(seed), gains, seed=seed)
        decisions.append((f"-variant=v{7 * seed % 30:02d}", decision))
        found = sum(label == one.winner_label for label, one in decisions)
        write(
            "better_among_30_studies.json", "test_a_candidate_that_is_10_percent_better_is_found_among_30", 20,
            len(decisions), service_s=SERVICE_S, gain=0.1, found=found,
            decisions=[{"better": label, **told(one)} for label, one in decisions],
        )  # fmt: skip
    assert found >= 0.95 * len(decisions)


def test_killed_at_every_record_a_resumed_study_decides_alike(tmp_path: Path) -> None:
    expected = outcome(live(tmp_path / "whole", 0))
    records = len(Ledger.view(tmp_path / "whole"))
    # In steps that meet every record in the end, and all parts of the study early.
    points = [start + step for start in range(7) for step in range(1, records, 7) if start + step < records]
    for number in within_the_time(len(points)):
        directory = tmp_path / str(number)
        assert live(directory, points[number]).returncode == -signal.SIGKILL
        assert outcome(live(directory, 0)) == expected
        # The window that ran when it was killed, and no other.
        assert repeated_windows(directory) <= 1
        keys = Counter(entry.key for entry in Ledger.view(directory).records("measurement"))
        assert set(keys.values()) == {1}
        write(
            "study_kills.json", "test_killed_at_every_record_a_resumed_study_decides_alike", records - 1, number + 1,
            decision=expected, records=records, killed_after=sorted(points[: number + 1]),
        )  # fmt: skip
