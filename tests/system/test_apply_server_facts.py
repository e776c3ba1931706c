"""What write-back rests on, asked of the real server: when an explicit load notices a change, and what it then does."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from production_server import Production, production_server

from optimizer.triton.client import TritonError

pytestmark = pytest.mark.system

SOURCE = """\
import numpy
import random
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.said = numpy.array([[{value}, random.randrange(1 << 20)]], numpy.float32)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", self.said)]) for _ in requests]
"""
CONFIG = """\
backend: "python"
max_batch_size: 8
input {{ name: "X" data_type: TYPE_FP32 dims: 2 }}
output {{ name: "Y" data_type: TYPE_FP32 dims: 2 }}
instance_group {{ count: {count} kind: KIND_CPU }}
"""


NUMBERS = itertools.count()


class Model:
    """Answers its value and a number that every instance draws when it starts. No two have one name, so that a test
    which is run once more starts afresh on the same server."""

    def __init__(self, server: Production, repository: Path, name: str, config: str = CONFIG.format(count=1)) -> None:
        name = f"{name}_{next(NUMBERS)}"
        self.server, self.directory, self.name = server, repository / name, name
        self.put_version(1, value=1)
        self.put_config(config)

    def put_version(self, number: int, value: int, *, source: str = SOURCE) -> None:
        directory = self.directory / str(number)
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(source.format(value=value))

    def put_config(self, text: str) -> None:
        scratch = self.directory.parent / f"{self.name}.part"
        scratch.write_text(text)
        scratch.rename(self.directory / "config.pbtxt")

    def load(self) -> None:
        self.server.client.load(self.name)

    def settle(self) -> None:
        """The python backend's stub leaves bytecode beside model.py, which is newer than what the server had seen."""
        self.load()
        self.load()

    @property
    def ready(self) -> list[int]:
        return self.server.ready(self.name)

    def said(self, version: str = "") -> tuple[int, int]:
        x = {"X": np.zeros((1, 2), np.float32)}
        value, drawn = self.server.client.infer(self.name, x, {"X": "FP32"}, version=version)["Y"][0]
        return int(value), int(drawn)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("facts") / "models"
    path.mkdir()
    return path


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Production]:
    with production_server(repository, repository.parent / "server") as running:
        yield running


def test_a_load_with_nothing_newer_succeeds_and_does_nothing(server: Production, repository: Path) -> None:
    model = Model(server, repository, "nothing")
    model.settle()
    before = model.said()
    for _ in range(2):
        model.load()
        assert model.said() == before


def test_a_model_directory_that_is_swapped_back_keeps_the_new_engine(
    server: Production, repository: Path, tmp_path: Path
) -> None:
    """Why a rollback never swaps directories: the files are the old ones then, the server answers with the new."""
    model = Model(server, repository, "swapped")
    model.settle()
    aside, other = tmp_path / "aside", tmp_path / "other"
    shutil.copytree(model.directory, other, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "1" / "model.py").write_text(SOURCE.format(value=22))
    model.directory.rename(aside)
    other.rename(model.directory)
    model.settle()
    assert model.said()[0] == 22
    model.directory.rename(other)
    aside.rename(model.directory)
    model.load()
    assert model.said()[0] == 22
    # A newer time on the config has the server read it again, and find that it says the same.
    os.utime(model.directory / "config.pbtxt")
    model.load()
    assert model.said()[0] == 22
    os.utime(model.directory / "1" / "model.py")
    model.load()
    assert model.said()[0] == 1


def test_an_exchanged_version_directory_is_noticed(server: Production, repository: Path, tmp_path: Path) -> None:
    model = Model(server, repository, "exchanged")
    model.load()
    old, new = tmp_path / "old-1", tmp_path / "new-1"
    new.mkdir()
    (new / "model.py").write_text(SOURCE.format(value=22))
    for aside, comes, wanted in ((old, new, 22), (new, old, 1)):
        (model.directory / "1").rename(aside)
        comes.rename(model.directory / "1")
        model.load()
        assert model.said()[0] == wanted


def test_times_in_the_future_hide_a_change(server: Production, repository: Path) -> None:
    """Why every config that is written gets a time later than anything's in the model's directory."""
    model = Model(server, repository, "future")
    future = time.time() + 86400
    for path in (model.directory / "1" / "model.py", model.directory / "1", model.directory / "config.pbtxt"):
        os.utime(path, (future, future))
    model.load()
    model.put_version(2, value=2)
    model.put_config(CONFIG.format(count=1) + "# new\n")
    model.load()
    assert model.ready == [1]
    os.utime(model.directory / "config.pbtxt", (future + 1, future + 1))
    model.load()
    assert model.ready == [2]


@pytest.mark.parametrize("fault", ["version", "config"])
def test_what_does_not_load_leaves_what_was_loaded(server: Production, repository: Path, fault: str) -> None:
    model = Model(server, repository, f"bad_{fault}")
    model.load()
    before = model.said()
    if fault == "version":
        model.put_version(2, value=2, source="raise RuntimeError('bad')\n")
    else:
        model.put_config(CONFIG.format(count=1).replace("python", "none_such"))
    with pytest.raises(TritonError):
        model.load()
    assert model.ready == [1]
    assert model.said() == before


def test_a_version_under_a_pinned_config_is_not_served(server: Production, repository: Path) -> None:
    def pinned(versions: str) -> str:
        return CONFIG.format(count=1) + f"version_policy {{ specific {{ versions: {versions} }} }}\n"

    model = Model(server, repository, "pinned", pinned("1"))
    model.load()
    (model.directory / "2").mkdir()
    model.load()
    assert model.ready == [1]
    (model.directory / "2" / "model.py").write_text(SOURCE.format(value=2))
    model.load()
    assert model.ready == [1]
    before = model.said()
    # Added to the policy it answers whoever names no version, at once.
    model.put_config(pinned("[ 1, 2 ]"))
    model.load()
    assert model.ready == [1, 2]
    assert model.said()[0] == 2
    assert model.said("1") == before
    # More instances come beside those there are; a comment is nothing; a stray file restarts every version.
    model.put_config(pinned("1").replace("count: 1", "count: 2"))
    model.load()
    assert before in {model.said() for _ in range(8)}
    model.put_config(pinned("1") + "# a comment\n")
    model.load()
    (model.directory / "notes.txt").write_text("")
    model.load()
    assert before not in {model.said() for _ in range(8)}


def test_the_question_for_the_mode_leaves_no_trace(server: Production, repository: Path) -> None:
    from optimizer.apply.live import check_explicit

    before = server.client.repository_index()
    check_explicit(server.url)
    assert server.client.repository_index() == before
