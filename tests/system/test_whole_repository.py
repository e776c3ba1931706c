"""A whole repository on the embedded server: models that sleep, an ensemble, one with string inputs, and more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from documented import check

from optimizer import optimize
from optimizer.durable import sha256_tree
from optimizer.errors import StudyInterrupted
from optimizer.testing.models import sleep_model

pytestmark = pytest.mark.system

SETTINGS = """\
tolerance: ["OUTPUT0:lInf<=0"]
search: {routes: "-instances=[1|4]"}
load: {concurrency: [4], duration_s: 0.2, warmup_s: 0.1, processes: 1}
judge: {finalists: 1, pairs: 3, noise_pairs: 3, max_pairs: 8, p99_guard: "off"}
inputs: {synthetic_count: 8}
budget: {minutes: 2}
"""

ENSEMBLE = """\
name: "both"
platform: "ensemble"
max_batch_size: 64
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step { model_name: "slow" model_version: -1 input_map { key: "INPUT0" value: "INPUT0" }
         output_map { key: "OUTPUT0" value: "between" } }
  step { model_name: "quick" model_version: -1 input_map { key: "INPUT0" value: "between" }
         output_map { key: "OUTPUT0" value: "OUTPUT0" } }
}
"""

TEXTS = """\
name: "texts"
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 1 ] } ]
"""

ECHO = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                output_tensors=[
                    pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
                ]
            )
            for request in requests
        ]
"""


def run(*arguments: str | Path, cwd: Path, status: int = 0) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "optimizer", *map(str, arguments), "--json"],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=280, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def write_model(repository: Path, name: str, config: str, source: str | None) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    if source is not None:
        (repository / name / "1" / "model.py").write_text(source)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repository = tmp_path / "models"
    # One instance of each: four requests in flight wait for each other, and more instances are the remedy.
    sleep_model("slow", service_s=0.02).write(repository)
    sleep_model("quick", service_s=0.008).write(repository)
    write_model(repository, "both", ENSEMBLE, None)
    write_model(repository, "texts", TEXTS, ECHO)
    write_model(repository, "pipeline", TEXTS.replace('"texts"', '"pipeline"'), "# pb_utils.InferenceRequest(\n" + ECHO)
    write_model(repository, "broken", 'name: "broken"\nbackend: "python"\nmax_batch_sice: 3\n', ECHO)
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    return repository


def test_every_model_is_tuned_or_has_its_reason_and_winners_are_tried_together(
    repository: Path, tmp_path: Path
) -> None:
    planned = run("optimize", repository, "--config", "settings.yaml", "--dry-run", cwd=tmp_path)
    assert {one["model"]: one["skip"]["code"] for one in planned["models"] if "skip" in one} == {
        "both": "ensemble", "texts": "string_inputs", "pipeline": "pipeline", "broken": "unreadable",
    }  # fmt: skip
    before = sha256_tree(repository)

    def stop_at_the_second_study(kind: str, **facts: object) -> None:
        if str(facts.get("text", "")).startswith("study 2 of 2"):
            raise KeyboardInterrupt

    with pytest.raises(StudyInterrupted, match="resume"):
        optimize(
            repository, settings=tmp_path / "settings.yaml", study=tmp_path / "run", progress=stop_at_the_second_study
        )
    half = run("report", "run", cwd=tmp_path)
    assert [row[1] for row in half["rows"] if row[0] in ("quick", "slow")] == ["unfinished", "winner"]

    document = run("resume", "run", cwd=tmp_path)
    rows = {row[0]: row for row in document["rows"]}
    assert rows["slow"][1] == rows["quick"][1] == "winner"
    assert rows["both"][1] == rows["texts"][1] == "not tuned"
    together = document["together"]
    assert together["verdict"] == "passed"
    assert together["winners"] == ["quick", "slow"]
    assert together["ratio"]["lower"] > 1
    asked = {one["model"] for one in together["models"] if one["asked"]}
    # The ensemble finds its members under their own names, tuned and not.
    assert asked == {"slow", "quick", "both", "texts", "pipeline"}
    assert together["memory"]["tuned_bytes"] > together["memory"]["as_found_bytes"] > 0
    assert sha256_tree(repository) == before

    # The heavier model has the larger share of the time.
    weights = {one["model"]: one["weight"] for one in document["models"] if "weight" in one}
    assert weights["slow"] > weights["quick"]

    check("optimize", document)

    written = run("apply", "run", cwd=tmp_path)
    check("optimize", written)
    assert {row[0]: row[1] for row in written["rows"] if row[0] in ("slow", "quick")} == {
        "slow": "written", "quick": "written",
    }  # fmt: skip
    lines = [line for one in written["models"] if one.get("applied") for line in one["applied"]["lines"]]
    assert any("ensemble both" in line and "answers" in line for line in lines)

    # A second run has nothing to do, and says why.
    again = run("optimize", repository, "--config", "settings.yaml", "--study", "again", cwd=tmp_path)
    assert {one["model"]: one["skip"]["code"] for one in again["models"]}["slow"] == "fresh"
    assert again["together"] is None

    page = tmp_path / "run.html"
    run("report", "run", "--html", page, cwd=tmp_path)
    assert 'href="run-slow.html"' in page.read_text()
    assert (tmp_path / "run-slow.html").is_file()
