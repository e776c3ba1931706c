"""Checks that stop a bad plan before a server sees it: engine against config, with the errors that Triton would give.

Pure: the engine is its description (:mod:`~optimizer.engines.tensorrt.network`), the config a protobuf message.
The texts follow Triton's tensorrt backend, so that a search for them leads to the same threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optimizer.engines.tensorrt.configuration import tensors
from optimizer.records.engine import Engine
from optimizer.triton.protobuf import datatype_name

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

IO_TYPES = frozenset({"FP32", "FP16", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL"})


@dataclass(frozen=True)
class Mismatch:
    """``code`` is stable: ``datatype``, ``dims``, ``inputs``, ``outputs``, ``batch``, ``profile``, ``format``."""

    code: str
    message: str


def check_engine(engine: Mapping[str, Any], config: ModelConfig) -> list[Mismatch]:
    """Every mismatch, in the order in which Triton would meet them; empty when the plan would load."""
    found = [*_check_names(engine, config)]
    by_name = {tensor["name"]: tensor for tensor in engine["tensors"]}
    for role, entries in (("input", config.input), ("output", config.output)):
        for entry in entries:
            tensor = by_name.get(entry.name)
            if tensor is not None and tensor["mode"] == role:
                found += _check_tensor(role, entry, tensor, config)
    found += _check_profiles(engine, config)
    return found


def _check_names(engine: Mapping[str, Any], config: ModelConfig) -> list[Mismatch]:
    found = []
    have_inputs = [tensor["name"] for tensor in tensors(engine, "input")]
    have_outputs = [tensor["name"] for tensor in tensors(engine, "output")]
    want_inputs = [entry.name for entry in config.input]
    want_outputs = [entry.name for entry in config.output]
    if len(want_inputs) > len(have_inputs):
        found.append(
            Mismatch(
                "inputs",
                f"failed to load '{config.name}', configuration expects {len(want_inputs)} inputs, "
                f"model provides at most {len(have_inputs)}",
            )
        )
    for name in want_inputs:
        if name not in have_inputs:
            found.append(Mismatch("inputs", f"unexpected inference input '{name}', allowed inputs are: {have_inputs}"))
    for name in have_inputs:
        if name not in want_inputs:
            found.append(Mismatch("inputs", f"expected configuration for input '{name}' for {config.name}"))
    for name in want_outputs:
        if name not in have_outputs:
            found.append(
                Mismatch("outputs", f"unexpected inference output '{name}', allowed outputs are: {have_outputs}")
            )
    for name in have_outputs:
        if name not in want_outputs:
            found.append(Mismatch("outputs", f"expected configuration for output '{name}' for {config.name}"))
    return found


def _check_tensor(role: str, entry: Any, tensor: Mapping[str, Any], config: ModelConfig) -> list[Mismatch]:
    found = []
    wanted, got = datatype_name(entry.data_type), tensor["datatype"]
    if got not in IO_TYPES:
        found.append(Mismatch("datatype", f"invalid datatype TYPE_{got} for inference {role} '{entry.name}'"))
    elif wanted != got:
        found.append(
            Mismatch(
                "datatype",
                f"unexpected datatype TYPE_{got} for inference {role} '{entry.name}', expecting TYPE_{wanted}",
            )
        )
    if tensor["shape_tensor"] != entry.is_shape_tensor:
        is_one, says = ("is a shape tensor", "is not") if tensor["shape_tensor"] else ("is no shape tensor", "is")
        found.append(
            Mismatch("dims", f"{role} '{entry.name}' {is_one} in the engine and the model configuration says it {says}")
        )
    if not tensor["shape_tensor"]:
        found += _check_dims(role, entry, tensor, config)
    return found


def _check_dims(role: str, entry: Any, tensor: Mapping[str, Any], config: ModelConfig) -> list[Mismatch]:
    batched = config.max_batch_size > 0
    dims = list(entry.reshape.shape) if entry.HasField("reshape") else list(entry.dims)
    wanted = ([-1] if batched else []) + dims
    shape = list(tensor["shape"])
    if not shape and wanted and tensor.get("rank_unknown"):
        return []
    if len(shape) != len(wanted):
        return [
            Mismatch(
                "dims",
                f"model '{config.name}', tensor '{entry.name}': the model expects {len(shape)} dimensions (shape "
                f"{shape}) but the model configuration specifies {len(wanted)} dimensions (an initial batch dimension "
                f"because max_batch_size > 0 followed by the explicit tensor shape, making complete shape {wanted})"
                if batched
                else f"model '{config.name}', tensor '{entry.name}': the model expects {len(shape)} dimensions (shape "
                f"{shape}) but the model configuration specifies {len(wanted)} dimensions (shape {wanted})",
            )
        ]
    found = []
    start = 1 if batched else 0
    if batched and shape[0] not in (-1, config.max_batch_size) and shape[0] < config.max_batch_size:
        found.append(
            Mismatch(
                "batch",
                f"unexpected configuration maximum batch size {config.max_batch_size} for '{config.name}': "
                f"configuration specified max-batch {config.max_batch_size} but TensorRT engine only supports "
                f"max-batch {shape[0]}",
            )
        )
    if batched and shape[0] > 1:
        # It loads, and then every smaller batch is refused (server #4384).
        found.append(
            Mismatch("batch", f"{role} '{entry.name}' has a fixed batch of {shape[0]}: the engine refuses any other")
        )
    for index, (size, want) in enumerate(zip(shape[start:], wanted[start:], strict=True)):
        if size not in (-1, want) and (want != -1 or role == "input"):
            found.append(
                Mismatch(
                    "dims",
                    f"model '{config.name}', tensor '{entry.name}': dimension {index} of the model is {size}, and the "
                    f"model configuration says {want} (model shape {shape}, configuration shape {wanted})",
                )
            )
    return found


def _check_profiles(engine: Mapping[str, Any], config: ModelConfig) -> list[Mismatch]:
    """Every selected profile index exists, batch 1 to ``max_batch_size`` and the fixed dims are covered by one."""
    count = int(engine.get("profiles", 1))
    found = []
    for group in config.instance_group:
        selected = [int(number) for number in group.profile] or [0]
        wrong = [number for number in selected if number >= count]
        if wrong:
            found.append(
                Mismatch(
                    "profile",
                    f"instance group '{group.name}' selects optimization profile {wrong[0]}, the engine has {count}",
                )
            )
            continue
        for entry in config.input:
            found += _check_coverage(entry, engine, config, selected)
    return list(dict.fromkeys(found))


def _check_coverage(
    entry: Any, engine: Mapping[str, Any], config: ModelConfig, selected: Sequence[int]
) -> list[Mismatch]:
    tensor = next((item for item in tensors(engine, "input") if item["name"] == entry.name), None)
    if tensor is None or tensor["shape_tensor"] or not tensor["profiles"]:
        return []
    batched = config.max_batch_size > 0
    dims = list(entry.reshape.shape) if entry.HasField("reshape") else list(entry.dims)
    ranges = [tensor["profiles"][number] for number in selected]
    if any(len(item[0]) != len(dims) + batched for item in ranges):
        return []
    found = []
    if batched:
        top, bottom = max(item[2][0] for item in ranges), min(item[0][0] for item in ranges)
        if top < config.max_batch_size:
            found.append(
                Mismatch(
                    "batch",
                    f"configuration specified max-batch {config.max_batch_size} but TensorRT engine only supports "
                    f"max-batch {top}",
                )
            )
        if bottom > 1:
            found.append(Mismatch("batch", f"no selected optimization profile accepts batch 1 on '{entry.name}'"))
    for index, size in enumerate(dims):
        axis = index + batched
        if size > 0 and not any(item[0][axis] <= size <= item[2][axis] for item in ranges):
            found.append(
                Mismatch(
                    "profile",
                    f"failed to find any Optimization Profile among {list(selected)} that supports dimension {index} "
                    f"of '{entry.name}' = {size}",
                )
            )
    return found


def same_engine(one: Engine, other: Engine) -> bool:
    """Really the same: the same plan, or the same layers with the same kernels, bindings and profiles as the inspector
    shows them at DETAILED verbosity. Where there is no such fingerprint only the plans count.
    """
    if one.sha256 == other.sha256:
        return True
    first, second = one.details.get("fingerprint"), other.details.get("fingerprint")
    return (
        bool(first)
        and first == second
        and one.details.get("tensors") == other.details.get("tensors")
        and one.builder == other.builder
    )
