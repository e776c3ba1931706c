"""Triton's own ``ModelConfig`` message in text form. Imports tritonclient on first use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optimizer.errors import InputError

if TYPE_CHECKING:
    from typing import TypeAlias

    ModelConfig: TypeAlias = Any
    """``tritonclient.grpc.model_config_pb2.ModelConfig``, which has no type stubs."""


def new_config() -> ModelConfig:
    from tritonclient.grpc import model_config_pb2

    return model_config_pb2.ModelConfig()


def parse_config(text: str, *, where: Path | str = "config.pbtxt") -> ModelConfig:
    """Parses ``config.pbtxt``. Raises :class:`InputError` naming file, line and column."""
    from google.protobuf import text_format

    message = new_config()
    if text.startswith("\ufeff"):
        raise InputError(
            "it begins with a byte order mark, which Triton's parser refuses",
            where=f"{where}:1:1",
            remedy="save the file as UTF-8 without a byte order mark",
        )
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        line, column = error.GetLine(), error.GetColumn()
        problem = re.sub(r"^(?:\d+:\d+ : )?", "", str(error)).strip()
        location = f"{where}:{line}:{column}" if line is not None else str(where)
        raise InputError(
            problem or "not a valid model configuration",
            where=location,
            remedy=_nearest_field(problem)
            or "correct the file: it must be a protobuf text-format inference.ModelConfig",
        ) from None
    return message


def _nearest_field(problem: str) -> str | None:
    """For "Message type "inference.X" has no field named "y"": what was probably meant, and what there is."""
    import difflib

    from tritonclient.grpc import model_config_pb2

    match = re.search(r'Message type "inference\.([\w.]+)" has no field named "([^"]*)"', problem)
    if match is None:
        return None
    message_type: Any = model_config_pb2.DESCRIPTOR
    for index, part in enumerate(match.group(1).split(".")):
        known = message_type.message_types_by_name if index == 0 else message_type.nested_types_by_name
        if part not in known:
            return None
        message_type = known[part]
    names = list(message_type.fields_by_name)
    nearest = difflib.get_close_matches(match.group(2), names, 1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'?" if nearest else f"fields there: {', '.join(sorted(names))}"


def print_config(message: ModelConfig) -> str:
    from google.protobuf import text_format

    return str(text_format.MessageToString(message, use_short_repeated_primitives=True))


def datatype_name(value: int) -> str:
    """``ModelConfig`` data type to the name in the inference protocol: TYPE_FP32 to FP32, TYPE_STRING to BYTES."""
    from tritonclient.grpc import model_config_pb2

    name = str(model_config_pb2.DataType.Name(value)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def datatype_value(name: str) -> int:
    """The reverse of :func:`datatype_name`. Raises ``ValueError`` for an unknown name."""
    from tritonclient.grpc import model_config_pb2

    return int(model_config_pb2.DataType.Value("TYPE_" + ("STRING" if name == "BYTES" else name)))
