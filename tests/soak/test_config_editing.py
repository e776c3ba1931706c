"""10,000 mutated configs: no untouched byte changes, and protobuf reads exactly the message that was meant.

Writes ``benchmarks/results/config_editing.json``.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = 10_000
FIRST_SEED = 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_mutated_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "unit" / "repository"))
    from config_corpus import CORPUS
    from google import protobuf
    from test_config_mutations import one_case

    names = sorted(CORPUS)
    configs: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(FIRST_SEED, FIRST_SEED + CASES):
        name = names[seed % len(names)]
        # Two of three are respelled at random first: blanks, comments, brackets, separators, line ends.
        one_case(seed, name, 1 + seed % 8, seed % 3 != 0)
        configs[name] += 1
    document = {
        "command": "python -m pytest tests/soak/test_config_editing.py -m soak",
        "cases": CASES,
        "first_seed": FIRST_SEED,
        "configs": dict(configs),
        "failures": 0,
        "seconds": round(time.monotonic() - started, 1),
        "python": sys.version.split()[0],
        "protobuf": protobuf.__version__,
        "machine": f"{platform.machine()}, {platform.system()}",
    }
    print(json.dumps(document, indent=2))
    (ROOT / "benchmarks" / "results" / "config_editing.json").write_text(json.dumps(document, indent=2) + "\n")
