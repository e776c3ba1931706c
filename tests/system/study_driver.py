"""Runs one small study on the real server and kills itself (−9) after a given number of ledger records of its own.

``python study_driver.py DIRECTORY RECORDS`` (0: lives on, and prints the decision as JSON). Every window is written to
``DIRECTORY/windows`` before it begins: the truth about repetitions.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optimizer.config import load_settings
from optimizer.ledger import Ledger
from optimizer.preparation import prepare
from optimizer.records.codec import to_json
from optimizer.study import study_in
from optimizer.testing.models import sleep_model
from optimizer.testing.variants import Variant, with_variants


class MortalLedger(Ledger):
    left = 0

    def append(self, kind: str, key: str, data: Mapping[str, Any]) -> None:
        super().append(kind, key, data)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(directory: Path, records: int) -> None:
    repository = directory / "repository"
    if not repository.exists():
        sleep_model("sleep", service_s=0.004).write(repository)
    settings = load_settings(
        None,
        {
            "tolerance": ["lInf<=1e-6"],
            "builder.family": "unchanged",
            "inputs.synthetic_count": 8,
            "load.duration_s": 0.3,
            "load.warmup_s": 0,
            "load.concurrency": [4],
            "judge.pairs": 3,
            "judge.noise_pairs": 3,
            # What is decided must not hang on a busy machine: the candidate is four times as fast.
            "judge.confidence": 0.75,
            "judge.p99_guard": 10,
        },
    )
    fast = Variant.of(sleep_model("sleep", service_s=0.001))
    preparation = with_variants(
        prepare(repository, "sleep", settings, directory),
        {"fails": Variant({}), "fast": fast, "again": fast},
    )
    with (directory / "windows").open("a") as windows, MortalLedger.open(directory) as ledger:

        def progress(kind: str, **facts: Any) -> None:
            if kind == "window":
                print(facts["key"], file=windows, flush=True)

        ledger.left = records
        result = study_in(ledger, preparation, progress)
    print(json.dumps(to_json(result.decision)))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    main(Path(sys.argv[1]), int(sys.argv[2]))
