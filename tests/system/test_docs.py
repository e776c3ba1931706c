"""The documentation's commands, settings page and links.

The ```` ```console ```` blocks of a page behind ``<!-- tested -->`` are run line by line (the lines with ``$``), one
after the other, in a directory with a toy repository: ``models/tiny``, ``samples.npz``, ``samples/tiny.npz`` and a
finished study in ``studies/tiny``. A line that ends with ``# exit N`` must end with that code. ```` ```python ````
blocks behind the same mark are run too; ```` ```yaml ```` blocks that begin with ``# settings`` are validated.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.config import load_settings, parse_settings
from optimizer.records.route import Route
from optimizer.records.samples import Arrays
from optimizer.testing.decided import decided_study

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TESTED = re.compile(r"<!-- tested -->\n```(console|python)\n(.*?)```", re.DOTALL)
SETTINGS = re.compile(r"```yaml\n(# settings\b.*?)```", re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Kind and text of a page's tested blocks."""
    return TESTED.findall(page.read_text())


TESTED_PAGES = [page for page in PAGES if blocks(page)]


@pytest.fixture
def toy(tiny_repository: Path, tmp_path: Path) -> Path:
    tiny_repository.rename(tmp_path / "models")
    samples = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    (tmp_path / "samples").mkdir()
    for file in (tmp_path / "samples.npz", tmp_path / "samples" / "tiny.npz"):
        np.savez(file, X=samples)
    (tmp_path / "settings.yaml").write_text(
        "load: {duration_s: 0.2, warmup_s: 0.1}\nsearch: {routes: '-instances=[1|2]'}\n"
    )

    def doubled_plus_one(inputs: Arrays) -> Arrays:
        return {"Y": np.asarray(2 * inputs["X"] + 1)}

    settings = parse_settings({"tolerance": ["lInf<=1e-3"], "inputs": {"file": str(tmp_path / "samples.npz")}})
    route = Route.parse("-instances=2")
    decided_study(tmp_path / "models", "tiny", tmp_path / "studies" / "tiny", settings, doubled_plus_one, route=route)
    return tmp_path


@pytest.mark.system
@pytest.mark.parametrize("page", TESTED_PAGES, ids=lambda page: page.name)
def test_the_commands_of_the_documentation_run(toy: Path, page: Path) -> None:
    for kind, text in blocks(page):
        if kind == "python":
            run(["-c", text], toy, 0)
            continue
        commands = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        assert commands, "a tested block without a command"
        for command in commands:
            line, _, expected = command.partition("# exit ")
            words = shlex.split(line, comments=True)
            assert words[0] == "triton-optimizer", command
            run(["-m", "optimizer", *words[1:]], toy, int(expected or 0))


def run(arguments: list[str], cwd: Path, status: int) -> None:
    environment = {**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, f"{' '.join(arguments)}\n{done.stderr}"


def test_there_are_commands_to_test() -> None:
    assert sum(len(blocks(page)) for page in TESTED_PAGES) >= 8


def test_the_settings_page_is_up_to_date() -> None:
    program = "import runpy, sys; sys.stdout.write(runpy.run_path('docs/generate_settings.py')['settings_text']())"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == (ROOT / "docs" / "settings.md").read_text(), "run: python docs/generate_settings.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_in_the_documentation_are_valid(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(SETTINGS.findall(page.read_text())):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text)
        settings = load_settings(file)
        for name in settings.per_model:
            settings.of_model(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_cited_files_exist(page: Path) -> None:
    for target in re.findall(r"`((?:benchmarks|tests|docs|examples|compose)/[\w./*-]+\.\w+)`", page.read_text()):
        assert list(ROOT.glob(target)), f"{page.name}: {target}"


def test_every_page_is_on_the_map() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES:
        if page.parent.name == "docs" and page.name != "index.md":
            assert f"({page.name})" in index, page.name
