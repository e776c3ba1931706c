"""The main job on a real model, with nothing but Python: ``make demo``.

A Triton repository with the file-type classifier magika is tuned behind the embedded Triton server, on real files of
this machine, and the winner is written back. Everything is made below ``demo/``; earlier runs of the demo there are
replaced, anything else is left alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from examples.magika_features import write_samples
from examples.models import fetch, write_repository_entry
from optimizer.durable import sha256_tree

DIRECTORY = Path("demo")
MARKER = DIRECTORY / ".made-by-make-demo"
REPOSITORY = DIRECTORY / "models"
STUDY = DIRECTORY / "study"
SAMPLES = DIRECTORY / "samples.npz"
SETTINGS = Path("examples/demo.yaml")


def main() -> int:
    started = time.monotonic()
    make_fresh_directory()
    say("fetching the magika classifier from its PyPI wheel (checksum verified, cached)")
    onnx = fetch("magika")
    write_repository_entry("magika", REPOSITORY)
    say("reading real files of this machine as inputs; those on which the model is least sure are tagged hard")
    samples = write_samples(SAMPLES, count=240, seed=0, onnx=onnx)
    say(f"{len(samples)} files, half of them kept for the final check")
    before = sha256_tree(REPOSITORY)
    status = optimizer(
        "optimize", str(REPOSITORY), "--model", "magika", "--config", str(SETTINGS), "--inputs", str(SAMPLES),
        "--study", str(STUDY), "--write-back",
    )  # fmt: skip
    if status:
        return status
    say(f"took {time.monotonic() - started:.0f} s")
    say(f"the repository's tree before: {before[:16]}, now: {sha256_tree(REPOSITORY)[:16]}")
    say("look around:")
    for command in (
        f"inspect {REPOSITORY}", f"status {REPOSITORY}", f"report {STUDY}",
        f"report {STUDY} --html {DIRECTORY}/report.html",
        f"rollback {REPOSITORY} --model magika",
    ):  # fmt: skip
        print(f"  {sys.executable} -m optimizer {command}", flush=True)
    return 0


def make_fresh_directory() -> None:
    if DIRECTORY.exists() and not MARKER.exists():
        raise SystemExit(f"{DIRECTORY.resolve()} exists and is not an earlier demo: move it away first")
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir()
    MARKER.touch()


def optimizer(*arguments: str) -> int:
    command = [sys.executable, "-m", "optimizer", *arguments]
    say("$ triton-optimizer " + " ".join(arguments))
    return subprocess.run(command, check=False).returncode


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
