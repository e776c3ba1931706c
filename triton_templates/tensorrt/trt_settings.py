"""The native config as this backend reads it: which plan, which profiles, which CUDA graphs.

Takes the JSON of ``ModelConfig`` that Triton hands to python-based backends; imports the standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DEFAULT_GRAPH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
"""What the native backend captures without dynamic batching, besides the largest batch."""


class ConfigError(ValueError):
    """The config asks for what cannot be; the text names the field."""


@dataclass(frozen=True)
class TensorConfig:
    """``shape`` is what the backend sees: ``reshape`` where given, else ``dims``; without the batch dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    shape_tensor: bool = False
    optional: bool = False


@dataclass(frozen=True)
class GraphSpec:
    """One CUDA graph: for ``batch_size`` rows, and for fewer down to ``lower_bound`` by padding."""

    batch_size: int
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lower_bound: int | None = None


@dataclass(frozen=True)
class Settings:
    model: str
    max_batch_size: int
    inputs: tuple[TensorConfig, ...]
    outputs: tuple[TensorConfig, ...]
    plan_file: str
    plan_file_by_capability: Mapping[str, str]
    profiles: tuple[int, ...]
    graphs: bool
    graph_specs: tuple[GraphSpec, ...]
    parameters: Mapping[str, str]

    def plan_for(self, capability: tuple[int, int]) -> str:
        return self.plan_file_by_capability.get(f"{capability[0]}.{capability[1]}", self.plan_file)

    def flag(self, name: str) -> bool:
        return self.parameters.get(name, "").lower() in {"1", "true", "yes", "on"}


def read(config_json: str, instance_name: str) -> Settings:
    """Raises :class:`ConfigError`."""
    config = json.loads(config_json)
    max_batch = int(config.get("max_batch_size", 0))
    parameters = {name: str(value.get("string_value", "")) for name, value in config.get("parameters", {}).items()}
    cuda = config.get("optimization", {}).get("cuda", {})
    graphs = bool(cuda.get("graphs", False))
    inputs = tuple(_tensor(entry) for entry in config.get("input", ()))
    specs: tuple[GraphSpec, ...] = ()
    if graphs:
        specs = tuple(_graph_spec(entry) for entry in cuda.get("graph_spec", ())) or default_graphs(config)
    return Settings(
        model=str(config.get("name", "")),
        max_batch_size=max_batch,
        inputs=inputs,
        outputs=tuple(_tensor(entry) for entry in config.get("output", ())),
        plan_file=config.get("default_model_filename") or "model.plan",
        plan_file_by_capability=dict(config.get("cc_model_filenames", {})),
        profiles=_profiles(config, instance_name),
        graphs=graphs,
        graph_specs=specs,
        parameters=parameters,
    )


def instances_on(config_json: str, device: int) -> int:
    """How many instances of the model are on one GPU."""
    groups = json.loads(config_json).get("instance_group", ())
    return sum(int(g.get("count", 1)) * sum(int(gpu) == device for gpu in g.get("gpus", ())) for g in groups)


def default_graphs(config: Mapping[str, Any]) -> tuple[GraphSpec, ...]:
    """The native backend's choice where ``graph_spec`` is empty."""
    max_batch = int(config.get("max_batch_size", 0))
    if max_batch == 0:
        return (GraphSpec(0),)
    if "dynamic_batching" in config:
        preferred = config["dynamic_batching"].get("preferred_batch_size", ())
        sizes = {1, max_batch, *(int(size) for size in preferred)}
    else:
        sizes = {*DEFAULT_GRAPH_SIZES, max_batch}
    return tuple(GraphSpec(size) for size in sorted(sizes) if 0 < size <= max_batch)


def _tensor(entry: Mapping[str, Any]) -> TensorConfig:
    reshape = entry.get("reshape")
    dims = reshape.get("shape", ()) if isinstance(reshape, Mapping) else entry.get("dims", ())
    return TensorConfig(
        name=str(entry["name"]),
        datatype=str(entry.get("data_type", "")).removeprefix("TYPE_"),
        shape=tuple(int(size) for size in dims),
        shape_tensor=bool(entry.get("is_shape_tensor", False)),
        optional=bool(entry.get("optional", False)),
    )


def _shapes(entries: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(int(size) for size in value.get("dim", ())) for name, value in entries.items()}


def _graph_spec(entry: Mapping[str, Any]) -> GraphSpec:
    bound = entry.get("graph_lower_bound")
    return GraphSpec(
        batch_size=int(entry.get("batch_size", 0)),
        shapes=_shapes(entry.get("input", {})),
        lower_bound=int(bound.get("batch_size", 0)) if isinstance(bound, Mapping) else None,
    )


def _profiles(config: Mapping[str, Any], instance_name: str) -> tuple[int, ...]:
    """The ``profile`` list of this instance's group; without one, the native backend serves profile 0 only."""
    groups = config.get("instance_group", ())
    named = [g for g in groups if re.fullmatch(re.escape(str(g.get("name", ""))) + r"_\d+", instance_name)]
    group = max(named, key=lambda g: len(str(g["name"])), default=groups[0] if groups else {})
    try:
        return tuple(int(text) for text in group.get("profile", ())) or (0,)
    except ValueError:
        raise ConfigError(
            f"instance_group '{group.get('name', '')}': profile {list(group['profile'])} of model "
            f"'{config.get('name', '')}' must be a list of profile indexes"
        ) from None
