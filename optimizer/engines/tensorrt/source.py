"""What an ONNX file says of itself: inputs, outputs, quantization, size. Imports onnx on first use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.engines.onnx_files import UnreadableOnnx, external_files, onnx_file
from optimizer.errors import InputError

_PLACEHOLDERS = frozenset({"none", "unknown", "unk", "dynamic", "dyn"})
_QUANTIZERS = {"QuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True)
class OnnxTensor:
    """``dims`` has ``-1`` for a free dimension, ``None`` is an unknown rank; ``symbols`` names free dimensions."""

    name: str
    datatype: str
    dims: tuple[int, ...] | None
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True)
class OnnxSource:
    path: Path
    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    quantized: tuple[str, ...]
    """Types of its own Q/DQ nodes: ``int8``, ``fp8``; empty when it is not quantized."""
    operators: frozenset[str]
    size_bytes: int
    """With external data."""

    def input(self, name: str) -> OnnxTensor | None:
        return next((tensor for tensor in self.inputs if tensor.name == name), None)

    def output(self, name: str) -> OnnxTensor | None:
        return next((tensor for tensor in self.outputs if tensor.name == name), None)


def read_source(path: Path) -> OnnxSource:
    """Raises :class:`InputError` naming the file. External data are not loaded."""
    import onnx

    file = onnx_file(path)
    try:
        external = external_files(file)
        model = onnx.load(str(file), load_external_data=False)
    except UnreadableOnnx as error:
        raise InputError(str(error), where=file, remedy="export the model again, or name another with --onnx") from None
    constants = {item.name for item in model.graph.initializer}
    operators: set[str] = set()
    quantized: set[str] = set()
    types = {item.name: item.data_type for item in model.graph.initializer}
    for node in _nodes(model.graph):
        operators.add(node.op_type)
        if node.op_type in _QUANTIZERS:
            zero = types.get(node.input[2]) if len(node.input) > 2 else None
            fp8 = {onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT8E5M2}
            quantized.add("fp8" if zero in fp8 else "int8")
    size = sum(each.stat().st_size for each in (file, *external))
    return OnnxSource(
        path=file,
        inputs=tuple(_tensor(item) for item in model.graph.input if item.name not in constants),
        outputs=tuple(_tensor(item) for item in model.graph.output),
        quantized=tuple(sorted(quantized)),
        operators=frozenset(operators),
        size_bytes=size,
    )


def separate_dimensions(
    source: OnnxSource, observed: Sequence[Mapping[str, tuple[int, ...]]]
) -> dict[str, dict[int, str]]:
    """New names of input dimensions: ``{input: {axis: name}}``; empty when the names are right as they are.

    TensorRT takes dimensions of one name to be equal, and exporters write ``?`` for every free one. Such placeholders,
    and names that ``observed`` shapes (requests, profiles) contradict, get names of their own.
    """
    contradicted = set()
    for shapes in observed:
        seen: dict[str, int] = {}
        for tensor in source.inputs:
            for name, size in zip(tensor.symbols, shapes.get(tensor.name, ()), strict=False):
                if name and seen.setdefault(name, size) != size:
                    contradicted.add(name)
    renamed: dict[str, dict[int, str]] = {}
    for tensor in source.inputs:
        for axis, name in enumerate(tensor.symbols):
            proper = re.fullmatch(r"[A-Za-z_]\w*", name) and name.lower() not in _PLACEHOLDERS
            if name and (name in contradicted or not proper):
                renamed.setdefault(tensor.name, {})[axis] = f"{tensor.name}_axis_{axis}"
    return renamed


def rename_dimensions(model: Any, names: Mapping[str, Mapping[int, str]]) -> None:
    """Changes ``model``'s inputs in place; types of intermediate tensors are dropped, since they use the old names."""
    for value in model.graph.input:
        for axis, name in names.get(value.name, {}).items():
            value.type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.value_info[:]


def _nodes(graph: Any) -> Any:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
            for inner in attribute.graphs:
                yield from _nodes(inner)


def _tensor(value: Any) -> OnnxTensor:
    import onnx

    tensor = value.type.tensor_type
    names = {"FLOAT": "FP32", "FLOAT16": "FP16", "BFLOAT16": "BF16", "DOUBLE": "FP64", "STRING": "BYTES"}
    name = onnx.TensorProto.DataType.Name(tensor.elem_type)
    dims: tuple[int, ...] | None = None
    symbols: tuple[str, ...] = ()
    if tensor.HasField("shape"):
        dims = tuple(
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else -1 for dim in tensor.shape.dim
        )
        symbols = tuple(dim.dim_param for dim in tensor.shape.dim)
    return OnnxTensor(value.name, names.get(name, name), dims, symbols)
