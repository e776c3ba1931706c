"""``knobs`` and ``routes``: what can be turned, and what an expression expands to. Builds nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optimizer.errors import InputError
from optimizer.records.route import Knob, Layer
from optimizer.routes.expansion import Search, expand
from optimizer.routes.expression import parse_expression
from optimizer.routes.knobs import KnobTable, load_knobs, parse_json, published_table


def knob_document(layer: str | None, source: Path | None, module: str | None) -> dict[str, Any]:
    """The knobs of a layer, or of every layer. Raises :class:`InputError` for an unknown layer or a bad file."""
    if layer is not None and layer not in {one.value for one in Layer}:
        raise InputError(
            f"unknown layer {layer!r}", field="--layer", remedy="use one of: " + ", ".join(one.value for one in Layer)
        )
    knobs: list[Knob] = []
    notes = []
    if layer in (None, Layer.COMPILER.value):
        table, note = compiler_table(source, module)
        knobs += table.knobs
        notes.append(note)
    if source is None and layer != Layer.COMPILER.value:
        found, note = family_knobs(module)
        knobs += [knob for knob in found if layer in (None, knob.layer.value)]
        notes.append(note)
    if layer in (None, Layer.SERVING.value) and source is None:
        notes.append("serving knobs depend on the model: `optimize REPO --model M --dry-run` lists them")
    return {
        "schema": 1,
        "kind": "table",
        "lines": [f"{len(knobs)} knobs"],
        "columns": ["layer", "knob", "values", "default", "class", "help"],
        "rows": [_row(knob) for knob in knobs],
        "knobs": [
            {
                "name": knob.name, "layer": knob.layer.value, "values": list(knob.values), "default": knob.default,
                "class": knob.knob_class.value, "bounded": knob.bounded, "help": knob.help,
            }
            for knob in knobs
        ],
        "notes": notes,
    }  # fmt: skip


def compiler_table(source: Path | None, module: str | None) -> tuple[KnobTable, str]:
    """Build routes: from a file, of the installed TensorRT, else the published table, which is then said to be one."""
    if source is not None:
        return load_knobs(source), f"compiler knobs: read from {source}"
    routes = _installed_routes(module)
    if routes:
        return parse_json(routes), f"compiler knobs: of the installed {module or 'tensorrt'}"
    return (
        published_table(),
        "compiler knobs: the published table of TensorRT 11.1, not an installed TensorRT: none here has build routes",
    )


def _installed_routes(module: str | None) -> str:
    from optimizer.engines.tensorrt import TensorRTFamily

    have = TensorRTFamily(module=module or "tensorrt").capabilities()
    return str(getattr(have, "all_build_routes", "") or "") if have is not None else ""


def family_knobs(module: str | None) -> tuple[Iterable[Knob], str]:
    """Knobs of the TensorRT family that do not depend on a model."""
    from optimizer.engines.tensorrt import TensorRTFamily
    from optimizer.engines.tensorrt.knobs import builder_layer_knobs

    family = TensorRTFamily(module=module or "tensorrt")
    have = family.capabilities()
    if have is None:
        return (), f"precision, builder and profile knobs: no TensorRT here ({family.available()})"
    return builder_layer_knobs(
        have
    ), f"precision and builder knobs: what {have.builder} has; profile knobs need a model"


def _row(knob: Knob) -> list[str]:
    values = "|".join(knob.values) if knob.bounded else "integer"
    return [knob.layer.value, knob.name, values, knob.default, knob.knob_class.value, knob.help]


def routes_document(
    expression: str, search: str, source: Path | None, module: str | None, limit: int
) -> dict[str, Any]:
    """``{"count", "routes": [text, …]}`` in trtexec's order."""
    try:
        kind = Search(search)
    except ValueError:
        raise InputError(
            f"unknown search {search!r}",
            field="--search",
            remedy="use one of: " + ", ".join(one.value for one in Search),
        ) from None
    table, note = compiler_table(source, module)
    expansion = expand(parse_expression(expression, table), kind)
    document = expansion.document(limit)
    routes = [str(route) for route in document["routes"]]  # type: ignore[attr-defined]
    shortened = [f"… and {expansion.count - len(routes)} more: --limit"] if expansion.count > len(routes) else []
    return {
        "schema": 1,
        "kind": "table",
        "count": expansion.count,
        "routes": routes,
        "search": kind.value,
        "lines": [f"{expansion.count} routes", *routes, *shortened],
        "notes": [note],
    }
