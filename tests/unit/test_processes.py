"""The guardian, with real processes: what it starts ends with its owner, and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer import processes

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def pids_in(path: Path, count: int) -> list[int]:
    assert eventually(lambda: path.exists() and len(path.read_text().split()) == count)
    return [int(word) for word in path.read_text().split()]


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(7)", 7), ("pass", 0), ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139)],
)
def test_exit_status_is_the_commands(code: str, status: int) -> None:
    with processes.start([sys.executable, "-S", "-c", code]) as process:
        assert process.wait(30.0) == status
        assert process.poll() == status
    assert process.stop() == status


def test_a_command_that_does_not_exist_exits_with_127(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with processes.start(["/no/such/command"], log_path=log) as process:
        assert process.wait(30.0) == 127
    assert "/no/such/command: No such file or directory" in process.log_tail()


def test_stop_ends_the_command_and_says_the_signal() -> None:
    process = processes.start(SLEEP)
    assert eventually(lambda: process.pid is not None)
    pid = process.pid
    assert pid is not None
    assert process.stop() == 128 + signal.SIGTERM
    assert not running(pid)
    assert process.pid is None
    assert process.stop() == 128 + signal.SIGTERM


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(600)"
    process = processes.start([sys.executable, "-S", "-c", code], grace_s=0.1)
    assert eventually(ready.exists)
    assert process.stop() == 128 + signal.SIGKILL


ESCAPES = """
import os, sys, time
# A child that leaves the session, and its own child: neither is in the command's process group.
def note():
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
if os.fork() == 0:
    os.setsid()
    note()
    if os.fork() == 0:
        os.setsid()
        note()
        time.sleep(600)
    time.sleep(600)
note()
time.sleep(600 if sys.argv[2] == "stay" else 0)
"""


@pytest.mark.parametrize("mode", ["stay", "leave"])
def test_descendants_that_left_the_session_end_too(tmp_path: Path, mode: str) -> None:
    pids = tmp_path / "pids"
    with processes.start([sys.executable, "-S", "-c", ESCAPES, str(pids), mode], grace_s=0.1) as process:
        found = pids_in(pids, 3)
    assert process.poll() is not None
    assert not any(map(running, found))


OWNER = """
import sys, time
from optimizer import processes
process = processes.start(
    [sys.executable, "-S", "-c", sys.argv[1], sys.argv[2], "stay"], remove=sys.argv[3:], grace_s=0.1
)
print(process.guardian_pid, flush=True)
time.sleep(600)
"""


def test_everything_ends_and_is_removed_when_the_owner_is_killed(tmp_path: Path) -> None:
    private = tmp_path / "pri[v]ate"
    private.mkdir()
    (private / "file").touch()
    for name in ("region-1", "region-2", "other"):
        (tmp_path / name).touch()
    pids = tmp_path / "pids"
    arguments = [sys.executable, "-c", OWNER, ESCAPES, str(pids), str(private), f"{tmp_path}/region-*"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        guardian = int(owner.stdout.readline())
        found = pids_in(pids, 3)
        owner.kill()
    assert eventually(lambda: not running(guardian))
    assert not any(map(running, found))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "pids"]


def test_the_command_dies_with_its_guardian() -> None:
    process = processes.start(SLEEP)
    assert eventually(lambda: process.pid is not None)
    pid = process.pid
    assert pid is not None
    os.kill(process.guardian_pid, signal.SIGKILL)
    assert process.wait(30.0) == 128 + signal.SIGKILL
    assert eventually(lambda: not running(pid))
    assert process.stop() == 128 + signal.SIGKILL


def test_stop_works_while_a_forked_child_holds_the_pipe() -> None:
    process = processes.start(SLEEP)
    assert process._control is not None
    duplicate = os.dup(process._control)
    try:
        assert process.stop() == 128 + signal.SIGTERM
    finally:
        os.close(duplicate)


def test_removes_links_but_not_what_they_point_to(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(kept)
    with processes.start([sys.executable, "-S", "-c", ""], remove=[link]) as process:
        process.wait(30.0)
    assert not link.exists()
    assert (kept / "file").exists()


def test_pipes_carry_a_conversation_and_stderr_is_logged(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('logged'); print(sys.stdin.readline().upper(), end='')"
    log = tmp_path / "log"
    with processes.start([sys.executable, "-S", "-c", code], pipes=True, log_path=log) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"HELLO\n"
        process.wait(30.0)
    assert process.log_tail() == "logged"


def test_memory_limit_holds_for_the_command() -> None:
    code = "x = bytearray(2 << 30)"
    with processes.start([sys.executable, "-S", "-c", code], memory_limit_bytes=512 << 20) as process:
        assert process.wait(30.0) == 1
    with processes.start(
        [sys.executable, "-S", "-c", "x = bytearray(2 << 20)"], memory_limit_bytes=512 << 20
    ) as process:
        assert process.wait(30.0) == 0


def test_run_returns_status_and_output() -> None:
    assert processes.run([sys.executable, "-S", "-c", "print('x'); raise SystemExit(3)"], timeout_s=30) == (3, "x\n")
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run(SLEEP, timeout_s=0.2)


def test_a_log_that_cannot_be_opened_starts_nothing(tmp_path: Path) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="no/such"):
        processes.start(SLEEP, log_path=tmp_path / "no/such/log")
    assert set(Path("/proc/self/fd").iterdir()) == before
