"""What killed servers left in /tmp goes, and nothing that a living server may have made or a process uses."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optimizer.sandbox import _backend_directories
from optimizer.sandbox._backend_directories import CLOCK_MARGIN_S, Living, living_processes, remove_dead

NOBODY = Living(None, frozenset())
NAME = f"python_env_{os.getpid() % 10**6:06}"


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir()


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_without_a_living_server_empty_and_filled_ones_go(tmp_path: Path) -> None:
    make(tmp_path, "python_env_aaaaaa", "python_env_B1B1B1")
    (tmp_path / "python_env_B1B1B1" / "0" / "lib").mkdir(parents=True)
    (tmp_path / "python_env_B1B1B1" / "0" / "lib" / "x.so").touch()
    assert list(remove_dead(tmp_path, lambda: [NOBODY])) == [
        f"{tmp_path}/python_env_*: 2 that killed Triton servers left"
    ]
    assert left(tmp_path) == []
    assert list(remove_dead(tmp_path, lambda: [NOBODY])) == []


def test_only_what_is_older_than_every_living_server_goes(tmp_path: Path) -> None:
    make(tmp_path, "python_env_aaaaaa")
    now = time.time()
    young, old = (Living(now + ahead, frozenset()) for ahead in (3 * CLOCK_MARGIN_S, CLOCK_MARGIN_S / 2))
    assert list(remove_dead(tmp_path, lambda: [NOBODY, young, old])) == []
    assert left(tmp_path) == ["python_env_aaaaaa"]
    # A time that anyone can set does not make it older.
    os.utime(tmp_path / "python_env_aaaaaa", (0, 0))
    assert list(remove_dead(tmp_path, lambda: [old])) == []
    assert len(list(remove_dead(tmp_path, lambda: [NOBODY, young]))) == 1
    assert left(tmp_path) == []


def test_what_a_process_uses_stays(tmp_path: Path) -> None:
    make(tmp_path, "python_env_aaaaaa", "python_env_bbbbbb")
    list(remove_dead(tmp_path, lambda: [Living(None, frozenset({"python_env_bbbbbb"}))]))
    assert left(tmp_path) == ["python_env_bbbbbb"]


def test_what_only_looks_like_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "python_env_mine", "python_env_aaaaaa_2", "elsewhere")
    (tmp_path / "python_env_ffffff").touch()
    (tmp_path / "python_env_llllll").symlink_to(tmp_path / "elsewhere")
    before = left(tmp_path)
    assert list(remove_dead(tmp_path, lambda: [NOBODY])) == []
    assert left(tmp_path) == before
    make(tmp_path, "python_env_aaaaaa")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert list(remove_dead(tmp_path, lambda: [NOBODY])) == [], "another user's"


def test_a_directory_that_other_containers_may_share_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "python_env_aaaaaa")
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path)
    monkeypatch.setattr(_backend_directories, "_FIRST_PID_NAMESPACE", "pid:[none]")
    assert list(remove_dead(tmp_path, lambda: [NOBODY])) == []
    assert left(tmp_path) == ["python_env_aaaaaa"]


@pytest.mark.parametrize("trace", ["cwd", "environment", "open file", "argument"])
def test_every_way_to_use_a_directory_is_seen(tmp_path: Path, trace: str) -> None:
    directory = tmp_path / NAME
    directory.mkdir()
    (directory / "file").touch()
    arguments = [str(directory)] if trace == "argument" else []
    code = "import sys\n"
    if trace == "open file":
        # Taken apart, so that the open file alone gives it away.
        code += f"file = open({NAME[:-3]!r} + {NAME[-3:]!r} + '/file')\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "print(flush=True); sys.stdin.read()", *arguments],
        cwd=directory if trace == "cwd" else tmp_path,
        env={**os.environ, "LIBRARIES": str(directory)} if trace == "environment" else None,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert any(directory.name in one.names for one in living_processes())
    finally:
        process.communicate()
    assert not any(directory.name in one.names for one in living_processes())


def test_a_server_is_known_by_its_command_and_by_the_backend_that_it_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libtriton_python.so"
    library.write_bytes(b"\0" * 4096)
    mapped = (
        "import mmap, os, sys\n"
        f"file = os.open(os.path.join({str(tmp_path)!r}, 'libtriton' + '_python.so'), os.O_RDONLY)\n"
        "memory = mmap.mmap(file, 0, prot=mmap.PROT_READ)\nos.close(file)\n"
    )
    waits = "print(flush=True); sys.stdin.read()"
    for command, code in (("tritonserver", "import sys\n"), ("python", mapped)):
        began = time.time()
        process = subprocess.Popen(
            [command, "-c", code + waits],
            executable=sys.executable,
            env={**os.environ, "MARK": NAME},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()
            (one,) = (one for one in living_processes() if NAME in one.names)
            assert one.server_since is not None
            assert began - CLOCK_MARGIN_S < one.server_since < time.time() + CLOCK_MARGIN_S
        finally:
            process.communicate()
