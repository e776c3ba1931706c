"""Studies on the GPU, through the command line: ``python -m tests.gpu.study --out DIR [--seconds S] [--only NAME]``.

For each network: ``optimize`` (read, build, serve, measure, validate, judge), ``report``, ``apply`` of the winner, a
fresh server on the written repository whose answers are compared with ONNX Runtime on the CPU, ``status``,
``rollback``, and the repository's hash before and after. Where the sandbox has no GPU runtime for ONNX, as-found runs
on the CPU; a winner is then applied with ``--accept-unserved-baseline``.

``study-NAME.json`` and ``study-NAME.txt`` in DIR are the reports; ``study/NAME/`` holds the study itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import networks
from optimizer.durable import sha256_tree
from tests.gpu import serving
from tests.gpu.results import Steps

ROOT = Path(__file__).parents[2]
DETECTOR = Path(".gpu-models") / "ocr_detection.onnx"
"""Carried to a host without a network: ``python -m tests.gpu.study --fetch-models``."""
DETECTOR_SIDE = 160
"""Pixels of the pictures' height and width; a multiple of 32."""
AROUND_A_STUDY_S = 70.0
"""What a study takes beyond its budget, with its report, write-back and fresh server: 49 and 68 s on an H200."""


@dataclass(frozen=True)
class Case:
    """A model as its owner has it, and what is searched for it."""

    name: str
    onnx: Callable[[], bytes]
    config: str
    routes: str
    tolerance: Sequence[str]
    minutes: float
    """Budget of the study: with ``AROUND_A_STUDY_S`` the step stays within nine minutes."""
    build_limit_s: float = 75.0
    concurrency: int = 32
    sample: Callable[[np.random.Generator], dict[str, np.ndarray[Any, Any]]] = field(repr=False, default=lambda _: {})
    datatypes: Mapping[str, str] = field(default_factory=dict)
    more: Sequence[str] = ()


def fetched_detector() -> bytes:
    if DETECTOR.is_file():
        return DETECTOR.read_bytes()
    from examples.models import fetch

    return fetch("ocr_detection").read_bytes()


def detector() -> bytes:
    """The trained text detector for pictures of one size: of its free dimensions only the batch is left, so that
    TensorRT has the less to build."""
    import onnx

    model = onnx.load_from_string(fetched_detector())
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim[2:]:
            dimension.dim_value = DETECTOR_SIDE
    del model.graph.value_info[:]  # They name the dimensions that are fixed now.
    return model.SerializeToString()


def onnx_config(inputs: str, outputs: str, max_batch: int) -> str:
    return (
        f'platform: "onnxruntime_onnx"\nmax_batch_size: {max_batch}  # as its owner wrote it\n'
        f"input [ {{ {inputs} }} ]\noutput [ {{ {outputs} }} ]\ndynamic_batching {{ }}\n"
    )


CASES = (
    Case(
        "convolutional",
        lambda: networks.convolutional().SerializeToString(),
        onnx_config(
            'name: "x" data_type: TYPE_FP32 dims: [ 3, 56, 56 ]', 'name: "y" data_type: TYPE_FP32 dims: [ 100 ]', 32
        ),
        "-precision=[tf32|fp16] -instances=[1|2|4] -cuda_graphs=[off|on]",
        ("y:cos<=1e-3",),
        2.1,
        sample=lambda random: {"x": random.standard_normal((1, 3, 56, 56)).astype(np.float32)},
        datatypes={"x": "FP32"},
    ),
    Case(
        "transformer",
        lambda: networks.transformer().SerializeToString(),
        onnx_config(
            'name: "ids" data_type: TYPE_INT32 dims: [ 128 ]', 'name: "y" data_type: TYPE_FP32 dims: [ 512 ]', 32
        ),
        "-precision=[tf32|fp16] -opt_batch=[8|32] -instances=[1|4]",
        ("y:cos<=1e-2",),
        2.0,
        sample=lambda random: {"ids": random.integers(0, 1000, (1, 128)).astype(np.int32)},
        datatypes={"ids": "INT32"},
        more=("--int-range", "ids=0:999"),
    ),
    Case(
        "detector",
        detector,
        onnx_config(
            f'name: "x" data_type: TYPE_FP32 dims: [ 3, {DETECTOR_SIDE}, {DETECTOR_SIDE} ]',
            f'name: "sigmoid_0.tmp_0" data_type: TYPE_FP32 dims: [ 1, {DETECTOR_SIDE}, {DETECTOR_SIDE} ]',
            4,
        ),
        # Two engines only: with free height and width TensorRT 8.6 took more than 75 s for the first.
        "-precision=[tf32|fp16] -instances=[1|2|3|4]",
        ("*:lInf<=0.1",),
        6.0,
        build_limit_s=200,
        concurrency=16,
        sample=lambda random: {
            "x": random.standard_normal((1, 3, DETECTOR_SIDE, DETECTOR_SIDE)).astype(np.float32)
        },
        datatypes={"x": "FP32"},
    ),
)  # fmt: skip

