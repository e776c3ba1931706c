"""From a Triton model config of the native ONNX Runtime backend to ONNX Runtime's own options.

Names, defaults and errors are those of the native backend, so that one config text works on both; what the native
backend ignores (an unknown key in ``parameters``) is ignored here too. Takes the config as the dictionary that the
python backend hands to a model.
"""

from dataclasses import dataclass, field

# ``optimization.graph.level`` to the name in ``onnxruntime.GraphOptimizationLevel``; anything else means all.
GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

SESSION_ENTRIES = ("session.use_device_allocator_for_initializers",)
RUN_ENTRIES = ("memory.enable_memory_arena_shrinkage",)

# Keys of the accelerator ``tensorrt`` whose names differ from ONNX Runtime's provider options.
TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
TENSORRT_SAME = frozenset(
    {
        "trt_auxiliary_streams",
        "trt_build_heuristics_enable",
        "trt_builder_optimization_level",
        "trt_context_memory_sharing_enable",
        "trt_cuda_graph_enable",
        "trt_detailed_build_log",
        "trt_dla_core",
        "trt_dla_enable",
        "trt_dump_ep_context_model",
        "trt_dump_subgraphs",
        "trt_engine_cache_enable",
        "trt_engine_cache_path",
        "trt_engine_cache_prefix",
        "trt_ep_context_embed_mode",
        "trt_ep_context_file_path",
        "trt_extra_plugin_lib_paths",
        "trt_force_sequential_engine_build",
        "trt_force_timing_cache",
        "trt_layer_norm_fp32_fallback",
        "trt_max_partition_iterations",
        "trt_min_subgraph_size",
        "trt_profile_max_shapes",
        "trt_profile_min_shapes",
        "trt_profile_opt_shapes",
        "trt_sparsity_enable",
        "trt_tactic_sources",
        "trt_timing_cache_enable",
        "trt_timing_cache_path",
    }
)
# Deprecated spelling of CUDA options, in ``parameters``; numbers stand for names in the first two.
CUDA_PARAMETERS = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
    "gpu_mem_limit": None,
    "do_copy_in_default_stream": None,
}


class ConfigError(ValueError):
    """A value that the native backend refuses as well."""


@dataclass(frozen=True)
class Options:
    graph_level: str = "ORT_ENABLE_ALL"
    parallel: bool = False
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    cpu_mem_arena: bool = True
    mem_pattern: bool = True
    session_entries: dict = field(default_factory=dict)
    run_entries: dict = field(default_factory=dict)
    providers: tuple = ("CPUExecutionProvider",)
    """As ``InferenceSession`` takes them: names, or (name, options)."""
    custom_op_libraries: tuple = ()


def parameter(config, key):
    """The ``string_value`` of one of the config's parameters, or ``None``."""
    entry = (config.get("parameters") or {}).get(key)
    return None if entry is None else entry.get("string_value", "")


def integer(config, key, default):
    text = parameter(config, key)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"parameter '{key}': failed to convert '{text}' to an integer") from None


def boolean(text, key):
    lowered = text.strip().lower()
    if lowered in ("1", "true"):
        return True
    if lowered in ("0", "false"):
        return False
    raise ConfigError(f"parameter '{key}': failed to convert '{text}' to boolean")


def parse(config, kind="CPU", device_id=0, available=("CPUExecutionProvider",)):
    """``kind`` and ``device_id`` are the instance's; ``available`` are the providers of the installed ONNX Runtime.

    Raises :class:`ConfigError`.
    """
    optimization = config.get("optimization") or {}
    level = int((optimization.get("graph") or {}).get("level", 0))
    execution_mode = integer(config, "execution_mode", 0)
    if execution_mode not in (0, 1):
        raise ConfigError(f"expected values for execution_mode are 0 or 1 but got {execution_mode}")
    arena, pattern = parameter(config, "enable_mem_arena"), parameter(config, "enable_mem_pattern")
    accelerators = optimization.get("execution_accelerators") or {}
    for accelerator in accelerators.get("cpu_execution_accelerator") or []:
        if accelerator.get("name") != "openvino":
            raise ConfigError(f"unknown Execution Accelerator '{accelerator.get('name')}' is requested")
        require("OpenVINOExecutionProvider", "the accelerator 'openvino'", available)
    return Options(
        graph_level=GRAPH_LEVELS.get(level, "ORT_ENABLE_ALL"),
        parallel=execution_mode == 1,
        intra_op_threads=max(0, integer(config, "intra_op_thread_count", 0)),
        inter_op_threads=max(0, integer(config, "inter_op_thread_count", 0)),
        cpu_mem_arena=arena is None or boolean(arena, "enable_mem_arena"),
        mem_pattern=pattern is None or boolean(pattern, "enable_mem_pattern"),
        session_entries=entries(config, SESSION_ENTRIES),
        run_entries=entries(config, RUN_ENTRIES),
        providers=providers(config, accelerators, kind, device_id, available),
        custom_op_libraries=tuple((config.get("model_operations") or {}).get("op_library_filename") or ()),
    )


