"""Rewrites an ONNX model to FP16 or BF16 for builders that take types from the network (TensorRT 11, TensorRT-RTX).

    python -m optimizer.engines.tensorrt.precision REQUEST.json RESULT.json

A worker of its own, since converters crash and use memory too. Inputs and outputs keep their types. Needs onnx and
onnxconverter-common.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MAXIMAL_PROTOBUF_BYTES = 2**31 - 1


def rewrite(source: Path, target: Path, precision: str, keep_fp32: Sequence[str]) -> dict[str, Any]:
    """Writes ``target``; returns counts. Raises ``ValueError`` when the model cannot be rewritten."""
    import onnx

    model = onnx.load(str(source))
    originals = _weights(model.graph)
    if precision == "bf16" and any(item.data_type == onnx.TensorProto.FLOAT16 for item in originals.values()):
        raise ValueError("the model already holds FP16 tensors: they cannot be told from rewritten ones")
    _name_nodes(model.graph)
    converted, caught = _to_float16(model, keep_fp32)
    if precision == "bf16":
        _half_to_bfloat16(converted.graph, originals)
    large = converted.ByteSize() > MAXIMAL_PROTOBUF_BYTES - (1 << 20)
    onnx.save_model(
        converted,
        str(target),
        save_as_external_data=large,
        all_tensors_to_one_file=True,
        location=f"{target.name}.data",
    )
    return {"ok": True, "nodes": len(converted.graph.node), "warnings": caught[:20]}


def _to_float16(model: Any, keep_fp32: Sequence[str]) -> tuple[Any, list[str]]:
    from onnxconverter_common import float16

    blocked = [*float16.DEFAULT_OP_BLOCK_LIST, *keep_fp32]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # The converter's own limit of 1e4 would clip weights that FP16 can hold; its largest finite value is 65504.
        converted = float16.convert_float_to_float16(
            model, min_positive_val=5.96e-08, max_finite_val=65504.0, keep_io_types=True, op_block_list=blocked
        )
    return converted, sorted({str(item.message) for item in caught})


def _name_nodes(graph: Any) -> None:
    """The converter derives the names of its casts from node names: nameless nodes would share them."""
    used = {node.name for node in graph.node if node.name}
    seen: set[str] = set()
    for index, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            name = f"{node.op_type}_{index}"
            while name in used:
                name += "_"
            node.name = name
            used.add(name)
        seen.add(node.name)


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)


def _weights(graph: Any) -> dict[str, Any]:
    """Copies of initializers and constants by name, as they were before the conversion."""
    found = {}
    for item in _graphs(graph):
        for tensor in item.initializer:
            found[tensor.name] = type(tensor).FromString(tensor.SerializeToString())
        for node in item.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        found[node.output[0]] = type(attribute.t).FromString(attribute.t.SerializeToString())
    return found


def _half_to_bfloat16(graph: Any, originals: Mapping[str, Any]) -> None:
    """Every FP16 of the converted model becomes BF16; weights are rounded from the original FP32, whose range BF16
    has."""
    import onnx

    half, brain = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
    for item in _graphs(graph):
        for tensor in item.initializer:
            _round_weight(tensor, originals.get(tensor.name))
        for value in [*item.value_info, *item.input, *item.output]:
            if value.type.tensor_type.elem_type == half:
                value.type.tensor_type.elem_type = brain
        for node in item.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i == half:
                    attribute.i = brain
                elif attribute.HasField("t"):
                    _round_weight(attribute.t, originals.get(node.output[0]))


def _round_weight(tensor: Any, original: Any) -> None:
    import numpy as np
    import onnx
    from onnx import numpy_helper

    if tensor.data_type != onnx.TensorProto.FLOAT16:
        return
    exact = original is not None and original.data_type == onnx.TensorProto.FLOAT
    values = numpy_helper.to_array(original if exact else tensor).astype(np.float32)
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    name, dims = tensor.name, list(tensor.dims)
    tensor.Clear()
    tensor.name = name
    tensor.dims.extend(dims)
    tensor.data_type = onnx.TensorProto.BFLOAT16
    tensor.raw_data = rounded.tobytes()


def main(arguments: list[str]) -> int:
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    result: dict[str, Any]
    try:
        result = rewrite(
            Path(request["onnx"]), Path(request["target"]), request["precision"], request.get("keep_fp32") or ()
        )
    except ImportError as error:
        result = {
            "ok": False,
            "reason": "not_available",
            "message": f"cannot rewrite ONNX types: {error}; install onnxconverter-common",
        }
    except MemoryError:
        result = {"ok": False, "reason": "out_of_memory", "message": "Python ran out of memory while rewriting types"}
    except Exception as error:  # noqa: BLE001 - converters raise anything; a failed rewrite is data
        text = f"cannot rewrite the model to {request['precision']}: {type(error).__name__}: {error}"
        result = {"ok": False, "reason": "other", "message": text}
    Path(arguments[1]).write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
