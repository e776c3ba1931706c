"""A tiny stand-in for a TensorRT 11 with a tuner: the interface that the worker uses, over the onnx package.

It shows what no machine without such a release can: reading a build route back, opening an engine, the inspector. It
says nothing about TensorRT. The poison modules beside it are this one with one thing gone wrong.
"""

from __future__ import annotations

import enum
import json
from pathlib import Path

__version__ = "11.1.0-fake"


class _Enum(enum.Enum):
    def __int__(self):
        return self.value


BuilderFlag = _Enum("BuilderFlag", {"TF32": 0, "SPARSE_WEIGHTS": 1, "VERSION_COMPATIBLE": 2})
NetworkDefinitionCreationFlag = _Enum("NetworkDefinitionCreationFlag", {"STRONGLY_TYPED": 1})
TacticSource = _Enum("TacticSource", {"EDGE_MASK_CONVOLUTIONS": 3, "JIT_CONVOLUTIONS": 4})
HardwareCompatibilityLevel = _Enum("HardwareCompatibilityLevel", {"NONE": 0, "AMPERE_PLUS": 1})
TilingOptimizationLevel = _Enum("TilingOptimizationLevel", {"NONE": 0, "FAST": 1})
MemoryPoolType = _Enum("MemoryPoolType", {"WORKSPACE": 0})
ProfilingVerbosity = _Enum("ProfilingVerbosity", {"DETAILED": 0})
LayerInformationFormat = _Enum("LayerInformationFormat", {"JSON": 0})
DataType = _Enum("DataType", {"FLOAT": 0, "HALF": 1, "INT8": 2, "INT32": 3, "INT64": 4, "BOOL": 5, "BF16": 6})
TensorIOMode = _Enum("TensorIOMode", {"INPUT": 0, "OUTPUT": 1})
TensorLocation = _Enum("TensorLocation", {"DEVICE": 0, "HOST": 1})
TensorFormat = _Enum("TensorFormat", {"LINEAR": 0})
ErrorCode = _Enum("ErrorCode", {"SUCCESS": 0, "UNSUPPORTED_NODE": 8})
float32 = DataType.FLOAT
_ONNX_TYPES = {1: DataType.FLOAT, 10: DataType.HALF, 16: DataType.BF16, 6: DataType.INT32, 7: DataType.INT64}


