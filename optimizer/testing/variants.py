"""An engine family for tests: its routes choose between given model files, so that a real study meets known engines.

``-variant=NAME`` serves the files and config parameters of the variant ``NAME``; the default ``as-found`` serves the
model as it is. Everything else of a study (sandbox, load, accuracy, search, judge, ledger) is the real thing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.engines._base import BuildRequest
from optimizer.engines.families import UnchangedFamily
from optimizer.preparation import Preparation
from optimizer.records.engine import BuildFailure, BuildFailureReason, Engine
from optimizer.records.model import Model
from optimizer.records.route import Knob, Layer, Route
from optimizer.records.samples import SampleSet
from optimizer.routes.space import space_of
from optimizer.testing.models import ToyModel
from optimizer.triton.protobuf import parse_config

if TYPE_CHECKING:
    from optimizer.triton.protobuf import ModelConfig

KNOB = "variant"
DEFAULT = "as-found"


@dataclass(frozen=True)
class Variant:
    """``files`` of the version directory by name, and parameters that the config gets besides its own."""

    files: Mapping[str, bytes]
    parameters: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ToyModel) -> Variant:
        parameters = parse_config(model.config_text).parameters
        return cls(
            {"model.py": model.source.encode()}, {key: parameters[key].string_value for key in sorted(parameters)}
        )


class VariantFamily(UnchangedFamily):
    """``variants`` by name; a name that starts with ``fails`` does not build."""

    name = "variant"

    def __init__(self, variants: Mapping[str, Variant]) -> None:
        self._variants = dict(variants)

    def knobs(self, model: Model) -> tuple[Knob, ...]:  # noqa: ARG002
        return (Knob(KNOB, Layer.PRECISION, (DEFAULT, *self._variants), DEFAULT),)

    def build(self, request: BuildRequest, calibration: SampleSet | None = None) -> Engine | BuildFailure:
        name = request.route.get(KNOB, DEFAULT)
        if name == DEFAULT or name is None:
            return super().build(request, calibration)
        if name.startswith("fails"):
            return BuildFailure(request.engine_id, BuildFailureReason.PARSE_ERROR, "fails on purpose")
        variant = self._variants[name]
        files: dict[str, Path] = {}
        digest = hashlib.sha256(repr(sorted(variant.parameters.items())).encode())
        for file, content in variant.files.items():
            files[file] = request.directory / file
            files[file].write_bytes(content)
            digest.update(content)
        return Engine(
            engine_id=request.engine_id,
            family=self.name,
            files=files,
            sha256=digest.hexdigest(),
            size_bytes=sum(len(content) for content in variant.files.values()),
            build_s=0.0,
            builder="copied",
        )

    def configure(self, config: ModelConfig, engine: Engine, route: Route) -> ModelConfig:
        changed = super().configure(config, engine, route)
        name = route.get(KNOB, DEFAULT)
        if name != DEFAULT and name is not None:
            for key, value in self._variants[name].parameters.items():
                changed.parameters[key].string_value = value
        return changed


def with_variants(
    preparation: Preparation,
    variants: Mapping[str, Variant],
    *,
    expression: str | None = None,
    tune: SampleSet | None = None,
    held_out: SampleSet | None = None,
) -> Preparation:
    """``preparation`` (of the family ``unchanged``) with ``variants`` for candidates: all of them, or those of
    ``expression``; and other sample sets where given."""
    family, plan = VariantFamily(variants), preparation.plan
    expression = expression or f"-{KNOB}=[{'|'.join((DEFAULT, *variants))}]"
    space, why = space_of(expression, plan.model, family, gpu=False, cores=2)
    plan = replace(plan, family=family, space=space, tune=tune or plan.tune, held_out=held_out or plan.held_out)
    return replace(preparation, plan=plan, expansions=None, why={**preparation.why, "space": why})
