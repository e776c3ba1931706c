"""Inputs, outputs and external data of an ONNX file, without its weights. Imports onnx on first use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# onnx.TensorProto.DataType to Triton's names. The types of 8 bits and fewer of floating point have no counterpart.
_DATATYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "BYTES", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
# Above this, shape inference would need the file on disk, and minutes.
_INFERENCE_LIMIT_BYTES = 256 << 20


class OnnxUnreadable(Exception):
    """The file is no ONNX model; the message says what the reader said."""


@dataclass(frozen=True)
class OnnxTensor:
    """``datatype`` is Triton's name, or ``None`` for a type that Triton does not know, which ``type_text`` describes.

    ``dims`` is the whole shape, batch dimension included, ``-1`` for a free dimension; ``None``: the rank is unknown.
    """

    name: str
    datatype: str | None
    dims: tuple[int, ...] | None
    type_text: str = ""


@dataclass(frozen=True)
class OnnxSignature:
    inputs: tuple[OnnxTensor, ...]
    """Without those that have an initializer."""
    overridable: tuple[OnnxTensor, ...]
    """Inputs with an initializer: a request may leave them out."""
    outputs: tuple[OnnxTensor, ...]
    external_files: tuple[str, ...] = ()
    """Locations of external data, relative to the file's directory, each once."""
    opsets: dict[str, int] = field(default_factory=dict)
    custom_domains: tuple[str, ...] = ()
    """Operator domains beside ONNX's own."""

    @property
    def can_batch(self) -> bool:
        """Every tensor has a free first dimension: what Triton's auto-complete asks before it makes a batch of it."""
        return all(tensor.dims and tensor.dims[0] == -1 for tensor in (*self.inputs, *self.outputs))


def onnx_file(path: Path) -> Path:
    """What the backend opens: ``model.onnx`` inside where ``path`` is a directory."""
    return path / "model.onnx" if path.is_dir() else path


def read_signature(path: Path) -> OnnxSignature:
    """Raises :class:`OnnxUnreadable` for a file that is no ONNX model, ``OSError`` for one that cannot be read."""
    import onnx
    from google.protobuf.message import DecodeError

    data = path.read_bytes()
    try:
        model = onnx.load_model_from_string(data)
    except (DecodeError, ValueError) as error:
        raise OnnxUnreadable(str(error) or "it is no protobuf message") from None
    graph = model.graph
    if not graph.output or not model.opset_import:
        raise OnnxUnreadable("it has no outputs or no operator set: it is empty or cut off, or no ONNX model")
    initializers = {tensor.name for tensor in graph.initializer} | {
        tensor.values.name for tensor in graph.sparse_initializer
    }
    outputs = [_tensor(value) for value in graph.output]
    if any(_open(tensor) for tensor in outputs) and len(data) <= _INFERENCE_LIMIT_BYTES:
        outputs = _inferred(model, outputs)
    external = dict.fromkeys(
        entry.value
        for tensor in _all_tensors(graph)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    )
    return OnnxSignature(
        inputs=tuple(_tensor(value) for value in graph.input if value.name not in initializers),
        overridable=tuple(_tensor(value) for value in graph.input if value.name in initializers),
        outputs=tuple(outputs),
        external_files=tuple(external),
        opsets={entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        custom_domains=tuple(
            sorted({node.domain for node in graph.node} - {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training"})
        ),
    )


def _tensor(value: Any) -> OnnxTensor:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        return OnnxTensor(value.name, None, None, (kind or "no type").removesuffix("_type"))
    tensor = value.type.tensor_type
    datatype = _DATATYPES.get(tensor.elem_type)
    dims = None
    if tensor.HasField("shape"):
        dims = tuple(
            int(dim.dim_value) if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0 else -1
            for dim in tensor.shape.dim
        )
    return OnnxTensor(value.name, datatype, dims, "" if datatype else f"tensor of ONNX type {tensor.elem_type}")


def _open(tensor: OnnxTensor) -> bool:
    return tensor.datatype is not None and (tensor.dims is None or -1 in tensor.dims[1:])


def _inferred(model: Any, declared: list[OnnxTensor]) -> list[OnnxTensor]:
    """The outputs with what shape inference knows beyond their declaration, as ONNX Runtime does on loading."""
    import onnx

    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return declared
    inferred = {value.name: _tensor(value) for value in (*graph.value_info, *graph.output)}
    merged = []
    for tensor in declared:
        other = inferred.get(tensor.name)
        if other is None or other.dims is None:
            merged.append(tensor)
        elif tensor.dims is None:
            merged.append(OnnxTensor(tensor.name, tensor.datatype or other.datatype, other.dims))
        elif len(tensor.dims) != len(other.dims):
            merged.append(tensor)
        else:
            dims = tuple(known if known != -1 else more for known, more in zip(tensor.dims, other.dims, strict=True))
            merged.append(OnnxTensor(tensor.name, tensor.datatype, dims))
    return merged


def _all_tensors(graph: Any) -> list[Any]:
    """Initializers and tensor attributes, those of sub-graphs too."""
    found = list(graph.initializer)
    found += [each.values for each in graph.sparse_initializer] + [each.indices for each in graph.sparse_initializer]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                found.append(attribute.t)
            found.extend(attribute.tensors)
            if attribute.HasField("g"):
                found += _all_tensors(attribute.g)
            for inner in attribute.graphs:
                found += _all_tensors(inner)
    return found
