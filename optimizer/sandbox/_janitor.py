"""Gives a remote server back as it was, also when the optimizer was killed: run under a guardian, never imported.

    python -m optimizer.sandbox._janitor URL MARKERS

MARKERS is a directory with one file per model that was loaded: its name is the model's, its content the directory to
remove. On SIGTERM (the guardian sends it when its owner is gone) each is unloaded and removed.
"""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path


def main(url: str, markers: Path) -> int:
    signal.sigwait({signal.SIGTERM})
    left = sorted(markers.glob("*"))
    if not left:
        return 0
    from optimizer.triton.client import TritonClient, TritonError

    failed = 0
    with TritonClient(url) as client:
        for marker in left:
            try:
                client.unload(marker.name, timeout_s=30.0)
            except TritonError as error:
                failed = 1
                print(f"cannot unload {marker.name}: {error.message}", file=sys.stderr)
            shutil.rmtree(marker.read_text(encoding="utf-8"), ignore_errors=True)
            marker.unlink()
    return failed


if __name__ == "__main__":
    # Before the first import that takes time: a signal that comes early must wait, not end this process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
