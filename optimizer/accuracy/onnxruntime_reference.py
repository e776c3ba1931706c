"""Expected outputs from ONNX Runtime on the CPU, without graph optimizations: a reference that owes nothing to the
server, its backend or a GPU. Needs the ``embedded`` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from optimizer.accuracy.comparison import as_bytes
from optimizer.errors import EnvironmentFailure, InputError, ReferenceFailure
from optimizer.records.model import Array, Model, TensorSpec
from optimizer.records.samples import Arrays, SampleSet


def onnxruntime_reference(onnx: Path, model: Model, samples: SampleSet, *, threads: int = 0) -> list[Arrays]:
    """Outputs by the model's names, in the form they have on the wire (``reshape`` undone).

    Raises :class:`EnvironmentFailure` without ONNX Runtime, :class:`InputError` for a file it cannot load or that lacks
    a tensor of the config, :class:`ReferenceFailure` where a sample cannot be computed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise EnvironmentFailure(
            "ONNX Runtime is not installed", remedy="pip install 'triton-optimizer[embedded]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's exceptions have no common base but Exception
        raise InputError(
            f"ONNX Runtime cannot load it: {_first_line(error)}",
            where=onnx,
            remedy="correct the model, or choose another --reference",
        ) from None
    known = {tensor.name for tensor in (*session.get_inputs(), *session.get_outputs())}
    for spec in (*model.inputs, *model.outputs):
        if spec.name not in known and not spec.optional:
            raise InputError(
                f"has no tensor {spec.name!r}, which the config of {model.name} names",
                where=onnx,
                remedy=f"its tensors: {', '.join(sorted(known))}",
            )
        if spec.datatype == "BF16":
            raise InputError(
                f"tensor {spec.name!r} is BF16, which ONNX Runtime's Python interface does not take", where=onnx,
                remedy="choose --reference as-found, or give golden outputs",
            )  # fmt: skip
    names = [spec.name for spec in model.outputs]
    results: list[Arrays] = []
    for sample in samples.samples:
        feeds = {
            spec.name: _to_session(sample.inputs[spec.name], spec, model)
            for spec in model.inputs
            if spec.name in sample.inputs
        }
        try:
            values = session.run(names, feeds)
        except Exception as error:  # noqa: BLE001
            raise ReferenceFailure(
                f"ONNX Runtime cannot compute sample {sample.id}: {_first_line(error)}",
                where=onnx,
                remedy="correct or remove the sample",
            ) from None
        results.append(
            {
                spec.name: _from_session(value, spec, model, sample.batch)
                for spec, value in zip(model.outputs, values, strict=True)
            }
        )
    return results


def _to_session(array: Array, spec: TensorSpec, model: Model) -> Array:
    if spec.reshape is not None:
        array = array.reshape((array.shape[0], *spec.reshape) if model.batched else spec.reshape)
    if spec.datatype == "BYTES":
        texts = np.empty(array.shape, dtype=np.object_)
        for position in np.ndindex(array.shape):
            texts[position] = as_bytes(array[position]).decode("utf-8", "surrogateescape")
        return texts
    return array


def _from_session(value: Any, spec: TensorSpec, model: Model, batch: int) -> Array:
    array = np.asarray(value)
    if spec.reshape is not None:
        array = array.reshape((batch, *spec.dims) if model.batched else spec.dims)
    if spec.datatype == "BYTES":
        result = np.empty(array.shape, dtype=np.object_)
        for position in np.ndindex(array.shape):
            result[position] = str(array[position]).encode("utf-8", "surrogateescape")
        return result
    return array


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
