"""BF16, which NumPy has not: as raw bits in uint16 arrays on this side, as ONNX Runtime and DLPack values on theirs."""

import ctypes

import numpy as np

ONNX_BFLOAT16 = 16
"""``onnx.TensorProto.BFLOAT16``."""


def run(runner, feeds):
    """As ``InferenceSession.run``, for a model with BF16 tensors among others."""
    binding = runner.session.io_binding()
    for name, array in feeds.items():
        if name in runner.bfloat16_inputs:
            binding.bind_ortvalue_input(name, to_ort(array))
        else:
            binding.bind_cpu_input(name, array)
    for name in runner.output_names:
        binding.bind_output(name, "cpu")
    runner.session.run_with_iobinding(binding, runner.run_options)
    return [
        from_ort(value) if name in runner.bfloat16_outputs else value.numpy()
        for name, value in zip(runner.output_names, binding.get_outputs(), strict=True)
    ]


def to_ort(bits):
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(np.ascontiguousarray(bits), ONNX_BFLOAT16)


def from_ort(value):
    """A copy: the memory belongs to ``value``."""
    shape = tuple(value.shape())
    count = int(np.prod(shape))
    if not count:
        return np.empty(shape, np.uint16)
    return np.frombuffer(ctypes.string_at(value.data_ptr(), 2 * count), np.uint16).reshape(shape)


def from_triton(tensor):
    """A ``pb_utils.Tensor`` of BF16 as bits; it has no NumPy form, only DLPack."""
    import onnxruntime

    return from_ort(onnxruntime.OrtValue.from_dlpack(tensor.to_dlpack()))


def to_triton(pb_utils, name, bits):
    return pb_utils.Tensor.from_dlpack(name, to_ort(bits).__dlpack__())
