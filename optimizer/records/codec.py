"""Records to JSON and back, one generic codec for every dataclass of this package.

Strict both ways: an unknown field, a missing field without default, or a value of the wrong type is a
:class:`CodecError` that names the path to it (``Engine.files.model.onnx``). A field that a newer version added with a
default may be missing, so ledgers of an older version stay readable.

What JSON cannot say is tagged: NaN and the infinities become ``{"$float": "nan"}``, arrays ``{"$array": …}`` with
dtype, shape and base64 bytes, ``bytes`` become ``{"$bytes": base64}``.

Standard library and NumPy only.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

Json: TypeAlias = Any
T = TypeVar("T")

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TAGS = {"$float", "$array", "$bytes"}


class CodecError(ValueError):
    """A value that does not fit its record; the message starts with the path to it."""


def to_json(value: object) -> Json:
    """JSON-compatible form of a record or of anything a record holds. Never holds NaN or infinities as numbers."""
    return _encode(value, type(value).__name__)


def from_json(cls: type[T], data: Json) -> T:
    """The record that :func:`to_json` wrote. Equal to the original, with read-only mappings coming back as ``dict``."""
    return cast(T, _decode(cls, data, getattr(cls, "__name__", str(cls))))


def _encode(value: object, path: str) -> Json:
    # Enums first: a str Enum is a str.
    if isinstance(value, Enum):
        return _encode(value.value, path)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        return number if math.isfinite(number) else {"$float": str(number)}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        return {"$array": _encode_array(value, path)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _encode(getattr(value, field.name), f"{path}.{field.name}")
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return _encode_mapping(value, path)
    if isinstance(value, AbstractSet):
        return sorted((_encode(item, f"{path}[]") for item in value), key=repr)
    if isinstance(value, Sequence):
        return [_encode(item, f"{path}[{index}]") for index, item in enumerate(value)]
    raise CodecError(f"{path}: {type(value).__name__} has no JSON form")


def _encode_mapping(mapping: Mapping[Any, Any], path: str) -> dict[str, Json]:
    encoded: dict[str, Json] = {}
    for key, item in mapping.items():
        plain = key.value if isinstance(key, Enum) else key
        if isinstance(plain, bool) or not isinstance(plain, (str, int)):
            raise CodecError(f"{path}: key {key!r} is neither a text nor an integer")
        if plain in _TAGS:
            raise CodecError(f"{path}: the key {plain!r} is reserved")
        encoded[str(plain)] = _encode(item, f"{path}.{plain}")
    if len(encoded) != len(mapping):
        raise CodecError(f"{path}: two keys have the same text")
    return encoded


def _encode_array(array: np.ndarray[Any, Any], path: str) -> dict[str, Json]:
    shape = list(array.shape)
    if array.dtype == np.object_:
        items = [item.encode() if isinstance(item, str) else item for item in array.flat]
        if not all(isinstance(item, bytes) for item in items):
            raise CodecError(f"{path}: an object array may hold bytes only")
        return {"dtype": "bytes", "shape": shape, "items": [base64.b64encode(item).decode("ascii") for item in items]}
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {"dtype": little.dtype.str, "shape": shape, "data": base64.b64encode(little.tobytes()).decode("ascii")}


def _decode(kind: Any, data: Json, path: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return _decode_untyped(data, path)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(typing.get_args(kind), data, path)
    if origin is not None:
        return _decode_container(origin, typing.get_args(kind), data, path)
    if kind is None or kind is type(None):
        return _expect(data is None, None, "null", data, path)
    if isinstance(kind, type):
        if issubclass(kind, Enum):
            return _decode_enum(kind, data, path)
        if dataclasses.is_dataclass(kind):
            return _decode_dataclass(kind, data, path)
        if kind is bool:
            return _expect(isinstance(data, bool), data, "true or false", data, path)
        if kind is int:
            return _expect(isinstance(data, int) and not isinstance(data, bool), data, "an integer", data, path)
        if kind is float:
            return _decode_float(data, path)
        if kind is str:
            return _expect(isinstance(data, str), data, "a text", data, path)
        if issubclass(kind, Path):
            return Path(_expect(isinstance(data, str), data, "a path", data, path))
        if kind is bytes or kind is np.ndarray:
            decoded = _decode_untyped(data, path)
            return _expect(isinstance(decoded, kind), decoded, kind.__name__, data, path)
        if kind in (dict, list, tuple):
            return _decode_container(kind, (), data, path)
    raise CodecError(f"{path}: the type {kind!r} cannot be read from JSON")


def _decode_container(origin: Any, arguments: tuple[Any, ...], data: Json, path: str) -> Any:
    if origin is np.ndarray:
        return _decode(np.ndarray, data, path)
    if issubclass(origin, Mapping):
        _expect(isinstance(data, dict) and not _TAGS & data.keys(), data, "an object", data, path)
        key_kind, item_kind = arguments or (Any, Any)
        return {
            _decode_key(key_kind, key, path): _decode(item_kind, item, f"{path}.{key}") for key, item in data.items()
        }
    _expect(isinstance(data, list), data, "a list", data, path)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        _expect(len(data) == len(arguments), data, f"a list of {len(arguments)}", data, path)
        return tuple(
            _decode(kind, item, f"{path}[{index}]")
            for index, (kind, item) in enumerate(zip(arguments, data, strict=True))
        )
    item_kind = arguments[0] if arguments else Any
    items = [_decode(item_kind, item, f"{path}[{index}]") for index, item in enumerate(data)]
    if origin is tuple:
        return tuple(items)
    if issubclass(origin, AbstractSet):
        return frozenset(items)
    return items if origin is list else tuple(items)


def _decode_key(kind: Any, key: str, path: str) -> Any:
    if kind is int:
        try:
            return int(key)
        except ValueError:
            raise CodecError(f"{path}: key {key!r} is not an integer") from None
    return _decode(kind, key, f"{path}.{key}")


def _decode_union(kinds: tuple[Any, ...], data: Json, path: str) -> Any:
    """The first member that reads the value exactly. A dataclass member must match by its fields alone."""
    problems = []
    for kind in kinds:
        # An integer is read as int where the union has one, not as the float it could also be.
        if kind is float and int in kinds and isinstance(data, int):
            continue
        try:
            return _decode(kind, data, path)
        except CodecError as error:
            problems.append(str(error))
    raise CodecError(problems[-1] if len(kinds) == 2 and type(None) in kinds else " / ".join(problems))


def _decode_enum(kind: type[Enum], data: Json, path: str) -> Enum:
    try:
        return kind(data)
    except ValueError:
        known = ", ".join(str(member.value) for member in kind)
        raise CodecError(f"{path}: {data!r} is not one of {known}") from None


def _decode_dataclass(kind: type[Any], data: Json, path: str) -> Any:
    _expect(isinstance(data, dict), data, "an object", data, path)
    hints = _hints(cast(Any, kind))
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    unknown = sorted(data.keys() - fields.keys())
    if unknown:
        raise CodecError(f"{path}: {kind.__name__} has no field {', '.join(unknown)}")
    values = {}
    for name, field in fields.items():
        if name in data:
            values[name] = _decode(hints[name], data[name], f"{path}.{name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise CodecError(f"{path}: the field {name} is missing")
    return kind(**values)


def _decode_float(data: Json, path: str) -> float:
    if isinstance(data, dict) and data.keys() == {"$float"} and data["$float"] in _FLOATS:
        return _FLOATS[data["$float"]]
    return float(_expect(isinstance(data, (int, float)) and not isinstance(data, bool), data, "a number", data, path))


def _decode_untyped(data: Json, path: str) -> Any:
    if isinstance(data, list):
        return [_decode_untyped(item, f"{path}[{index}]") for index, item in enumerate(data)]
    if not isinstance(data, dict):
        return data
    if not _TAGS & data.keys():
        return {key: _decode_untyped(item, f"{path}.{key}") for key, item in data.items()}
    try:
        if data.keys() == {"$bytes"}:
            return base64.b64decode(data["$bytes"], validate=True)
        if data.keys() == {"$array"}:
            return _decode_array(data["$array"])
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"{path}: {error}") from None
    return _decode_float(data, path)


def _decode_array(data: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    shape = tuple(data["shape"])
    if data["dtype"] == "bytes":
        array = np.empty(len(data["items"]), dtype=np.object_)
        array[:] = [base64.b64decode(item, validate=True) for item in data["items"]]
        return array.reshape(shape)
    raw = base64.b64decode(data["data"], validate=True)
    little = np.frombuffer(raw, dtype=np.dtype(data["dtype"])).reshape(shape)
    return little.astype(little.dtype.newbyteorder("="))


def _expect(condition: bool, value: Any, wanted: str, data: Json, path: str) -> Any:
    if not condition:
        shown = repr(data)
        raise CodecError(f"{path}: expected {wanted}, found {shown if len(shown) <= 60 else shown[:57] + '...'}")
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)
