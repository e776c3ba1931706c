"""The engine families' contract: from a model and a route to a built engine and the config that serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from optimizer.records.engine import BuildFailure, Engine
from optimizer.records.model import Model
from optimizer.records.route import Knob, Route
from optimizer.records.samples import SampleSet

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig


@dataclass(frozen=True)
class BuildRequest:
    """One build. ``directory`` exists, is empty and belongs to this build; the files of the engine go there."""

    engine_id: str
    model: Model
    route: Route
    directory: Path
    source: Path | None = None
    """The ONNX file, where it is not the live version's own (``--onnx``)."""
    time_limit_s: float = 1800.0
    memory_limit_bytes: int | None = None
    gpu: str | None = None
    cache_directory: Path | None = None
    """For timing caches, shared between the routes of one study."""
    shapes: Sequence[Mapping[str, tuple[int, ...]]] = ()
    """The workload's own request shapes, batch dimension included where the model batches."""
    options: Mapping[str, str] = field(default_factory=dict)


class EngineFamily(Protocol):
    """``name`` is what ``--family`` says. A family never raises for one candidate's sake: it returns a failure."""

    name: str

    def available(self) -> str | None:
        """``None`` when it can build here, else one line: what is missing and how to get it."""

    def facts(self) -> Mapping[str, str]:
        """Builder and runtime versions, for the fingerprint."""

    def refuses(self, model: Model, source: Path | None = None) -> str | None:
        """``None`` when this family can serve the model, else the reason."""

    def knobs(self, model: Model) -> tuple[Knob, ...]:
        """The family's own knobs (no general serving knobs), with what this machine can do taken into account."""

    def build(self, request: BuildRequest, calibration: SampleSet | None = None) -> Engine | BuildFailure: ...

    def configure(self, config: ModelConfig, engine: Engine, route: Route) -> ModelConfig:
        """A new message: the as-found effective config, changed to serve ``engine`` under the family's knobs."""


@runtime_checkable
class HasBuildRoutes(Protocol):
    """A family whose builder has build routes (TensorRT 11.1 and later)."""

    def all_build_routes(self) -> str:
        """TensorRT's own JSON; ``""`` where the installed builder has none."""
