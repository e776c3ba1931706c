"""Builds one engine, or says what the builder can do, in a process of its own.

    python -m optimizer.engines.tensorrt.worker REQUEST.json RESULT.json

``-`` stands for stdin and stdout. Log and progress go to stderr. The request is a JSON object:

``action``      ``probe`` (only ``module`` is read) or ``build``
``module``      ``tensorrt``, ``tensorrt_rtx``, or any module with that interface
``onnx``        the model; ``weights_of``: the file beside which its external data lie, where that is another one
``plan``        the file to write; ``inspection``: the one for the layers
``outputs``     the outputs to keep; empty keeps all
``precision``   ``tf32`` ``fp32`` ``fp16`` ``bf16``; ``quantized``: types of the model's own Q/DQ nodes
``rewritten``   the ONNX already has that precision in its types
``keep_fp32``   ONNX operators to keep in FP32 where typing is weak
``settings``    builder knobs by name; ``build_route``: the tuner's text
``profiles``    a list of ``{input: [min, opt, max]}``; ``values``: the same for shape tensors' values
``timing_cache_directory``   an existing directory, or null

The result is ``{"ok": true, …}`` or ``{"ok": false, "reason", "message", "evidence"}``, with ``peak_memory_bytes`` of
this process where the system tells it; the exit status is 0 whenever a result was written. Standard library, the
TensorRT module, and onnx where it is there.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from optimizer import processes
from optimizer.engines.tensorrt import capabilities, failures, network, settings
from optimizer.engines.tensorrt.timing_cache import TimingCache, cache_file
from optimizer.records.engine import BuildFailureReason

_MAXIMAL_CHATTER = 2000
_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I", "VERBOSE": "V"}


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    # TensorRT itself writes to stdout: keep the real one for the result and let everything else go to the log.
    stdout = os.dup(1)
    os.dup2(2, 1)
    # TensorRT 8.6 loads every kernel it has at its start, seconds of each build, unless CUDA is told otherwise.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    source = sys.stdin.read() if arguments[0] == "-" else Path(arguments[0]).read_text(encoding="utf-8")
    request = json.loads(source)
    result = answer(request)
    # Whoever watches from outside misses a build of a moment.
    result["peak_memory_bytes"] = processes.status_bytes("self", "VmHWM") or None
    text = json.dumps(result, indent=1, sort_keys=True)
    if arguments[1] == "-":
        with os.fdopen(stdout, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    else:
        target = Path(arguments[1])
        temporary = target.with_name(f".{target.name}.partial")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(target)
    return 0


def answer(request: dict[str, Any]) -> dict[str, Any]:
    lines: list[str] = []
    name = str(request["module"])
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever the import of a binding raises, it is not available
        return _failure(BuildFailureReason.NOT_AVAILABLE, f"cannot import {name} in {sys.executable}: {error}", lines)
    try:
        have = capabilities.probe(module, name)
        if request["action"] == "probe":
            return {"ok": True, "capabilities": have.as_json(), "python": sys.executable}
        return build(module, have, request, lines)
    except network.BuildRefused as error:
        return _failure(error.reason, str(error), lines)
    except settings.NotAvailable as error:
        return _failure(BuildFailureReason.NOT_AVAILABLE, str(error), lines)
    except MemoryError:
        return _failure(BuildFailureReason.OUT_OF_MEMORY, "Python ran out of memory", lines)
    except OSError as error:
        reason = BuildFailureReason.NO_SPACE if error.errno in (28, 122) else BuildFailureReason.OTHER
        return _failure(reason, f"{error.filename or 'file'}: {error.strerror or error}", lines)
    except Exception as error:  # noqa: BLE001 - the binding raises anything; a failed build is data
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        return _failure(failures.reason_from_log(text, BuildFailureReason.OTHER), text, lines)


def build(module: Any, have: capabilities.Capabilities, request: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    started = time.monotonic()
    logger = make_logger(module, lines)
    with contextlib.suppress(AttributeError):
        module.init_libnvinfer_plugins(logger, "")
    builder = module.Builder(logger)
    graph, parser = network.parse(module, builder, logger, have, Path(request["onnx"]), request.get("weights_of"))
    removed = network.keep_outputs(graph, request.get("outputs") or [])
    config = builder.create_builder_config()
    if hasattr(module, "ProfilingVerbosity"):
        config.profiling_verbosity = getattr(module.ProfilingVerbosity, str(request.get("verbosity", "DETAILED")))
    taken: dict[str, Any] = {"shared_profiles": settings.allow_shared_profiles(module, config)}
    precision = str(request.get("precision", "tf32"))
    taken["flags"] = settings.apply_precision(
        module, config, have, precision, tuple(request.get("quantized") or ()), bool(request.get("rewritten"))
    )
    if have.weak_typing and request.get("keep_fp32") and precision not in ("tf32", "fp32"):
        taken["kept_fp32"] = settings.pin_fp32(module, config, graph, tuple(request["keep_fp32"]))
    taken["builder"] = settings.apply_builder(module, config, have, request.get("settings") or {})
    taken["build_route"] = settings.apply_build_route(config, have, str(request.get("build_route") or ""))
    profiles = request.get("profiles") or []
    count = network.add_profiles(builder, config, graph, profiles, request.get("values") or {})
    cache = None
    if request.get("timing_cache_directory") and have.timing_cache:
        flags = [key.lower() for key, flag in module.BuilderFlag.__members__.items() if config.get_flag(flag)]
        cache = TimingCache(cache_file(Path(request["timing_cache_directory"]), have, flags), lines)
        cache.attach(config)
    parsed_s = time.monotonic() - started
    print(f"[worker] parsed in {parsed_s:.2f} s; building with {have.builder}", file=sys.stderr, flush=True)
    plan = builder.build_serialized_network(graph, config)
    build_s = time.monotonic() - started
    if plan is None:
        text = "\n".join(lines)
        reason = failures.reason_from_log(text, BuildFailureReason.RETURNED_NOTHING)
        last = next((line for line in reversed(lines) if line.startswith(("[E]", "[F]"))), "and said nothing")
        message = last if reason is not BuildFailureReason.RETURNED_NOTHING else f"the builder returned None: {last}"
        return _failure(reason, message, lines)
    data = bytes(memoryview(plan))
    if cache is not None:
        cache.save(config)
    description = network.describe_network(graph, profiles if count else [])
    engine_facts = open_engine(module, have, logger, data, request, lines)
    with Path(request["plan"]).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    del parser
    return {
        "ok": True,
        "builder": have.builder,
        "capabilities": have.as_json(),
        "build_s": build_s,
        "parse_s": parsed_s,
        "sha256": hashlib.sha256(data).hexdigest(),
        "size_bytes": len(data),
        "engine": {**description, **engine_facts},
        "taken": taken,
        "removed_outputs": removed,
        "timing_cache": cache.status if cache is not None else "none",
        "warnings": [line for line in lines if line.startswith("[W]")][:20],
    }


def open_engine(
    module: Any, have: capabilities.Capabilities, logger: Any, data: bytes, request: dict[str, Any], lines: list[str]
) -> dict[str, Any]:
    """Opens the plan as a server would. Without a GPU only its header can be looked at.

    Raises :class:`network.BuildRefused` for a plan that is no engine.
    """
    runtime = module.Runtime(logger)
    if not have.gpu and have.engine_validity:
        _, diagnostics = runtime.get_engine_validity(data)
        malformed = int(module.EngineInvalidityDiagnostics.MALFORMED_ENGINE)
        if int(diagnostics) & malformed:
            raise network.BuildRefused(BuildFailureReason.INVALID_ENGINE, "the plan is malformed")
        return {}
    engine = runtime.deserialize_cuda_engine(data)
    if engine is None:
        last = next((line for line in reversed(lines) if line.startswith(("[E]", "[F]"))), "no reason given")
        raise network.BuildRefused(BuildFailureReason.INVALID_ENGINE, f"the plan cannot be opened: {last}")
    facts = network.describe_engine(engine)
    if have.inspector and request.get("inspection"):
        text, fingerprint = network.inspect(module, engine)
        Path(request["inspection"]).write_text(text, encoding="utf-8")
        facts["fingerprint"] = fingerprint
    return facts


def make_logger(module: Any, lines: list[str]) -> Any:
    """A logger that prints with the severity's letter, keeps errors and warnings, and caps the rest."""

    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            # pybind11 needs the base constructor called explicitly.
            module.ILogger.__init__(self)
            self.chatter = 0

        def log(self, severity: Any, message: str) -> None:
            letter = _LETTERS.get(str(severity).rsplit(".", 1)[-1], "I")
            if letter == "V":
                return
            if letter == "I":
                self.chatter += 1
                if self.chatter > _MAXIMAL_CHATTER:
                    return
            if letter in "FEW" and len(lines) < _MAXIMAL_CHATTER:
                lines.append(f"[{letter}] {message}")
            print(f"[{letter}] {message}", file=sys.stderr, flush=True)

    return Logger()


def _failure(reason: BuildFailureReason, message: str, lines: list[str]) -> dict[str, Any]:
    return {"ok": False, "reason": reason.value, "message": message, "evidence": failures.evidence(lines)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
