"""Lays the server of an installed nvidia-pytriton out like the one of an official Triton image: run by the Dockerfile.

python compose/install_server.py /opt/tritonserver
"""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import triton_templates
from optimizer.sandbox.embedded import TRITON_IN_WHEEL, find


def install(root: Path) -> None:
    distribution = find()
    if distribution is None:
        raise SystemExit("nvidia-pytriton is not installed in this interpreter")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(distribution.backends, root / "backends", ignore=ignored)
    shutil.copy(distribution.stub(f"{sys.version_info[0]}.{sys.version_info[1]}"), root / "backends" / "python")
    for name in triton_templates.names():
        shutil.copytree(triton_templates.path(name), root / "backends" / name, ignore=ignored)
    (root / "TRITON_VERSION").write_text(TRITON_IN_WHEEL.get(distribution.version, "unknown") + "\n", encoding="ascii")
    (root / "bin").mkdir()
    executable = root / "bin" / "tritonserver"
    # A stub takes its prefix from the first python3 on PATH. Every instance is a process: pools of BLAS threads, one
    # thread a core in each, would only disturb.
    executable.write_text(
        "#!/bin/sh\n"
        f'export PATH={shlex.quote(str(Path(sys.prefix) / "bin"))}:"$PATH"\n'
        f"export LD_LIBRARY_PATH={shlex.quote(str(distribution.libraries))}\n"
        "export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1\n"
        f"exec {shlex.quote(str(distribution.server))} "
        f'--backend-directory={shlex.quote(str(root / "backends"))} "$@"\n',
        encoding="ascii",
    )
    executable.chmod(0o755)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
