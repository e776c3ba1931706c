"""Applies a route's knobs to a live builder config and reads every one of them back. Runs in the worker.

A setter that says nothing has not necessarily done anything: TensorRT-RTX ignores the hardware compatibility level, and
the Python setter of ``build_route`` drops the C++ result. What was not taken is a failure of the candidate, never an
engine that pretends to be another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optimizer.engines.tensorrt.capabilities import Capabilities, members

_SWITCH = {"on": True, "off": False}


class NotAvailable(Exception):
    """The installed builder has no such knob, or did not take the value."""

    def __init__(self, knob: str, value: str, why: str) -> None:
        super().__init__(f"{knob}={value}: {why}")


def apply_precision(
    module: Any, config: Any, have: Capabilities, precision: str, quantized: tuple[str, ...], rewritten: bool
) -> dict[str, bool]:
    """Sets precision flags. ``quantized`` are the types of the network's own Q/DQ nodes: weak typing needs their flag.

    Under strong typing the network's types decide: the ONNX must have been ``rewritten``, and only TF32 is a flag.
    """
    if precision in ("fp32", "tf32"):
        wanted = {"tf32": precision == "tf32"}
    elif rewritten:
        wanted = {}
    elif have.weak_typing:
        wanted = {precision: True}
    else:
        raise NotAvailable("precision", precision, f"{have.builder} takes types from the network; rewrite the ONNX")
    if have.weak_typing:
        wanted.update(dict.fromkeys(quantized, True))
    for flag, on in wanted.items():
        if flag not in have.builder_flags:
            raise NotAvailable("precision", precision, f"{have.builder} has no {flag.upper()} flag")
        _set_flag(module, config, flag, on, "precision", precision)
    return wanted


def pin_fp32(module: Any, config: Any, network: Any, operators: tuple[str, ...]) -> int:
    """Weak typing: keeps the layers of overflow-prone operators in FP32; returns how many were pinned."""
    kinds = {kind for operator in operators for kind in _LAYER_TYPES.get(operator, ())}
    pinned = 0
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        kind = str(layer.type).rsplit(".", 1)[-1].lower()
        if kind == "elementwise" and "Pow" in operators:
            if _operation(module, layer) != "pow":
                continue
        elif kind not in kinds:
            continue
        if all(layer.get_output(item).dtype == module.float32 for item in range(layer.num_outputs)):
            layer.precision = module.float32
            for item in range(layer.num_outputs):
                layer.set_output_type(item, module.float32)
            pinned += 1
    if pinned:
        _set_flag(module, config, "obey_precision_constraints", True, "keep_fp32", "overflow")
    return pinned


_LAYER_TYPES: Mapping[str, tuple[str, ...]] = {
    "Softmax": ("softmax",),
    "ReduceMean": ("reduce",),
    "LayerNormalization": ("normalization",),
    "InstanceNormalization": ("normalization",),
    "GroupNormalization": ("normalization",),
    "Pow": ("elementwise",),
}


def _operation(module: Any, layer: Any) -> str:
    # get_layer returns the base class; the derived one, which knows its operation, is only a cast away.
    layer.__class__ = module.IElementWiseLayer
    return str(layer.op).rsplit(".", 1)[-1].lower()


def allow_shared_profiles(module: Any, config: Any) -> bool:
    """Lets several execution contexts use one profile, which instances and CUDA graphs need before TensorRT 10.

    Later releases always allow it and have no such feature. Returns whether the builder took it.
    """
    feature = getattr(getattr(module, "PreviewFeature", None), "PROFILE_SHARING_0806", None)
    if feature is None or not hasattr(config, "set_preview_feature"):
        return False
    config.set_preview_feature(feature, True)
    return bool(config.get_preview_feature(feature))


def apply_builder(module: Any, config: Any, have: Capabilities, settings: Mapping[str, str]) -> dict[str, str]:
    """Sets builder knobs by name; returns what the config says afterwards. Raises :class:`NotAvailable`."""
    taken = {}
    for knob, value in settings.items():
        setter = _SETTERS.get(knob)
        if setter is None:
            raise NotAvailable(knob, value, "no such builder knob")
        setter(module, config, have, knob, value)
        taken[knob] = value
    return taken


def apply_build_route(config: Any, have: Capabilities, text: str) -> str:
    """Sets the tuner's route and reads it back; the order of the assignments may change, nothing else."""
    if not text:
        return ""
    if not have.build_route:
        raise NotAvailable("build_route", text, f"{have.builder} has no build routes")
    config.build_route = text
    got = str(config.build_route or "")
    missing = sorted(set(text.split()) - set(got.split()))
    if missing:
        raise NotAvailable("build_route", text, f"the builder did not take {' '.join(missing)}; it says {got!r}")
    return got


