"""The stand-in with weak typing: precision flags, EXPLICIT_BATCH, no INT64, no build routes."""

import fake_tensorrt
from fake_tensorrt import *  # noqa: F403
from fake_tensorrt import _Enum

__version__ = "8.6.0-fake"
BuilderFlag = _Enum("BuilderFlag", {"FP16": 0, "INT8": 1, "TF32": 7, "OBEY_PRECISION_CONSTRAINTS": 11})
NetworkDefinitionCreationFlag = _Enum("NetworkDefinitionCreationFlag", {"EXPLICIT_BATCH": 0})
DataType = _Enum("DataType", {"FLOAT": 0, "HALF": 1, "INT8": 2, "INT32": 3, "BOOL": 4})


class IBuilderConfig(fake_tensorrt.BaseConfig):
    def __init__(self):
        super().__init__()
        self._flags = {BuilderFlag.TF32}


class Builder(fake_tensorrt.Builder):
    def create_network(self, flags):
        assert flags & 1, "TensorRT 8 requires EXPLICIT_BATCH"
        return super().create_network(flags)

    def create_builder_config(self):
        return IBuilderConfig()
