"""From an ONNX file to a TensorRT network and its profiles, and from an engine to a description. Runs in the worker."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.engines.tensorrt.capabilities import Capabilities
from optimizer.engines.tensorrt.failures import parser_reason
from optimizer.records.engine import BuildFailureReason

_TRITON_NAMES = {"FLOAT": "FP32", "HALF": "FP16"}


class BuildRefused(Exception):
    """A typed failure on its way out of the worker."""

    def __init__(self, reason: BuildFailureReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def triton_type(value: Any) -> str:
    name = str(value).rsplit(".", 1)[-1]
    return _TRITON_NAMES.get(name, name)


def parse(
    module: Any, builder: Any, logger: Any, have: Capabilities, onnx_file: Path, weights_of: str | None = None
) -> tuple[Any, Any]:
    """Network and parser (which owns the weights: keep it). Raises :class:`BuildRefused` naming node and operator.

    ``weights_of`` is the file beside which external data lie, where that is not ``onnx_file``.
    """
    creation = 0
    if have.explicit_batch_flag:
        creation |= 1 << int(module.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
    network = builder.create_network(creation)
    parser = module.OnnxParser(network, logger)
    done = parser.parse(onnx_file.read_bytes(), weights_of) if weights_of else parser.parse_from_file(str(onnx_file))
    if not done:
        raise _parse_failure(parser, onnx_file)
    return network, parser


def _parse_failure(parser: Any, onnx_file: Path) -> BuildRefused:
    codes, lines = [], []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        if error is None:
            continue
        code = str(error.code()).rsplit(".", 1)[-1]
        name, operator = _node(error, onnx_file)
        codes.append(code)
        lines.append(f"node {name or error.node()} ({operator or 'operator unknown'}): {error.desc()} [{code}]")
    text = "; ".join(lines) or f"the ONNX parser rejected {onnx_file.name} and gave no reason"
    return BuildRefused(parser_reason(codes, text), text)


def _node(error: Any, onnx_file: Path) -> tuple[str, str]:
    if hasattr(error, "node_name"):
        return str(error.node_name()), str(error.node_operator())
    # TensorRT 8 gives only the node's index in the top-level graph.
    try:
        import onnx
    except ImportError:
        return "", ""
    nodes = onnx.load(str(onnx_file), load_external_data=False).graph.node
    index = int(error.node())
    return (nodes[index].name or f"#{index}", nodes[index].op_type) if 0 <= index < len(nodes) else ("", "")


def keep_outputs(network: Any, names: Sequence[str]) -> list[str]:
    """Unmarks the outputs that the service does not have: Triton wants every engine output in the config, and what
    clients see stays the same. Returns the removed names.
    """
    outputs = [network.get_output(index) for index in range(network.num_outputs)]
    extra = [tensor for tensor in outputs if names and tensor.name not in names]
    missing = [name for name in names if name not in {tensor.name for tensor in outputs}]
    if missing:
        raise BuildRefused(BuildFailureReason.REFUSED, f"the ONNX model has no output {', '.join(missing)}")
    removed = [tensor.name for tensor in extra]
    for tensor in extra:
        network.unmark_output(tensor)
    return removed


def add_profiles(
    builder: Any,
    config: Any,
    network: Any,
    profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]],
    values: Mapping[str, Sequence[Sequence[int]]],
) -> int:
    """``profiles[i][input]`` is (min, opt, max) of the full shape, ``values[input]`` of a shape tensor's values.

    Inputs with no free dimension need none. Returns the number of profiles.
    """
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    dynamic = [tensor for tensor in inputs if tensor.is_shape_tensor or -1 in tuple(tensor.shape)]
    if not dynamic:
        return 0
    for number, shapes in enumerate(profiles or [{}]):
        profile = builder.create_optimization_profile()
        for tensor in dynamic:
            if tensor.is_shape_tensor:
                if tensor.name not in values:
                    raise BuildRefused(
                        BuildFailureReason.REFUSED,
                        f"input {tensor.name} decides shapes by its values: give their range as values.{tensor.name}",
                    )
                profile.set_shape_input(tensor.name, *[tuple(item) for item in values[tensor.name]])
            elif tensor.name not in shapes:
                raise BuildRefused(
                    BuildFailureReason.REFUSED, f"input {tensor.name} has free dimensions and no range for them"
                )
            else:
                profile.set_shape(tensor.name, *[tuple(item) for item in shapes[tensor.name]])
        if config.add_optimization_profile(profile) < 0:
            raise BuildRefused(BuildFailureReason.OTHER, f"TensorRT rejects optimization profile {number}: {shapes}")
    return len(profiles or [{}])


def describe_network(network: Any, profiles: Sequence[Mapping[str, Sequence[Sequence[int]]]]) -> dict[str, Any]:
    """What the engine's bindings will be, where the engine itself cannot be opened (no GPU)."""
    tensors = []
    for mode, count, get in (
        ("input", network.num_inputs, network.get_input),
        ("output", network.num_outputs, network.get_output),
    ):
        for index in range(count):
            tensor = get(index)
            shape = _shape(tensor.shape)
            tensors.append(
                {
                    "name": tensor.name,
                    "mode": mode,
                    "datatype": triton_type(tensor.dtype),
                    "shape": shape,
                    "shape_tensor": bool(tensor.is_shape_tensor),
                    "format": "LINEAR",
                    "profiles": [list(map(list, item.get(tensor.name, (shape,) * 3))) for item in profiles]
                    if mode == "input"
                    else [],
                }
            )
    return {"source": "network", "profiles": max(1, len(profiles)), "tensors": tensors}


def describe_engine(engine: Any) -> dict[str, Any]:
    """Every I/O tensor of an opened engine, its profiles, and its memory."""
    tensors = []
    count = int(engine.num_optimization_profiles)
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        mode = str(engine.get_tensor_mode(name)).rsplit(".", 1)[-1].lower()
        # TensorRT gives shape tensors a host location; Triton then wants is_shape_tensor in the config.
        on_host = str(engine.get_tensor_location(name)).rsplit(".", 1)[-1] == "HOST"
        tensors.append(
            {
                "name": name,
                "mode": mode,
                "datatype": triton_type(engine.get_tensor_dtype(name)),
                "shape": _shape(engine.get_tensor_shape(name)),
                "shape_tensor": on_host or bool(engine.is_shape_inference_io(name)),
                "format": str(engine.get_tensor_format(name)).rsplit(".", 1)[-1],
                "profiles": [
                    [_shape(shape) for shape in engine.get_tensor_profile_shape(name, number)]
                    for number in range(count)
                ]
                if mode == "input" and not on_host
                else [],
            }
        )
    return {
        "source": "engine",
        "profiles": count,
        "tensors": tensors,
        "device_memory_bytes": int(
            engine.device_memory_size_v2 if hasattr(engine, "device_memory_size_v2") else engine.device_memory_size
        ),
        "layers": int(engine.num_layers),
        "aux_streams": int(getattr(engine, "num_aux_streams", 0)),
    }


def inspect(module: Any, engine: Any) -> tuple[str, str]:
    """The inspector's JSON text and a fingerprint of it: equal fingerprints are the same layers with the same tactics
    (only at DETAILED verbosity; layer names alone hide accumulation types).
    """
    text = str(engine.create_engine_inspector().get_engine_information(module.LayerInformationFormat.JSON))
    try:
        normal = json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        normal = text
    return text, hashlib.sha256(normal.encode()).hexdigest()


def _shape(dims: Any) -> list[int]:
    try:
        return [int(value) for value in dims]
    except ValueError:
        # Dims of unknown rank cannot be iterated.
        return []
