"""Kill −9 at every record of a study, then resume: the same decision, and nothing measured twice.

The searcher, the judge and the ledger are the real ones; measurements come from the simulated laboratory. What was
measured is also written, before the ledger hears of it, to a second file: the truth about repetitions.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from optimizer.judge.decide import Confirmation, decide
from optimizer.ledger import Ledger
from optimizer.records.candidate import Pair, Rejection, Stage
from optimizer.records.codec import to_json
from optimizer.records.parity import Parity
from optimizer.records.route import Route
from optimizer.search.race import Race, RaceSettings
from optimizer.testing.laboratory import SimulatedLaboratory

ROUTES = [Route.of({f"k{number}": "on"}) for number in range(10)]
TRUTH = {route: 0.02 * (number - 5) for number, route in enumerate(ROUTES)}


class RecordingLaboratory(SimulatedLaboratory):
    """Answers from a ledger first, records before it returns, and is killed after ``limit`` records of its own."""

    def __init__(self, directory: Path, limit: int) -> None:
        super().__init__(TRUTH, noise=0.01, rejected={ROUTES[9]: Stage.VALIDATE})
        self.ledger = Ledger.open(directory)
        self.limit = limit
        self.measured = (directory / "measured").open("a")

    def screen(self, candidate):
        known = self.ledger.get("screen", candidate.id)
        if known is None:
            rejection = super().screen(candidate)
            self.record("screen", candidate.id, {"rejection": to_json(rejection)})
            return rejection
        return self.ledger.load("rejection", candidate.id, Rejection)

    def pair(self, candidate, index, purpose="race"):
        key = f"{purpose}:{index}:{candidate.id}"
        known = self.ledger.load("pair", key, Pair)
        if known is None:
            known = super().pair(candidate, index, purpose)
            self.record("pair", key, to_json(known))
        return known

    def record(self, kind, key, data):
        self.measured.write(f"{kind} {key}\n")
        self.measured.flush()
        if kind == "screen" and data["rejection"] is not None:
            self.ledger.append("rejection", key, data["rejection"])
        self.ledger.append(kind, key, data)
        self.limit -= 1
        if self.limit == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def study(directory: Path, limit: int) -> None:
    laboratory = RecordingLaboratory(directory, limit)
    standings = Race(ROUTES, RaceSettings(finalists=2)).search(laboratory)
    decision = decide(
        [
            Confirmation(
                standing.candidate.id,
                standing.candidate.label,
                tuple(laboratory.pair(standing.candidate, index, "confirm") for index in range(6)),
                Parity(standing.candidate.id, "held_out", 10, ()),
            )
            for standing in standings[:2]
        ]
    )
    print(json.dumps(to_json(decision)))


def run(directory: Path, limit: int) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, __file__, str(directory), str(limit)], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_at_every_record_a_resumed_study_decides_alike(tmp_path):
    whole = run(tmp_path / "whole", 0)
    assert whole.returncode == 0, whole.stderr
    expected = json.loads(whole.stdout)
    assert expected["winner"] is not None
    records = len((tmp_path / "whole" / "measured").read_text().splitlines())
    assert records > 30
    for limit in range(1, records + 1):
        directory = tmp_path / str(limit)
        assert run(directory, limit).returncode == -signal.SIGKILL
        resumed = run(directory, 0)
        assert resumed.returncode == 0, resumed.stderr
        assert json.loads(resumed.stdout) == expected
        repeated = [
            key for key, times in Counter((directory / "measured").read_text().splitlines()).items() if times > 1
        ]
        assert repeated == []


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_between_all_records_in_turn_a_study_still_ends(tmp_path):
    """One record a life: the study ends, with the decision of one that lived through."""
    expected = json.loads(run(tmp_path / "whole", 0).stdout)
    directory = tmp_path / "short-lived"
    lives = 1
    while (life := run(directory, 1)).returncode == -signal.SIGKILL:
        lives += 1
    assert life.returncode == 0, life.stderr
    assert json.loads(life.stdout) == expected
    assert lives > 30


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    study(Path(sys.argv[1]), int(sys.argv[2]))
