"""Tensors that NumPy cannot express (BF16), by their address: DLPack capsules read and written with ctypes.

Layouts are those of dlpack.h 0.8 (DLManagedTensor). Imports the standard library and numpy.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU = 1
UNSIGNED = 1
BFLOAT = 4


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]

_alive: dict[int, tuple[Any, ...]] = {}


@_Deleter
def _delete(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


def bits_of(tensor: Any) -> np.ndarray:
    """A copy of a 16-bit tensor's bits, uint16, in the tensor's shape. ``tensor`` has ``to_dlpack()``."""
    capsule = tensor.to_dlpack()
    managed = _Managed.from_address(_pointer(capsule, b"dltensor"))
    described = managed.tensor
    if described.dtype.bits != 16:
        raise ValueError(f"expected a tensor of 16-bit elements, got {described.dtype.bits} bits")
    shape = tuple(described.shape[axis] for axis in range(described.ndim))
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return np.empty(shape, dtype=np.uint16)
    memory = (ctypes.c_uint16 * count).from_address(described.data + described.byte_offset)
    return np.frombuffer(memory, dtype=np.uint16).reshape(shape).copy()


class BFloat16:
    """uint16 bits as a BF16 tensor for ``Tensor.from_dlpack``: no copy is made here."""

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = np.ascontiguousarray(bits, dtype=np.uint16)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0

    def __dlpack__(self, stream: Any = None) -> Any:
        shape = (ctypes.c_int64 * max(1, self.bits.ndim))(*self.bits.shape)
        managed = _Managed()
        managed.tensor.data = self.bits.ctypes.data
        managed.tensor.device = _Device(CPU, 0)
        managed.tensor.ndim = self.bits.ndim
        managed.tensor.dtype = _Type(BFLOAT, 16, 1)
        managed.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = _delete
        address = ctypes.addressof(managed)
        # Whoever takes the capsule calls the deleter; until then these objects must live.
        _alive[address] = (managed, shape, self.bits)
        return _new_capsule(address, b"dltensor", None)