class ILogger:
    class Severity(_Enum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3


class Logger(ILogger):
    ERROR = ILogger.Severity.ERROR

    def __init__(self, severity=None):
        self.severity = severity

    def log(self, severity, message):
        pass


class BaseConfig:
    """What every release's config has."""

    builder_optimization_level = 3
    tiling_optimization_level = TilingOptimizationLevel.NONE
    l2_limit_for_tiling = 0
    max_aux_streams = -1
    max_num_tactics = -1
    hardware_compatibility_level = HardwareCompatibilityLevel.NONE
    profiling_verbosity = None
    progress_monitor = None

    def __init__(self):
        self._flags = {BuilderFlag.TF32}
        self._sources = 0b11000
        self._workspace = 1 << 36
        self.profiles = []
        self._cache = None

    def get_flag(self, flag):
        return flag in self._flags

    def set_flag(self, flag):
        self._flags.add(flag)

    def clear_flag(self, flag):
        self._flags.discard(flag)

    def get_tactic_sources(self):
        return self._sources

    def set_tactic_sources(self, mask):
        self._sources = mask
        return True

    def get_memory_pool_limit(self, pool):
        return self._workspace

    def set_memory_pool_limit(self, pool, size):
        self._workspace = size

    def add_optimization_profile(self, profile):
        self.profiles.append(profile)
        return len(self.profiles) - 1

    def create_timing_cache(self, data):
        return _Cache.read(bytes(data))

    def set_timing_cache(self, cache, ignore_mismatch):
        self._cache = cache
        return True

    def get_timing_cache(self):
        return self._cache


class IBuilderConfig(BaseConfig):
    """With a tuner: a build route loses unknown knobs without a word, as the Python setter does."""

    all_build_routes = json.dumps(
        {
            "tuner_version": "2.19.45",
            "tuner_options": [{"option": "-s2hgemm", "allowed_values": "-s2hgemm=[on|off]", "default_value": "on"}],
        }
    )

    def __init__(self):
        super().__init__()
        self._route = ""

    @property
    def build_route(self):
        return self._route

    @build_route.setter
    def build_route(self, text):
        self._route = " ".join(word for word in text.split() if word in ("-s2hgemm=on", "-s2hgemm=off"))


class _Cache:
    def __init__(self, entries):
        self.entries = entries

    @classmethod
    def read(cls, data):
        if data and not data.startswith(b"cache:"):
            return None
        return cls(set(data[6:].split(b",")) - {b""})

    def combine(self, other, ignore_mismatch):
        self.entries |= other.entries
        return True

    def serialize(self):
        return b"cache:" + b",".join(sorted(self.entries))


class _Profile:
    def __init__(self):
        self.shapes = {}

    def set_shape(self, name, *shapes):
        self.shapes[name] = [list(shape) for shape in shapes]


class _Tensor:
    is_shape_tensor = False

    def __init__(self, value):
        kind = value.type.tensor_type
        self.name = value.name
        self.dtype = _ONNX_TYPES[kind.elem_type]
        self.shape = [dim.dim_value if dim.dim_value > 0 else -1 for dim in kind.shape.dim]


class INetworkDefinition:
    def __init__(self):
        self.inputs, self.outputs, self.nodes = [], [], []

    num_inputs = property(lambda self: len(self.inputs))
    num_outputs = property(lambda self: len(self.outputs))
    num_layers = property(lambda self: len(self.nodes))

    def get_input(self, index):
        return self.inputs[index]

    def get_output(self, index):
        return self.outputs[index]

    def unmark_output(self, tensor):
        self.outputs.remove(tensor)


class ParserError:
    def __init__(self, node, index):
        self._node, self._index = node, index

    def code(self):
        return ErrorCode.UNSUPPORTED_NODE

    def desc(self):
        return "no importer"

    def node(self):
        return self._index

    def node_name(self):
        return self._node.name

    def node_operator(self):
        return self._node.op_type


class OnnxParser:
    def __init__(self, network, logger):
        self.network, self.errors = network, []

    num_errors = property(lambda self: len(self.errors))

    def get_error(self, index):
        return self.errors[index]

    def parse_from_file(self, path):
        return self.parse(Path(path).read_bytes())

    def parse(self, data, path=None):
        import onnx

        graph = onnx.ModelProto.FromString(data).graph
        weights = {item.name for item in graph.initializer}
        self.network.inputs = [_Tensor(value) for value in graph.input if value.name not in weights]
        self.network.outputs = [_Tensor(value) for value in graph.output]
        self.network.nodes = [node.op_type for node in graph.node]
        self.errors = [ParserError(node, i) for i, node in enumerate(graph.node) if node.domain == "no.such"]
        return not self.errors


class ICudaEngine:
    def __init__(self, document):
        self._document = document
        self.num_optimization_profiles = max(1, len(document["profiles"]))
        self.num_io_tensors = len(document["tensors"])
        self.num_layers = len(document["layers"])
        self.device_memory_size_v2 = 4096

    def _tensor(self, name):
        return next(item for item in self._document["tensors"] if item["name"] == name)

    def get_tensor_name(self, index):
        return self._document["tensors"][index]["name"]

    def get_tensor_mode(self, name):
        return TensorIOMode[self._tensor(name)["mode"]]

    def get_tensor_dtype(self, name):
        return DataType[self._tensor(name)["dtype"]]

    def get_tensor_shape(self, name):
        return self._tensor(name)["shape"]

    def get_tensor_format(self, name):
        return TensorFormat.LINEAR

    def get_tensor_location(self, name):
        return TensorLocation.DEVICE

    def is_shape_inference_io(self, name):
        return False

    def get_tensor_profile_shape(self, name, index):
        profiles = self._document["profiles"]
        return profiles[index].get(name) if profiles else [self.get_tensor_shape(name)] * 3

    def create_engine_inspector(self):
        return self

    def get_engine_information(self, form):
        return json.dumps({"Layers": self._document["layers"]})


class Builder:
    max_threads = 1

    def __init__(self, logger):
        self.logger = logger

    def create_network(self, flags):
        return INetworkDefinition()

    def create_builder_config(self):
        return IBuilderConfig()

    def create_optimization_profile(self):
        return _Profile()

    def build_serialized_network(self, network, config):
        if config._cache is not None:
            config._cache.entries |= {kind.encode() for kind in network.nodes}
        tensors = [
            {"name": item.name, "mode": mode, "dtype": item.dtype.name, "shape": item.shape}
            for mode, group in (("INPUT", network.inputs), ("OUTPUT", network.outputs))
            for item in group
        ]
        document = {
            "tensors": tensors,
            "profiles": [profile.shapes for profile in config.profiles],
            # Kernels follow the tuner's route, and nothing follows the workspace limit.
            "layers": [f"{kind} {getattr(config, 'build_route', '')}" for kind in network.nodes],
            "workspace": config.get_memory_pool_limit(MemoryPoolType.WORKSPACE),
        }
        return b"fakeplan" + json.dumps(document).encode()


class Runtime:
    def __init__(self, logger):
        self.logger = logger

    def deserialize_cuda_engine(self, data):
        if not data.startswith(b"fakeplan"):
            self.logger.log(ILogger.Severity.ERROR, "Magic tag does not match")
            return None
        return ICudaEngine(json.loads(data[8:]))
