"""Blockers: what stands in the way of serving, tuning or a TensorRT plan, each with its reason and a remedy.

Pure functions of a completed config, of what an ONNX file says, and of what is on disk. ``fatal`` means that the model
cannot be tuned at all; what only rules out a plan is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from optimizer.records.model import Blocker, ModelFormat
from optimizer.repository.onnx_signature import OnnxSignature, OnnxTensor
from optimizer.repository.versions import BACKENDS
from optimizer.triton.protobuf import datatype_name

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

PLAN_DATATYPES = frozenset({"FP32", "FP16", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL"})
"""What a TensorRT engine can have as input or output in Triton."""


def config_blockers(config: ModelConfig, directory_name: str) -> Iterator[Blocker]:
    """Rules of Triton's own validation that a config can break, in the server's order.

    ``config`` is completed (:mod:`optimizer.repository.completion`). Every one of these keeps the model from loading.
    """
    if config.name != directory_name:
        yield Blocker(
            "name_mismatch",
            f"the config names the model '{config.name}', its directory is '{directory_name}'",
            f"set name to '{directory_name}' in the config, or leave it out",
        )
    ensemble = config.platform == "ensemble" or config.HasField("ensemble_scheduling")
    if ensemble:
        yield from _ensemble_rules(config)
    elif not config.backend:
        yield Blocker(
            "backend_unknown",
            "neither the config nor the files in the first version directory tell the backend"
            + (f" (platform '{config.platform}' is none that Triton knows)" if config.platform else ""),
            "set backend in config.pbtxt, or move the directory out of the repository if it is no model",
        )
    elif config.backend in BACKENDS:
        platforms = {BACKENDS[config.backend][0]} | ({"torch_aoti"} if config.backend == "pytorch" else set())
        if config.platform not in platforms:
            yield _invalid(
                f"backend '{config.backend}' and platform '{config.platform}' do not go together",
                f"set platform to '{BACKENDS[config.backend][0]}'",
            )
    if config.max_batch_size < 0:
        yield _invalid("max_batch_size is negative", "set it to 0 or more")
    preferred = list(config.dynamic_batching.preferred_batch_size) + list(
        config.sequence_batching.oldest.preferred_batch_size
    )
    for size in preferred:
        if not 0 < size <= max(0, config.max_batch_size):
            yield _invalid(
                f"preferred_batch_size {size} is not between 1 and max_batch_size {config.max_batch_size}",
                "correct preferred_batch_size or max_batch_size",
            )
    if config.response_cache.enable and (
        config.HasField("sequence_batching") or config.model_transaction_policy.decoupled
    ):
        yield _invalid(
            "the response cache does not go together with sequence batching or decoupled answers",
            "switch response_cache off",
        )
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(tensors):
            yield from _tensor_rules(kind, index, tensor, config)


def _ensemble_rules(config: ModelConfig) -> Iterator[Blocker]:
    if config.platform != "ensemble" or config.backend:
        yield _invalid("an ensemble has platform 'ensemble' and no backend", 'set platform: "ensemble" and no backend')
    if not len(config.ensemble_scheduling.step):
        yield _invalid("the ensemble has no ensemble_scheduling step", "add its steps")
    for name in ("instance_group", "model_warmup"):
        if len(getattr(config, name)):
            yield _invalid(f"an ensemble has no {name}", f"remove {name}")
    if config.HasField("optimization"):
        yield _invalid("an ensemble has no optimization", "remove optimization")
    if not len(config.input) or not len(config.output):
        yield _invalid("an ensemble needs its inputs and outputs in the config", "add input and output")


def _tensor_rules(kind: str, index: int, tensor: Any, config: ModelConfig) -> Iterator[Blocker]:
    label = f"{kind} '{tensor.name}'" if tensor.name else f"{kind} number {index + 1}"
    if not tensor.name:
        yield _invalid(f"{label} has no name", "give it the name that the model has")
    if not tensor.data_type:
        yield _invalid(f"{label} has no data_type", "set data_type, for instance TYPE_FP32")
    if not len(tensor.dims):
        yield _invalid(
            f"{label} has no dims", "set dims; a scalar has dims: [ 1 ] and, with a batch, reshape: { shape: [ ] }"
        )
    for field, dims in (("dims", tensor.dims), ("reshape", tensor.reshape.shape)):
        if any(dim < 1 and dim != -1 for dim in dims):
            yield _invalid(f"{label} has {field} {list(dims)}", "every dimension is at least 1, or -1 for a free one")
    if tensor.HasField("reshape") and not len(tensor.reshape.shape) and config.max_batch_size == 0:
        yield _invalid(f"{label} has an empty reshape and max_batch_size is 0", "remove reshape")
    if tensor.is_shape_tensor and config.platform != "tensorrt_plan":
        yield _invalid(f"{label} is a shape tensor, which only TensorRT has", "remove is_shape_tensor")


def tuning_blockers(config: ModelConfig, kind: ModelFormat, has_onnx: bool) -> Iterator[Blocker]:
    """What keeps a model that loads from being tuned, or from becoming a plan."""
    if kind is ModelFormat.ENSEMBLE:
        yield Blocker(
            "ensemble",
            "an ensemble has no engine of its own",
            "tune its member models; the ensemble goes on using them",
        )
        return
    if config.model_transaction_policy.decoupled:
        yield Blocker(
            "decoupled",
            "a decoupled model answers a request any number of times, which this measurement does not count",
            "tune it with a load of its own",
        )
    if config.HasField("sequence_batching"):
        yield Blocker(
            "sequence_batching",
            "the model keeps state between the requests of a sequence; requests here are independent",
            "tune the stateless part as a model of its own",
        )
    if not len(config.input) or not len(config.output):
        yield Blocker(
            "signature_unknown",
            "the config does not list inputs and outputs, and only the model's backend could complete them",
            "add input and output; a running server shows them at GET /v2/models/NAME/config",
        )
    # Triton itself loads such a model, where the backend does not count the tensors.
    for label, count in Counter(label for label, tensor in _tensors(config) if tensor.name).items():
        if count > 1:
            asks = "Triton asks every request for all of them, and refuses one that gives an input twice"
            yield Blocker(
                "duplicate_tensor",
                f"the config lists {label} {count} times: "
                + (asks if label.startswith("input") else "which of them holds cannot be told"),
                f"leave one {label} in the config",
            )
    if not has_onnx:
        yield Blocker(
            "no_onnx_source",
            f"there is no ONNX file to build a plan from (the model is {kind.value})",
            "name the ONNX file that it was made from with --onnx FILE",
            fatal=False,
        )
    for label, tensor in _tensors(config):
        datatype = datatype_name(tensor.data_type)
        if datatype not in PLAN_DATATYPES and tensor.data_type:
            yield Blocker(
                "datatype_not_in_tensorrt",
                f"{label} is {datatype}; a TensorRT engine has only {', '.join(sorted(PLAN_DATATYPES))}",
                "keep ONNX Runtime for this model, or move that tensor's handling into a model before it",
                fatal=False,
            )
    for tensor in config.input:
        if tensor.allow_ragged_batch:
            yield Blocker(
                "ragged_batch",
                f"input '{tensor.name}' allows ragged batches, whose layout the engine would have to know",
                "keep the backend, or leave allow_ragged_batch out",
                fatal=False,
            )
        if tensor.optional:
            yield Blocker(
                "optional_input",
                f"input '{tensor.name}' is optional; a TensorRT engine needs every input",
                "keep the backend, or always send it",
                fatal=False,
            )
        free = [index for index, dim in enumerate(tensor.dims) if dim == -1]
        if free:
            yield Blocker(
                "free_dimensions",
                f"input '{tensor.name}' has free dimensions {list(tensor.dims)}: a plan needs a range for each",
                "give samples of real requests with --inputs, or ranges with --shape",
                fatal=False,
            )
    if len(config.batch_input) or len(config.batch_output):
        yield Blocker(
            "batch_tensors",
            "batch_input and batch_output tensors are made by the server per batch",
            "keep the backend",
            fatal=False,
        )
    if len(config.model_operations.op_library_filename):
        yield Blocker(
            "custom_operators",
            "the model loads a library of custom operators, which TensorRT does not know",
            "keep the backend, or provide a TensorRT plugin",
            fatal=False,
        )


def onnx_blockers(config: ModelConfig, signature: OnnxSignature, file_name: str) -> Iterator[Blocker]:
    """The config against the ONNX file, by the ONNX Runtime backend's rules of loading."""
    declared = {tensor.name: tensor for tensor in (*signature.inputs, *signature.overridable)}
    made_by_server = _made_by_server(config)
    for tensor in (*signature.inputs, *signature.outputs):
        if tensor.datatype is None:
            yield Blocker(
                "unsupported_tensor_type",
                f"{file_name} has '{tensor.name}' of type {tensor.type_text}, which Triton cannot carry",
                "change the model so that it takes and gives plain tensors",
            )
    names = {tensor.name for tensor in config.input}
    for tensor in signature.inputs:
        if tensor.name not in names | made_by_server:
            yield Blocker(
                "input_missing",
                f"{file_name} needs input '{tensor.name}', which the config does not list",
                f"add input '{tensor.name}' to the config",
            )
    for tensor in config.input:
        if tensor.name not in declared:
            yield Blocker(
                "input_unknown",
                f"the config lists input '{tensor.name}'; {file_name} has {_names(declared)}",
                "correct the name",
            )
        else:
            yield from _compare("input", tensor, declared[tensor.name], config.max_batch_size, file_name)
    for tensor in config.input:
        if tensor.optional and config.max_batch_size > 0:
            yield Blocker(
                "optional_with_batch",
                f"input '{tensor.name}' is optional and max_batch_size is {config.max_batch_size}: ONNX Runtime's "
                "backend has optional inputs only without a batch",
                "set max_batch_size to 0 and give dims in full, or remove optional",
            )
        shape = declared[tensor.name].dims if tensor.name in declared else None
        if tensor.allow_ragged_batch and shape not in (None, (-1,)):
            yield Blocker(
                "ragged_shape",
                f"input '{tensor.name}' allows ragged batches, but {file_name} has it as {list(shape or ())}: ONNX "
                "Runtime's backend takes them as one dimension, [-1]",
                "remove allow_ragged_batch, or export the model with that input flat",
            )
    outputs = {tensor.name: tensor for tensor in signature.outputs}
    for tensor in config.output:
        if tensor.name not in outputs:
            yield Blocker(
                "output_unknown",
                f"the config lists output '{tensor.name}'; {file_name} has {_names(outputs)}",
                "correct the name",
            )
        else:
            yield from _compare("output", tensor, outputs[tensor.name], config.max_batch_size, file_name)
    listed = {tensor.name for tensor in config.output} | {state.output_name for state in config.sequence_batching.state}
    for name in outputs:
        if name not in listed:
            yield Blocker(
                "output_not_listed",
                f"{file_name} has output '{name}', which the config does not list; a plan's config lists every output",
                f"add output '{name}' to the config, or remove it from the ONNX model",
                fatal=False,
            )
    if signature.custom_domains:
        yield Blocker(
            "custom_domains",
            f"{file_name} has operators of {', '.join(signature.custom_domains)}, which TensorRT may not know",
            "keep ONNX Runtime, or export the model with standard operators",
            fatal=False,
        )
    if config.max_batch_size == 0 and not signature.can_batch:
        fixed = [tensor.name for tensor in signature.inputs if not tensor.dims or tensor.dims[0] != -1]
        if fixed:
            yield Blocker(
                "no_batch_dimension",
                f"input{'s' if len(fixed) > 1 else ''} {_names(fixed)} of {file_name} has no free first dimension: "
                "Triton cannot batch requests",
                "export the model with a free first dimension to allow batching; other knobs still apply",
                fatal=False,
            )


