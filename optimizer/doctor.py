"""What this machine can do, and the shortest way to each missing part."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer import __version__


@dataclass(frozen=True)
class Finding:
    """One part. ``found`` is its version or description, empty when it is missing; ``needed_for`` says by what."""

    part: str
    found: str
    needed_for: str
    remedy: str = ""
    problem: str = ""

    @property
    def state(self) -> str:
        return "problem" if self.problem else "found" if self.found else "missing"


def diagnosis(*, clean: bool = False) -> dict[str, Any]:
    findings = [check() for check in CHECKS]
    lines = [f"triton-optimizer {__version__} on Python {platform.python_version()}, {_cores()} cores"]
    if clean:
        lines += clean_up()
    return {
        "schema": 1,
        "kind": "table",
        "lines": lines,
        "columns": ["part", "state", "found", "needed for", "what to do"],
        "rows": [
            [
                one.part, one.state, one.found, one.needed_for,
                "; ".join(text for text in (one.problem, one.remedy if one.state != "found" else "") if text),
            ]
            for one in findings
        ],
        "can": can(findings),
        "notes": [
            "",
            *(f"{what}: {'yes' if able else 'no: ' + why}" for what, (able, why) in can(findings).items()),
            "",
            "shell completion: triton-optimizer --install-completion",
        ],
    }  # fmt: skip


def can(findings: list[Finding]) -> dict[str, tuple[bool, str]]:
    """Job to (whether it can be done here, what is missing)."""
    state = {one.part: one for one in findings}

    def needs(*parts: str) -> tuple[bool, str]:
        lacking = [part for part in parts if state[part].state != "found"]
        return not lacking, ", ".join(lacking)

    def any_of(*parts: str) -> tuple[bool, str]:
        able = any(state[part].state == "found" for part in parts)
        return able, "" if able else "one of " + ", ".join(parts)

    sandbox = any_of("embedded server", "tritonserver", "Docker engine")
    tensorrt = needs("GPU", "TensorRT")
    return {
        "read a repository": needs("tritonclient", "onnx"),
        "start a sandbox server": sandbox,
        "tune ONNX models on the CPU": (
            sandbox[0] and state["ONNX Runtime"].state == "found",
            ", ".join(filter(None, (sandbox[1], needs("ONNX Runtime")[1]))),
        ),
        "build TensorRT engines": tensorrt,
        "tune TensorRT engines at the serving level": (
            tensorrt[0] and sandbox[0],
            ", ".join(filter(None, (tensorrt[1], sandbox[1]))),
        ),
    }


def _package(part: str, distribution: str, needed_for: str, remedy: str) -> Callable[[], Finding]:
    def check() -> Finding:
        try:
            return Finding(part, f"{distribution} {importlib.metadata.version(distribution)}", needed_for, remedy)
        except importlib.metadata.PackageNotFoundError:
            return Finding(part, "", needed_for, remedy)

    return check


def _numpy() -> Finding:
    version = importlib.metadata.version("numpy")
    problem = ""
    if int(version.split(".")[0]) >= 2 and importlib.util.find_spec("pytriton") is not None:
        problem = "NumPy 2 in the python backend's interpreter returns empty tensors without an error"
    return Finding("NumPy", version, "everything", "pip install 'numpy<2'", problem)


def _embedded() -> Finding:
    from optimizer.sandbox.launchers import launcher

    embedded = launcher("embedded")
    missing = embedded.available()
    remedy = "pip install 'triton-optimizer[embedded]'"
    if missing is None:
        facts = embedded.facts()
        return Finding(
            "embedded server", f"nvidia-pytriton {facts.get('nvidia_pytriton', '')}".strip(), "sandbox", remedy
        )
    return Finding("embedded server", "", "sandbox without Docker", missing)


def _program(part: str, program: str, needed_for: str, remedy: str) -> Callable[[], Finding]:
    def check() -> Finding:
        return Finding(part, shutil.which(program) or "", needed_for, remedy)

    return check


def _docker() -> Finding:
    from optimizer.sandbox.engine import describe

    needed_for = "sandbox in the official image"
    version, runtimes, problem = describe()
    if problem:
        return Finding("Docker engine", "", needed_for, problem)
    gpus = "with NVIDIA's runtime" if "nvidia" in runtimes else "without a runtime for GPUs"
    return Finding("Docker engine", f"{version}, {gpus}", needed_for, "")


def _gpu() -> Finding:
    from optimizer.gpu import list_gpus, unavailable

    text = "; ".join(f"{one.name} ({one.uuid}), driver {one.driver}" for one in list_gpus())
    return Finding("GPU", text, "TensorRT engines", "" if text else str(unavailable()))


def _tensorrt() -> Finding:
    remedy = "pip install 'triton-optimizer[tensorrt]', in the release of the serving image"
    for distribution in ("tensorrt", "tensorrt-cu13", "tensorrt-cu12", "tensorrt-rtx", "tensorrt-rtx-cu13"):
        try:
            return Finding(
                "TensorRT", f"{distribution} {importlib.metadata.version(distribution)}", "building engines", remedy
            )
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding("TensorRT", "", "building engines", remedy)


def _space() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    problem = "less than 2 GB free here" if free < 2e9 else ""
    return Finding("disk space", f"{free / 1e9:,.0f} GB free here", "studies", "free space or use --study", problem)


def _shared_memory() -> Finding:
    free = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    problem = "less than 256 MB in /dev/shm" if free < 256e6 else ""
    remedy = "enlarge /dev/shm (docker run --shm-size=1g)"
    return Finding("shared memory", f"{free / 1e9:,.1f} GB free in /dev/shm", "python-based backends", remedy, problem)


CHECKS: tuple[Callable[[], Finding], ...] = (
    _package("tritonclient", "tritonclient", "reading configs, talking to servers", "pip install 'tritonclient[grpc]'"),
    _package("onnx", "onnx", "reading models", "pip install onnx"),
    _numpy,
    _embedded,
    _package("ONNX Runtime", "onnxruntime", "engines on a CPU", "pip install 'triton-optimizer[embedded]'"),
    _program(
        "tritonserver",
        "tritonserver",
        "sandbox of a local Triton",
        "run inside a Triton image; the embedded server does without",
    ),
    _docker,
    _gpu,
    _tensorrt,
    _package("NVML", "nvidia-ml-py", "clocks, power and memory of the GPU", "pip install 'triton-optimizer[tensorrt]'"),
    _program(
        "perf_analyzer",
        "perf_analyzer",
        "bench --check-with perf_analyzer",
        "pip install perf_analyzer (glibc 2.38 or later: Debian 13, Ubuntu 24.04), or run in NVIDIA's SDK image",
    ),
    _program("nginx", "nginx", "canary with real traffic", "apt-get install nginx"),
    _space,
    _shared_memory,
)


def clean_up() -> list[str]:
    """Removes what dead studies left behind: a guardian that was itself killed −9 cannot clean up."""
    from optimizer.sandbox.leftovers import remove_leftovers

    removed = remove_leftovers()
    return [f"removed {one}" for one in removed] or ["nothing was left behind"]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
