"""The Python interface over studies whose end is known, and what it costs to import."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import optimizer
from optimizer import Study, bench, optimize
from optimizer.config import Settings, parse_settings
from optimizer.errors import InputError, WriteBackRefused
from optimizer.records.decision import Verdict
from optimizer.records.route import Route
from optimizer.records.samples import Arrays
from optimizer.testing.decided import decided_study


def doubled_plus_one(inputs: Arrays) -> Arrays:
    return {"Y": np.asarray(2 * inputs["X"] + 1)}


@pytest.fixture
def study(tiny_repository: Path, tmp_path: Path) -> Study:
    settings = parse_settings({"tolerance": ["lInf<=1e-3"]})
    directory = tmp_path / "study"
    decided_study(tiny_repository, "tiny", directory, settings, doubled_plus_one, route=Route.parse("-instances=2"))
    return Study(directory)


def test_importing_the_package_loads_nothing_of_it() -> None:
    code = (
        "import sys, optimizer\n"
        "print(sorted(name for name in sys.modules if name.startswith('optimizer.')))\n"
        "from optimizer import optimize, bench, Study\n"
        "print([name for name in ('numpy', 'pydantic', 'typer') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_the_interface_is_what_all_says() -> None:
    for name in optimizer.__all__:
        assert getattr(optimizer, name) is not None
    with pytest.raises(AttributeError, match="frobnicate"):
        _ = optimizer.frobnicate


def test_a_study_tells_its_decision_and_document(study: Study) -> None:
    decision = study.decision
    assert decision is not None
    assert decision.verdict is Verdict.WINNER
    document = study.document
    assert document["state"] == "decided"
    assert document["decision"]["winner"] == decision.winner
    json.dumps(document, allow_nan=False)


def test_a_study_writes_its_page(study: Study, tmp_path: Path) -> None:
    page = study.report_html(tmp_path / "page.html")
    assert page.lower().startswith("<!doctype html>")
    assert (tmp_path / "page.html").read_text() == page
    assert study.report_html() == page


def test_a_dry_apply_shows_the_difference(study: Study) -> None:
    document = study.apply(dry_run=True)
    assert document["changed"] is False
    assert "+" in document["diff"]
    assert document["version"] == 2


def test_what_is_no_study_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="remedy"):
        Study(tmp_path)


@pytest.mark.parametrize("form", ["mapping", "settings", "file"])
def test_settings_come_in_three_forms(tiny_repository: Path, tmp_path: Path, form: str) -> None:
    document = {"search": {"routes": "-instances=[1|2]"}}
    (tmp_path / "settings.yaml").write_text("search: {routes: '-instances=[1|2]'}\n")
    given = {"mapping": document, "settings": parse_settings(document), "file": str(tmp_path / "settings.yaml")}[form]
    planned = optimize(str(tiny_repository), ["tiny"], settings=given, dry_run=True)
    assert [model["model"] for model in planned["models"]] == ["tiny"]
    assert planned["models"][0]["count"] == 2


def test_a_wrong_setting_names_the_field(tiny_repository: Path) -> None:
    with pytest.raises(InputError, match=r"load\.duration_s"):
        optimize(tiny_repository, settings={"load": {"duration_s": "soon"}}, dry_run=True)


def test_write_back_without_a_tolerance_is_refused(tiny_repository: Path) -> None:
    with pytest.raises(WriteBackRefused, match="--tolerance"):
        optimize(tiny_repository, settings=Settings(), write_back=True)


def test_a_benchmark_needs_one_place_to_measure() -> None:
    with pytest.raises(InputError, match="exactly one"):
        bench(None, "tiny")
