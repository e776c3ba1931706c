"""Serving knobs: what Triton itself can do with a built engine. Nothing here needs a rebuild.

The default of each knob is what the model's live config says today, so the default route changes nothing. A knob is
offered only where it makes sense for the model; :func:`serving_exclusions` says why one is missing.

Triton's own defaults that matter here (core, ``NormalizeInstanceGroup`` and ``NormalizeModelConfig``): an ONNX Runtime
model on a CPU runs two instances where the config names no count, everything else one; a dynamic batcher without
preferred sizes prefers ``max_batch_size``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from optimizer.errors import InputError
from optimizer.records.model import Model, ModelFormat
from optimizer.records.route import Knob, Layer, Route
from optimizer.triton.protobuf import parse_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

INSTANCES = "instances"
DYNAMIC_BATCHING = "dynamic_batching"
QUEUE_DELAY = "queue_delay_us"
PREFERRED_SIZES = "preferred_batch_sizes"
MAX_BATCH_SIZE = "max_batch_size"
CUDA_GRAPHS = "cuda_graphs"
SERVING_KNOBS = (INSTANCES, DYNAMIC_BATCHING, QUEUE_DELAY, PREFERRED_SIZES, MAX_BATCH_SIZE, CUDA_GRAPHS)
NO_SIZES = "none"

_KIND_CPU = 2
_TENSORRT = "tensorrt"
_ONNXRUNTIME = "onnxruntime"
_MOST_INSTANCES = 8
_DELAYS_CPU_US = (1000, 5000)
_DELAYS_GPU_US = (100, 500, 2000)
_LARGEST_OFFERED_BATCH = {False: 8, True: 128}
"""By ``gpu``. Past these a larger batch costs latency and memory and, on a CPU, gains nothing."""


@dataclass(frozen=True)
class Bounds:
    """Of a knob that takes any number where an expression names it: from ``least`` to ``most``, or to today's value
    where that is more. What is offered is only the sensible part."""

    least: int
    most: int
    unit: str
    remedy: str


# Far more instances than could ever help fill the machine as they load; a longer delay only makes requests time out; a
# batch that production takes must fit its memory.
NUMBERS: Mapping[str, Bounds] = {
    INSTANCES: Bounds(
        1, 64, "instances a device, each with its own memory", f"more than {_MOST_INSTANCES} are rarely faster"
    ),
    QUEUE_DELAY: Bounds(0, 1_000_000, "µs that a request waits", "some 100 to 5,000 are usual"),
    MAX_BATCH_SIZE: Bounds(1, 65_536, "rows of one execution", "a larger batch takes more memory"),
}


@dataclass(frozen=True)
class _Found:
    """The serving settings of a config, as values of knobs."""

    instances: int
    uneven_groups: str
    batching: bool
    queue_delay_us: int
    preferred: tuple[int, ...]
    max_batch_size: int
    cuda_graphs: bool
    batcher_features: tuple[str, ...]

    @classmethod
    def of(cls, config: ModelConfig, *, gpu: bool) -> _Found:
        counts = [_count(config, group, gpu=gpu) for group in config.instance_group] or [
            _default_count(config, cpu=not gpu)
        ]
        uneven = ""
        if any(group.passive for group in config.instance_group):
            uneven = "an instance group is passive"
        elif any(group.HasField("rate_limiter") for group in config.instance_group):
            uneven = "an instance group has a rate limiter, whose resources are set for today's count"
        elif len(set(counts)) > 1:
            uneven = f"its instance groups have different counts ({', '.join(map(str, counts))})"
        batcher = config.dynamic_batching
        features = [
            name
            for name in ("preserve_ordering", "priority_levels", "default_queue_policy", "priority_queue_policy")
            if (batcher.HasField(name) if name == "default_queue_policy" else getattr(batcher, name))
        ]
        return cls(
            instances=counts[0],
            uneven_groups=uneven,
            batching=config.HasField("dynamic_batching"),
            queue_delay_us=int(batcher.max_queue_delay_microseconds),
            preferred=tuple(sorted(batcher.preferred_batch_size)),
            max_batch_size=config.max_batch_size,
            cuda_graphs=config.optimization.cuda.graphs,
            batcher_features=tuple(features),
        )


def serving_knobs(model: Model, *, gpu: bool, cores: int, family: str = "") -> tuple[Knob, ...]:
    """Triton's knobs for ``model`` where its engine is of ``family`` (default: the backend that serves it today).

    ``gpu``: the model is served on a GPU. ``cores``: CPU cores of the serving machine. Every knob has the as-found
    value as its default and at least one other value. Empty for an ensemble.
    """
    possible, _ = _survey(model, gpu=gpu, cores=cores, family=family)
    return tuple(knob for knob in possible if set(knob.values) != {knob.default})


def serving_exclusions(model: Model, *, gpu: bool, cores: int, family: str = "") -> Mapping[str, str]:
    """Knob to the reason why :func:`serving_knobs` does not offer it for this model."""
    possible, reasons = _survey(model, gpu=gpu, cores=cores, family=family)
    idle = {
        knob.name: f"{knob.default} is the only sensible value here"
        for knob in possible
        if set(knob.values) == {knob.default}
    }
    return {**reasons, **idle}


def nameable_serving_knobs(
    model: Model, *, gpu: bool, cores: int, family: str = ""
) -> tuple[tuple[Knob, ...], Mapping[str, str]]:
    """Knobs that a route expression may name, numbers open-ended, and the reasons why the others may not."""
    possible, reasons = _survey(model, gpu=gpu, cores=cores, family=family)
    return tuple(replace(knob, values=()) if knob.name in NUMBERS else knob for knob in possible), reasons


def apply_serving(config: ModelConfig, route: Route) -> ModelConfig:
    """A new message: ``config`` under the serving knobs that ``route`` assigns; everything else untouched.

    Knobs of other layers in ``route`` are ignored. Raises :class:`InputError` for a value that Triton would refuse or
    that takes away what works today.
    """
    changed = type(config)()
    changed.CopyFrom(config)
    assigned = dict(route.restricted(SERVING_KNOBS).assignments)
    if MAX_BATCH_SIZE in assigned:
        _set_max_batch_size(changed, _whole(MAX_BATCH_SIZE, assigned[MAX_BATCH_SIZE], least=1))
    if INSTANCES in assigned:
        _set_instances(changed, _whole(INSTANCES, assigned[INSTANCES], least=1))
    _set_batching(changed, assigned)
    if CUDA_GRAPHS in assigned:
        changed.optimization.cuda.graphs = _switch(CUDA_GRAPHS, assigned[CUDA_GRAPHS])
    return changed


def check_number(knob: Knob, text: str, bounds: Bounds) -> None:
    """Raises :class:`InputError` for a value that no config takes, or no machine."""
    number = _whole(knob.name, text, least=bounds.least)
    most = max(bounds.most, int(knob.default))
    if number > most:
        raise InputError(
            f"{number} is more than {most} {bounds.unit}",
            where="--routes",
            field=knob.name,
            remedy=f"name values up to {most}; {bounds.remedy}",
        )


def serving_caveats(config: ModelConfig) -> tuple[str, ...]:
    """What a server may make of ``config`` that a sandbox without auto-completion does not."""
    batcher = config.WhichOneof("scheduling_choice")
    if config.backend == _TENSORRT and config.max_batch_size > 1 and batcher is None:
        return (
            "no dynamic batching in the config: a server with auto-completion (the default) turns it on for TensorRT "
            "models; what was measured is a server with --disable-auto-complete-config",
        )
    return ()


def batch_sizes(text: str) -> tuple[int, ...]:
    """``"4,8"`` to ``(4, 8)``, ``"none"`` to ``()``. Raises :class:`InputError`."""
    if text == NO_SIZES:
        return ()
    return tuple(_whole(PREFERRED_SIZES, word, least=1) for word in text.split(","))


def _survey(model: Model, *, gpu: bool, cores: int, family: str) -> tuple[tuple[Knob, ...], dict[str, str]]:
    if model.format is ModelFormat.ENSEMBLE or model.ensemble_members:
        return (), dict.fromkeys(SERVING_KNOBS, "an ensemble has no instances or batcher: tune its members")
    config = parse_config(model.effective_config_text or model.config_text, where=model.config_path or model.name)
    found = _Found.of(config, gpu=gpu)
    values: dict[str, tuple[str, list[str], str]] = {}
    reasons: dict[str, str] = {}

    if found.uneven_groups:
        reasons[INSTANCES] = f"{found.uneven_groups}: one count for all would change what each device gets"
    else:
        values[INSTANCES] = (str(found.instances), _instance_counts(found.instances, gpu, cores), _INSTANCES_HELP)

    blocked = _no_batching(model, found)
    if blocked:
        reasons.update(dict.fromkeys((DYNAMIC_BATCHING, QUEUE_DELAY, PREFERRED_SIZES, MAX_BATCH_SIZE), blocked))
    else:
        _survey_batching(model, found, values, reasons, gpu=gpu, family=family)

    backend = family or model.backend or (_TENSORRT if model.format is ModelFormat.PLAN else "")
    why_no_graphs = _no_cuda_graphs(model, gpu=gpu, backend=backend)
    if why_no_graphs:
        reasons[CUDA_GRAPHS] = why_no_graphs
    else:
        values[CUDA_GRAPHS] = ("on" if found.cuda_graphs else "off", ["off", "on"], _GRAPHS_HELP)

    knobs = (
        Knob(name, Layer.SERVING, tuple(dict.fromkeys(offered)), default, help=text)
        for name, (default, offered, text) in values.items()
    )
    return tuple(sorted(knobs, key=lambda knob: SERVING_KNOBS.index(knob.name))), reasons


def _survey_batching(
    model: Model,
    found: _Found,
    values: dict[str, tuple[str, list[str], str]],
    reasons: dict[str, str],
    *,
    gpu: bool,
    family: str,
) -> None:
    tensorrt = (family or model.backend) == _TENSORRT or (not family and model.format is ModelFormat.PLAN)
    if found.max_batch_size == 1:
        for name in (DYNAMIC_BATCHING, QUEUE_DELAY, PREFERRED_SIZES):
            reasons[name] = "max_batch_size is 1: there is nothing to batch"
    else:
        if found.batching and found.batcher_features:
            reasons[DYNAMIC_BATCHING] = (
                f"the batcher's {', '.join(found.batcher_features)} would be lost by turning it off"
            )
        elif found.batching and tensorrt:
            reasons[DYNAMIC_BATCHING] = "a server that completes configs turns it on again for TensorRT models"
        else:
            values[DYNAMIC_BATCHING] = ("on" if found.batching else "off", ["off", "on"], _BATCHING_HELP)
        delays = sorted({0, found.queue_delay_us, *(_DELAYS_GPU_US if gpu else _DELAYS_CPU_US)})
        values[QUEUE_DELAY] = (str(found.queue_delay_us), [str(delay) for delay in delays], _DELAY_HELP)
        as_found = _sizes_text(found.preferred)
        values[PREFERRED_SIZES] = (as_found, _preferred_choices(found), _SIZES_HELP)

    if tensorrt:
        reasons[MAX_BATCH_SIZE] = "a TensorRT engine takes no larger batch than its optimization profile allows"
    else:
        limit = _LARGEST_OFFERED_BATCH[gpu]
        raised = [found.max_batch_size * factor for factor in (2, 4) if found.max_batch_size * factor <= limit]
        sizes = [found.max_batch_size, *raised]
        values[MAX_BATCH_SIZE] = (str(found.max_batch_size), [str(size) for size in sizes], _MAX_BATCH_HELP)


def _no_batching(model: Model, found: _Found) -> str:
    if found.max_batch_size < 1:
        return "max_batch_size is 0: the model does not batch"
    if model.sequence_batching:
        return "sequence batching schedules this model; it excludes dynamic batching"
    return ""


def _no_cuda_graphs(model: Model, *, gpu: bool, backend: str) -> str:
    if not gpu:
        return "no GPU"
    if backend != _TENSORRT:
        return "only the tensorrt backend has CUDA graphs"
    if any(tensor.shape_tensor for tensor in (*model.inputs, *model.outputs)):
        return "shape tensors exclude CUDA graphs"
    if any(size < 0 for tensor in model.inputs for size in tensor.reshape or tensor.dims):
        return "free dimensions: a graph is captured for one shape only, and no other would use it"
    return ""


def _instance_counts(found: int, gpu: bool, cores: int) -> list[str]:
    # Every CPU instance has threads of its own: more instances than cores only queue for the cores. On a GPU they
    # overlap copies and kernels; past 8 they were slower again (12-layer conv net, H200).
    most = _MOST_INSTANCES if gpu else max(1, min(_MOST_INSTANCES, cores))
    counts = {1, found, *(count for count in (2, 4, 8) if count <= most)}
    return [str(count) for count in sorted(counts)]


def _preferred_choices(found: _Found) -> list[str]:
    choices = [found.preferred, ()]
    half = found.max_batch_size // 2
    for sizes in ((half,), (4, 8)):
        if all(2 <= size < found.max_batch_size for size in sizes):
            choices.append(sizes)
    return [_sizes_text(sizes) for sizes in choices]


def _sizes_text(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes)) or NO_SIZES


def _count(config: ModelConfig, group: ModelConfig, *, gpu: bool) -> int:
    return int(group.count) or _default_count(config, cpu=group.kind == _KIND_CPU or (group.kind == 0 and not gpu))


def _default_count(config: ModelConfig, *, cpu: bool) -> int:
    onnxruntime = config.backend == _ONNXRUNTIME or config.platform == "onnxruntime_onnx"
    return 2 if cpu and onnxruntime else 1


def _set_instances(config: ModelConfig, count: int) -> None:
    counts = {group.count for group in config.instance_group}
    if len(counts) > 1 or any(group.passive for group in config.instance_group):
        raise InputError(
            "the config has several instance groups with different counts or a passive one",
            field=INSTANCES,
            remedy="leave instances out of the route, or give the groups one count",
        )
    # Kind AUTO in a new group is what Triton makes of no group at all.
    for group in config.instance_group or [config.instance_group.add()]:
        group.count = count


def _set_max_batch_size(config: ModelConfig, size: int) -> None:
    if size < config.max_batch_size:
        raise InputError(
            f"{size} is lower than today's {config.max_batch_size}: requests that are accepted now would be refused",
            field=MAX_BATCH_SIZE,
            remedy=f"use {config.max_batch_size} or more",
        )
    if config.max_batch_size == 0:
        raise InputError("the model does not batch (max_batch_size 0)", field=MAX_BATCH_SIZE, remedy="leave it out")
    config.max_batch_size = size


def _set_batching(config: ModelConfig, assigned: Mapping[str, str]) -> None:
    if DYNAMIC_BATCHING in assigned:
        if not _switch(DYNAMIC_BATCHING, assigned[DYNAMIC_BATCHING]):
            config.ClearField("dynamic_batching")
        elif config.max_batch_size < 1 or config.HasField("sequence_batching"):
            raise InputError(
                "dynamic batching needs max_batch_size > 0 and no sequence batching",
                field=DYNAMIC_BATCHING,
                remedy="leave it out of the route",
            )
        else:
            config.dynamic_batching.SetInParent()
    for name in (QUEUE_DELAY, PREFERRED_SIZES):
        if name in assigned and not config.HasField("dynamic_batching"):
            raise InputError(
                "has no effect without dynamic batching", field=name, remedy=f"add -{DYNAMIC_BATCHING}=on to the route"
            )
    if QUEUE_DELAY in assigned:
        config.dynamic_batching.max_queue_delay_microseconds = _whole(QUEUE_DELAY, assigned[QUEUE_DELAY], least=0)
    if PREFERRED_SIZES in assigned:
        sizes = batch_sizes(assigned[PREFERRED_SIZES])
        if sizes and max(sizes) > config.max_batch_size:
            raise InputError(
                f"{max(sizes)} is larger than max_batch_size {config.max_batch_size}",
                field=PREFERRED_SIZES,
                remedy="name sizes up to max_batch_size",
            )
        config.dynamic_batching.ClearField("preferred_batch_size")
        config.dynamic_batching.preferred_batch_size.extend(sizes)


def _whole(name: str, text: str, *, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) < 2**31:
        raise InputError(f"{text!r} is not a whole number of at least {least}", field=name, remedy="give a number")
    return int(text)


def _switch(name: str, text: str) -> bool:
    if text not in {"on", "off"}:
        raise InputError(f"{text!r} is neither on nor off", field=name, remedy="use on or off")
    return text == "on"


_INSTANCES_HELP = "instances per instance group (and per GPU): parallel executions, each with its own memory"
_BATCHING_HELP = "Triton's dynamic batcher: joins waiting requests into one execution"
_DELAY_HELP = "how long the dynamic batcher may hold a request back to fill a preferred batch"
_SIZES_HELP = "batch sizes the dynamic batcher aims at; none: max_batch_size itself"
_MAX_BATCH_HELP = "largest batch of one execution; never lower than today"
_GRAPHS_HELP = "CUDA graphs of the tensorrt backend: fewer kernel launches on the CPU"