ON_A_GPU = "instance_group { kind: KIND_GPU }\n"
"""The owner's: a sandbox without a GPU runtime for ONNX then says that it serves as-found on the CPU."""

SETTINGS = """\
# Short windows and few pairs: a study of two minutes and its builds.
inputs: {{ synthetic_count: 48, held_out_fraction: 0.34 }}
load: {{ concurrency: [{concurrency}], duration_s: 0.6, warmup_s: 0.6, shared_memory: true }}
judge: {{ finalists: 2, pairs: 4, max_pairs: 6, noise_pairs: 3 }}
builder: {{ family: {family}, time_limit_s: {build_limit_s:g} }}
sandbox: {{ launcher: embedded }}
"""

LAYERS = {
    "precision only": "-precision=[tf32|fp16]",
    "serving only": "-instances=[1|2|4] -cuda_graphs=[off|on]",
}
"""What joint search, the study itself, is compared with (``--compare-layers``)."""

WITHOUT_A_GPU = "-instances=[1|2]"
"""Routes of another family, to try this script where there is no GPU."""


def command(arguments: Sequence[str], log: Path, limit_s: float) -> tuple[int, str]:
    """The command line in a process group of its own, so that nothing outlives the limit. Exit status and stdout."""
    with log.open("a", encoding="utf-8") as file:
        print("$ triton-optimizer", *arguments, file=file, flush=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "optimizer", *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True,
            env={**os.environ, "COLUMNS": "140", "NO_COLOR": "1", "TERM": "dumb"},
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            # As Ctrl-C: the study keeps what it has and stops its server.
            process.send_signal(signal.SIGINT)
            try:
                out, _ = process.communicate(timeout=25)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, _ = process.communicate()
        print(f"-> {process.returncode}", file=file, flush=True)
    return process.returncode, out


class Studies:
    def __init__(self, out: Path, family: str, scale: float) -> None:
        self.out, self.family, self.scale = out, family, scale
        self.log = out / "study.log"

    def repository(self, case: Case, folder: Path) -> Path:
        repository = folder / "models"
        shutil.rmtree(repository, ignore_errors=True)
        directory = repository / case.name
        (directory / "1").mkdir(parents=True)
        (directory / "1" / "model.onnx").write_bytes(case.onnx())
        (directory / "config.pbtxt").write_text(case.config, encoding="ascii")
        return repository

    def optimize(self, case: Case, folder: Path, routes: str, minutes: float) -> tuple[Path, int]:
        """A new study, or the rest of one that was cut off; the exit status."""
        study = folder / "study"
        limit_s = minutes * 60 + 60
        if (study / "study.json").exists():
            return study, command(["resume", str(study), "--quiet", "--json"], self.log, limit_s)[0]
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "settings.yaml"
        text = SETTINGS.format(concurrency=case.concurrency, family=self.family, build_limit_s=case.build_limit_s)
        settings.write_text(text, encoding="ascii")
        if not (folder / "models").exists():
            self.repository(case, folder)
        tolerance = [word for text in case.tolerance for word in ("--tolerance", text)]
        arguments = [
            "optimize", str(folder / "models"), "--model", case.name, "--config", str(settings), "--study", str(study),
            "--routes", routes, "--budget-minutes", f"{minutes:.2f}", "--progress-json", "--json", *tolerance,
            *case.more,
        ]  # fmt: skip
        return study, command(arguments, self.log, limit_s)[0]

    def report(self, study: Path, name: str) -> dict[str, Any]:
        status, text = command(["report", str(study), "--json"], self.log, 60)
        if status:
            raise RuntimeError(f"report ended with {status}; see {self.log.name}")
        (self.out / f"study-{name}.json").write_text(text, encoding="utf-8")
        (self.out / f"study-{name}.txt").write_text(command(["report", str(study)], self.log, 60)[1], encoding="utf-8")
        document: dict[str, Any] = json.loads(text)
        return document

    def case(self, case: Case) -> dict[str, Any]:
        folder = self.out / "study" / case.name
        minutes = case.minutes * self.scale
        started = time.monotonic()
        before = sha256_tree(folder / "models") if (folder / "models").exists() else ""
        routes = case.routes if self.family == "tensorrt" else WITHOUT_A_GPU
        study, status = self.optimize(case, folder, routes, minutes)
        result: dict[str, Any] = {"optimize": status, "optimize_s": round(time.monotonic() - started, 1)}
        before = before or sha256_tree(self.as_it_was(case, folder))
        result["tree_after_study_is_unchanged"] = sha256_tree(folder / "models") == before
        document = self.report(study, case.name)
        result |= told(document)
        if status != 0:
            raise RuntimeError(f"optimize ended with {status}: {json.dumps(result)[:1500]}")
        if (document.get("decision") or {}).get("winner") is None:
            # Keeping what is there is a result; there is nothing to write.
            return result
        result["write_back"] = self.write_back(case, folder, study, before)
        shutil.rmtree(study / "sandbox", ignore_errors=True)
        return result

    def as_it_was(self, case: Case, folder: Path) -> Path:
        """The repository made once more: what its hash was before anything ran."""
        return self.repository(case, folder / "again")

    def write_back(self, case: Case, folder: Path, study: Path, before: str) -> dict[str, Any]:
        models = folder / "models"
        done: dict[str, Any] = {}
        arguments = ["apply", str(study), "--json"]
        done["plain_apply"] = command(arguments, self.log, 120)[0]
        done["apply"] = done["plain_apply"]
        if done["plain_apply"] == 6:
            done["apply"] = command([*arguments, "--accept-unserved-baseline"], self.log, 120)[0]
        if done["apply"]:
            done["unchanged"] = sha256_tree(models) == before
            return done
        directory = models / case.name
        done["files"] = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
        done["config"] = (directory / "config.pbtxt").read_text(encoding="utf-8")
        try:
            done["fresh_server"] = self.fresh_server(case, directory)
        except Exception as error:  # noqa: BLE001 - the rollback must still be tried
            done["fresh_server"] = {"error": f"{type(error).__name__}: {error}"[:600]}
        status, text = command(["status", str(models), "--model", case.name, "--json"], self.log, 60)
        done["status"] = json.loads(text) if status == 0 else status
        done["rollback"] = command(["rollback", str(models), "--model", case.name, "--json"], self.log, 60)[0]
        done["tree_is_as_before"] = sha256_tree(models) == before
        done["config_is_as_before"] = (directory / "config.pbtxt").read_text(encoding="utf-8") == case.config
        if not done["tree_is_as_before"]:
            done["files_left"] = sorted(str(p.relative_to(models)) for p in models.rglob("*") if p.is_file())
        return done

    def fresh_server(self, case: Case, directory: Path) -> dict[str, Any]:
        """What was written, on a server that has seen nothing else, against ONNX Runtime on the CPU."""
        from optimizer.records.deployment import Deployment
        from optimizer.triton.client import TritonClient

        versions = sorted((p for p in directory.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
        live = versions[-1]
        files = {f"{live.name}/{p.name}": p for p in live.iterdir() if p.is_file()}
        config = (directory / "config.pbtxt").read_text(encoding="utf-8")
        served = Deployment(name=case.name, config_text=config, files=files)
        random = np.random.default_rng(99)
        inputs = [case.sample(random) for _ in range(24)]
        reference = serving.Reference(case.onnx())
        expected = [reference(sample) for sample in inputs]
        gpu = "0" if any(Path("/dev").glob("nvidia[0-9]*")) else None
        with serving.start(self.out / "work" / f"fresh-{case.name}", gpu) as sandbox:
            failure = sandbox.load(served)
            if failure is not None:
                raise RuntimeError(failure.message)
            with TritonClient(sandbox.info.grpc_url) as client:
                answers = serving.ask(client, case.name, inputs, dict(case.datatypes))
        errors = [answer for answer in answers if isinstance(answer, str)]
        if errors:
            raise RuntimeError(f"{len(errors)} of {len(answers)} requests failed: {errors[0]}")
        worst = serving.worst_difference([a for a in answers if not isinstance(a, str)], expected)
        return {"version": live.name, "requests": len(answers), "worst": worst}

    def layers(self, case: Case, which: str) -> dict[str, Any]:
        """The served gain of one search alone; the joint search is the study itself."""
        folder = self.out / "study" / f"{case.name}-{which.replace(' ', '-')}"
        study, status = self.optimize(case, folder, LAYERS[which], 1.4 * self.scale)
        document = self.report(study, f"{case.name}-{which.replace(' ', '-')}")
        return {"optimize": status, **told(document)}


def told(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the table shows of a study's document; every key is looked for, none is needed."""
    decision = document.get("decision") or {}
    rows = document.get("candidates") or []
    states: dict[str, int] = {}
    for row in rows:
        states[str(row.get("state"))] = states.get(str(row.get("state")), 0) + 1
    return {
        "summary": str(decision.get("sentence", "no decision"))[:400],
        "verdict": decision.get("verdict"),
        "candidates": len(rows),
        "states": states,
        "engines": [
            {key: row.get(key) for key in ("route", "build_s", "size_bytes", "device_memory_bytes") if key in row}
            for row in rows
        ][:20],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--only", default="", help="a network's name")
    parser.add_argument("--family", default="tensorrt", help="another engine family, to try this script without a GPU")
    parser.add_argument("--scale", type=float, default=1.0, help="of every study's time")
    parser.add_argument(
        "--compare-layers", action="store_true", help="joint search against precision and serving alone"
    )
    parser.add_argument("--fetch-models", action="store_true", help=f"make {DETECTOR}, then stop")
    options = parser.parse_args()
    if options.fetch_models:
        DETECTOR.parent.mkdir(exist_ok=True)
        DETECTOR.write_bytes(fetched_detector())
        print(DETECTOR)
        return 0
    if options.out is None:
        parser.error("--out is needed")
    out = options.out.resolve()
    facts = serving.facts() if options.family == "tensorrt" else {"family": options.family}
    piece = "study_layers" if options.compare_layers else "study"
    steps = Steps(out, piece, options.seconds, facts)
    studies = Studies(out, options.family, options.scale)
    for each in CASES:
        case = replace(each, config=each.config + ON_A_GPU) if options.family == "tensorrt" else each
        if options.only not in case.name:
            continue
        if not options.compare_layers:
            reserve = case.minutes * options.scale * 60 + AROUND_A_STUDY_S
            steps.step(case.name, partial(studies.case, case), reserve_s=reserve)
        elif case.name != "detector":
            for which in ("precision only", "serving only"):
                steps.step(
                    f"{case.name}, {which}", partial(studies.layers, case, which), reserve_s=84 * options.scale + 15
                )
    return steps.finish()


if __name__ == "__main__":
    sys.exit(main())
