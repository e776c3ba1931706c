"""The family's knobs, from what the installed builder has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from optimizer.engines.tensorrt import modelopt
from optimizer.engines.tensorrt.capabilities import Capabilities
from optimizer.engines.tensorrt.profiles import clusters, default_opt_batch, opt_batch_values
from optimizer.engines.tensorrt.source import OnnxSource
from optimizer.records.model import Model
from optimizer.records.route import Knob, KnobClass, Layer, Route

OVERFLOW_OPERATORS = (
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "Softmax",
    "LogSoftmax",
    "Pow",
    "ReduceMean",
    "ReduceSum",
    "ReduceL2",
)
"""Operators that leave FP16's range in real models (TensorRT #2564, #4748): kept in FP32 by default."""

PRECISION = frozenset({"precision", "keep_fp32"})
BUILDER = frozenset(
    {
        "optimization_level",
        "tiling_level",
        "l2_limit",
        "aux_streams",
        "max_tactics",
        "tactic_sources",
        "sparsity",
        "hardware_compatibility",
        "version_compatible",
        "workspace",
    }
)
PROFILE = frozenset({"opt_batch", "profiles"})
OWN = PRECISION | BUILDER | PROFILE
SHARED = frozenset({"max_batch_size"})
"""Serving knobs that an engine must be built for: the profile reaches to that batch."""


@dataclass(frozen=True)
class SplitRoute:
    """A route by the layer that reads it. ``compiler`` is what is left: the tuner's own knobs."""

    precision: str = "tf32"
    keep_fp32: bool = True
    settings: dict[str, str] = field(default_factory=dict)
    opt_batch: int | None = None
    max_batch: int | None = None
    profiles: str = "single"
    compiler: Route = field(default_factory=Route)


def split(route: Route) -> SplitRoute:
    """Raises ``ValueError`` for a batch that is no number."""
    opt, most = route.get("opt_batch"), route.get("max_batch_size")
    return SplitRoute(
        precision=route.get("precision") or "tf32",
        keep_fp32=route.get("keep_fp32", "overflow") != "none",
        settings={name: value for name, value in route.assignments if name in BUILDER},
        opt_batch=int(opt) if opt is not None else None,
        max_batch=int(most) if most is not None else None,
        profiles=route.get("profiles") or "single",
        compiler=route.without(OWN | SHARED),
    )


def list_knobs(
    have: Capabilities,
    model: Model,
    source: OnnxSource | None,
    *,
    preferred: Sequence[int] = (),
    shapes: Sequence[dict[str, tuple[int, ...]]] = (),
    rewriting: bool = True,
    with_modelopt: bool = False,
) -> tuple[Knob, ...]:
    """Knobs of the layers precision, builder and profile; a knob that the builder lacks is absent.

    ``rewriting``: ONNX types can be rewritten here (strongly typed builders). The compiler layer comes from
    ``Capabilities.all_build_routes``.
    """
    knobs = [
        *_precision_knobs(have, source, rewriting, with_modelopt),
        *_builder_knobs(have),
        *_profile_knobs(model, source, preferred, shapes),
    ]
    return tuple(knob for knob in knobs if len(knob.values) != 1)


def builder_layer_knobs(have: Capabilities) -> tuple[Knob, ...]:
    """The knobs that a builder has whatever the model: precision and builder."""
    knobs = [*_precision_knobs(have, None, True, False), *_builder_knobs(have)]
    return tuple(knob for knob in knobs if len(knob.values) != 1)


