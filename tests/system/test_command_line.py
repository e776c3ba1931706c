"""The command line as users meet it: what it says, its exit codes, and that nothing is changed when it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from optimizer.durable import sha256_tree

TOLERANCE = ("--tolerance", "lInf<=1e-3")


def run(*arguments: str | Path, cwd: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "optimizer", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def samples(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


ROWS = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["inspect", "absent"], 2, ["absent", "remedy"]),
        (["inspect", "{repository}", "--model", "../tiny"], 2, ["../tiny"]),
        (["inspect", "{repository}", "--model", "ti/ny"], 2, ["ti/ny"]),
        (["optimize", "{repository}", "--model", "tinny", *TOLERANCE], 2, ["tinny", "tiny"]),
        (["optimize", "{repository}", "--model", "tiny", "--write-back"], 6, ["no tolerance", "--tolerance"]),
        (["optimize", "{repository}", "--model", "tiny", "--inputs", "absent.npz"], 2, ["absent.npz"]),
        (["optimize", "{repository}", "--model", "tiny", "--config", "absent.yaml"], 2, ["absent.yaml"]),
        (["optimize", "{repository}", "--model", "tiny", "--tolerance", "lInf=1"], 2, ["lInf=1", "lInf<=1e-3"]),
        (["optimize", "{repository}", "--model", "tiny", "--tolerance", "Z:lInf<=1"], 2, ["Z"]),
        (["optimize", "{repository}", "--model", "tiny", "--duration-s", "soon"], 2, ["load.duration_s", "soon"]),
        (["optimize", "{repository}", "--model", "tiny", "--family", "tensorrt"], 3, ["remedy"]),
        (["optimize", "{repository}", "--model", "tiny", "--routes", "-no_such_knob=1"], 2, ["no_such_knob"]),
        (["optimize", "{repository}", "--model", "tiny", "--gpu", "7"], 3, ["GPU"]),
        (["resume", "{repository}"], 2, ["study"]),
        (["report", "absent"], 2, ["absent"]),
        (["apply", "absent"], 2, ["absent"]),
        (["knobs", "--layer", "colour"], 2, ["colour", "precision"]),
        (["routes", "-nope=[a|b]"], 2, ["nope", "^"]),
        (["frobnicate"], 2, ["frobnicate"]),
    ],
)
def test_bad_input_is_named_with_its_remedy_and_changes_nothing(
    tiny_repository: Path, tmp_path: Path, arguments: Sequence[str], status: int, words: Sequence[str]
) -> None:
    before = sha256_tree(tmp_path)
    done = run(*(word.format(repository=tiny_repository) for word in arguments), cwd=tmp_path)
    assert done.returncode == status, done.stderr
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert sha256_tree(tmp_path) == before


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": ROWS.astype(np.int32)}, ["X", "FP32"]),
        ({"X": ROWS[:, :3]}, ["X", "4"]),
        ({"Z": ROWS}, ["Z", "X"]),
        ({"X": np.full_like(ROWS, np.nan)}, ["X"]),
    ],
)
def test_a_sample_that_does_not_fit_the_model_is_named(
    tiny_repository: Path, tmp_path: Path, arrays: dict[str, np.ndarray], words: Sequence[str]
) -> None:
    file = samples(tmp_path / "samples.npz", **arrays)
    done = run("optimize", tiny_repository, "--model", "tiny", "--inputs", file, *TOLERANCE, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "samples.npz" in done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "studies").exists()


def test_an_unknown_field_in_a_config_is_named_with_line_and_column(tiny_repository: Path, tmp_path: Path) -> None:
    config = tiny_repository / "tiny" / "config.pbtxt"
    config.write_text(config.read_text() + "max_batch_sice: 4\n")
    done = run("inspect", tiny_repository, "--model", "tiny", cwd=tmp_path)
    assert done.returncode == 2
    assert "config.pbtxt:8:" in done.stderr
    assert "max_batch_sice" in done.stderr


def test_json_errors_are_documents(tmp_path: Path) -> None:
    done = run("inspect", "absent", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert document["exit_code"] == done.returncode == 2
    assert document["remedy"]


@pytest.mark.parametrize("words", [["optimize"], ["nosuch"], ["bench", ".", "--model", "m", "--windows", "0"]])
def test_json_errors_of_the_command_line_itself_are_documents(words: list[str], tmp_path: Path) -> None:
    ran = run(*words, "--json", cwd=tmp_path)
    document = json.loads(ran.stdout)
    assert ran.returncode == document["exit_code"] == 2
    assert document["problem"]


def test_settings_for_a_model_that_is_not_there_are_an_error(tiny_repository: Path, tmp_path: Path) -> None:
    ran = run("optimize", tiny_repository, "--dry-run", "--per-model", "tinny:load.duration_s=1", cwd=tmp_path)
    assert ran.returncode == 2
    assert "did you mean `tiny`" in ran.stderr


def test_inspect_shows_the_model(tiny_repository: Path, tmp_path: Path) -> None:
    document = json.loads(run("inspect", tiny_repository, "--json", cwd=tmp_path).stdout)
    (model,) = document["models"]
    assert model["name"] == "tiny"
    assert model["max_batch_size"] == 8
    assert "tiny" in run("inspect", tiny_repository, cwd=tmp_path).stdout


def test_a_dry_run_lists_candidates_and_writes_nothing(tiny_repository: Path, tmp_path: Path) -> None:
    before = sha256_tree(tmp_path)
    done = run("optimize", tiny_repository, "--model", "tiny", "--dry-run", "--json", cwd=tmp_path)
    (entry,) = json.loads(done.stdout)["models"]
    assert entry["count"] == len(entry["routes"]) > 12
    assert entry["routes"][0] == ""
    assert sha256_tree(tmp_path) == before


def test_knobs_and_routes_are_counted(tmp_path: Path) -> None:
    assert len(json.loads(run("knobs", "--layer", "compiler", "--json", cwd=tmp_path).stdout)["knobs"]) == 209
    document = json.loads(
        run(
            "routes", "-peep:keep_concat=[on|off] -concat_elim=[on|off]", "--search", "full", "--json", cwd=tmp_path
        ).stdout
    )
    assert document["count"] == 4
    assert document["routes"][0] == "-peep:keep_concat=on -concat_elim=on"


def test_doctor_says_what_is_there_and_what_is_missing(tmp_path: Path) -> None:
    document = json.loads(run("doctor", "--json", cwd=tmp_path).stdout)
    states = {row[0]: row[1] for row in document["rows"]}
    assert states["embedded server"] == "found"
    assert document["can"]["start a sandbox server"][0] is True
    for row in document["rows"]:
        assert row[1] == "found" or row[4]


def test_version(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0")
