"""Why a model cannot become a TensorRT plan that serves its clients unchanged. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from optimizer.engines.tensorrt.capabilities import Capabilities
from optimizer.engines.tensorrt.checks import IO_TYPES
from optimizer.engines.tensorrt.source import OnnxSource, OnnxTensor
from optimizer.records.model import Model, ModelFormat, TensorSpec


def format_refusal(model: Model, has_source: bool) -> str | None:
    if has_source:
        return None
    if model.live_version is None:
        return "no version of it is served"
    if model.format is ModelFormat.PLAN:
        return "the live version is a plan already: name the ONNX file it comes from with --onnx"
    if model.format is not ModelFormat.ONNX:
        return f"a TensorRT plan is built from ONNX and the live version is {model.format.value}: name one with --onnx"
    return None


def refusals(model: Model, source: OnnxSource, have: Capabilities | None) -> Iterator[str]:
    """Every reason; ``have`` is ``None`` while the builder is unknown, and its own reasons are left out."""
    if model.decoupled:
        yield "a decoupled model cannot be served by the tensorrt backend"
    for role, specs in (("input", model.inputs), ("output", model.outputs)):
        for spec in specs:
            yield from _tensor_refusals(role, spec, model, source, have)
    names = {spec.name for spec in model.inputs}
    for tensor in source.inputs:
        if tensor.name not in names:
            yield f"the ONNX input {tensor.name} is not in the config: every engine input must be"


def _tensor_refusals(
    role: str, spec: TensorSpec, model: Model, source: OnnxSource, have: Capabilities | None
) -> Iterator[str]:
    tensor = source.input(spec.name) if role == "input" else source.output(spec.name)
    if spec.datatype not in IO_TYPES:
        yield f"{role} {spec.name} is {spec.datatype}: TensorRT has {', '.join(sorted(IO_TYPES))}"
        return
    if spec.ragged:
        yield f"{role} {spec.name} allows ragged batches: an engine takes one shape a batch"
    if spec.optional:
        yield f"{role} {spec.name} is optional: an engine needs every input"
    if tensor is None:
        yield f"the ONNX model has no {role} {spec.name}"
        return
    if tensor.datatype != spec.datatype:
        yield f"{role} {spec.name} is {spec.datatype} in the config and {tensor.datatype} in the ONNX model"
    if have is not None and spec.datatype == "INT64" and not have.int64:
        yield (
            f"{role} {spec.name} is INT64, which {have.builder} turns into INT32: clients would have to send and read "
            "other types. Build with TensorRT 10 or later, or change the model and its clients to INT32 first"
        )
    if model.batched:
        yield from _batch_refusals(role, spec, model, tensor)


def _batch_refusals(role: str, spec: TensorSpec, model: Model, tensor: OnnxTensor) -> Iterator[str]:
    if tensor.dims is None:
        return
    if not tensor.dims:
        yield (f"{role} {spec.name} is a scalar and has no batch dimension: serve the model with max_batch_size 0")
    elif tensor.dims[0] == -1:
        return
    elif tensor.dims[0] != 1 or model.max_batch_size > 1:
        # A fixed batch of 1 serves max_batch_size 1; any other fixed first dimension is no batch or refuses batch 1.
        yield (
            f"{role} {spec.name} has a fixed first dimension of {tensor.dims[0]}: it is no batch dimension, or the "
            f"engine would refuse other batches. Export the model with a free batch dimension, or serve it with "
            "max_batch_size 0"
        )
