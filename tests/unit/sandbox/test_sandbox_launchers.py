"""Launchers by name, the interpreter's examination, and the known answer, without a server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.sandbox import _interpreter, _known_answer, launchers
from optimizer.sandbox.process import ProcessLauncher
from optimizer.sandbox.remote import RemoteLauncher


def test_an_unknown_launcher_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"no sandbox 'dockr'(.|\n)*auto, embedded, process, remote"):
        launchers.launcher("dockr")


def test_choosing_one_that_cannot_start_says_why() -> None:
    with pytest.raises(EnvironmentFailure, match=r"no executable /no/such/server found"):
        launchers.choose("process", executable="/no/such/server")
    with pytest.raises(EnvironmentFailure, match=r"url: is missing"):
        launchers.choose("remote")


def test_this_interpreter_has_what_it_says() -> None:
    found = _interpreter.examine(sys.executable)
    assert found.version == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found.base_prefix == Path(sys.base_prefix)
    assert found.packages["numpy"] == np.__version__
    assert found.library.exists()


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/true", "/bin/false"])
def test_what_is_no_python_is_refused(python: str) -> None:
    with pytest.raises(EnvironmentFailure, match=python):
        _interpreter.examine(python)


def test_a_missing_shared_library_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"libpython3\.99\.so\.1\.0 is missing(.|\n)*libpython3\.99"):
        _interpreter.find_library("3.99", [str(tmp_path), ""], where="python")


def test_the_overlay_finds_what_the_chosen_interpreter_finds(tmp_path: Path) -> None:
    chosen = _interpreter.examine(sys.executable)
    env = _interpreter.environment(chosen, tmp_path, tmp_path, {"PATH": "/usr/bin:/bin"})
    code = "import numpy, sys; print(numpy.__file__, sys.base_prefix)"
    done = subprocess.run(["python3", "-c", code], env=env, check=True, capture_output=True, text=True)
    assert done.stdout.split() == [np.__file__, sys.base_prefix]


def test_the_known_answer_is_compared_by_shape_and_value() -> None:
    x = np.array([1.0, 2.0], np.float32)
    assert _known_answer.compare(x, 2 * x + 1) == ""
    assert "shape (0,)" in _known_answer.compare(x, np.empty(0, np.float32))
    assert "expected [3.0, 5.0]" in _known_answer.compare(x, x)


def test_the_remedy_for_numpy_2_names_it() -> None:
    found = _interpreter.examine(sys.executable)
    two = _interpreter.Interpreter(**{**found.__dict__, "packages": {"numpy": "2.4.6"}})
    assert "'numpy<2'" in _known_answer.remedy(two)
    assert "outputs come back empty" in _known_answer.remedy(two)


def test_settings_of_process_and_remote_are_checked(tmp_path: Path) -> None:
    (tmp_path / "backends" / "python").mkdir(parents=True)
    (tmp_path / "backends" / "onnxruntime").mkdir()
    executable = tmp_path / "bin" / "tritonserver"
    executable.parent.mkdir()
    executable.write_text("#!/bin/sh\n")
    executable.chmod(0o755)
    (tmp_path / "TRITON_VERSION").write_text("2.60.0\n")
    facts = ProcessLauncher(executable=str(executable)).facts()
    # The native backend is there, so nothing stands in for it.
    assert facts["python_backends"] == "tensorrt"
    assert facts["triton"] == "2.60.0"
    assert facts["backends"] == "onnxruntime,python"
    assert ProcessLauncher(executable=str(executable), python_backends="none").facts()["python_backends"] == ""
    with pytest.raises(InputError, match=r"no python-based backend 'openvino'"):
        ProcessLauncher(executable=str(executable), python_backends="openvino").facts()
    assert "not a directory" in str(RemoteLauncher(url="127.0.0.1:1", repository=str(tmp_path / "none")).available())
    assert "unknown value 'hard'" in str(
        RemoteLauncher(url="127.0.0.1:1", repository=str(tmp_path), link="hard").available()
    )
