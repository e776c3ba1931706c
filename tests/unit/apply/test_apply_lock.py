"""The lock among processes, and what it leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from optimizer.apply import recover, writer_of
from optimizer.apply.lock import LOCK_FILE, RepositoryLock
from optimizer.errors import WriteBackRefused

HOLDER = """
import sys
from pathlib import Path
from optimizer.apply.lock import RepositoryLock
with RepositoryLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(repository: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(repository)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=30)


def test_one_writer_at_a_time_and_it_is_named(tmp_path: Path) -> None:
    assert writer_of(tmp_path) is None
    process = hold(tmp_path)
    try:
        assert f"process {process.pid} " in (writer_of(tmp_path) or "")
        with pytest.raises(WriteBackRefused, match=f"process {process.pid} "), RepositoryLock(tmp_path):
            pass
        # Whoever is at work is left in peace.
        assert recover(tmp_path) == []
        assert (tmp_path / LOCK_FILE).exists()
    finally:
        end(process)
    assert list(tmp_path.iterdir()) == []
    with RepositoryLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    process = hold(tmp_path)
    process.kill()
    process.communicate(timeout=30)
    assert writer_of(tmp_path) is None
    assert recover(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_many_writers_take_turns(tmp_path: Path) -> None:
    """Each adds one to a number under the lock, which goes with every release: none is lost, none is refused."""
    (tmp_path / "number").write_text("0")
    program = """
import sys, time
from pathlib import Path
from optimizer.apply import lock
lock.PATIENCE_S = 60
number = Path(sys.argv[1]) / "number"
for _ in range(50):
    with lock.RepositoryLock(Path(sys.argv[1])):
        value = int(number.read_text())
        time.sleep(0.0005)
        number.write_text(str(value + 1))
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(4)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0, 0]
    assert (tmp_path / "number").read_text() == "200"
    assert [path.name for path in tmp_path.iterdir()] == ["number"]


def test_a_link_is_not_taken_for_a_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError), RepositoryLock(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
