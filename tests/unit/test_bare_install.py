"""A bare install imports every module, and ``--help`` loads nothing heavy."""

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import optimizer

HEAVY = (
    "tensorrt", "tensorrt_rtx", "onnxruntime", "onnx", "tritonclient", "grpc", "docker", "scipy", "plotly", "ray",
    "optuna", "cuda", "pynvml", "pytriton", "google.protobuf",
)  # fmt: skip

# What an extra brings is hidden, so that an import at module level fails here even where the extra is installed.
HIDE = """
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError("hidden: " + name, name=name)
sys.meta_path.insert(0, Hidden())
"""


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules() -> list[str]:
    names = [info.name for info in pkgutil.walk_packages(optimizer.__path__, "optimizer.")]
    return [name for name in names if not name.endswith((".__main__", ".guardian"))]


def test_a_bare_install_imports_every_module() -> None:
    extras = ("tensorrt", "tensorrt_rtx", "onnxruntime", "docker", "optuna", "cuda", "pynvml", "pytriton", "plotly")
    code = HIDE.format(names=extras) + "\n".join(f"import {name}" for name in modules())
    run(code)
    assert len(modules()) > 30


def test_help_loads_no_heavy_package() -> None:
    loaded = run(
        "import sys\n"
        "sys.argv = ['triton-optimizer', '--help']\n"
        "import contextlib, io\n"
        "from optimizer.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    assert loaded.strip() == "[]"


def test_the_wheel_ships_the_templates() -> None:
    import triton_templates

    assert (Path(triton_templates.__file__).parent / "onnxruntime" / "model.py").is_file()
