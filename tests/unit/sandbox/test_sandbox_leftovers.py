"""What dead studies leave behind goes; what belongs to the living, or to nobody known, stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from optimizer import container
from optimizer.sandbox._local import PrivateDirectory
from optimizer.sandbox.leftovers import remove_leftovers

MAKE = """
import sys
from pathlib import Path
from optimizer.sandbox._local import PrivateDirectory
private = PrivateDirectory(Path(sys.argv[1]))
Path(f"/dev/shm/{private.shared_memory_prefix}region").touch()
print(private.token)
"""


def dead_study(workdir: Path) -> str:
    done = subprocess.run([sys.executable, "-c", MAKE, str(workdir)], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip()


def regions(token: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"triton-optimizer-{token}-*"))


def test_a_dead_studys_directory_and_memory_go_and_a_living_ones_stay(tmp_path: Path) -> None:
    token = dead_study(tmp_path)
    living = PrivateDirectory(tmp_path)
    try:
        assert len(regions(token)) == 2
        removed = remove_leftovers(tmp_path / "elsewhere")
        assert f"directory {tmp_path}/sandbox-{token}" in removed
        assert f"shared memory triton-optimizer-{token}-region" in removed
        assert not regions(token)
        assert list(tmp_path.iterdir()) == [living.path]
        assert len(regions(living.token)) == 1
    finally:
        living.remove()
    assert not regions(living.token)


def test_after_a_restart_of_the_machine_a_directory_below_the_root_is_found_by_its_name(tmp_path: Path) -> None:
    workdir = tmp_path / "study" / "sandbox"
    workdir.mkdir(parents=True)
    token = dead_study(workdir)
    for path in regions(token):
        path.unlink()
    # Like one of ours by name, and not one.
    (workdir / "sandbox-1-notours").mkdir()
    (workdir / f"sandbox-{token.split('-')[0]}-00000000").mkdir()
    removed = remove_leftovers(tmp_path)
    assert [line for line in removed if str(workdir) in line] == [f"directory {workdir}/sandbox-{token}"]
    assert len(list(workdir.iterdir())) == 2


def test_a_note_cannot_name_a_directory_that_is_not_a_sandboxs(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    token = dead_study(tmp_path)
    (note,) = (path for path in regions(token) if path.name.endswith("directory"))
    note.write_text(f"{note.read_text().splitlines()[0]}\n{precious}\n")
    remove_leftovers(tmp_path / "elsewhere")
    assert precious.is_dir()


def test_an_owner_is_known_by_more_than_its_number() -> None:
    boot, namespace, pid, started = container.owner().split()
    assert container.owner_is_dead(container.owner()) is False
    assert container.owner_is_dead(f"{boot} {namespace} {pid} {int(started) + 1}") is True
    assert container.owner_is_dead(f"other-boot {namespace} {pid} {started}") is True
    assert container.owner_is_dead(f"{boot} pid:[1] {pid} {started}") is None
    assert container.owner_is_dead("") is None


def test_a_dead_benchmarks_directory_is_removed_and_a_living_ones_stays(tmp_path: Path) -> None:
    from optimizer.sandbox.leftovers import _benchmarks, benchmark_prefix

    living = tmp_path / f"{benchmark_prefix()}x"
    dead = tmp_path / "triton-optimizer-bench-999999999-x"
    other = tmp_path / "triton-optimizer-bench-mine"
    for directory in (living, dead, other):
        directory.mkdir()
    assert [str(dead) in line for line in _benchmarks(tmp_path)] == [True]
    assert not dead.exists()
    assert living.exists()
    assert other.exists()
