"""The config that serves a plan with Triton's native ``tensorrt`` backend, from the config as found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optimizer.triton.protobuf import datatype_value

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

PLAN_FILE = "model.plan"

_ONNXRUNTIME_PARAMETERS = frozenset(
    {
        "intra_op_thread_count",
        "inter_op_thread_count",
        "execution_mode",
        "level",
        "enable_mem_arena",
        "enable_mem_pattern",
        "memory.enable_memory_arena_shrinkage",
        "cudnn_conv_algo_search",
        "cudnn_conv_use_max_workspace",
        "gpu_mem_limit",
        "arena_extend_strategy",
        "share_session_between_instances",
        "enable_global_threadpool",
        "do_copy_in_default_stream",
        "tunable_op_enable",
        "prefer_nhwc",
        "session_optimized_model_filepath",
    }
)
"""Parameters that only the onnxruntime backend reads; ``session.*`` and ``memory.*`` entries go with them."""


def configure(
    config: ModelConfig, engine: Mapping[str, Any], *, gpus: Sequence[int], graphs: bool | None
) -> ModelConfig:
    """A new message. ``engine`` is the description of :mod:`~optimizer.engines.tensorrt.network`.

    Names, dims, reshape, labels, warm-up, batching and version policy stay. ``gpus`` are pinned where the config as
    found names none: the default is one instance on every visible GPU, and a plan belongs to one kind of GPU.
    ``graphs``: CUDA graphs on or off; ``None`` leaves what the config says, as far as the engine allows it.
    """
    new = type(config)()
    new.CopyFrom(config)
    new.backend = "tensorrt"
    new.platform = "tensorrt_plan"
    new.default_model_filename = PLAN_FILE
    # These name files of the old backend, or are what a python-based backend reports of itself.
    new.cc_model_filenames.clear()
    new.runtime = ""
    for key in [*new.parameters]:
        if key in _ONNXRUNTIME_PARAMETERS or key.startswith(("session.", "memory.")):
            del new.parameters[key]
    if new.HasField("optimization"):
        new.optimization.ClearField("execution_accelerators")
        new.optimization.ClearField("graph")
    _add_missing_outputs(new, engine)
    _mark_shape_tensors(new, engine)
    _instances(new, int(engine.get("profiles", 1)), gpus)
    _cuda_graphs(new, engine, graphs)
    if new.HasField("optimization") and not new.optimization.ListFields():
        new.ClearField("optimization")
    return new


def tensors(engine: Mapping[str, Any], mode: str) -> list[Mapping[str, Any]]:
    return [tensor for tensor in engine["tensors"] if tensor["mode"] == mode]


def _add_missing_outputs(config: ModelConfig, engine: Mapping[str, Any]) -> None:
    listed = {output.name for output in config.output}
    for tensor in tensors(engine, "output"):
        if tensor["name"] not in listed:
            output = config.output.add()
            output.name = tensor["name"]
            output.data_type = datatype_value(tensor["datatype"])
            output.dims.extend(tensor["shape"][1:] if config.max_batch_size > 0 else tensor["shape"])


def _mark_shape_tensors(config: ModelConfig, engine: Mapping[str, Any]) -> None:
    shaping = {tensor["name"] for tensor in engine["tensors"] if tensor["shape_tensor"]}
    for tensor in [*config.input, *config.output]:
        tensor.is_shape_tensor = tensor.name in shaping


def _instances(config: ModelConfig, profiles: int, gpus: Sequence[int]) -> None:
    if not config.instance_group:
        config.instance_group.add().count = 1
    kind = type(config.instance_group[0])
    for group in config.instance_group:
        group.kind = kind.KIND_GPU
        if not group.gpus:
            group.gpus.extend(gpus)
        group.ClearField("secondary_devices")
        # Without a list, Triton uses profile 0 only (server #8629).
        del group.profile[:]
        if profiles > 1:
            group.profile.extend(str(number) for number in range(profiles))


def _cuda_graphs(config: ModelConfig, engine: Mapping[str, Any], graphs: bool | None) -> None:
    on = config.optimization.cuda.graphs if graphs is None else graphs
    if any(tensor["shape_tensor"] for tensor in engine["tensors"]):
        # Shape tensors live on the host: TensorRT cannot capture them, and Triton refuses the combination.
        on = False
    if not on:
        if config.HasField("optimization"):
            config.optimization.cuda.ClearField("graph_spec")
            config.optimization.cuda.graphs = False
            if not config.optimization.cuda.ListFields():
                config.optimization.ClearField("cuda")
        return
    config.optimization.cuda.graphs = True
    del config.optimization.cuda.graph_spec[:]
    for batch, inputs in graph_shapes(config, engine):
        spec = config.optimization.cuda.graph_spec.add()
        spec.batch_size = batch
        for name, dims in inputs.items():
            spec.input[name].dim.extend(dims)


def graph_batches(config: ModelConfig) -> list[int]:
    """1, the preferred sizes, powers of two, and the largest batch; ``[0]`` for a model that does not batch."""
    if config.max_batch_size <= 0:
        return [0]
    limit = config.max_batch_size
    powers = {2**exponent for exponent in range(limit.bit_length())}
    preferred = set(config.dynamic_batching.preferred_batch_size) if config.HasField("dynamic_batching") else set()
    return sorted(size for size in {1, limit, *powers, *preferred} if size <= limit)


def graph_shapes(config: ModelConfig, engine: Mapping[str, Any]) -> list[tuple[int, dict[str, list[int]]]]:
    """What to capture: every graph batch at the opt shape of each profile that admits it, dims without the batch."""
    start = 1 if config.max_batch_size > 0 else 0
    inputs = tensors(engine, "input")
    found: list[tuple[int, dict[str, list[int]]]] = []
    for number in range(int(engine.get("profiles", 1))):
        for batch in graph_batches(config):
            dims: dict[str, list[int]] = {}
            fits = True
            for tensor in inputs:
                ranges = tensor["profiles"][number] if number < len(tensor["profiles"]) else [tensor["shape"]] * 3
                fits = fits and (not start or ranges[0][0] <= batch <= ranges[2][0])
                dims[tensor["name"]] = list(ranges[1][start:])
            if fits and (batch, dims) not in found:
                found.append((batch, dims))
    return found