def entries(config, keys):
    return {key: value for key in keys if (value := parameter(config, key)) is not None}


def providers(config, accelerators, kind, device_id, available):
    chosen = []
    gpu = accelerators.get("gpu_execution_accelerator") or []
    if kind == "GPU":
        cuda = {"device_id": str(device_id), **deprecated_cuda_options(config)}
        for accelerator in gpu:
            name, parameters = accelerator.get("name"), accelerator.get("parameters") or {}
            if name == "tensorrt":
                require("TensorrtExecutionProvider", "the accelerator 'tensorrt'", available)
                chosen.append(("TensorrtExecutionProvider", {"device_id": str(device_id), **tensorrt(parameters)}))
            elif name == "cuda":
                cuda.update(parameters)
            else:
                raise ConfigError(f"unknown Execution Accelerator '{name}' is requested")
        require("CUDAExecutionProvider", "an instance of kind KIND_GPU", available)
        chosen.append(("CUDAExecutionProvider", cuda))
    if accelerators.get("cpu_execution_accelerator"):
        chosen.append("OpenVINOExecutionProvider")
    return (*chosen, "CPUExecutionProvider")


def require(provider, why, available):
    if provider not in available:
        raise ConfigError(
            f"{why} needs ONNX Runtime's {provider}; the installed build has: {', '.join(sorted(available))}"
        )


def tensorrt(parameters):
    """Provider options for the accelerator ``tensorrt``."""
    options = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in ("FP32", "FP16", "INT8"):
                raise ConfigError(f"unsupported precision mode '{value}' is requested")
            if value != "FP32":
                options["trt_fp16_enable" if value == "FP16" else "trt_int8_enable"] = "1"
        elif key in TENSORRT_RENAMED:
            options[TENSORRT_RENAMED[key]] = value
        elif key in TENSORRT_SAME:
            options[key] = value
        else:
            raise ConfigError(f"unknown parameter '{key}' is provided for TensorRT Execution Accelerator")
    return options


def deprecated_cuda_options(config):
    options = {}
    for key, names in CUDA_PARAMETERS.items():
        value = parameter(config, key)
        if value is None:
            continue
        if names is not None and value not in names:
            raise ConfigError(f"invalid value '{value}' for {key}; expected one of {', '.join(names)}")
        options[key] = value if names is None else names[value]
    return options


def session_options(options, model_directory="."):
    """``onnxruntime.SessionOptions``; libraries of custom operators are found relative to ``model_directory``."""
    from pathlib import Path

    import onnxruntime

    made = onnxruntime.SessionOptions()
    made.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, options.graph_level)
    made.execution_mode = (
        onnxruntime.ExecutionMode.ORT_PARALLEL if options.parallel else onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    )
    made.intra_op_num_threads = options.intra_op_threads
    made.inter_op_num_threads = options.inter_op_threads
    made.enable_cpu_mem_arena = options.cpu_mem_arena
    made.enable_mem_pattern = options.mem_pattern
    for key, value in options.session_entries.items():
        made.add_session_config_entry(key, value)
    for library in options.custom_op_libraries:
        inside = Path(model_directory) / library
        made.register_custom_ops_library(str(inside if inside.exists() else library))
    return made


def run_options(options):
    """``onnxruntime.RunOptions``, or ``None`` where there is nothing to say."""
    if not options.run_entries:
        return None
    import onnxruntime

    made = onnxruntime.RunOptions()
    for key, value in options.run_entries.items():
        made.add_run_config_entry(key, value)
    return made