def _set_flag(module: Any, config: Any, flag: str, on: bool, knob: str, value: str) -> None:
    member = getattr(module.BuilderFlag, flag.upper(), None)
    if member is None:
        raise NotAvailable(knob, value, f"this builder has no {flag.upper()} flag")
    if on:
        config.set_flag(member)
    else:
        config.clear_flag(member)
    if bool(config.get_flag(member)) is not on:
        raise NotAvailable(knob, value, f"the builder did not take its {flag.upper()} flag")


def _flag_setter(flag: str) -> Any:
    def apply(module: Any, config: Any, _have: Capabilities, knob: str, value: str) -> None:
        if value not in _SWITCH:
            raise NotAvailable(knob, value, "takes on or off")
        _set_flag(module, config, flag, _SWITCH[value], knob, value)

    return apply


def _integer_setter(attribute: str, automatic: str | None = None) -> Any:
    def apply(_module: Any, config: Any, have: Capabilities, knob: str, value: str) -> None:
        if not hasattr(config, attribute):
            raise NotAvailable(knob, value, f"{have.builder} has no {attribute}")
        if value == automatic:
            return
        _assign(config, attribute, _integer(knob, value), knob, value)

    return apply


def _enum_setter(attribute: str, enum: str) -> Any:
    def apply(module: Any, config: Any, have: Capabilities, knob: str, value: str) -> None:
        if not hasattr(config, attribute) or not hasattr(module, enum):
            raise NotAvailable(knob, value, f"{have.builder} has no {attribute}")
        if value not in members(module, enum):
            raise NotAvailable(knob, value, f"takes one of {', '.join(members(module, enum))}")
        _assign(config, attribute, getattr(getattr(module, enum), value.upper()), knob, value)

    return apply


def _assign(config: Any, attribute: str, wanted: Any, knob: str, value: str) -> None:
    try:
        setattr(config, attribute, wanted)
    except (TypeError, ValueError, RuntimeError) as error:
        raise NotAvailable(knob, value, str(error).splitlines()[0]) from None
    got = getattr(config, attribute)
    if got != wanted:
        raise NotAvailable(knob, value, f"the builder keeps {attribute} at {got}")


def _integer(knob: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise NotAvailable(knob, value, "takes an integer") from None


def _workspace(module: Any, config: Any, _have: Capabilities, knob: str, value: str) -> None:
    if value == "max":
        return
    size = _integer(knob, value) << 20
    pool = module.MemoryPoolType.WORKSPACE
    config.set_memory_pool_limit(pool, size)
    if int(config.get_memory_pool_limit(pool)) != size:
        raise NotAvailable(knob, value, "the builder did not take the workspace limit")


def _tactic_sources(module: Any, config: Any, have: Capabilities, knob: str, value: str) -> None:
    """``default``, ``none``, or ``with_<source>`` and ``without_<source>`` joined by ``+``."""
    mask = int(config.get_tactic_sources())
    for part in value.split("+"):
        name = part.removeprefix("without_").removeprefix("with_")
        if part == "default":
            continue
        if part == "none":
            mask = 0
            continue
        if part == name or name not in have.tactic_sources:
            raise NotAvailable(
                knob, value, f"takes default, none, with_<source>, without_<source>; sources: {have.tactic_sources}"
            )
        bit = 1 << int(getattr(module.TacticSource, name.upper()))
        mask = mask & ~bit if part.startswith("without_") else mask | bit
    taken = config.set_tactic_sources(mask)
    if taken is False or int(config.get_tactic_sources()) != mask:
        raise NotAvailable(knob, value, "the builder did not take these tactic sources")


_SETTERS: Mapping[str, Any] = {
    "optimization_level": _integer_setter("builder_optimization_level"),
    "tiling_level": _enum_setter("tiling_optimization_level", "TilingOptimizationLevel"),
    "l2_limit": _integer_setter("l2_limit_for_tiling", "auto"),
    "aux_streams": _integer_setter("max_aux_streams", "auto"),
    "max_tactics": _integer_setter("max_num_tactics", "auto"),
    "tactic_sources": _tactic_sources,
    "sparsity": _flag_setter("sparse_weights"),
    "hardware_compatibility": _enum_setter("hardware_compatibility_level", "HardwareCompatibilityLevel"),
    "version_compatible": _flag_setter("version_compatible"),
    "workspace": _workspace,
}
