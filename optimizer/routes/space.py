"""Which space is searched: a sensible default for a model and a machine, or what a route expression names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from optimizer.errors import InputError
from optimizer.records.model import Model
from optimizer.records.route import Knob, KnobClass, Layer, Route
from optimizer.routes import serving
from optimizer.routes.expansion import Expansion
from optimizer.routes.expression import Expression, parse_expression
from optimizer.routes.product import Constraint, Space

__all__ = [
    "Constraint",
    "KnobSource",
    "Space",
    "default_space",
    "expression_for",
    "joint_constraints",
    "nameable_knobs",
    "permitted",
    "pruning_constraints",
    "space_of",
    "space_over",
]

INTRA_OP_THREADS = "intra_op_threads"

OPEN_ENDED = {
    **serving.NUMBERS,
    INTRA_OP_THREADS: serving.Bounds(0, 256, "threads an instance", "more than one a core are rarely faster"),
}
"""Integers for which an expression may name more than is offered. The compiler's own are TensorRT's to check."""

WORTH_TRYING: dict[str, tuple[str, ...]] = {
    "optimization_level": ("3", "5"),
    "tiling_level": ("none", "moderate"),
    "aux_streams": ("auto", "0"),
    "l2_limit": (),
    "max_tactics": (),
    "tactic_sources": (),
    "sparsity": (),
    "hardware_compatibility": (),
    "version_compatible": (),
    "workspace": (),
}
"""Builder knobs whose values are cut down in the default space, or that are left out (no values): they make builds
longer, engines portable or kernels sparse, and rarely the service faster. An expression may name all of them."""


class KnobSource(Protocol):
    """The part of an engine family that is needed here."""

    name: str

    def knobs(self, model: Model) -> tuple[Knob, ...]: ...


def default_space(
    model: Model,
    family: KnobSource,
    *,
    gpu: bool,
    cores: int,
    layers: Iterable[Layer | str] = tuple(Layer),
    limit: int | None = None,
    numeric: bool = True,
    compiler: Iterable[Knob] = (),
    engine_memory_bytes: int | None = None,
    memory_limit_bytes: int | None = None,
) -> tuple[Space, str]:
    """The space where the user names no routes, and why it is what it is.

    ``cores`` and ``gpu`` describe the serving machine. ``numeric`` is for studies with an accuracy gate. ``compiler``
    are TensorRT's build-route knobs, where its family builds the engines. ``limit`` bounds the number of candidates.
    ``engine_memory_bytes`` is what one instance takes and ``memory_limit_bytes`` what all may take, where known.
    """
    wanted = {Layer(layer) for layer in layers}
    tritons = serving.serving_knobs(model, gpu=gpu, cores=cores, family=family.name)
    offered = (*family.knobs(model), *tritons, *compiler)
    knobs = tuple(
        cut
        for knob in offered
        if knob.layer in wanted and _may_change(knob, numeric) and (cut := _worth_trying(knob)) is not None
    )
    constraints = [
        *joint_constraints(),
        *pruning_constraints(
            gpu=gpu, cores=cores, engine_memory_bytes=engine_memory_bytes, memory_limit_bytes=memory_limit_bytes
        ),
    ]
    space = Space(knobs, tuple(constraints), held=_held(offered, knobs), limit=limit)
    named = ", ".join(f"{layer.value} ({', '.join(_named(knobs, layer))})" for layer in Layer if _named(knobs, layer))
    ungated = [knob.name for knob in offered if knob.layer in wanted and _numeric(knob) and not numeric]
    without = f"; without a tolerance, not {', '.join(ungated[:8])}" if ungated else ""
    if not knobs:
        return space, f"no knob of the chosen layers applies to this model{without}"
    shortened = f", of which {limit} are tried" if limit is not None and space.size > limit else ""
    return space, f"{space.size:,} routes{shortened} over {named}{without}"


def nameable_knobs(
    model: Model, family: KnobSource, *, gpu: bool, cores: int, compiler: Iterable[Knob] = ()
) -> tuple[Knob, ...]:
    """What an expression may name: all knobs of the family, of Triton and of the compiler, UNSAFE ones too; numbers
    are open-ended."""
    own = (replace(knob, values=()) if knob.name in OPEN_ENDED else knob for knob in family.knobs(model))
    tritons, _ = serving.nameable_serving_knobs(model, gpu=gpu, cores=cores, family=family.name)
    return (*own, *tritons, *compiler)


def expression_for(
    text: str,
    model: Model,
    family: KnobSource,
    *,
    gpu: bool,
    cores: int,
    compiler: Iterable[Knob] = (),
    where: str = "--routes",
) -> Expression:
    """Parses an expression over all layers. Raises :class:`InputError`, for a serving knob that makes no sense for
    the model with that reason."""
    _, missing = serving.nameable_serving_knobs(model, gpu=gpu, cores=cores, family=family.name)
    for found in re.finditer(r"(?:^|\s)-([^\s=]+)=", text):
        if found.group(1) in missing:
            raise InputError(
                f"{found.group(1)} is not for this model: {missing[found.group(1)]}",
                where=where,
                field=f"character {found.start(1) + 1}",
                remedy="leave it out of the expression",
            )
    return parse_expression(text, nameable_knobs(model, family, gpu=gpu, cores=cores, compiler=compiler), where=where)


def space_of(
    text: str,
    model: Model,
    family: KnobSource,
    *,
    gpu: bool,
    cores: int,
    compiler: Iterable[Knob] = (),
    limit: int | None = None,
) -> tuple[Space, str]:
    """The space that an expression names, and that in words. Raises :class:`InputError`."""
    compiler = tuple(compiler)
    expression = expression_for(text, model, family, gpu=gpu, cores=cores, compiler=compiler)
    offered = nameable_knobs(model, family, gpu=gpu, cores=cores, compiler=compiler)
    space = space_over(expression, joint_constraints(), offered, limit=limit)
    for term in expression.terms:
        bounds = OPEN_ENDED.get(term.knob.name)
        if bounds is not None:
            for value in term.values:
                serving.check_number(term.knob, value, bounds)
    for knob in space.knobs:
        if knob.name == serving.MAX_BATCH_SIZE:
            _never_lower(knob, model.max_batch_size)
    if space.knobs and space.size == 1:
        only = Route.of((term.knob.name, term.values[-1]) for term in expression.terms)
        raise InputError(
            f"every route breaks a rule: {space.why_not(only) or 'all values are the defaults'}",
            where="--routes",
            field=expression.text,
            remedy="add the knob that is missing, or take the other out",
        )
    unsafe = f"; {', '.join(expression.unsafe)} may give wrong results" if expression.unsafe else ""
    return space, f"{space.size:,} routes from the expression, the default included{unsafe}"


def space_over(
    expression: Expression,
    constraints: Iterable[Constraint] = (),
    offered: Iterable[Knob] = (),
    *,
    limit: int | None = None,
) -> Space:
    """The product of an expression's terms; knobs pinned to their default drop out. ``offered`` are all knobs that
    could have been named: those that were not stay at their defaults."""
    pinned = expression.pins
    knobs = tuple(
        replace(term.knob, values=term.values)
        for term in expression.terms
        if not term.pinned or pinned.get(term.knob.name) is not None
    )
    return Space(knobs, tuple(constraints), pinned, _held(offered, knobs), limit)


def permitted(expansion: Expansion, space: Space) -> Iterator[Route]:
    """Routes of an expansion in its order, without repeats and without those that break a constraint of ``space``."""
    seen: set[Route] = set()
    for route in expansion.routes():
        if route not in seen and space.why_not(route) is None:
            seen.add(route)
            yield route


def joint_constraints() -> Iterator[Constraint]:
    """What must hold between knobs for a route to be served at all, or to mean anything."""
    batching, delay, preferred = serving.DYNAMIC_BATCHING, serving.QUEUE_DELAY, serving.PREFERRED_SIZES
    largest, graphs = serving.MAX_BATCH_SIZE, serving.CUDA_GRAPHS
    yield Constraint(
        (batching, delay), "a queue delay needs dynamic batching", lambda v: v[batching] == "on" or v[delay] == "0"
    )
    yield Constraint(
        (batching, preferred),
        "preferred batch sizes need dynamic batching",
        lambda v: v[batching] == "on" or v[preferred] == serving.NO_SIZES,
    )
    yield Constraint(
        (largest, preferred),
        "a preferred batch size is larger than max_batch_size",
        lambda v: max(serving.batch_sizes(v[preferred]), default=0) <= int(v[largest]),
    )
    yield Constraint(
        ("profiles", graphs),
        "CUDA graphs are captured for one profile's shapes",
        lambda v: v[graphs] == "off" or v["profiles"] == "single",
    )
    yield Constraint(
        ("precision", "keep_fp32"),
        "operators are kept in FP32 only where others are not",
        lambda v: v["keep_fp32"] == "overflow" or v["precision"] in {"fp16", "bf16"},
    )


def pruning_constraints(
    *, gpu: bool, cores: int, engine_memory_bytes: int | None = None, memory_limit_bytes: int | None = None
) -> Iterator[Constraint]:
    """What would be served but is not worth a build or a measurement, unless an expression names it."""
    batching, delay, preferred = serving.DYNAMIC_BATCHING, serving.QUEUE_DELAY, serving.PREFERRED_SIZES
    largest, instances = serving.MAX_BATCH_SIZE, serving.INSTANCES
    yield Constraint(
        (delay, preferred),
        "without a queue delay the batcher waits for no preferred size",
        lambda v: v[delay] != "0" or v[preferred] == serving.NO_SIZES,
    )
    yield Constraint(
        (batching, largest),
        "a larger max_batch_size is reached by dynamic batching only",
        lambda v: v[batching] == "on",
    )
    if not gpu:
        yield Constraint(
            (instances, INTRA_OP_THREADS),
            f"more than twice as many threads as the {cores} cores",
            lambda v: int(v[instances]) * (int(v[INTRA_OP_THREADS]) or cores) <= 2 * cores,
        )
    if engine_memory_bytes is not None and memory_limit_bytes is not None:
        yield Constraint(
            (instances,),
            f"{engine_memory_bytes / 2**20:.0f} MiB an instance do not fit {memory_limit_bytes / 2**20:.0f} MiB",
            lambda v: int(v[instances]) * engine_memory_bytes <= memory_limit_bytes,
        )


def _may_change(knob: Knob, numeric: bool) -> bool:
    if not knob.bounded or knob.knob_class is KnobClass.UNSAFE:
        return False
    return numeric or not _numeric(knob)


def _numeric(knob: Knob) -> bool:
    return knob.knob_class is KnobClass.NUMERIC


def _worth_trying(knob: Knob) -> Knob | None:
    wanted = WORTH_TRYING.get(knob.name, knob.values)
    if knob.name == "opt_batch" and len(knob.values) > 2:
        # The engine is tuned for one batch size: the largest, a small one, and one in between are told apart.
        wanted = (knob.values[0], knob.values[len(knob.values) // 2], knob.values[-1])
    values = tuple(value for value in knob.values if value in wanted or value == knob.default)
    return replace(knob, values=values) if set(values) - {knob.default} else None


def _never_lower(knob: Knob, today: int) -> None:
    lower = [value for value in knob.values if int(value) < today]
    if lower:
        raise InputError(
            f"{', '.join(lower)} is lower than today's {today}: requests that are accepted now would be refused",
            where="--routes",
            field=serving.MAX_BATCH_SIZE,
            remedy=f"name values of {today} or more",
        )


def _held(offered: Iterable[Knob], searched: Iterable[Knob]) -> tuple[tuple[str, str], ...]:
    names = {knob.name for knob in searched}
    return tuple((knob.name, knob.default) for knob in offered if knob.name not in names)


def _named(knobs: Sequence[Knob], layer: Layer) -> list[str]:
    return [knob.name for knob in knobs if knob.layer is layer]
