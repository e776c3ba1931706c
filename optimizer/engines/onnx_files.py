"""An ONNX model as files: the model itself and the external data that it names.

ONNX keeps tensors over 2 GiB, and any others an exporter likes, in files beside the model, by relative path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optimizer.durable import sha256_file


class UnreadableOnnx(Exception):
    """The file is no ONNX model, or names data that is not there; the text says which."""


def onnx_file(path: Path) -> Path:
    """The file that ONNX Runtime opens: ``model.onnx`` inside where ``path`` is a directory (Triton's rule)."""
    return path / "model.onnx" if path.is_dir() else path


def external_files(model_file: Path) -> tuple[Path, ...]:
    """Files with external data that ``model_file`` names, sorted. Raises :class:`UnreadableOnnx`."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(str(model_file), load_external_data=False)
    except (OSError, DecodeError, ValueError) as error:
        raise UnreadableOnnx(f"{model_file}: {error}") from None
    names = set()
    for tensor in _tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            names |= {entry.value for entry in tensor.external_data if entry.key == "location"}
    files = []
    root = model_file.parent.resolve()
    for name in sorted(names):
        file = (model_file.parent / name).resolve()
        if not file.is_relative_to(root):
            raise UnreadableOnnx(f"{model_file}: external data {name!r} lies outside the model's directory")
        if not file.is_file():
            raise UnreadableOnnx(f"{model_file}: external data {name!r} is missing")
        files.append(model_file.parent / name)
    return tuple(files)


def served_files(path: Path, name: str) -> Mapping[str, Path]:
    """What a version directory must hold to serve ``path`` as ``name``: a directory stays one."""
    if path.is_dir():
        return {name: path}
    root = path.parent
    return {name: path, **{file.relative_to(root).as_posix(): file for file in external_files(path)}}


def content_hash(files: Mapping[str, Path]) -> str:
    """The sha256 of a single file; for several, a hash over names and contents."""
    flat: dict[str, Path] = {}
    for name, path in files.items():
        if path.is_dir():
            flat |= {f"{name}/{file.relative_to(path).as_posix()}": file for file in path.rglob("*") if file.is_file()}
        else:
            flat[name] = path
    if len(flat) == 1:
        return sha256_file(next(iter(flat.values())))
    digest = hashlib.sha256()
    for name in sorted(flat):
        digest.update(f"{name}\0{sha256_file(flat[name])}\n".encode())
    return digest.hexdigest()


def total_bytes(files: Mapping[str, Path]) -> int:
    return sum(
        file.stat().st_size
        for path in files.values()
        for file in (path.rglob("*") if path.is_dir() else (path,))
        if file.is_file()
    )


def _tensors(model: Any) -> Iterator[Any]:
    """Every tensor of the model: initializers and attributes, subgraphs and functions included."""

    def of_nodes(nodes: Any) -> Iterator[Any]:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                    yield from of_graph(graph)

    def of_graph(graph: Any) -> Iterator[Any]:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield sparse.values
            yield sparse.indices
        yield from of_nodes(graph.node)

    yield from of_graph(model.graph)
    for function in model.functions:
        yield from of_nodes(function.node)
