"""Launchers by name, the interpreter's examination, and the known answer, without a server."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from optimizer.errors import EnvironmentFailure, InputError
from optimizer.sandbox import _image, _interpreter, _known_answer, launchers
from optimizer.sandbox import docker as docker_launcher
from optimizer.sandbox.process import ProcessLauncher
from optimizer.sandbox.remote import RemoteLauncher


def test_an_unknown_launcher_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"no sandbox 'dockr'(.|\n)*auto, embedded, process, docker, remote"):
        launchers.launcher("dockr")


def test_choosing_one_that_cannot_start_says_why() -> None:
    with pytest.raises(EnvironmentFailure, match=r"no executable /no/such/server found"):
        launchers.choose("process", executable="/no/such/server")
    with pytest.raises(EnvironmentFailure, match=r"url: is missing"):
        launchers.choose("remote")


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("unix:///no/such/docker.sock", "no Docker engine answers: there is no such socket\n  remedy: start it"),
        ("tcp://10.0.0.1:2375", "the Docker engine is on another machine\n  remedy: run the optimizer there"),
        ("ssh://user@elsewhere", "the Docker engine is on another machine"),
    ],
)
def test_docker_without_an_engine_says_why_in_one_line(host: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(EnvironmentFailure) as raised:
        launchers.launcher("docker", image="tritonserver:none").facts()
    assert words in raised.value.message
    # An image that is named is what the user wants; another sandbox would be a surprise.
    with pytest.raises(EnvironmentFailure, match="Docker engine"):
        launchers.choose("auto", image="tritonserver:none")
    with pytest.raises(InputError, match=r"image: is missing(.|\n)*--image"):
        launchers.launcher("docker").facts()


OFFICIAL = """
=== a banner, as NVIDIA's images print one ===
@@ executable /opt/tritonserver/bin/tritonserver
@@ triton 2.53.0
@@ native onnxruntime
@@ native python
@@ native tensorrt
@@ other vllm
@@ nvinfer 10.7.0
@@ cuda 12.6.3.004
@@ tensorrt_variable 10.7.0.23-1+cuda12.6
@@ python /usr/bin/python3
@@ builder 10.7.0
"""


def test_what_an_image_answers_becomes_facts_and_decides_about_stand_ins() -> None:
    answers = _image.parse_answers(OFFICIAL)
    image = _image.described(
        "triton:24.12", "sha256:1", "triton@sha256:2", ("/opt/nvidia/nvidia_entrypoint.sh",), answers
    )
    assert image.facts() == {
        "image": "triton:24.12",
        "image_id": "sha256:1",
        "digest": "triton@sha256:2",
        "triton": "2.53.0",
        "tensorrt": "10.7.0",
        "cuda": "12.6.3.004",
        "backends": "onnxruntime,python,tensorrt,vllm",
    }
    assert docker_launcher._stand_ins(image, {}) == ()
    without = replace(image, native=("python", "tensorrt"))
    assert docker_launcher._stand_ins(without, {}) == ("onnxruntime",)
    assert docker_launcher._stand_ins(without, {"python_backends": "none"}) == ()
    # Without a python backend nothing can stand in.
    assert docker_launcher._stand_ins(replace(image, native=("onnxruntime",)), {}) == ()
    with pytest.raises(EnvironmentFailure, match="no tritonserver"):
        _image.described("debian", "sha256:1", "", (), {"cuda": ["12"]})


def test_sizes_are_written_as_docker_takes_them() -> None:
    assert [docker_launcher._bytes(text, "shm_size") for text in ("1g", "512M", "64k", "10")] == [
        1 << 30, 512 << 20, 64 << 10, 10,
    ]  # fmt: skip
    with pytest.raises(InputError, match="shm_size: '1 GB' is not a size"):
        docker_launcher._bytes("1 GB", "shm_size")


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