def _compare(kind: str, tensor: Any, onnx: OnnxTensor, max_batch_size: int, file_name: str) -> Iterator[Blocker]:
    datatype = datatype_name(tensor.data_type)
    if onnx.datatype is not None and tensor.data_type and datatype != onnx.datatype:
        yield Blocker(
            "datatype_mismatch",
            f"the config has {kind} '{tensor.name}' as {datatype}, {file_name} has {onnx.datatype}",
            f"set data_type to TYPE_{'STRING' if onnx.datatype == 'BYTES' else onnx.datatype}",
        )
    if onnx.dims is None or (kind == "input" and tensor.allow_ragged_batch):
        return
    dims = tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
    if max_batch_size > 0 and (not onnx.dims or onnx.dims[0] != -1):
        yield Blocker(
            "batch_dimension",
            f"max_batch_size is {max_batch_size}, but {kind} '{tensor.name}' of {file_name} has shape "
            f"{list(onnx.dims)}: its first dimension is not free",
            "set max_batch_size to 0 and give dims in full, or export the model with a free first dimension",
        )
        return
    expected = onnx.dims[1:] if max_batch_size > 0 else onnx.dims
    if not onnx.dims:  # a scalar: dims can only say [ 1 ]
        matches, certain = all(dim == 1 for dim in dims), True
    else:
        same_rank = len(dims) == len(expected)
        pairs = list(zip(dims, expected, strict=False))
        matches = same_rank and all(mine == theirs or (theirs == -1 and kind == "input") for mine, theirs in pairs)
        # What the file leaves open, ONNX Runtime may still know: only a fixed dimension or the rank is a sure mismatch.
        certain = not same_rank or any(mine != theirs and theirs != -1 for mine, theirs in pairs)
    if not matches:
        yield Blocker(
            "shape_mismatch",
            f"the config has {kind} '{tensor.name}' as {list(dims)}{' after the batch' if max_batch_size else ''}, "
            f"{file_name} has {list(expected)}" + ("" if certain else ": the server may refuse it"),
            f"set dims to [ {', '.join(map(str, expected)) or '1'} ]",
            fatal=certain,
        )


def _made_by_server(config: ModelConfig) -> set[str]:
    """Inputs that no request sends: sequence controls, states, batch inputs."""
    names = {control.name for control in config.sequence_batching.control_input}
    names |= {state.input_name for state in config.sequence_batching.state}
    return names | {name for batch in config.batch_input for name in batch.target_name}


def _tensors(config: ModelConfig) -> Iterator[tuple[str, Any]]:
    for tensor in config.input:
        yield f"input '{tensor.name}'", tensor
    for tensor in config.output:
        yield f"output '{tensor.name}'", tensor


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def _invalid(reason: str, remedy: str) -> Blocker:
    return Blocker("config_invalid", f"Triton refuses the config: {reason}", remedy)