def _precision_knobs(have: Capabilities, source: OnnxSource | None, rewriting: bool, with_modelopt: bool) -> list[Knob]:
    values = ["tf32", "fp32"]
    quantized = source.quantized if source is not None else ()
    floats = source is None or any(tensor.datatype == "FP32" for tensor in (*source.inputs, *source.outputs))
    if have.weak_typing:
        values += [flag for flag in ("fp16", "bf16") if flag in have.precision_flags]
    elif rewriting and not quantized and floats:
        values += ["fp16"] + (["bf16"] if "bf16" in have.data_types else [])
    if with_modelopt and not quantized:
        values += modelopt.PRECISIONS
    knobs = [
        Knob(
            "precision",
            Layer.PRECISION,
            tuple(values),
            "tf32",
            KnobClass.NUMERIC,
            "numeric type of the engine's arithmetic; TensorRT allows TF32 unless told not to",
        )
    ]
    if {"fp16", "bf16"} & set(values):
        knobs.append(
            Knob(
                "keep_fp32",
                Layer.PRECISION,
                ("overflow", "none"),
                "overflow",
                KnobClass.NUMERIC,
                f"under fp16 and bf16, keep {', '.join(OVERFLOW_OPERATORS[:5])} … in FP32",
            )
        )
    return knobs


def _builder_knobs(have: Capabilities) -> list[Knob]:
    def taken(name: str, values: Sequence[str]) -> tuple[str, ...]:
        return tuple(value for value in values if f"{name}={value}" not in have.rejected)

    knobs = []

    def add(name: str, values: Sequence[str], default: str, text: str, kind: KnobClass = KnobClass.SAFE) -> None:
        knobs.append(Knob(name, Layer.BUILDER, taken(name, values), default, kind, text))

    if have.optimization_level:
        levels = [str(level) for level in range(6)]
        add("optimization_level", levels, "3", "how long the builder searches; 5 compares most kernels")
    if have.tiling_levels:
        add("tiling_level", have.tiling_levels, "none", "tiles layers so that data stays in the L2 cache")
    if have.l2_limit and have.tiling_levels:
        sizes = ["auto", *[str(mib << 20) for mib in (8, 16, 32)]]
        add("l2_limit", sizes, "auto", "bytes of L2 cache that tiling may count on")
    if have.aux_streams:
        add("aux_streams", ["auto", "0", "1", "2", "4"], "auto", "auxiliary streams for parallel branches")
    if have.max_tactics:
        add("max_tactics", ["auto", "1", "8", "32", "128"], "auto", "kernels timed per layer at most")
    if have.tactic_sources:
        on = have.default_tactic_sources
        changes = [f"without_{name}" for name in on] + [
            f"with_{name}" for name in have.tactic_sources if name not in on
        ]
        add(
            "tactic_sources",
            ["default", *changes, *(["none"] if on else [])],
            "default",
            "kernel libraries: one more or one fewer than by default, or none",
        )
    if have.sparsity:
        # The flag alone never drops a weight: layers that are not 2:4 sparse stay as they are.
        add("sparsity", ["off", "on"], "off", "uses 2:4 sparse kernels where the weights have that structure")
    if have.hardware_compatibility:
        add("hardware_compatibility", have.hardware_compatibility, "none", "lets the plan run on other GPUs, slower")
    if have.version_compatible:
        add("version_compatible", ["off", "on"], "off", "lets newer runtimes load the plan; carries a lean runtime")
    add("workspace", ["max", "64", "256", "1024", "4096"], "max", "MiB of scratch memory for layers")
    return knobs


def _profile_knobs(
    model: Model,
    source: OnnxSource | None,
    preferred: Sequence[int],
    shapes: Sequence[dict[str, tuple[int, ...]]],
) -> list[Knob]:
    free_batch = source is None or any(tensor.dims and tensor.dims[0] == -1 for tensor in source.inputs)
    knobs = []
    modes = ["single"]
    if model.max_batch_size > 1 and free_batch:
        values = tuple(str(size) for size in opt_batch_values(model, preferred))
        default = str(default_opt_batch(model, preferred))
        knobs.append(Knob("opt_batch", Layer.PROFILE, values, default, help="batch that kernels are chosen for"))
        modes.append("batch_split")
    if len(clusters(shapes, model.batched)) > 1:
        modes.append("shape_clusters")
    knobs.append(
        Knob(
            "profiles",
            Layer.PROFILE,
            tuple(modes),
            "single",
            help="one profile, one for batch 1 and one for the rest, or one for each cluster of request shapes",
        )
    )
    return knobs
