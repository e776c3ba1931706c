"""The file side of apply, rollback and recovery as a program of its own, to be killed at any system call.

``crash_driver.py apply|rollback|recover REPOSITORY WAY``; WAY is ``rename`` or ``in_place``. Exit status 0 done, 6 for
a refusal or an error that was taken back.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

from optimizer.apply.journal import Image, Journal, Kind, Way
from optimizer.apply.lock import RepositoryLock
from optimizer.apply.recovery import recover, settle_all
from optimizer.apply.transaction import Owner, read_image, take_version_back, write_version
from optimizer.errors import OptimizerError

MODEL = "m"
OLD = b"# what people wrote\nbackend: 'python'\n"
PINNED = OLD + b"version_policy { specific { versions: 1 } }\n"
NEW = OLD.replace(b"python", b"onnxruntime") + b"# new\n"
CONTENTS = {"model.onnx": b"engine" * 500, "weights/part.bin": b"\0\1" * 3000, "optimizer.json": b"{}\n"}


def make_repository(root: Path) -> Path:
    repository = root / "models"
    (repository / MODEL / "1").mkdir(parents=True)
    (repository / MODEL / "1" / "model.py").write_bytes(b"old")
    (repository / MODEL / "config.pbtxt").write_bytes(OLD)
    (repository / "other").mkdir()
    return repository


def journal_of(repository: Path, kind: Kind, way: Way) -> Journal:
    stage = repository.parent / ".models.triton-optimizer-abc"
    if way is Way.IN_PLACE:
        (repository.parent / "elsewhere").mkdir(exist_ok=True)
        stage = repository.parent / "elsewhere" / ".triton-optimizer-abc"
    there = read_image(repository / MODEL / "config.pbtxt")
    old, pinned, new = (replace(there, data=data) for data in (OLD, PINNED, NEW))
    assert isinstance(old, Image)
    files = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENTS.items()}
    return Journal("abc", kind, MODEL, "config.pbtxt", 2, way, str(stage), old, pinned, new, files, 1.0)


def main(job: str, repository: Path, way: Way) -> int:
    try:
        if job == "recover":
            recover(repository)
            return 0
        with RepositoryLock(repository):
            settle_all(repository)
            journal = journal_of(repository, Kind(job), way)
            if job == "rollback":
                take_version_back(repository, journal)
            else:
                version = (repository / MODEL / "1").stat()
                owner = Owner(version.st_uid, version.st_gid, 0o644, 0o755)
                write_version(repository, journal, CONTENTS, owner)
        return 0
    except (OptimizerError, OSError) as error:
        print(error, file=sys.stderr)
        return 6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Way(sys.argv[3])))
