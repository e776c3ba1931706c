"""A study on the real server that is killed, interrupted, entered twice, or met again under another fingerprint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from optimizer.ledger import Ledger
from optimizer.testing.models import sleep_model

pytestmark = pytest.mark.system

DRIVER = Path(__file__).with_name("study_driver.py")


def live(directory: Path, records: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DRIVER), str(directory), str(records)],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip


def repeated_windows(directory: Path) -> int:
    counted = Counter((directory / "windows").read_text().split())
    return sum(times - 1 for times in counted.values())


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[str, str, list[str]]:
    assert done.returncode == 0, done.stderr
    decision = json.loads(done.stdout)
    return decision["verdict"], decision["winner_label"], sorted(decision["excluded"].values())


def test_killed_again_and_again_a_study_ends_as_if_it_had_lived(tmp_path: Path) -> None:
    """Every life makes twelve records: the deaths fall into references, noise, race and confirmation alike."""
    lives = 1
    while (life := live(tmp_path, 12)).returncode == -signal.SIGKILL:
        lives += 1
        assert lives < 20
    assert outcome(life) == (
        "winner",
        "-variant=fast",
        ["build/parse_error: fails on purpose", "check/same_engine: comes out as the same engine as -variant=fast"],
    )
    assert lives > 3
    assert repeated_windows(tmp_path) < lives
    assert [entry.key for entry in Ledger.view(tmp_path).records("fact")].count("references") == 1
    assert not (tmp_path / "sandbox").exists()


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "optimizer", *map(str, arguments)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


def test_interrupted_entered_twice_and_under_another_fingerprint(tmp_path: Path) -> None:
    repository, study = tmp_path / "repository", tmp_path / "study"
    model = sleep_model("sleep", service_s=0.004).write(repository)
    process = start(
        "optimize", repository, "--model", "sleep", "--family", "unchanged", "--routes", "-instances=[1|3]",
        "--tolerance", "lInf<=1e-6", "--study", study, "--duration-s", "0.3", "--warmup-s", "0", "--pairs", "4",
        "--noise-pairs", "3", "--synthetic-count", "8", "--p99-guard", "10", "--confidence", "0.75", cwd=tmp_path,
    )  # fmt: skip
    until = time.monotonic() + 120
    while not (study / "ledger.jsonl").exists() or '"kind":"pair"' not in (study / "ledger.jsonl").read_text():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)

    code, _, complaint = finish(start("resume", study, cwd=tmp_path))
    assert code == 2
    assert f"in use by process {process.pid}" in complaint

    process.send_signal(signal.SIGINT)
    code, _, told = finish(process)
    assert code == 5, told
    assert "pairs are kept" in told
    assert f"triton-optimizer resume {study}" in told
    pairs = len(list(Ledger.view(study).records("pair")))
    assert pairs >= 1

    source = model / "1" / "model.py"
    text = source.read_text()
    source.write_text(text + "# changed\n")
    code, _, complaint = finish(start("resume", study, cwd=tmp_path))
    assert code == 2
    assert "the model, its workload or a file given with it has changed: model:" in complaint
    source.write_text(text)
    header = json.loads((study / "study.json").read_text())
    known = header["fingerprint"]["facts"]["cpu"]
    header["fingerprint"]["facts"]["cpu"] = "another one"
    (study / "study.json").write_text(json.dumps(header))
    code, _, complaint = finish(start("resume", study, cwd=tmp_path))
    assert code == 3
    assert f"cpu: another one -> {known}" in complaint
    header["fingerprint"]["facts"]["cpu"] = known
    (study / "study.json").write_text(json.dumps(header))

    code, out, told = finish(start("resume", study, "--json", cwd=tmp_path))
    assert code == 0, told
    (entry,) = json.loads(out)["models"]
    assert entry["study"]["decision"]["winner_label"] == "-instances=3"
    keys = Counter(record.key for record in Ledger.view(study).records("measurement"))
    assert set(keys.values()) == {1}
